"""What every cache layout can do, and the tensors that it is made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgespec.arrays import CacheRows
from edgespec.errors import CacheRewindError


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor of a graph's past.

    Attributes:
        past: Name of the input.
        present: Name of the output.
        order: Letter of each axis: ``("B", "H", "S", "D")``, or as another exporter has them;
            "2" is keys and values side by side, "2D" one behind the other.
        axes: Size of each axis, with one text and no position held.
    """

    past: str
    present: str
    order: tuple[str, ...]
    axes: tuple[int, ...]

    @property
    def positions(self) -> int:
        """The axis along which the positions lie."""
        return self.order.index("S")

    @property
    def size(self) -> int:
        """Numbers held of one position."""
        return prod(self.axes[: self.positions] + self.axes[self.positions + 1 :])


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The tensors that hold a graph's past.

    Attributes:
        tensors: In layer order, a layer's keys before its values.
        num_heads: H of the first layer.
        head_size: D of the first layer.
        dtype: Element type that the graph declares.
    """

    tensors: tuple[CacheTensor, ...]
    num_heads: int
    head_size: int
    dtype: np.dtype[np.generic]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Input and output name of each tensor."""
        return tuple((tensor.past, tensor.present) for tensor in self.tensors)

    @property
    def in_words(self) -> str:
        """The order of the axes, once for each that there is: ``[B, H, S, D]``."""
        return ", ".join(dict.fromkeys(f"[{', '.join(t.order)}]" for t in self.tensors))

    @property
    def is_uniform(self) -> bool:
        """Whether every tensor is [1, H, S, D], of the same H and D."""
        axes = (1, self.num_heads, 0, self.head_size)
        return all(t.order == ("B", "H", "S", "D") and t.axes == axes for t in self.tensors)

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one cached token takes in all layers."""
        return sum(tensor.size for tensor in self.tensors) * self.dtype.itemsize


class Cache(Protocol):
    """The past of one text.

    Attributes:
        shape: The tensors that it holds.
        generation: Changes whenever bindings made before are no longer right.
    """

    shape: CacheShape
    generation: int

    @property
    def length(self) -> int:
        """Positions held."""

    @property
    def bytes_held(self) -> int:
        """Bytes of the buffers, whether filled or not."""

    def expect(self, length: int) -> None:
        """Hear that the text may come to ``length`` positions, and make room where that pays."""

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions in all."""

    def bind(self, binding: ort.IOBinding) -> None:
        """Bind past and present for the next run; on a new binding before any other output."""

    def advance(self, binding: ort.IOBinding, count: int) -> None:
        """Take over what a run on ``binding`` added: ``count`` positions."""

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` positions and forget the rest.

        Raises:
            CacheRewindError: If ``length`` is negative or more than the cache holds.
        """

    def read(self, length: int) -> CacheRows:
        """A copy of the first ``length`` positions of every tensor, [length, N]."""

    def write(self, rows: CacheRows) -> None:
        """Hold a copy of ``rows`` [S, N] that :meth:`read` gave, and nothing else."""


def rows_of(shape: CacheShape, values: Sequence[NDArray[Any]], length: int) -> CacheRows:
    """The first ``length`` positions of a cache's tensors, [length, N], copied."""
    return np.concatenate(
        [
            np.moveaxis(value, tensor.positions, 0)[:length].reshape(length, tensor.size)
            for tensor, value in zip(shape.tensors, values, strict=True)
        ],
        axis=1,
    )


def tensors_of(shape: CacheShape, rows: CacheRows) -> Iterator[NDArray[Any]]:
    """``rows`` [S, N] as views, one for each tensor of a cache, with its axes."""
    start = 0
    for tensor in shape.tensors:
        others = tensor.axes[: tensor.positions] + tensor.axes[tensor.positions + 1 :]
        part = rows[:, start : start + tensor.size].reshape(len(rows), *others)
        yield np.moveaxis(part, 0, tensor.positions)
        start += tensor.size


def check_rewind(length: int, held: int) -> None:
    """Refuse a rewind to a length that was never reached; the cache stays as it is."""
    if not 0 <= length <= held:
        raise CacheRewindError(f"cannot rewind to {length} positions: the cache holds {held}")
