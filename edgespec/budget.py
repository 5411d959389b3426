"""How many candidates to ask for next."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Protocol

import numpy as np

from edgespec.acceptance import Acceptance
from edgespec.candidates.base import NO_CANDIDATES, Candidates

MOST_CANDIDATES = 32
"""Rows of one verification at most: in fp32 a longer one brings little more a second."""
FIRST_CANDIDATES = 5
"""Candidates of the first rounds, before anything is measured."""


class Budget(Protocol):
    """Decides how many candidates a round verifies."""

    def limit(self) -> int:
        """The most candidates to ask a generator for."""

    def choose(self, candidates: Candidates) -> int:
        """How many of the proposed candidates to verify, 0 for a plain step.

        All of them if they were drawn by chance: who drops some in view of how the others turned
        out changes the distribution of the text.
        """

    def learn(
        self,
        candidates: Candidates,
        chosen: int,
        num_accepted: int,
        draft_s: float,
        verify_s: float,
    ) -> None:
        """Take in a round: what was verified, what stood, and the seconds that it took."""


class ConstantBudget:
    """The same number each round, as transformers' schedule ``constant``."""

    def __init__(self, num_candidates: int) -> None:
        """Verify at most ``num_candidates`` in a round."""
        self.num_candidates = num_candidates

    def limit(self) -> int:
        """The number given."""
        return self.num_candidates

    def choose(self, candidates: Candidates) -> int:
        """All of them."""
        return len(candidates.tokens)

    def learn(
        self,
        candidates: Candidates,
        chosen: int,
        num_accepted: int,
        draft_s: float,
        verify_s: float,
    ) -> None:
        """Nothing to learn."""


class HeuristicBudget(ConstantBudget):
    """Two more after a round in which all candidates stood, one less after any other.

    As transformers' schedules ``heuristic``, where the number is kept from one call to the next,
    and ``heuristic_transient``, where each call starts anew. A round without candidates says
    nothing, and the number does not fall below 1.
    """

    def learn(
        self,
        candidates: Candidates,
        chosen: int,
        num_accepted: int,
        draft_s: float,
        verify_s: float,
    ) -> None:
        """Take in how many stood of those that were verified."""
        if num_accepted < chosen:
            self.num_candidates = max(1, self.num_candidates - 1)
        elif chosen:
            self.num_candidates += 2


class StepCosts:
    """Seconds of a forward by its number of rows, learned from the forwards themselves.

    Kept by the generator from one call to the next: the machine stays the same.
    """

    _FIRST_TOLD = 16
    _LOOK_EVERY = 64
    """Forwards."""

    def __init__(
        self,
        known: Mapping[int, float] | None = None,
        tell: Callable[[Mapping[int, float]], None] = lambda medians: None,
    ) -> None:
        """Know what an earlier process has measured, or nothing.

        Args:
            known: Seconds by number of rows.
            tell: Called with all that is known after 16, 32, 64, ... forwards.
        """
        self._medians = dict(known or {})
        self._seen = {rows: deque([s], maxlen=7) for rows, s in self._medians.items()}
        self._rows = sorted(self._medians)  # that were measured
        self._tell, self._added, self._tell_at = tell, 0, self._FIRST_TOLD
        self._table: list[float] = []

    def add(self, rows: int, seconds: float) -> None:
        """Take in one forward. The median of the last few forgives a disturbed one."""
        seen = self._seen.setdefault(rows, deque(maxlen=7))
        seen.append(seconds)
        before, now = self._medians.get(rows), median(seen)
        if before is None or abs(now - before) > 0.02 * before:
            self._medians[rows] = now
            self._table = []
        if len(self._rows) < len(self._medians):
            self._rows = sorted(self._medians)
        self._added += 1
        if self._added == self._tell_at:
            self._tell_at *= 2
            self._tell(self._medians)

    @property
    def is_time_to_look(self) -> bool:
        """Whether the next forward should tell what more rows than usual cost by now."""
        return self._added % self._LOOK_EVERY == self._LOOK_EVERY // 2

    @property
    def knows_plain(self) -> bool:
        """Whether a forward of one row was measured."""
        return 1 in self._medians

    def table(self) -> list[float]:
        """Seconds of 1, 2, ... :data:`MOST_CANDIDATES` + 1 rows; empty if nothing is known.

        Measured, or on a line between what was measured; never below the fewest rows measured.
        """
        if not self._table and self._rows:
            rows = np.arange(1, MOST_CANDIDATES + 2)
            known = np.array([self._medians[at] for at in self._rows])
            if len(known) == 1:
                # A row more is taken to cost a tenth, so that something is tried.
                found = known * (1 + 0.1 * (rows - 1)) / (1 + 0.1 * (self._rows[0] - 1))
            else:
                found = np.interp(rows, self._rows, known)
                slope = (known[-1] - known[-2]) / (self._rows[-1] - self._rows[-2])
                found += max(0.0, slope) * np.maximum(0, rows - self._rows[-1])
                found = np.maximum(found, known[0])
            self._table = found.tolist()
        return self._table


