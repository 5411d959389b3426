"""What every cache layout can do, and the names of a cache's inputs and outputs in a graph."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnxruntime as ort

from edgespec.errors import CacheRewindError, GraphMismatchError
from edgespec.session import Slot

_PAST = re.compile(r"^past_key_values\.(\d+)\.(key|value)$")


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The tensors that hold a graph's past.

    Attributes:
        pairs: Input and output name of each tensor, ``past_key_values.N.key|value`` and
            ``present.N.key|value``, 2 x L in layer order.
        num_heads: H of one layer, the same for all.
        head_size: D.
        dtype: Element type that the graph declares.
    """

    pairs: tuple[tuple[str, str], ...]
    num_heads: int
    head_size: int
    dtype: np.dtype[np.generic]

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one cached token takes in all layers."""
        return len(self.pairs) * self.num_heads * self.head_size * self.dtype.itemsize


def cache_shape(
    path: object,
    inputs: Mapping[str, Slot],
    outputs: Mapping[str, Slot],
    head_size: int | None = None,
) -> CacheShape:
    """Read the cache off a graph's inputs and outputs.

    Args:
        path: The graph's file, for messages.
        inputs: The graph's inputs by name.
        outputs: The graph's outputs by name.
        head_size: D where the graph leaves it open and a configuration file says it.

    Raises:
        GraphMismatchError: If there is no cache, or it is not one that this package can hold.
    """
    found = sorted((int(m[1]), m[2], m[0]) for name in inputs if (m := _PAST.match(name)))
    if not found:
        raise GraphMismatchError(
            f"{path} has no input 'past_key_values.0.key' [1, H, S, D]; "
            "export it with a cache: edgespec export MODEL"
        )
    pairs = tuple((name, f"present.{layer}.{part}") for layer, part, name in found)
    for _, present in pairs:
        if present not in outputs:
            raise GraphMismatchError(f"{path} has no output {present!r}; export the model again")
    first = inputs[pairs[0][0]]
    heads, size = first.shape[1], first.shape[3] if len(first.shape) == 4 else None
    size = size if isinstance(size, int) else head_size
    if len(first.shape) != 4 or not isinstance(heads, int) or not isinstance(size, int):
        raise GraphMismatchError(
            f"{path} has the input {first.name!r} of shape {list(first.shape)}, "
            "expected [batch, H, S, D] with H and D fixed; export the model again"
        )
    return CacheShape(pairs, heads, size, first.dtype)


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


def check_rewind(length: int, held: int) -> None:
    """Refuse a rewind to a length that was never reached; the cache stays as it is."""
    if not 0 <= length <= held:
        raise CacheRewindError(f"cannot rewind to {length} positions: the cache holds {held}")
