import numpy as np
import pytest

from edgespec.budget import (
    FIRST_CANDIDATES,
    MOST_CANDIDATES,
    AutoBudget,
    ConstantBudget,
    HeuristicBudget,
    StepCosts,
)
from edgespec.candidates.base import NO_CANDIDATES, Candidates


def costs(table: dict[int, float]) -> StepCosts:
    made = StepCosts()
    for rows, seconds in table.items():
        made.add(rows, seconds)
    return made


def proposal(count: int, match_length: int | None = 3) -> Candidates:
    return Candidates(np.zeros(count, np.int64), match_length=match_length)


def taught(budget: AutoBudget, accepted: int, rounds: int, table: dict[int, float]) -> AutoBudget:
    """Show ``budget`` proposals of 8 tokens of which the first ``accepted`` stand."""
    for _ in range(rounds):
        chosen = budget.choose(proposal(8))
        budget.learn(proposal(8), chosen, min(accepted, chosen), 0.0, table[chosen + 1])
    return budget


FLAT = {rows: 1.0 for rows in range(1, 34)}
"""More rows cost nothing more: memory-bound."""
STEEP = {rows: float(rows) for rows in range(1, 34)}
"""Every row costs a step of its own: nothing to win."""


def test_a_constant_budget_takes_the_same_number_each_round() -> None:
    budget = ConstantBudget(5)
    assert budget.limit() == 5
    assert budget.choose(proposal(5)) == 5
    assert budget.choose(proposal(2)) == 2
    budget.learn(proposal(5), 5, 0, 1.0, 1.0)
    assert budget.limit() == 5


def test_step_costs_lie_on_a_line_between_what_was_measured() -> None:
    known = costs({1: 1.0, 5: 3.0})
    assert known.table()[0] == 1.0
    assert known.table()[2] == pytest.approx(2.0)
    assert known.table()[8] == pytest.approx(5.0)
    assert StepCosts().table() == []


def test_more_rows_are_never_taken_to_cost_less_than_the_cheapest_step() -> None:
    known = costs({4: 2.0, 8: 1.0})  # a disturbed measurement
    assert known.table()[0] == 2.0
    assert known.table()[31] == 2.0


def test_one_disturbed_step_is_forgiven() -> None:
    known = costs({1: 1.0})
    for seconds in (1.0, 50.0, 1.0):
        known.add(1, seconds)
    assert known.table()[0] == 1.0


def test_all_are_verified_where_rows_are_free_and_candidates_stand() -> None:
    budget = taught(AutoBudget(costs(FLAT)), 8, 20, FLAT)
    assert budget.limit() == MOST_CANDIDATES
    assert budget.choose(proposal(8)) == 8
    assert budget.choose(proposal(3)) == 3


def test_the_number_that_brings_the_most_tokens_a_second_is_chosen() -> None:
    """Rows beyond the fourth cost four steps each: three candidates are free, the fourth dear."""
    table = {rows: 1.0 if rows <= 4 else 1.0 + 4.0 * (rows - 4) for rows in range(1, 34)}
    budget = taught(AutoBudget(costs(table)), 8, 30, table)
    assert budget.choose(proposal(8)) == 3


def test_nothing_is_verified_where_nothing_stands() -> None:
    budget = taught(AutoBudget(costs(FLAT)), 0, 300, {r: 1 + 0.2 * r for r in FLAT})
    chosen = [budget.choose(proposal(8)) for _ in range(40)]
    assert sum(chosen) <= 1
    assert set(chosen) <= {0, 1}


def test_nothing_is_verified_where_every_row_costs_a_step() -> None:
    budget = AutoBudget(costs(STEEP))
    chosen = []
    for _ in range(64):
        chosen.append(budget.choose(proposal(8)))
        budget.learn(proposal(8), chosen[-1], 0, 0.0, STEEP[chosen[-1] + 1])
    assert max(chosen) == 1
    assert sum(chosen) <= 8


def test_probes_become_rare_and_a_success_brings_them_back() -> None:
    budget = AutoBudget(costs(STEEP))
    probes = []
    for step in range(200):
        chosen = budget.choose(proposal(8))
        budget.learn(proposal(8), chosen, 0, 0.0, STEEP[chosen + 1])
        if chosen:
            probes.append(step)
    waits = np.diff(probes)
    assert len(waits) >= 4
    assert all(waits[1:] >= waits[:-1])
    assert waits[-1] >= 32
    budget.learn(proposal(8), 1, 1, 0.0, STEEP[2])
    assert [budget.choose(proposal(8)) for _ in range(2)] == [1, 1]


def test_a_text_that_begins_to_repeat_itself_is_noticed() -> None:
    table = {rows: 1 + 0.1 * rows for rows in range(1, 34)}
    budget = taught(AutoBudget(costs(table)), 0, 200, table)
    assert budget.choose(proposal(8)) in (0, 1)
    assert taught(budget, 8, 400, table).choose(proposal(8)) == 8


def test_longer_matches_earn_their_own_trust() -> None:
    table = {rows: 1 + 0.15 * rows for rows in range(1, 34)}
    budget = AutoBudget(costs(table))
    for _ in range(200):
        for match_length, stands in ((1, 0), (20, 8)):
            chosen = budget.choose(proposal(8, match_length))
            accepted = min(stands, chosen)
            budget.learn(proposal(8, match_length), chosen, accepted, 0.0, table[chosen + 1])
    assert budget.choose(proposal(8, 20)) == 8
    assert budget.choose(proposal(8, 1)) in (0, 1)


