"""Past and present apart: each run returns the past with its new rows behind it."""

import numpy as np
import onnxruntime as ort

from edgespec.arrays import CacheRows
from edgespec.cache.base import CacheShape, check_rewind, rows_of, tensors_of


class GrowingCache:
    """The cache of a graph that concatenates, as most exporters write it.

    Every run copies the past, and a rewind must crop it: that waits until the next run needs it,
    and is left out when nothing was refused.
    """

    def __init__(self, shape: CacheShape, device: str = "cpu") -> None:
        """Hold nothing yet: the first past has length 0, never a dummy row."""
        self.shape = shape
        self.generation = 0
        self._device = device
        self._length = 0
        self._values = [self._held(np.zeros(t.axes, shape.dtype)) for t in shape.tensors]

    @property
    def length(self) -> int:
        """Positions held."""
        return self._length

    @property
    def bytes_held(self) -> int:
        """Bytes of the tensors held."""
        return self._rows_held() * self.shape.bytes_per_position

    def expect(self, length: int) -> None:
        """Nothing to do: see :meth:`reserve`."""

    def reserve(self, length: int) -> None:
        """Nothing to do: each run makes its own room."""

    def bind(self, binding: ort.IOBinding) -> None:
        """Bind the past, cropped if it was rewound, and leave the present to ONNX Runtime."""
        if self._rows_held() != self._length:
            self._crop()
        for (past, present), value in zip(self.shape.pairs, self._values, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_output(present, self._device)

    def advance(self, binding: ort.IOBinding, count: int) -> None:
        """Take the present of the run as the next past."""
        self._values = binding.get_outputs()[: len(self.shape.pairs)]
        self._length += count
        self.generation += 1

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` positions; the crop waits for the next run."""
        check_rewind(length, self._length)
        self._length = length
        self.generation += 1

    def read(self, length: int) -> CacheRows:
        """A copy of the first ``length`` positions of every tensor, [length, N]."""
        return rows_of(self.shape, [value.numpy() for value in self._values], length)

    def write(self, rows: CacheRows) -> None:
        """Hold a copy of ``rows`` [S, N] as the next past."""
        # Copied, as on the CPU an OrtValue shares the memory of its array (1.32, tried).
        self._values = [
            self._held(np.array(one, order="C")) for one in tensors_of(self.shape, rows)
        ]
        self._length = len(rows)
        self.generation += 1

    def _rows_held(self) -> int:
        return int(self._values[0].shape()[self.shape.tensors[0].positions])

    def _crop(self) -> None:
        # A slice along S is not contiguous: binding its pointer would read wrong rows in silence.
        kept = slice(self._length)
        self._values = [
            self._held(np.ascontiguousarray(value.numpy()[(slice(None),) * t.positions + (kept,)]))
            for t, value in zip(self.shape.tensors, self._values, strict=True)
        ]

    def _held(self, rows: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_numpy(rows, self._device, 0)
