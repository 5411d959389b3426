"""How many candidates to ask for next."""

from bisect import bisect_right
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Protocol

from edgespec.acceptance import Acceptance
from edgespec.candidates.base import NO_CANDIDATES, Candidates

if TYPE_CHECKING:
    from edgespec.options import Options  # which stands on a floor above

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

    def __init__(self) -> None:
        """Know nothing yet."""
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._rows: list[int] = []  # that were measured, in order

    def add(self, rows: int, seconds: float) -> None:
        """Take in one forward. The median of the last few forgives a disturbed one."""
        seen = self._seen.setdefault(rows, deque(maxlen=7))
        seen.append(seconds)
        self._medians[rows] = median(seen)
        if len(self._rows) < len(self._medians):
            self._rows = sorted(self._medians)

    def seconds(self, rows: int) -> float | None:
        """What a forward of ``rows`` takes: measured, or on a line between what was measured."""
        known, medians = self._rows, self._medians
        if len(known) > 1 and rows in medians:
            return medians[rows]
        if not known:
            return None
        if len(known) == 1:
            # One point only: a row more is taken to cost a tenth, so that something is tried.
            at = known[0]
            return medians[at] * (1 + 0.1 * (rows - 1)) / (1 + 0.1 * (at - 1))
        above = min(max(bisect_right(known, rows), 1), len(known) - 1)
        x0, x1 = known[above - 1], known[above]
        slope = max(0.0, (medians[x1] - medians[x0]) / (x1 - x0))
        return max(medians[x0] + slope * (rows - x0), medians[known[0]])


class AutoBudget:
    """As many candidates as bring the most tokens a second on this machine and this text.

    Two things are learned from every round: what a forward of k rows costs (:class:`StepCosts`),
    and how often a candidate stands (:class:`~edgespec.acceptance.Acceptance`). The number that
    maximises

        expected tokens / expected seconds,   1 + sum over i of (a_1 ... a_i)  /  t(k + 1) + k d

    is verified, where d is the generator's own time a candidate. It may be 0: then only every
    2nd, 4th, ... such proposal is tried, to see whether the text has changed.
    """

    _LONGEST_WAIT = 64

    def __init__(self, costs: StepCosts) -> None:
        """Start with what is usual for text that repeats itself, and the machine's known costs."""
        self._costs = costs
        self._acceptance = Acceptance()
        self._read_prompt = False
        self._drafts_s: deque[float] = deque(maxlen=7)  # of one candidate
        self._are_drawn = False
        self._wait = 1
        self._skipped = 0
        self._due = False

    def limit(self) -> int:
        """All that may pay; fewer where the generator itself takes time."""
        step_s = self._costs.seconds(1)
        if step_s is None or not self._drafts_s:
            return FIRST_CANDIDATES
        draft_s = median(self._drafts_s)
        if draft_s < 0.02 * step_s and not self._are_drawn:
            return MOST_CANDIDATES
        best = self._best(MOST_CANDIDATES, NO_CANDIDATES, draft_s)
        self._due = not best and self._is_probe_due()
        return best or int(self._due)

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
        return best

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
        if len(candidates.tokens):
            if self._read_prompt:
                self._drafts_s.append(draft_s / len(candidates.tokens))
            self._read_prompt = True  # the first time it reads the prompt too: no measure
            self._are_drawn = candidates.draft_probs is not None
        if not chosen:
            return
        self._wait = 1 if num_accepted else min(2 * self._wait, self._LONGEST_WAIT)
        self._acceptance.learn(candidates.source, candidates.match_length, chosen, num_accepted)

    def _is_probe_due(self) -> bool:
        """Whether one candidate is to be tried though none seems to pay."""
        self._skipped += 1
        if self._skipped < self._wait:
            return False
        self._skipped = 0
        return True

    def _best(self, proposed: int, candidates: Candidates, draft_s: float) -> int:
        """How many candidates bring the most tokens a second, each taking ``draft_s`` to find."""
        step_s = self._costs.seconds(1)
        if step_s is None:
            return min(proposed, FIRST_CANDIDATES)
        best, best_rate = 0, 1 / step_s
        expected, chance = 1.0, 1.0
        for k in range(1, min(proposed, MOST_CANDIDATES) + 1):
            chance *= self._acceptance.chance(candidates.source, candidates.match_length, k - 1)
            expected += chance
            rate = expected / ((self._costs.seconds(k + 1) or step_s) + k * draft_s)
            if rate > best_rate:
                best, best_rate = k, rate
            elif rate < 0.5 * best_rate:
                break  # no more will pay again
        return best


def make_budget(options: "Options", costs: StepCosts, kept: dict[int, HeuristicBudget]) -> Budget:
    """The budget that a call asks for.

    Args:
        options: The settings of the call.
        costs: What was learned of the model's forwards.
        kept: Budgets of the schedule ``heuristic``, by the number that each began with.
    """
    schedule, count = options.num_assistant_tokens_schedule, options.num_assistant_tokens
    if count == "auto":
        if schedule is None and options.prompt_lookup_num_tokens is None:
            return AutoBudget(costs)
        count = options.prompt_lookup_num_tokens or FIRST_CANDIDATES
    if schedule == "heuristic":
        return kept.setdefault(count, HeuristicBudget(count))
    if schedule == "heuristic_transient":
        return HeuristicBudget(count)
    return ConstantBudget(count)
