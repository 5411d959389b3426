"""Which budget a call gets, and what is remembered from call to call."""

from edgespec.budget import (
    FIRST_CANDIDATES,
    AutoBudget,
    Budget,
    ConstantBudget,
    HeuristicBudget,
    StepCosts,
)
from edgespec.cost_file import CostFile
from edgespec.machine import processor
from edgespec.model_folder import ModelFolder
from edgespec.options import Options
from edgespec.session import Session


class Budgets:
    """The budgets of one generator's calls: the machine's costs stay the same."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._costs: dict[tuple[object, ...], StepCosts] = {}
        self._heuristics: dict[int, HeuristicBudget] = {}  # by the number that each began with

    def of(self, options: Options, folder: ModelFolder, session: Session) -> Budget:
        """What decides how many candidates a round of this call verifies.

        Args:
            options: The call's.
            folder: The model's.
            session: The graph as it is loaded now.
        """
        schedule, count = options.num_assistant_tokens_schedule, options.num_assistant_tokens
        if count == "auto":
            if schedule is None and options.prompt_lookup_num_tokens is None:
                return AutoBudget(self._known_costs(folder, session, exact=options.exact))
            count = options.prompt_lookup_num_tokens or FIRST_CANDIDATES
        if schedule == "heuristic":
            return self._heuristics.setdefault(count, HeuristicBudget(count))
        if schedule == "heuristic_transient":
            return HeuristicBudget(count)
        return ConstantBudget(count)

    def _known_costs(self, folder: ModelFolder, session: Session, *, exact: bool) -> StepCosts:
        """What forwards cost, from the user's cache the first time; and kept there."""
        shares = session.shares_threads
        key = (exact, shares, session.threads, session.provider)
        if key not in self._costs:
            size = folder.graph.stat().st_size
            made = (folder.graph.name, size, folder.manifest, session.runtime, processor())
            file = CostFile(*made, *key)
            self._costs[key] = StepCosts(file.read(), file.write)
        return self._costs[key]
