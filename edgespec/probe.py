"""Does a graph score tokens that it reads together as it scores them one by one?

Speculation rests on it, and exporters get it wrong in silence: positions or a mask that are right
for one new token only, scores of the last token alone, one scale for all rows of a quantised
activation. Our own exporter's gate has looked; the graphs of others are asked when they are loaded.
"""

import numpy as np

from edgespec.arrays import Logits
from edgespec.exact import InPairs, read_in_pieces
from edgespec.model import CausalLM

_TOGETHER, _ALONE = (2, 2, 1), (1, 1, 1, 1, 1)
"""Two ways to read five tokens: few, as each piece is a forward.

A single token is read with one more beside it, so both ways use the kernels for several rows. No
row sees more whole vectors of keys in one way than in the other, so that sums have one order too.
"""
_ROUNDING = {4: 1e-3, 2: 2e-2}
"""Share of the scores' spread by which the ways may differ, by the bytes of a cached number."""
_WRONG = 0.1
"""From this share on it is more than rounding in another order: what is read together is wrong."""


def probe(model: CausalLM) -> None:
    """Read a few tokens in two ways, and restrict ``model`` to what it does right.

    Where the ways differ it verifies no candidates; where they differ by so much that a prompt
    would be read wrongly too, or where the graph takes no two tokens, it reads one at a time. The
    cache is left empty.
    """
    if model.cannot_verify is not None:
        return
    tokens = np.random.default_rng(0).choice(model.vocab_size, len(_ALONE), model.vocab_size < 5)
    target = InPairs(model)
    try:
        together = read_in_pieces(target, tokens, _TOGETHER)
        alone = read_in_pieces(target, tokens, _ALONE)
    except Exception as error:  # ONNX Runtime's errors share no base class but this (1.32, tried)
        said = " ".join(str(error).split())[:200]
        model.restrict(f"it cannot read two tokens at once ({said})", max_rows=1)
        return
    finally:
        model.rewind(0)
    row, share = _largest_difference(together, alone)
    if share > _ROUNDING[min(4, model.cache.shape.dtype.itemsize)]:
        model.restrict(
            f"it scores tokens that it reads together otherwise than one by one (token {row} of "
            f"{len(tokens)} by {share:.1%} of the scores' spread)",
            max_rows=1 if share > _WRONG else None,
        )


def _largest_difference(one: Logits, other: Logits) -> tuple[int, float]:
    """The row [N] of most difference, and its share of the spread of the scores."""
    finite = one[np.isfinite(one)]
    spread = float(np.ptp(finite)) if finite.size else 0.0
    with np.errstate(invalid="ignore"):  # of two infinities
        apart = np.where(one == other, 0.0, np.abs(one - other))
    by_row = np.nan_to_num(apart, nan=0.0).max(axis=1)  # what is no number is refused elsewhere
    row = int(by_row.argmax())
    return row, float(by_row[row]) / spread if spread else 0.0
