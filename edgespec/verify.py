"""Which candidates stand: the target model's word against the generator's."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.arrays import Logits, TokenIds
from edgespec.errors import LogitsError

Pick = Callable[[NDArray[np.float32], TokenIds], int]
"""Chooses a token from a row of logits [V] and the tokens before it [T]; called once a token."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round adds to the text.

    Attributes:
        num_accepted: How many leading candidates stand, 0 to K.
        tokens: [num_accepted + 1] the accepted candidates and one token of the target's own.
    """

    num_accepted: int
    tokens: TokenIds


def pick_greedy(row: NDArray[np.float32], prefix: TokenIds) -> int:
    """The most likely token of ``row`` [V]; of equals the lowest id, wherever it is asked."""
    choice = int(row.argmax())
    # argmax returns the first NaN where there is one, so this sees every NaN in the row.
    if not np.isfinite(row[choice]):
        raise LogitsError(
            f"the model returned {row[choice]} as its highest logit after {len(prefix)} tokens; "
            "its weights overflow at this precision: export it with another --precision"
        )
    return choice


def verify_match(known: TokenIds, candidates: TokenIds, logits: Logits, pick: Pick) -> Verdict:
    """Keep candidates as long as the target's own pick is the same token.

    Rows are judged one by one and the rest is left when one fails, so ``pick`` sees exactly the
    prefixes that decoding without candidates would show it, once each and in order. A pick that
    draws a random number therefore draws the same ones: a seed gives the same text with and
    without candidates, and its distribution is the target's own.

    Args:
        known: [T + K] the text so far with the candidates behind it.
        candidates: [K] proposed tokens, the tail of ``known``.
        logits: [K+1, V] the target's scores; row i is for the token after i candidates.
        pick: How the target chooses.
    """
    before, proposed = len(known) - len(candidates), candidates.tolist()
    picked: list[int] = []
    for i, row in enumerate(logits):
        picked.append(pick(row, known[: before + i]))
        if i == len(proposed) or picked[i] != proposed[i]:
            break
    return Verdict(len(picked) - 1, np.array(picked, np.int64))
