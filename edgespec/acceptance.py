"""How often candidates stood, by where they came from and how long a match they continued."""

from bisect import bisect_right
from collections import defaultdict

_BOUNDS = (1, 2, 3, 5, 9, 17, 33)
"""Match lengths from which on a candidate is counted as surer."""
_PRIOR = (0.5, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""What is usual for text that repeats itself; the first is for candidates without a match."""
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.98
"""What an outcome is still worth after the next one of its kind: texts change."""


class Acceptance:
    """Learns the chance that the next candidate stands.

    The i-th candidate of a proposal that continues a match of m tokens counts as the first of one
    that continues m + i - 1: if it is reached, those before it stood.
    """

    def __init__(self) -> None:
        """Know what is usual, and nothing of this text."""
        self._accepted: dict[str | None, list[float]] = defaultdict(
            lambda: [p * _PRIOR_WEIGHT for p in _PRIOR]
        )
        self._judged: dict[str | None, list[float]] = defaultdict(
            lambda: [_PRIOR_WEIGHT] * len(_PRIOR)
        )

    def chance(self, source: str | None, match_length: int | None, position: int) -> float:
        """The chance of the candidate at ``position``, 0 for the first, if those before it stand.

        Args:
            source: Who proposes.
            match_length: How many tokens before the proposal agree; None where nobody knows.
            position: Its place in the proposal.
        """
        bucket = _bucket(match_length, position)
        return self._accepted[source][bucket] / self._judged[source][bucket]

    def learn(
        self, source: str | None, match_length: int | None, verified: int, num_accepted: int
    ) -> None:
        """Take in a round: of ``verified`` candidates the first ``num_accepted`` stood."""
        accepted, judged = self._accepted[source], self._judged[source]
        for i in range(min(num_accepted + 1, verified)):
            bucket = _bucket(match_length, i)
            judged[bucket] = judged[bucket] * _MEMORY + 1
            accepted[bucket] = accepted[bucket] * _MEMORY + (i < num_accepted)


def _bucket(match_length: int | None, position: int) -> int:
    if match_length is None:
        return 0
    reached = match_length + position
    return bisect_right(_BOUNDS, reached)
