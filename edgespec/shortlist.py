"""Only the best scores of a row leave the device, where no more than those are asked for.

A row of logits has as many numbers as there are token ids, 150,000 of them in some models. A greedy
choice needs one of them and a draw with ``top_k`` needs k: a tiny graph finds them on the device.
Of equal scores at the k-th place others may stay than on the CPU; the same ones in each round.
"""

import os
from functools import cache
from pathlib import Path

import numpy as np

from edgespec.arrays import Logits, TokenIds
from edgespec.decode import TargetModel
from edgespec.logits import make_processing
from edgespec.model import CausalLM
from edgespec.options import Options
from edgespec.session import Session

GRAPHS = Path(__file__).with_name("shortlist")
"""The tiny graphs, one for each element type of logits; ``tests/make_shortlist.py`` writes them."""
_PAYS_ON = ("cuda",)
"""On a CPU the scores are where they are needed."""


def shortlisted(model: CausalLM, options: Options, known_ids: int) -> TargetModel:
    """``model`` as a call reads it: without the scores that it cannot ask for.

    Args:
        model: The target.
        options: The call's.
        known_ids: Only ids below it can be picked.
    """
    wanted = min(options.top_k, known_ids) if options.do_sample else 1
    asks_for_all = make_processing(options, prompt_length=0, vocab_limit=known_ids).rules
    if model.session.device not in _PAYS_ON or asks_for_all or not 0 < wanted < known_ids:
        return model
    return Shortlisted(model, wanted, known_ids)


@cache
def _session(kind: str, device: str, pid: int) -> Session:
    """The graph for logits of type ``kind``, loaded once in a process."""
    return Session(GRAPHS / f"{kind}.onnx", provider=device)


class Shortlisted:
    """A target of whose scores all but the best of each row are minus infinity."""

    def __init__(self, model: CausalLM, k: int, known_ids: int) -> None:
        """Keep the ``k`` best of the ids below ``known_ids``."""
        self.model = model
        kind = str(model.session.outputs["logits"].dtype)
        self._session = _session(kind, model.session.device, os.getpid())
        self._binding = self._session.new_binding()
        self._sizes = {"limit": np.array([known_ids]), "k": np.array([k])}
        for name, size in self._sizes.items():
            self._binding.bind_cpu_input(name, size)
        self._rows = np.empty((0, model.vocab_size), np.float32)
        self._ids = np.empty((0, k), np.int64)

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
        """Append ``tokens`` [N] to the cache and return their logits [N, V], the best alone.

        A view of a buffer that the next forward overwrites.
        """
        self._binding.bind_ortvalue_input("logits", self.model.forward_on_device(tokens))
        for name in self._session.outputs:
            self._binding.bind_output(name)
        self._session.run(self._binding)
        scores, ids = (value[0] for value in self._binding.copy_outputs_to_cpu())  # [N, k]
        # Forgetting what the last rows held costs k numbers a row; filling them anew would cost V.
        np.put_along_axis(self._rows[: len(self._ids)], self._ids, -np.inf, axis=1)
        if len(self._rows) < len(ids):
            self._rows = np.full((len(ids), self.model.vocab_size), -np.inf, np.float32)
        np.put_along_axis(self._rows[: len(ids)], ids, scores, axis=1)
        self._ids = ids
        return self._rows[: len(ids)]

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` cached positions."""
        self.model.rewind(length)

    def rewind_to_shared(self, tokens: TokenIds) -> int:
        """Keep what was read of ``tokens`` [T] already; how many positions that is."""
        return self.model.rewind_to_shared(tokens)

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if the cache still holds what ``reader`` read."""
        return self.model.hand_to(reader)
