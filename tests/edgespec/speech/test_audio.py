"""Any sound comes out at 16 kHz in one channel; what is none is named in a sentence."""

import re
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.errors import AudioError, MissingExtraError
from edgespec.speech.audio import open_audio
from edgespec.speech.resample import resampled


def tone(rate: int, seconds: float = 1.0, hz: float = 440.0) -> NDArray[np.float64]:
    return np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate)


def write_wav(path: Path, sound: NDArray[np.float64], rate: int, width: int = 2) -> Path:
    """A file of ``sound`` [N] or [N, channels], in samples of ``width`` bytes."""
    rows = sound if sound.ndim == 2 else sound[:, None]
    limit = 2 ** (8 * width - 1)
    whole = np.clip(np.round(rows * limit), -limit, limit - 1).astype(np.int64)
    if width == 1:
        whole += limit
    raw = whole.astype("<i8").tobytes()
    bytes_of = np.frombuffer(raw, np.uint8).reshape(-1, 8)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(rows.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(bytes_of.tobytes())
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_any_width_are_read(width: int, tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", 0.5 * tone(16_000), 16_000, width)
    with open_audio(path) as audio:
        assert np.abs(audio.samples(0, 20_000) - 0.5 * tone(16_000)).max() < max(
            1e-7, 2.0 ** (2 - 8 * width)
        )


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_any_rate_becomes_16_khz(rate: int, tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", 0.5 * tone(rate), rate)
    with open_audio(path) as audio:
        found = audio.samples(0, 20_000)
    assert len(found) == 16_000
    assert np.abs(found - 0.5 * tone(16_000))[200:-200].max() < 2e-3


def test_what_16_khz_cannot_hold_is_left_out() -> None:
    shrill = open_audio(tone(48_000, hz=11_000.0), 48_000).samples(0, 16_000)
    assert np.abs(shrill[200:-200]).max() < 2e-3


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_pieces_are_those_of_the_whole(rate: int) -> None:
    sound = np.random.default_rng(0).standard_normal(2 * rate).astype(np.float32)

    def read(start: int, stop: int) -> NDArray[np.float32]:
        return sound[start:stop]

    whole = resampled(read, rate, 0, 40_000)
    pieces = [resampled(read, rate, first, 3_001) for first in range(0, 33_000, 3_001)]
    assert len(whole) == 32_000
    assert np.abs(np.concatenate(pieces) - whole).max() < 1e-6


def test_channels_are_joined(tmp_path: Path) -> None:
    both = np.stack([0.6 * tone(16_000), 0.2 * tone(16_000)], axis=1)
    with open_audio(write_wav(tmp_path / "a.wav", both, 16_000)) as audio:
        assert np.abs(audio.samples(0, 16_000) - 0.4 * tone(16_000)).max() < 1e-3


@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.int32, np.uint8])
def test_arrays_of_any_type_are_taken(dtype: Any) -> None:
    sound = 0.5 * tone(16_000)
    limit = 1 if dtype is np.float64 else np.iinfo(dtype).max / (2 if dtype is np.uint8 else 1)
    given = (sound * limit + (128 if dtype is np.uint8 else 0)).astype(dtype)
    assert np.abs(open_audio(given).samples(0, 16_000) - sound).max() < 0.02


def test_what_is_too_loud_is_clipped() -> None:
    assert np.abs(open_audio(9 * tone(16_000)).samples(0, 16_000)).max() == 1.0


def test_a_file_that_was_written_to_a_pipe_is_as_long_as_it_is(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tone(16_000), 16_000)
    raw = bytearray(path.read_bytes())
    raw[4:8] = raw[40:44] = b"\xff\xff\xff\x7f"
    path.write_bytes(raw)
    with open_audio(path) as audio:
        assert len(audio.samples(0, 50_000)) == 16_000
        assert len(audio.samples(32_000, 50_000)) == 0
        assert audio.duration_s == pytest.approx(1.0, abs=0.01)


def test_an_empty_sound_has_no_samples(tmp_path: Path) -> None:
    with open_audio(write_wav(tmp_path / "a.wav", np.empty(0), 16_000)) as audio:
        assert len(audio.samples(0, 100)) == 0


def test_values_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(AudioError) as raised:
        open_audio(np.array([0.0, np.nan])).samples(0, 16_000)
    assert str(raised.value) == (
        "the sound holds values that are no numbers between 0.0 and 1.0 seconds; record or "
        "convert it again"
    )


@pytest.mark.parametrize("content", [b"", b"not sound at all, only words"], ids=["empty", "text"])
def test_what_is_no_wav_file_names_the_extra(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    path = tmp_path / "a.mp3"
    path.write_bytes(content)
    with pytest.raises(MissingExtraError) as raised:
        open_audio(path)
    assert re.fullmatch(
        re.escape(f"{path} is not a WAV file of whole numbers (")
        + r".+\); other formats need the package soundfile: "
        + re.escape('pip install "edgespec[audio]"'),
        str(raised.value),
    )


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AudioError) as raised:
        open_audio(tmp_path / "no.wav")
    assert str(raised.value) == f"{tmp_path / 'no.wav'} does not exist; pass a file of sound"
    with pytest.raises(AudioError, match="is a folder; pass a file of sound"):
        open_audio(tmp_path)


@pytest.mark.parametrize(
    ("sound", "rate", "message"),
    [
        (np.zeros((2, 2, 2)), 16_000, "samples must be an array .*, got the shape"),
        (np.zeros(3, bool), 16_000, "samples must be numbers, got an array of bool"),
        (np.zeros(3), 10, "sampling_rate must be 1000 to 768000 a second, got 10"),
    ],
)
def test_arrays_that_are_no_sound_are_refused(sound: NDArray[Any], rate: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_audio(sound, rate)
