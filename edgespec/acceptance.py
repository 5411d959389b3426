"""How often candidates stood, by where they came from, their match and their place in it."""

from bisect import bisect_right
from collections import defaultdict

_BOUNDS = (1, 2, 3, 5, 9, 17, 33)
"""Match lengths from which on a candidate is counted as surer."""
_BUCKETS = tuple(bisect_right(_BOUNDS, length) for length in range(_BOUNDS[-1] + 1))
_PRIOR = (0.5, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""What is usual for text that repeats itself; the first is for candidates without a match."""
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.98
"""What an outcome is still worth after the next one of its kind: texts change."""


class Acceptance:
    """Learns the chance that the next candidate stands.

    The i-th candidate of a proposal that continues a match of m tokens counts first as one that
    continues m + i - 1: if it is reached, those before it stood. What was seen of just such
    matches and places corrects that as far as it goes.
    """

    def __init__(self) -> None:
        """Know what is usual, and nothing of this text."""
        self._accepted: dict[str | None, list[float]] = defaultdict(
            lambda: [p * _PRIOR_WEIGHT for p in _PRIOR]
        )
        self._judged: dict[str | None, list[float]] = defaultdict(
            lambda: [_PRIOR_WEIGHT] * len(_PRIOR)
        )
        # [accepted, judged] by source, bucket of the match and bucket of the place in it.
        self._by_place: dict[tuple[str | None, int, int], list[float]] = {}

    def chance(self, source: str | None, match_length: int | None, position: int) -> float:
        """The chance of the candidate at ``position``, 0 for the first, if those before it stand.

        Args:
            source: Who proposes.
            match_length: How many tokens before the proposal agree; None where nobody knows.
            position: Its place in the proposal.
        """
        reached = _bucket(match_length, position)
        usual = self._accepted[source][reached] / self._judged[source][reached]
        seen = self._by_place.get((source, _bucket(match_length, 0), _bucket(position, 1)))
        if seen is None:
            return usual
        return (seen[0] + usual * _PRIOR_WEIGHT) / (seen[1] + _PRIOR_WEIGHT)

    def learn(
        self, source: str | None, match_length: int | None, verified: int, num_accepted: int
    ) -> None:
        """Take in a round: of ``verified`` candidates the first ``num_accepted`` stood."""
        accepted, judged = self._accepted[source], self._judged[source]
        for i in range(min(num_accepted + 1, verified)):
            bucket, stood = _bucket(match_length, i), i < num_accepted
            judged[bucket] = judged[bucket] * _MEMORY + 1
            accepted[bucket] = accepted[bucket] * _MEMORY + stood
            place = (source, _bucket(match_length, 0), _bucket(i, 1))
            seen = self._by_place.setdefault(place, [0.0, 0.0])
            seen[0] = seen[0] * _MEMORY + stood
            seen[1] = seen[1] * _MEMORY + 1


def _bucket(match_length: int | None, position: int) -> int:
    if match_length is None:
        return 0
    return _BUCKETS[min(match_length + position, _BOUNDS[-1])]
