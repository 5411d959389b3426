"""Sound at another rate, piece by piece, each piece as if all had been converted at once."""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, gcd

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edgespec.speech.features import RATE, Samples

_LOBES = 16
"""Zero crossings of the filter on each side: aliases lie 60 dB below the sound."""
_ROLL_OFF = 0.95
"""Where the filter starts to cut, as a share of the highest frequency that both rates hold."""


def resampled(read: Callable[[int, int], Samples], rate: int, first: int, count: int) -> Samples:
    """Samples ``first`` to ``first + count`` at 16 kHz of a sound at ``rate``.

    Args:
        read: Gives samples [start, stop) of the sound, fewer at its end; start is 0 or more.
        rate: Samples a second of the sound.
        first: Counted at 16 kHz from the sound's beginning.
        count: How many.
    """
    if rate == RATE:
        return read(first, first + count)
    shared = gcd(rate, RATE)
    up, down = RATE // shared, rate // shared
    filters = _filters(up, down)  # [up, taps]
    taps = filters.shape[1]
    before = taps // 2
    start = first * down // up - before + 1
    stop = (first + count - 1) * down // up + taps - before + 1
    sound = read(max(start, 0), stop)
    available = max(start, 0) + len(sound)
    count = min(count, max(0, -(-available * up // down) - first))
    sound = np.pad(sound, (max(-start, 0), stop - available))
    windows = sliding_window_view(sound, taps)
    found = np.empty(count, np.float32)
    for phase in range(min(up, count)):
        at = (first + phase) * down
        rows = windows[at // up - before + 1 - start :: down][: len(found[phase::up])]
        found[phase::up] = rows @ filters[at % up]
    return found


@lru_cache(maxsize=4)
def _filters(up: int, down: int) -> NDArray[np.float32]:
    """[up, taps] a windowed sinc for each place of a new sample between two old ones."""
    cut = min(1.0, up / down) * _ROLL_OFF  # as a share of the old rate's highest frequency
    reach = ceil(_LOBES / cut)
    taps = np.arange(-reach + 1, reach + 1)  # of the old samples around
    places = taps[None, :] - np.arange(up)[:, None] / up  # [up, 2 reach]
    window = np.cos(np.clip(places / reach, -1, 1) * np.pi / 2) ** 2
    filters = np.sinc(places * cut) * cut * window
    found: NDArray[np.float32] = (filters / filters.sum(1, keepdims=True)).astype(np.float32)
    return found