def test_a_generator_that_takes_its_time_is_asked_for_less() -> None:
    table = {rows: 1 + 0.02 * rows for rows in range(1, 34)}
    budget = AutoBudget(costs(table))
    for _ in range(20):
        budget.learn(proposal(8, None), 8, 4, 8 * 0.4, table[9])
    assert 0 < budget.limit() < MOST_CANDIDATES


def test_no_proposal_is_a_plain_step_and_teaches_what_one_costs() -> None:
    known = StepCosts()
    budget = AutoBudget(known)
    assert budget.choose(NO_CANDIDATES) == 0
    budget.learn(NO_CANDIDATES, 0, 0, 0.0, 0.25)
    assert known.table()[0] == 0.25


def test_a_budget_that_knows_nothing_tries_a_few() -> None:
    assert 0 < AutoBudget(StepCosts()).choose(proposal(20)) < 20


def test_the_same_rounds_lead_to_the_same_choices() -> None:
    table = {rows: 1 + 0.3 * rows for rows in range(1, 34)}
    rng = np.random.default_rng(0)
    accepted = rng.integers(0, 9, 100).tolist()

    def choices() -> list[int]:
        budget = AutoBudget(costs(table))
        chosen = []
        for stands in accepted:
            chosen.append(budget.choose(proposal(8)))
            budget.learn(
                proposal(8), chosen[-1], min(stands, chosen[-1]), 0.0, table[chosen[-1] + 1]
            )
        return chosen

    assert choices() == choices()
    assert len(set(choices())) > 1


class TestHeuristic:
    """transformers' schedules ``heuristic`` and ``heuristic_transient``."""

    def after(self, budget: HeuristicBudget, accepted: int, chosen: int) -> int:
        assert budget.choose(proposal(chosen)) == chosen
        budget.learn(proposal(chosen), chosen, accepted, 1.0, 1.0)
        return budget.limit()

    def test_two_more_after_all_stood_and_one_less_otherwise(self) -> None:
        budget = HeuristicBudget(5)
        assert budget.limit() == 5
        assert self.after(budget, 5, 5) == 7
        assert self.after(budget, 6, 7) == 6
        assert self.after(budget, 0, 6) == 5

    def test_a_proposal_shorter_than_asked_for_counts_as_it_is(self) -> None:
        assert self.after(HeuristicBudget(5), 2, 2) == 7

    def test_a_round_without_candidates_says_nothing(self) -> None:
        budget = HeuristicBudget(5)
        budget.learn(NO_CANDIDATES, 0, 0, 1.0, 1.0)
        assert budget.limit() == 5

    def test_one_is_the_least(self) -> None:
        budget = HeuristicBudget(2)
        assert [self.after(budget, 0, 1) for _ in range(3)] == [1, 1, 1]

    def test_none_stays_none(self) -> None:
        assert HeuristicBudget(0).limit() == 0


class TestDrawn:
    """Candidates that came by chance: what is left out of them must not depend on them."""

    def drawn(self, count: int) -> Candidates:
        return Candidates(np.zeros(count, np.int64), np.full((count, 2), 0.5))

    def test_all_are_verified_however_little_that_pays(self) -> None:
        budget = AutoBudget(costs(STEEP))
        for count in (1, 3, 8):
            assert budget.choose(self.drawn(count)) == count
            assert budget.choose(proposal(count)) < count or count == 1

    def test_fewer_are_asked_for_where_they_do_not_pay(self) -> None:
        budget = AutoBudget(costs(STEEP))
        asked = []
        for _ in range(40):
            asked.append(budget.limit())
            count = min(asked[-1], 8)
            budget.learn(self.drawn(count), count, 0, 0.0, STEEP[count + 1])
        assert asked[0] == FIRST_CANDIDATES
        assert set(asked[8:]) <= {0, 1}
        assert sum(asked[8:]) <= 8


@pytest.mark.parametrize("source", [None, "AssistedCandidateGenerator"])
def test_a_draft_that_is_right_is_asked_for_more_whatever_name_it_goes_by(
    source: str | None,
) -> None:
    """A grammar or a mixture in front of a draft says who proposed."""
    table = {rows: 1.0 + 0.05 * (rows - 1) for rows in range(1, 34)}
    budget = AutoBudget(costs(table))
    for _ in range(60):
        count = budget.limit()
        drafted = Candidates(np.zeros(count, np.int64), source=source)
        chosen = budget.choose(drafted)
        budget.learn(drafted, chosen, chosen, 0.3 * count, table[chosen + 1])
    assert budget.limit() >= 8


@pytest.mark.parametrize("known", [{1: 1.0, 6: 3.5}, {1: 1.0, 6: 30.0}, {1: 1.0, 2: 1.05, 3: 8.0}])
def test_a_disturbed_measurement_does_not_last(known: dict[int, float]) -> None:
    """A busy machine, or one that slept, once: a number that seems not to pay is tried again."""
    table = {rows: 1.0 + 0.05 * (rows - 1) for rows in range(1, 34)}
    budget = AutoBudget(StepCosts(known))
    for _ in range(400):
        drafted = proposal(min(budget.limit(), 10))
        chosen = budget.choose(drafted)
        budget.learn(drafted, chosen, chosen, 0.0, table[chosen + 1])
    budget.limit()
    assert budget.choose(proposal(10)) >= 9