class AutoBudget:
    """As many candidates as bring the most tokens a second on this machine and this text.

    Two things are learned from every round: what a forward of k rows costs (:class:`StepCosts`),
    and how often a candidate stands (:class:`~edgespec.acceptance.Acceptance`). The number that
    maximises

        expected tokens / expected seconds,   1 + sum over i of (a_1 ... a_i)  /  t(k + 1) + k d

    is verified, where d is the generator's own time a candidate. It may be 0: then only every
    2nd, 4th, ... such proposal is tried, to see whether the text has changed. And every 64th
    forward reads twice as many as seem to pay, or a cost that a busy machine made high would stay.

    Whatever is expected, what asking has brought is counted too: the tokens of each round at the
    price of plain steps against the seconds that it took, the generator's own included, even where
    it found nothing. Once that lies two plain steps in the red, each further loss is followed by a
    pause of 2, 4, ... rounds without asking, until the losses are a hundredth of the time.
    """

    _LONGEST_WAIT = 64
    _MOST_LOST = 2.0
    """Plain steps that asking may have cost before the generator is left alone."""
    _SHARE_LOST = 0.01
    """Of the time, what is spent on looking whether the text has changed."""
    _UNLIKELY = 0.02
    """A chance below which a candidate, and all behind it, bring nothing worth a row."""

    def __init__(self, costs: StepCosts) -> None:
        """Start with what is usual for text that repeats itself, and the machine's known costs."""
        self._costs = costs
        self._acceptance = Acceptance()
        self._read_prompt = False
        self._drafts_s: deque[float] = deque(maxlen=7)  # of one candidate
        self._are_drawn = False
        self._source: str | None = None  # of the last proposal
        self._wait = 1
        self._skipped = 0
        self._due = False
        self._asked = 0
        self._gained = 0.0  # plain steps, by asking
        self._pause, self._next_pause = 0, 1  # rounds

    def limit(self) -> int:
        """All that may pay; fewer where the generator itself takes time, none in a pause."""
        self._asked = 0
        if self._pause:
            self._pause -= 1
        elif self._costs.knows_plain:
            self._asked = self._most()
        # Else a plain step comes first: nothing else tells what a further row is worth.
        return self._asked

    def _most(self) -> int:
        if not self._drafts_s:
            return FIRST_CANDIDATES
        draft_s = median(self._drafts_s)
        if draft_s < 0.02 * self._costs.table()[0] and not self._are_drawn:
            return MOST_CANDIDATES
        likely = replace(NO_CANDIDATES, source=self._source)
        best = self._best(MOST_CANDIDATES, likely, draft_s)
        self._due = not best and self._is_probe_due()
        return self._stretched(best) or int(self._due)

    def choose(self, candidates: Candidates) -> int:
        """The best number of these candidates to verify; what finding them took is spent."""
        proposed = len(candidates.tokens)
        if not proposed:
            return 0
        if candidates.draft_probs is not None:
            self._due = False
            return proposed
        best = self._best(proposed, candidates, 0.0)
        if not best and (self._due or self._is_probe_due()):
            best = 1
        self._due = False
        return min(self._stretched(best), proposed)

    def _stretched(self, best: int) -> int:
        """The number that seems best, at times twice that: a cost measured once may be wrong."""
        return min(2 * best + 1, MOST_CANDIDATES) if best and self._costs.is_time_to_look else best

    def learn(
        self,
        candidates: Candidates,
        chosen: int,
        num_accepted: int,
        draft_s: float,
        verify_s: float,
    ) -> None:
        """Take in a round."""
        self._costs.add(chosen + 1, verify_s)
        if self._asked:
            # The first time a generator reads the prompt too: no measure of what it takes.
            self._settle(chosen, num_accepted, draft_s if self._read_prompt else 0.0)
        if len(candidates.tokens):
            if self._read_prompt:
                self._drafts_s.append(draft_s / len(candidates.tokens))
            self._are_drawn = candidates.draft_probs is not None
            self._source = candidates.source
        self._read_prompt = self._read_prompt or self._asked > 0 or len(candidates.tokens) > 0
        if not chosen:
            return
        self._wait = 1 if num_accepted else min(2 * self._wait, self._LONGEST_WAIT)
        self._acceptance.learn(candidates.source, candidates.match_length, chosen, num_accepted)

    def _settle(self, chosen: int, num_accepted: int, draft_s: float) -> None:
        """Set what a round brought against what it cost, and pause after too much loss."""
        table = self._costs.table()
        spent_s = draft_s + table[min(chosen, MOST_CANDIDATES)]
        gained = num_accepted + 1 - spent_s / table[0]
        most = self._MOST_LOST
        self._gained = min(most, self._gained + gained)
        if self._gained >= 0:
            self._next_pause = 1
        elif self._gained <= -most and gained < 0:
            self._gained = -most
            enough = math.ceil(-gained / self._SHARE_LOST)
            self._pause = self._next_pause = min(2 * self._next_pause, enough, self._LONGEST_WAIT)

    def _is_probe_due(self) -> bool:
        """Whether one candidate is to be tried though none seems to pay."""
        self._skipped += 1
        if self._skipped < self._wait:
            return False
        self._skipped = 0
        return True

    def _best(self, proposed: int, candidates: Candidates, draft_s: float) -> int:
        """How many candidates bring the most tokens a second, each taking ``draft_s`` to find."""
        table = self._costs.table()
        if not table:
            return min(proposed, FIRST_CANDIDATES)
        source, match_length = candidates.source, candidates.match_length
        best, best_rate = 0, 1 / table[0]
        expected, chance = 1.0, 1.0
        chances = self._acceptance.chances(source, match_length, min(proposed, MOST_CANDIDATES))
        for k, next_stands in enumerate(chances, 1):
            chance *= next_stands
            expected += chance
            rate = expected / (table[k] + k * draft_s)
            if rate > best_rate:
                best, best_rate = k, rate
            elif chance < self._UNLIKELY:
                break
        return best
