"""Candidates from several generators, each round from the one that promises most."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from edgespec.acceptance import Acceptance
from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES, CandidateGenerator, Candidates, begin, end

_CHEAP_SHARE = 0.02
"""A generator that needs less than this share of a round's time for a candidate is asked always."""
_LONGEST_WAIT = 64


@dataclass(slots=True)
class _Source:
    """One generator and what it has shown."""

    name: str
    generator: CandidateGenerator
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=7))  # of one candidate
    wait: int = 1
    skipped: int = 0
    proposed: Candidates | None = None

    @property
    def candidate_s(self) -> float:
        """Seconds that a candidate takes; nothing as long as nothing was measured."""
        return median(self.seconds) if self.seconds else 0.0


class MixedCandidateGenerator:
    """Asks several generators and passes on the best proposal.

    What a proposal promises is the number of its tokens that should stand, learned from what its
    source achieved in this text at such a match length, for the time that it takes. Those that
    cost next to nothing are all asked. One that computes, such as a draft model, is asked only if
    it promises more tokens a second than the best of the others, and now and then to see whether
    the text has changed.
    """

    def __init__(self, generators: Sequence[CandidateGenerator]) -> None:
        """Choose between ``generators``; of equals the first.

        Raises:
            ValueError: If there are fewer than two.
        """
        if len(generators) < 2:
            raise ValueError(f"generators must be at least 2, got {len(generators)}")
        self.generators = tuple(generators)
        names: list[str] = []
        for generator in generators:
            name = type(generator).__name__
            same = sum(n.split("#")[0] == name for n in names)
            names.append(f"{name}#{same + 1}" if same else name)
        self._sources = [_Source(n, g) for n, g in zip(names, generators, strict=True)]
        self._forget()

    def _forget(self) -> None:
        self._acceptance = Acceptance()
        self._round_s: deque[float] = deque(maxlen=7)
        self._winner: _Source | None = None
        self._before = self._most_after = 0
        self._returned_at: float | None = None

    def begin(self, input_ids: TokenIds) -> None:
        """A new request: what the sources achieved belongs to another text."""
        self._forget()
        for source in self._sources:
            source.wait, source.skipped, source.proposed = 1, 0, None
            begin(source.generator, input_ids)

    def end(self, input_ids: TokenIds) -> None:
        """The request is over: who remembers past texts takes this one in."""
        for source in self._sources:
            end(source.generator, input_ids)

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the proposal [K] that promises the most tokens, with its source."""
        # Where more was written than one round can, rounds went by in which nobody was asked.
        if self._returned_at is not None and len(input_ids) <= self._most_after:
            self._round_s.append(time.perf_counter() - self._returned_at)
        self._learn(input_ids)
        best, self._winner, best_promise = NO_CANDIDATES, None, 0.0
        for source in sorted(self._sources, key=lambda one: self._turn(one, max_candidates)):
            count = self._count(source, max_candidates, self._rate(best_promise, 0.0))
            candidates = self._ask(source, input_ids, count) if count else NO_CANDIDATES
            if candidates.draft_probs is not None:
                # Drawn by chance: to drop it in view of what it is would change the distribution.
                best, self._winner = candidates, source
                break
            promise = self._promise(source, candidates)
            # What it took to find them is spent; only what they bring counts now.
            if promise > best_promise:
                best, self._winner, best_promise = candidates, source, promise
        self._before = len(input_ids)
        self._most_after = len(input_ids) + len(best.tokens) + 1
        self._returned_at = time.perf_counter()
        return best if self._winner is None else replace(best, source=self._winner.name)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Tell the source of the proposal what it brought."""
        if self._winner is not None:
            self._winner.generator.update_candidate_strategy(input_ids, num_matches)

    def _learn(self, input_ids: TokenIds) -> None:
        """See in the text how far each proposal was right, also those that were not passed on."""
        for source in self._sources:
            if source.proposed is None:
                continue
            tokens, match_length = source.proposed.tokens, source.proposed.match_length
            source.proposed = None
            written = input_ids[self._before : self._before + len(tokens)]
            wrong = np.flatnonzero(tokens[: len(written)] != written)
            right = int(wrong[0]) if wrong.size else len(written)
            self._acceptance.learn(source.name, match_length, len(written), right)
            source.wait = 1 if right else min(2 * source.wait, _LONGEST_WAIT)

    def _is_costly(self, source: _Source) -> bool:
        """Whether a candidate of ``source`` takes a noticeable part of a round."""
        round_s = median(self._round_s) if self._round_s else 0.0
        return bool(source.seconds) and source.candidate_s > _CHEAP_SHARE * round_s > 0

    def _turn(self, source: _Source, max_candidates: int) -> tuple[bool, float]:
        """Those that cost nothing first, then the most promising: the first drawn one is taken."""
        if not self._is_costly(source):
            return False, 0.0
        return True, -self._best(source, max_candidates, 0.0)[1]

    def _count(self, source: _Source, max_candidates: int, rate_to_beat: float) -> int:
        """How many candidates to ask ``source`` for: all if they cost nothing, else what pays."""
        if not self._is_costly(source):
            return max_candidates
        best, _ = self._best(source, max_candidates, rate_to_beat)
        if best:
            return best
        source.skipped += 1
        if source.skipped < source.wait:
            return 0
        source.skipped = 0
        return 1

    def _best(self, source: _Source, max_candidates: int, rate_to_beat: float) -> tuple[int, float]:
        """How many candidates of ``source`` bring the most tokens a second, and how many tokens."""
        best, best_rate, expected, chance = 0, rate_to_beat, 0.0, 1.0
        chances = self._acceptance.chances(source.name, None, max_candidates)
        for k, next_stands in enumerate(chances, 1):
            chance *= next_stands
            expected += chance
            rate = self._rate(expected, k * source.candidate_s)
            if rate > best_rate:
                best, best_rate = k, rate
        return best, best_rate

    def _ask(self, source: _Source, input_ids: TokenIds, count: int) -> Candidates:
        began = time.perf_counter()
        candidates = source.generator.get_candidates(input_ids, count)
        if len(candidates.tokens):
            source.seconds.append((time.perf_counter() - began) / len(candidates.tokens))
            source.proposed = candidates
        return candidates

    def _promise(self, source: _Source, candidates: Candidates) -> float:
        """How many of the candidates should stand."""
        expected, chance = 0.0, 1.0
        count = len(candidates.tokens)
        for next_stands in self._acceptance.chances(source.name, candidates.match_length, count):
            chance *= next_stands
            expected += chance
        return expected

    def _rate(self, expected: float, draft_s: float) -> float:
        """Tokens a second of a round in which ``expected`` candidates stand."""
        round_s = median(self._round_s) if self._round_s else 1.0
        return (1.0 + expected) / (round_s + draft_s)
