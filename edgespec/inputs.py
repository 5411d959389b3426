"""What a forward reads besides the cache: a few small arrays, bound once for a number of rows."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgespec.arrays import TokenIds
from edgespec.errors import GraphMismatchError
from edgespec.session import Session, Slot

AnyArray: TypeAlias = NDArray[Any]

_RANKS = {
    "input_ids": (2,),
    "attention_mask": (2,),
    "position_ids": (2,),
    "num_logits_to_keep": (0, 1),
    "use_cache_branch": (0, 1),
}
"""The inputs that are known, by their number of axes."""


def check_inputs(path: object, inputs: Mapping[str, Slot], pasts: frozenset[str]) -> None:
    """Refuse a graph that wants to be told more than a text.

    Args:
        path: The graph's file, for messages.
        inputs: Its inputs.
        pasts: Those that hold the cache.

    Raises:
        GraphMismatchError: If an input is unknown, or has another shape than it should.
    """
    for name, slot in inputs.items():
        if name not in _RANKS and name not in pasts:
            raise GraphMismatchError(
                f"{path} has the input {name!r}, which is not one of a decoder with a cache; "
                "export it again: edgespec export MODEL"
            )
        if name in _RANKS and len(slot.shape) not in _RANKS[name]:
            raise GraphMismatchError(
                f"{path} has the input {name!r} of shape {list(slot.shape)}, "
                f"expected {_RANKS[name][-1]} axes; export it again: edgespec export MODEL"
            )


class Inputs:
    """The arrays of a forward of some rows, each of the element type that the graph declares.

    ``bind_cpu_input`` shares an array's memory, so writing to it is all that a repeated forward
    needs. The arrays are kept here: a binding keeps them alive itself only from onnxruntime 1.25.

    Attributes:
        binding: Where they are bound.
        rows: N, tokens of a forward.
        input_ids: [1, N] what is read.
        position_ids: [1, N] and where it stands.
    """

    def __init__(self, session: Session, binding: ort.IOBinding, rows: int) -> None:
        """Bind arrays for ``rows`` tokens."""
        self._session, self.binding, self.rows = session, binding, rows
        self._arrays: dict[str, AnyArray] = {}
        self.input_ids = self._add("input_ids", (1, rows))
        self.position_ids = self._add("position_ids", (1, rows))
        self._use_cache_branch = self._add("use_cache_branch")
        self._add("num_logits_to_keep")[...] = rows
        self._ones = self._array("attention_mask", (1, 0))
        self._bind()

    def write(self, tokens: TokenIds, past: int) -> None:
        """Feed ``tokens`` [N] behind ``past`` cached ones."""
        self.input_ids[0] = tokens
        self.position_ids[0] = np.arange(past, past + self.rows)
        self._use_cache_branch[...] = past > 0
        if "attention_mask" in self._session.inputs:
            self.binding.bind_cpu_input("attention_mask", self._mask(past + self.rows))
        if self._session.device != "cpu":
            self._bind()  # another device gets a copy of what the arrays hold when they are bound
            self.binding.synchronize_inputs()

    def _bind(self) -> None:
        for name, array in self._arrays.items():
            self.binding.bind_cpu_input(name, array)

    def _add(self, name: str, shape: tuple[int, ...] = ()) -> AnyArray:
        """An array to write to; the graph reads it if it has such an input."""
        array = self._array(name, shape)
        if name in self._session.inputs:
            self._arrays[name] = array
        return array

    def _array(self, name: str, shape: tuple[int, ...]) -> AnyArray:
        slot = self._session.inputs.get(name)
        if slot is None:
            return np.zeros(shape, np.int64)
        return np.zeros(shape or (1,) * len(slot.shape), slot.dtype)

    def _mask(self, length: int) -> AnyArray:
        """[1, length] of ones: one text has no padding to hide."""
        if self._ones.shape[1] < length:
            self._ones = np.ones((1, length * 2), self._ones.dtype)
        return self._ones[:, :length]
