"""The distribution that a row of scores stands for, and how to draw from it.

A row has 50,000 scores or more, and a round of speculation judges several; sorting them all would
cost more than a small model's forward pass. So the few tokens that can be drawn are found first,
and everything after that is done for them alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.arrays import Logits, Probs, TokenIds


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that can be drawn, N of V, and how likely each is.

    Attributes:
        ids: [N] in increasing order.
        probs: [N] each above 0, together 1.
    """

    ids: TokenIds
    probs: Probs

    def draw(self, chance: float) -> int:
        """The token that ``chance``, from 0 up to but not 1, falls on.

        The tokens share the range from 0 to 1 in order of their ids (inverse transform sampling),
        so a token costs one random number, whatever the distribution.
        """
        up_to = np.cumsum(self.probs)
        # Rounding leaves the sum a little off 1; a share of it always falls on some token.
        at = np.searchsorted(up_to, chance * up_to[-1], side="right")
        return int(self.ids[at])

    def prob(self, token: int) -> float:
        """How likely ``token`` is; 0 where it cannot be drawn."""
        at = int(np.searchsorted(self.ids, token))
        return float(self.probs[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    def dense(self, vocab_size: int) -> Probs:
        """[V] with 0 for the tokens that cannot be drawn."""
        probs = np.zeros(vocab_size)
        probs[self.ids] = self.probs
        return probs


def distribute(
    scores: Logits,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> Distribution:
    """The softmax of ``scores`` [V], cut down in transformers' order, each cut on what is left.

    Computed in float64. Of tokens with equal scores top-k keeps all or none, as do min-p and
    typical-p; top-p keeps the lowest ids, only as many as it needs.

    Args:
        scores: [V] at least one above minus infinity, none NaN.
        temperature: Divides the scores.
        top_k: The k likeliest tokens stay; 0 for all.
        top_p: The likeliest that together reach this probability stay.
            Source: Holtzman et al., The Curious Case of Neural Text Degeneration, 2019,
            https://arxiv.org/abs/1904.09751, section 3.1.
        min_p: Tokens of at least this share of the likeliest one's probability stay.
            Source: Nguyen et al., Turning Up the Heat: Min-p Sampling, 2024,
            https://arxiv.org/abs/2407.01082, section 3.
        typical_p: The tokens whose information is nearest the expected that reach this
            probability stay. Source: Meister et al., Locally Typical Sampling, 2022,
            https://arxiv.org/abs/2202.00666, section 3.

    Raises:
        ValueError: If a score is infinity.
    """
    top = scores.max()
    if top == np.inf:
        raise ValueError(
            "a score of infinity leaves no distribution to draw from; "
            "to force a token, set all others to minus infinity"
        )
    ids = _top_k(scores, top_k) if 0 < top_k < len(scores) else np.arange(len(scores))
    few = scores if len(ids) == len(scores) else scores[ids]
    # A tiny temperature may push a score out of range; minus infinity is what it means then.
    with np.errstate(over="ignore"):
        logs = np.subtract(few, top, dtype=np.float64) / temperature  # [N], highest 0
    weights = np.exp(logs)
    if not weights.all():
        # A weight of 0 cannot be drawn, and its logarithm would end the arithmetic below.
        ids, logs, weights = _keep(weights > 0, ids, logs, weights)
    if top_p < 1:
        total = weights.sum()
        # All tokens lighter than this weigh less than 1 - top_p together, so each can go unsorted.
        ids, logs, weights = _keep(weights >= (1 - top_p) * total / len(ids), ids, logs, weights)
        ids, logs, weights = _keep(_lowest(-logs, weights, top_p * total), ids, logs, weights)
    if min_p > 0:
        ids, logs, weights = _keep(weights >= min_p, ids, logs, weights)  # the highest is 1
    if typical_p < 1:
        total = weights.sum()
        information = np.log(total) - logs
        distance = np.abs(information - (weights * information).sum() / total)
        within = distance <= distance[_lowest(distance, weights, typical_p * total)].max()
        ids, logs, weights = _keep(within, ids, logs, weights)
    return Distribution(ids, weights / weights.sum())


def _top_k(scores: Logits, k: int) -> TokenIds:
    """Ids, increasing, of the k highest scores [V] and of all that equal the lowest of these."""
    at = np.arange(len(scores))
    width = 16 * k
    if len(scores) >= 4 * width:
        # Of the highest in each of many columns the k-th is a bound: k scores at least reach it.
        columns = scores[: len(scores) // width * width].reshape(-1, width)
        at = np.flatnonzero(scores >= _kth(columns.max(axis=0), k))
    high = scores[at]
    return at[high >= _kth(high, k)]


def _kth(scores: Logits, k: int) -> np.float32:
    """The k-th highest score."""
    kth: np.float32 = np.partition(scores, len(scores) - k)[len(scores) - k]
    return kth


def _keep(
    kept: NDArray[np.bool_], ids: TokenIds, logs: Probs, weights: Probs
) -> tuple[TokenIds, Probs, Probs]:
    at = np.flatnonzero(kept)
    return ids[at], logs[at], weights[at]


def _lowest(keys: Probs, weights: Probs, weight: float) -> NDArray[np.bool_]:
    """Which tokens [N], lowest key first, it takes to reach ``weight``.

    Of equal keys the first come first. The keys are counted into bins, so that only the bin with
    the border in it has to be sorted.
    """
    num_bins = min(len(keys), 4096)
    # All keys may be equal: then there is one bin, of any width.
    width = (keys.max() - keys.min()) / num_bins or 1.0
    bins = ((keys - keys.min()) / width).astype(np.intp)
    reached = np.append(0.0, np.cumsum(np.bincount(bins, weights)))  # before each bin, and in all
    border = np.searchsorted(reached, weight) - 1
    kept: NDArray[np.bool_] = bins < border
    at = np.flatnonzero(bins == border)
    order = at[np.argsort(keys[at], kind="stable")]
    before = reached[border] + np.cumsum(weights[order]) - weights[order]
    kept[order[before < weight]] = True
    return kept
