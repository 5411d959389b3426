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
    if row[choice] != row[choice]:
        raise LogitsError(
            f"the model returned NaN logits after {len(prefix)} tokens; "
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
    before = len(known) - len(candidates)
    for i, candidate in enumerate(candidates.tolist()):
        choice = pick(logits[i], known[: before + i])
        if choice != candidate:
            return Verdict(i, np.append(candidates[:i], choice))
    last = pick(logits[len(candidates)], known)
    return Verdict(len(candidates), np.append(candidates, last))
