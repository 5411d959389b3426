"""One buffer for past and present that texts of different lengths can share, grown in steps."""

from edgespec.cache.in_place import InPlaceCache

STEP = 64
"""Buffers grow by multiples of this many positions, or by an eighth where that is more."""


class StaticCache(InPlaceCache):
    """The cache of a graph with TensorScatter and Attention; a rewind moves a counter.

    The graph works through the whole buffer, filled or not: nothing is reserved ahead, and the
    buffer stays within an eighth of what is held.
    """

    def expect(self, length: int) -> None:
        """Nothing: room that is not needed yet would cost time in every step."""

    def _capacity_for(self, length: int) -> int:
        return -(-max(length, self._capacity * 9 // 8) // STEP) * STEP
