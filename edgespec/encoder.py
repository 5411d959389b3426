"""What an encoder makes of a source, and a decoder that reads on it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edgespec.arrays import Logits, TokenIds
from edgespec.errors import GraphMismatchError
from edgespec.model import CausalLM
from edgespec.session import Session

HIDDEN = "encoder_hidden_states"

Source = TokenIds | NDArray[np.float32]
"""[N] token ids of a text, or [M, F] log-mel features of speech."""


@dataclass(frozen=True, slots=True)
class Heard:
    """An encoder's output [1, N, E], where it was computed."""

    hidden: ort.OrtValue

    @property
    def width(self) -> int:
        """E."""
        return int(self.hidden.shape()[2])


class Encoder:
    """Turns a source into what decoders attend to."""

    def __init__(self, session: Session) -> None:
        """Encode with ``session``, of ``encoder.onnx``.

        Raises:
            GraphMismatchError: If the graph takes more than a source, or gives no hidden states.
        """
        if len(session.inputs) != 1 or HIDDEN not in session.outputs:
            raise GraphMismatchError(
                f"{session.path} takes {', '.join(session.inputs)} and gives "
                f"{', '.join(session.outputs)}, expected one source and {HIDDEN!r}; "
                "export the model again"
            )
        self._session = session
        (self.source,) = session.inputs.values()

    def encode(self, source: Source) -> Heard:
        """Read ``source`` whole."""
        array = np.ascontiguousarray(source[None])
        binding = self._session.new_binding()
        binding.bind_cpu_input(self.source.name, array)
        binding.bind_output(HIDDEN, self._session.device)
        self._session.run(binding)
        return Heard(binding.get_outputs()[0])


class CrossAttention:
    """Makes a decoder's keys and values of an encoder's output, which may be another model's."""

    def __init__(self, session: Session) -> None:
        """Compute with ``session``, of ``cross.onnx``.

        Raises:
            GraphMismatchError: If the graph does not take hidden states.
        """
        if list(session.inputs) != [HIDDEN]:
            raise GraphMismatchError(
                f"{session.path} takes {', '.join(session.inputs)}, expected {HIDDEN!r}; "
                "export the model again"
            )
        self._session = session

    @property
    def width(self) -> int | str | None:
        """E, the size of the hidden states that it takes."""
        return self._session.inputs[HIDDEN].shape[2]

    def keys_and_values(self, heard: Heard) -> dict[str, ort.OrtValue]:
        """``cross_key_values.N.key|value`` [1, H, N, D] of every layer, made once a source."""
        binding = self._session.new_binding()
        binding.bind_ortvalue_input(HIDDEN, heard.hidden)
        for name in self._session.outputs:
            binding.bind_output(name, self._session.device)
        self._session.run(binding)
        return dict(zip(self._session.outputs, binding.get_outputs(), strict=True))


class OnSource:
    """A decoder that reads on one source; with others on the same decoder it takes turns.

    The decoder's cache is rewound like any other. What it attends to stays as it is, and is bound
    anew when another text was read in between.
    """

    def __init__(self, model: CausalLM, keys_and_values: Mapping[str, ort.OrtValue]) -> None:
        """Read with ``model`` on the source that ``keys_and_values`` were made of."""
        self.model = model
        self._keys_and_values = keys_and_values

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """The decoder's, held for a round."""
        return self.model.lock

    @lock.setter
    def lock(self, lock: AbstractContextManager[bool]) -> None:
        self.model.lock = lock

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.model.vocab_size

    @property
    def cannot_verify(self) -> str | None:
        """Why no candidates can be verified, or None where they can."""
        return self.model.cannot_verify

    def require_verification(self) -> None:
        """Return if candidates can be verified.

        Raises:
            GraphMismatchError: If not.
        """
        self.model.require_verification()

    @property
    def length(self) -> int:
        """Positions held in the cache."""
        return self.model.length

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions."""
        self.model.reserve(length)

    def prefill(self, tokens: TokenIds) -> None:
        """Append ``tokens`` [N] to the cache."""
        self.model.prefill(tokens)

    def forward(self, tokens: TokenIds) -> Logits:
        """Append ``tokens`` [N] to the cache and return their logits [N, V]."""
        return self.model.forward(tokens)

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` cached positions."""
        self.model.rewind(length)

    def rewind_to_shared(self, tokens: TokenIds) -> int:
        """Keep what was read of ``tokens`` [T] on this source; how many positions that is."""
        return self.model.rewind_to_shared(tokens)

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if the cache still holds what ``reader`` read."""
        same = self.model.hand_to(reader)
        if not same:
            self.model.attend_to(self._keys_and_values)
        return same
