"""How often candidates stood, by where they came from, their match and their place in it."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

_BOUNDS = (1, 2, 3, 5, 9, 17, 33)
"""Match lengths from which on a candidate is counted as surer."""
_BUCKETS = tuple(bisect_right(_BOUNDS, length) for length in range(256))
"""The bucket of a length; what is longer belongs to the last."""
_PRIOR = (0.5, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""What is usual for text that repeats itself; the first is for candidates without a match."""
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.98
"""What an outcome is still worth after the next one of its kind: texts change."""


@dataclass(slots=True)
class _Counts:
    """What stood of what was judged, by bucket."""

    accepted: list[float]
    judged: list[float] = field(default_factory=lambda: [_PRIOR_WEIGHT] * len(_PRIOR))


def _usual() -> _Counts:
    return _Counts([p * _PRIOR_WEIGHT for p in _PRIOR])


def _nothing() -> _Counts:
    return _Counts([0.0] * len(_PRIOR), [0.0] * len(_PRIOR))


class Acceptance:
    """Learns the chance that the next candidate stands.

    The i-th candidate of a proposal that continues a match of m tokens counts first as one that
    continues m + i - 1: if it is reached, those before it stood. What was seen of just such
    matches and places corrects that as far as it goes.
    """

    def __init__(self) -> None:
        """Know what is usual, and nothing of this text."""
        self._by_reach: dict[str | None, _Counts] = defaultdict(_usual)
        self._by_place: dict[tuple[str | None, int], _Counts] = defaultdict(_nothing)

    def chances(self, source: str | None, match_length: int | None, count: int) -> Iterator[float]:
        """The chance of each of ``count`` candidates, if those before it stand.

        Args:
            source: Who proposes.
            match_length: How many tokens before the proposal agree; None where nobody knows.
            count: Candidates of the proposal.
        """
        usual, seen = self._by_reach[source], self._by_place[source, _bucket(match_length, 0)]
        for position in range(count):
            reached, place = _bucket(match_length, position), _bucket(position, 1)
            chance = usual.accepted[reached] / usual.judged[reached]
            yield (seen.accepted[place] + chance * _PRIOR_WEIGHT) / (
                seen.judged[place] + _PRIOR_WEIGHT
            )

    def learn(
        self, source: str | None, match_length: int | None, verified: int, num_accepted: int
    ) -> None:
        """Take in a round: of ``verified`` candidates the first ``num_accepted`` stood."""
        usual, seen = self._by_reach[source], self._by_place[source, _bucket(match_length, 0)]
        for i in range(min(num_accepted + 1, verified)):
            for counts, at in ((usual, _bucket(match_length, i)), (seen, _bucket(i, 1))):
                counts.judged[at] = counts.judged[at] * _MEMORY + 1
                counts.accepted[at] = counts.accepted[at] * _MEMORY + (i < num_accepted)


def _bucket(match_length: int | None, position: int) -> int:
    if match_length is None:
        return 0
    reached = match_length + position
    return _BUCKETS[reached] if reached < len(_BUCKETS) else len(_BOUNDS)
