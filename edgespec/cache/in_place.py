"""Past and present in one buffer: each run writes its new rows where they stay."""

import numpy as np
import onnxruntime as ort

from edgespec.arrays import CacheRows
from edgespec.cache.base import CacheShape, check_rewind, rows_of, tensors_of

STEP = 256
"""Buffers grow by multiples of this many positions, so that small texts take little memory."""


class InPlaceCache:
    """The cache of a graph with GroupQueryAttention; a rewind moves a counter.

    The graph reads as many positions as the attention mask is long and writes the new ones behind
    them. What lies beyond is never read, so forgetting costs nothing, whatever the length.
    """

    def __init__(self, shape: CacheShape, device: str = "cpu", max_length: int | None = None):
        """Hold nothing yet.

        Args:
            shape: The tensors to hold.
            device: ``"cpu"``, or ``"cuda"`` for buffers that stay on the device.
            max_length: The most positions that will ever be asked for; None leaves it open.
        """
        self.shape = shape
        self.generation = 0
        self._device = device
        self._max_length = max_length
        self._length = 0
        self._capacity = 0
        self._values: list[ort.OrtValue] = []
        self._block: CacheRows | None = None  # their memory, on the CPU

    @property
    def length(self) -> int:
        """Positions held."""
        return self._length

    @property
    def bytes_held(self) -> int:
        """Bytes of the buffers, whether filled or not."""
        return self._capacity * self.shape.bytes_per_position

    def expect(self, length: int) -> None:
        """Make room at once: what is not filled costs memory alone, and only when touched."""
        self.reserve(length)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions; what is held is copied when the buffers grow."""
        if length <= self._capacity:
            return
        capacity = self._capacity_for(length)
        if self._max_length is not None:
            capacity = min(capacity, max(self._max_length, length))
        # Zeros come from the system page by page as they are touched, and one large block goes
        # back to it when it is dropped; many small ones stay with the process.
        block = np.zeros(
            (len(self.shape.pairs), 1, self.shape.num_heads, capacity, self.shape.head_size),
            self.shape.dtype,
        )
        if self._length:
            for rows, value in zip(block, self._values, strict=True):
                rows[:, :, : self._length] = value.numpy()[:, :, : self._length]
        # On the CPU an OrtValue shares the array's memory and keeps it alive (1.32, tried).
        self._values = [ort.OrtValue.ortvalue_from_numpy(r, self._device, 0) for r in block]
        self._block = block if self._device == "cpu" else None
        self._capacity = capacity
        self.generation += 1

    def _capacity_for(self, length: int) -> int:
        return -(-max(length, self._capacity * 5 // 4) // STEP) * STEP

    def bind(self, binding: ort.IOBinding) -> None:
        """Bind each buffer as past and as present."""
        for (past, present), value in zip(self.shape.pairs, self._values, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)

    def advance(self, binding: ort.IOBinding, count: int) -> None:
        """Count the rows that the run has written."""
        self._length += count

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` positions: no copy, the rows beyond are overwritten later."""
        check_rewind(length, self._length)
        self._length = length

    def read(self, length: int) -> CacheRows:
        """A copy of the first ``length`` positions of every tensor, [length, N]."""
        if not self._values:
            self.reserve(length)
        return rows_of(self.shape, [value.numpy() for value in self._values], length)

    def write(self, rows: CacheRows) -> None:
        """Put ``rows`` [S, N] where they stay; the bindings remain right."""
        count = len(rows)
        self._length = 0
        self.reserve(count)
        for i, new in enumerate(tensors_of(self.shape, rows)):
            if self._block is not None:
                self._block[i, :, :, :count] = new
            else:
                held = self._values[i].numpy()
                held[:, :, :count] = new
                self._values[i].update_inplace(held)
        self._length = count
