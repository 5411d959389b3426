"""Every forward with at least two rows, so that no text depends on how it was cut into forwards.

The kernel for a single row sums in another order than the one for several; those for two and more
give each row the very same bits, whatever the others hold. Measured on onnxruntime 1.32's CPU
provider with GroupQueryAttention, in fp32 and int4: 70 tokens read in pieces of 2, 3, 5, 7, 17, 33
and 64 are equal bit for bit; one by one they differ by 5e-5 in fp32 and by 1.2 in int4. It is a
fact about a machine's kernels and no promise of ONNX Runtime's, hence the probe.

Kernels that work in blocks of rows leave one of 17, 33 or 129 rows to the kernel for a single row
(tried with narrow models). So a row is added to these too.
"""

from collections.abc import Sequence

import numpy as np

from edgespec.arrays import Logits, TokenIds
from edgespec.errors import ExactnessError
from edgespec.model import BLOCK_ROWS, PREFILL_ROWS, CausalLM

_PROBE_TOKENS = 40
_PIECES = ((40,), (2, 3, 5, 7, 4, 19), (33, 7), (17, *(1,) * 8, 15))


class InPairs:
    """A target whose single rows, and those left over, are read twice and the second forgotten."""

    def __init__(self, model: CausalLM) -> None:
        """Read with ``model``."""
        self.model = model

    @property
    def length(self) -> int:
        """Positions held in the cache."""
        return self.model.length

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions, and the one beside the last."""
        self.model.reserve(length + 1)

    def prefill(self, tokens: TokenIds) -> None:
        """Append ``tokens`` [N] to the cache, in pieces that leave no row over."""
        assert PREFILL_ROWS % BLOCK_ROWS == 0
        alone = len(tokens) % BLOCK_ROWS == 1
        self.model.prefill(np.append(tokens, tokens[-1]) if alone else tokens)
        if alone:
            self.model.rewind(self.model.length - 1)

    def forward(self, tokens: TokenIds) -> Logits:
        """Append ``tokens`` [N] to the cache and return their logits [N, V]."""
        if len(tokens) % BLOCK_ROWS != 1:
            return self.model.forward(tokens)
        logits = self.model.forward(np.append(tokens, tokens[-1]))
        self.model.rewind(self.model.length - 1)
        return logits[:-1]

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` cached positions."""
        self.model.rewind(length)

    def rewind_to_shared(self, tokens: TokenIds) -> int:
        """Keep what was read of ``tokens`` [T] by no kernel for a single row; how much that is."""
        return self.model.rewind_to_shared(tokens, exact=True)

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if the cache still holds what ``reader`` read."""
        return self.model.hand_to(reader)


def read_in_pieces(target: InPairs, tokens: TokenIds, sizes: Sequence[int]) -> Logits:
    """Logits [N, V] of ``tokens`` [N], read from an empty cache in pieces of ``sizes``."""
    target.rewind(0)
    pieces = np.split(tokens, np.cumsum(sizes)[:-1])
    return np.concatenate([target.forward(piece).copy() for piece in pieces])


def require_exact(model: CausalLM) -> None:
    """Read some tokens in pieces of several sizes and compare their logits bit for bit.

    Raises:
        ExactnessError: If a row depends on how many are read with it.
    """
    if model.cannot_verify is not None:
        raise ExactnessError(
            f"exact=True cannot be had with {model.session.path}: {model.cannot_verify}; "
            "leave exact out, or export the model again: edgespec export MODEL"
        )
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, _PROBE_TOKENS)
    target = InPairs(model)
    target.hand_to(require_exact)
    first: Logits | None = None
    for sizes in _PIECES:
        logits = read_in_pieces(target, tokens, sizes)
        first = logits if first is None else first
        if not np.array_equal(first, logits):
            wrong = int(np.flatnonzero((first != logits).any(axis=1))[0])
            raise ExactnessError(
                f"exact=True cannot be had with {model.session.path} on {model.session.provider}: "
                f"row {wrong} of {_PROBE_TOKENS} differs by "
                f"{np.abs(first[wrong] - logits[wrong]).max():.2g} when read in pieces of "
                f"{sizes[0]}; leave exact out, or export the model in fp32"
            )
