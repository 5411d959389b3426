"""Sound from files and arrays, at 16 kHz and in one channel, a piece at a time."""

import os
import wave
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import AudioError, MissingExtraError
from edgespec.speech.features import RATE, Samples
from edgespec.speech.resample import resampled

Sound = str | PathLike[str] | NDArray[Any]
"""A file, or samples [N] or [N, channels]: floats from -1 to 1, or whole numbers as in files."""

_SLOWEST, _FASTEST = 1_000, 768_000


class Audio(AbstractContextManager["Audio"]):
    """A sound that is read where it is needed: a file of hours takes no more memory than a window.

    Attributes:
        rate: Samples a second as recorded.
        frames: Samples of a channel as recorded.
    """

    def __init__(
        self,
        read: Callable[[int, int], NDArray[np.float32]],
        rate: int,
        frames: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Read with ``read``, which gives frames [start, stop) as [N, channels]."""
        self.rate, self.frames = rate, frames
        self._read, self._close = read, close

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._close()

    @property
    def duration_s(self) -> float:
        """Seconds of sound."""
        return self.frames / self.rate

    def samples(self, first: int, count: int) -> Samples:
        """Samples ``first`` to ``first + count`` at 16 kHz, fewer at the end.

        Raises:
            AudioError: If the file cannot be read here, or holds what is no number.
        """
        found = resampled(self._mono, self.rate, first, count)
        if not np.isfinite(found).all():
            raise AudioError(
                f"the sound holds values that are no numbers between {first / RATE:.1f} and "
                f"{(first + count) / RATE:.1f} seconds; record or convert it again"
            )
        clipped: Samples = np.clip(found, -1.0, 1.0)
        return clipped

    def _mono(self, start: int, stop: int) -> Samples:
        """The mean of the channels."""
        sound = self._read(start, min(stop, self.frames))
        return sound[:, 0] if sound.shape[1] == 1 else sound.mean(axis=1, dtype=np.float32)


def open_audio(sound: Sound, sampling_rate: int = RATE) -> Audio:
    """Open a file or wrap an array.

    Args:
        sound: WAV files are read by Python itself, others need the extra ``audio``.
        sampling_rate: Samples a second of an array; files say their own.

    Raises:
        AudioError: If there is no such file, or it is no sound.
        MissingExtraError: If it is not a WAV file and ``soundfile`` is not installed.
        ValueError: If an array has the wrong shape or type.
    """
    if isinstance(sound, np.ndarray):
        return _of_array(sound, sampling_rate)
    path = Path(os.path.expanduser(sound))
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise AudioError(f"{path} {kind}; pass a file of sound")
    try:
        return _of_wave(path)
    except (wave.Error, EOFError) as error:
        return _of_soundfile(path, str(error) or "the file is empty")
    except OSError as error:
        raise AudioError(f"{path} cannot be read: {error.strerror}") from None


def _of_array(sound: NDArray[Any], rate: int) -> Audio:
    if not _SLOWEST <= rate <= _FASTEST:
        raise ValueError(f"sampling_rate must be {_SLOWEST} to {_FASTEST} a second, got {rate}")
    if sound.ndim not in (1, 2) or (sound.ndim == 2 and not 1 <= sound.shape[1] <= 64):
        raise ValueError(
            f"samples must be an array [N] or [N, channels], got the shape {list(sound.shape)}"
        )
    if sound.dtype.kind not in "iuf":
        raise ValueError(f"samples must be numbers, got an array of {sound.dtype}")
    rows = sound if sound.ndim == 2 else sound[:, None]
    return Audio(lambda start, stop: _in_floats(rows[start:stop]), rate, len(rows))


def _in_floats(sound: NDArray[Any]) -> NDArray[np.float32]:
    """From -1 to 1, whatever the type."""
    if sound.dtype.kind == "f":
        return sound.astype(np.float32, copy=False)
    limit = 2 ** (8 * sound.dtype.itemsize - 1)
    middle = limit if sound.dtype.kind == "u" else 0
    scaled: NDArray[np.float64] = (sound.astype(np.float64) - middle) / limit
    return scaled.astype(np.float32)


def _of_wave(path: Path) -> Audio:
    """A WAV file of whole numbers.

    Raises:
        wave.Error, EOFError: If it is none.
    """
    file = wave.open(str(path), "rb")  # noqa: SIM115 - Audio closes it
    channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
    if not _SLOWEST <= rate <= _FASTEST:
        file.close()
        raise AudioError(f"{path} has {rate} samples a second, expected {_SLOWEST} to {_FASTEST}")
    # A file that was written to a pipe says that it is as long as can be.
    frames = min(file.getnframes(), path.stat().st_size // (channels * width))

    def read(start: int, stop: int) -> NDArray[np.float32]:
        if start >= stop:
            return np.empty((0, channels), np.float32)
        file.setpos(start)
        raw = file.readframes(stop - start)
        raw = raw[: len(raw) // (channels * width) * channels * width]
        return _in_floats(_numbers(raw, width)).reshape(-1, channels)

    return Audio(read, rate, frames, file.close)


def _numbers(raw: bytes, width: int) -> NDArray[Any]:
    """Samples of ``width`` bytes, as WAV files hold them: little-endian, unsigned in one byte."""
    if width == 3:
        bytes_of = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(bytes_of), 4), np.uint8)
        wide[:, 1:] = bytes_of
        return wide.view("<i4")[:, 0]
    return np.frombuffer(raw, {1: "u1", 2: "<i2", 4: "<i4"}[width])


def _of_soundfile(path: Path, reason: str) -> Audio:
    """Any other format, by way of the package soundfile."""
    try:
        import soundfile
    except ImportError:
        raise MissingExtraError(
            f"{path} is not a WAV file of whole numbers ({reason}); other formats need the package "
            'soundfile: pip install "edgespec[audio]"'
        ) from None
    try:
        file = soundfile.SoundFile(str(path))
    except soundfile.SoundFileError:
        raise AudioError(
            f"{path} is not a file of sound that can be read ({reason}); convert it to WAV"
        ) from None

    def read(start: int, stop: int) -> NDArray[np.float32]:
        file.seek(min(start, file.frames))
        found: NDArray[np.float32] = file.read(
            max(0, stop - start), dtype="float32", always_2d=True
        )
        return found

    return Audio(read, file.samplerate, file.frames, file.close)
