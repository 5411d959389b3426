"""Which budget a call gets, and what is remembered from call to call."""

from edgespec.budget import (
    FIRST_CANDIDATES,
    AutoBudget,
    Budget,
    ConstantBudget,
    HeuristicBudget,
    StepCosts,
)
from edgespec.options import Options


class Budgets:
    """The budgets of one generator's calls: the machine's costs stay the same."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._costs, self._exact_costs = StepCosts(), StepCosts()
        self._heuristics: dict[int, HeuristicBudget] = {}  # by the number that each began with

    def of(self, options: Options) -> Budget:
        """What decides how many candidates a round of this call verifies."""
        schedule, count = options.num_assistant_tokens_schedule, options.num_assistant_tokens
        if count == "auto":
            if schedule is None and options.prompt_lookup_num_tokens is None:
                return AutoBudget(self._exact_costs if options.exact else self._costs)
            count = options.prompt_lookup_num_tokens or FIRST_CANDIDATES
        if schedule == "heuristic":
            return self._heuristics.setdefault(count, HeuristicBudget(count))
        if schedule == "heuristic_transient":
            return HeuristicBudget(count)
        return ConstantBudget(count)
