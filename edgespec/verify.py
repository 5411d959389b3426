"""Which candidates stand: the target model's word against the generator's.

p is the target's distribution and q the one that a candidate was drawn from, as in the papers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.arrays import Logits, Probs, TokenIds
from edgespec.errors import LogitsError
from edgespec.sampling import Distribution

Pick = Callable[[NDArray[np.float32], TokenIds], int]
"""Chooses a token from a row of logits [V] and the tokens before it [T]; called once a token."""

MakeDistribution = Callable[[NDArray[np.float32], TokenIds], Distribution]
"""What may follow the tokens [T], by a row of logits [V]; a pure function of the two."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """A pick by chance, for one random number a token; it can also be asked what it draws from.

    Attributes:
        distribution: What a token is drawn from.
        rng: The only source of chance, so that a seed repeats a run.
        lossy_threshold: What :func:`verify_lossy` asks of a candidate; None, and no candidate
            changes the distribution.
    """

    distribution: MakeDistribution
    rng: "np.random.Generator"  # quoted: numpy loads its generators when they are first named
    lossy_threshold: float | None = None

    def __call__(self, row: NDArray[np.float32], prefix: TokenIds) -> int:
        """Draw the token that follows ``prefix`` [T], by ``row`` [V]."""
        return self.distribution(row, prefix).draw(self.rng.random())


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
    if not math.isfinite(row[choice]):
        raise LogitsError(
            f"the model returned {row[choice]} as its highest logit after {len(prefix)} tokens; "
            "its weights overflow at this precision: export it with another --precision"
        )
    return choice


def verify(
    known: TokenIds, candidates: TokenIds, draft_probs: Probs | None, logits: Logits, pick: Pick
) -> Verdict:
    """Judge a round by the rule that keeps the target's text or distribution.

    Unless the pick says that they need not be kept.

    Rejection sampling where candidates were drawn from a known q and the target draws too: it
    lets more of them stand. The match rule everywhere else: it is right whatever proposes.

    Args:
        known: [T + K] the text so far with the candidates behind it.
        candidates: [K] proposed tokens, the tail of ``known``.
        draft_probs: [K or more, V] q of each, or None where the proposal is certain.
        logits: [K+1, V] the target's scores; row i is for the token after i candidates.
        pick: How the target chooses.
    """
    if isinstance(pick, Sampler) and pick.lossy_threshold is not None:
        return verify_lossy(known, candidates, logits, pick, pick.lossy_threshold)
    if draft_probs is not None and isinstance(pick, Sampler):
        return verify_rejection(known, candidates, draft_probs, logits, pick)
    return verify_match(known, candidates, logits, pick)


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


def verify_rejection(
    known: TokenIds, candidates: TokenIds, draft_probs: Probs, logits: Logits, sampler: Sampler
) -> Verdict:
    """Keep candidate x with probability min(1, p(x) / q(x)); redraw the first that is refused.

    The text follows p exactly if each candidate was drawn from its q, by chance of its own, and
    if whether it is judged does not depend on what it or a later one turned out to be. Rows are
    judged one by one, only for tokens that p can draw, and the rest is left when one fails.

    Args:
        known: [T + K] the text so far with the candidates behind it.
        candidates: [K] proposed tokens, the tail of ``known``.
        draft_probs: [K or more, V] q of each, above 0 for the candidate itself; V may be wider or
            narrower than that of ``logits``: vocabularies are padded differently.
        logits: [K+1, V] the target's scores; row i is for the token after i candidates.
        sampler: p by row and prefix, and the chance.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023,
    https://arxiv.org/abs/2211.17192, algorithm 1.
    """
    before = len(known) - len(candidates)
    for i, token in enumerate(candidates.tolist()):
        p = sampler.distribution(logits[i], known[: before + i])
        q = np.asarray(draft_probs[i], np.float64)
        # p = q always stands: a chance below 1 times q is below q in floating point too.
        if sampler.rng.random() * q[token] >= p.prob(token):
            last = _residual(p, q).draw(sampler.rng.random())
            return Verdict(i, np.append(candidates[:i], last))
    last = sampler(logits[len(candidates)], known)
    return Verdict(len(candidates), np.append(candidates, last))


def verify_lossy(
    known: TokenIds, candidates: TokenIds, logits: Logits, sampler: Sampler, threshold: float
) -> Verdict:
    """Keep candidates that are typical of the target; the text does not follow p any more.

    A candidate x stands if p(x) > min(threshold, sqrt(threshold) * exp(-H(p))), H the entropy:
    where the target is unsure, less is asked. The first that does not is drawn anew from p.

    Args:
        known: [T + K] the text so far with the candidates behind it.
        candidates: [K] proposed tokens, the tail of ``known``; drawn or not makes no difference.
        logits: [K+1, V] the target's scores; row i is for the token after i candidates.
        sampler: p by row and prefix, and the chance.
        threshold: From 0 to 1.

    Source: Cai et al., Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
    Heads, 2024, https://arxiv.org/abs/2401.10774, typical acceptance, section 2.3.1; its epsilon
    is the threshold, and its delta the square root of it, as there.
    """
    before = len(known) - len(candidates)
    for i, token in enumerate(candidates.tolist()):
        p = sampler.distribution(logits[i], known[: before + i])
        entropy = -float((p.probs * np.log(p.probs)).sum())
        if p.prob(token) <= min(threshold, threshold**0.5 * np.exp(-entropy)):
            last = p.draw(sampler.rng.random())
            return Verdict(i, np.append(candidates[:i], last))
    last = sampler(logits[len(candidates)], known)
    return Verdict(len(candidates), np.append(candidates, last))


def _residual(p: Distribution, q: Probs) -> Distribution:
    """max(p - q, 0), scaled to 1: what drawing from q [V] and refusing leaves of p to be drawn."""
    left = p.probs.copy()  # [N]
    in_both = int(np.searchsorted(p.ids, len(q)))
    left[:in_both] -= q[p.ids[:in_both]]
    np.maximum(left, 0.0, out=left)
    if not left.any():
        # Where p and q differ by rounding alone, nothing is left to draw from.
        return p
    at = np.flatnonzero(left)
    return Distribution(p.ids[at], left[at] / left.sum())
