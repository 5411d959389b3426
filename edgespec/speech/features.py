"""Log-mel features, as Whisper's encoder was trained on them."""

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

RATE = 16_000
"""Samples a second."""
HOP = 160
"""Samples from one frame to the next."""
WIDTH = 400
"""Samples of a frame."""
HIGHEST = 8_000.0
"""Hz of the highest filter's upper end."""
_LINEAR_HZ = 200.0 / 3
"""Hz a mel below 1 kHz; above, the scale is logarithmic."""
_BREAK_HZ, _BREAK_MEL = 1000.0, 15.0
_LOG_STEP = np.log(6.4) / 27.0

Samples = NDArray[np.float32]
"""[N] one channel of sound, from -1 to 1."""


def log_mel(samples: Samples, num_mels: int, num_frames: int) -> NDArray[np.float32]:
    """Features [num_mels, num_frames] of ``samples`` [N]; silence fills what is missing.

    The loudest point sets the floor, 8 powers of ten below it, as in Whisper's own
    ``log_mel_spectrogram``.

    Source: Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision, 2022,
    https://arxiv.org/abs/2212.04356, section 2.2.
    """
    padded = np.zeros(num_frames * HOP, np.float32)
    count = min(len(samples), len(padded))
    padded[:count] = samples[:count]
    # Frames are centred on their time: half a frame is mirrored at both ends.
    padded = np.pad(padded, WIDTH // 2, mode="reflect")
    frames = sliding_window_view(padded, WIDTH)[::HOP][:num_frames]  # [F, WIDTH]
    spectrum = np.fft.rfft(frames * _window(), axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)  # [F, WIDTH/2 + 1]
    mel = np.log10(np.maximum(power @ mel_filters(num_mels), 1e-10))  # [F, M]
    found: NDArray[np.float32] = (np.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(found.T, np.float32)


@lru_cache(maxsize=1)
def _window() -> NDArray[np.float32]:
    """Hann's, periodic."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WIDTH) / WIDTH)).astype(np.float32)


@lru_cache(maxsize=4)
def mel_filters(num_mels: int) -> NDArray[np.float32]:
    """Triangles [WIDTH/2 + 1, num_mels] on Slaney's mel scale, each of the same area.

    Source: Slaney, Auditory Toolbox, 1998, as librosa's ``filters.mel`` has it by default.
    """
    ends = _to_hz(np.linspace(0.0, _to_mel(HIGHEST), num_mels + 2))  # [M + 2]
    bins = np.linspace(0.0, RATE / 2, WIDTH // 2 + 1)[:, None]
    left, middle, right = ends[:-2], ends[1:-1], ends[2:]
    rising = (bins - left) / (middle - left)
    falling = (right - bins) / (right - middle)
    filters = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (right - left))
    found: NDArray[np.float32] = filters.astype(np.float32)
    return found


def _to_mel(hz: float) -> float:
    return float(_BREAK_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _to_hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    high = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels < _BREAK_MEL, _LINEAR_HZ * mels, high)
