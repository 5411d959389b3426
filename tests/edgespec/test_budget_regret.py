"""What ``num_assistant_tokens="auto"`` brings, against plain decoding and against an oracle.

The time is made up, and so is the text: a proposal in some of the rounds, and a chance for each
candidate. So the same happens on every machine, and nothing is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from edgespec.budget import MOST_CANDIDATES, AutoBudget, StepCosts
from edgespec.candidates.base import NO_CANDIDATES, Candidates

FP32 = tuple(1 + 0.02 * rows for rows in range(1, 34))
INT4 = tuple(1 + 0.35 * rows for rows in range(1, 34))
CURVES = pytest.mark.parametrize(
    "curve", [pytest.param(FP32, id="fp32"), pytest.param(INT4, id="int4")]
)


@dataclass(frozen=True)
class Text:
    """How a text can be guessed.

    Attributes:
        proposes: Share of the rounds in which something is found.
        match_length: A length for each proposal, drawn from these.
        chance: Of a candidate, by its match and its place.
        length: Candidates of a proposal.
        draft_s: Seconds that looking takes, found or not; a plain step takes about 1.
    """

    proposes: float
    match_length: tuple[int, ...]
    chance: Callable[[int, int], float]
    length: int = 10
    draft_s: float = 0.0


NOTHING = Text(0.6, (1, 1, 1, 2, 2, 3), lambda match, i: 0.04)
"""Short matches by accident, as in an explanation."""
NEVER = Text(1.0, (1, 2, 3, 5, 9), lambda match, i: 0.0)
"""The worst: long matches in every round, and all of them wrong."""
CHAT = Text(0.5, (1, 2, 3, 4), lambda match, i: min(0.95, 0.2 + 0.1 * (match + i)))
COPY = Text(0.95, (3, 5, 10, 20), lambda match, i: 0.97, length=32)


def decode(
    text: Text, curve: tuple[float, ...], budget: AutoBudget | None, tokens: int, seed: int
) -> float:
    """Seconds for so many tokens; by an oracle that knows chances and costs without a budget."""
    rng, emitted, seconds, plain = np.random.default_rng(seed), 0, 0.0, curve[0]
    while emitted < tokens:
        found, match = rng.random() < text.proposes, int(rng.choice(text.match_length))
        stands = rng.random(MOST_CANDIDATES)
        limit = MOST_CANDIDATES if budget is None else budget.limit()
        count = min(limit, text.length) if found else 0
        proposal = (
            Candidates(np.zeros(count, np.int64), match_length=match) if count else NO_CANDIDATES
        )
        draft_s = text.draft_s if limit else 0.0
        if budget is None:
            chances = np.cumprod([1.0] + [text.chance(match, i) for i in range(count)])
            rates = np.cumsum(chances) / (np.array(curve[: count + 1]))
            chosen = int(rates.argmax())
            draft_s = draft_s if rates[chosen] > 1 / plain else 0.0
        else:
            chosen = budget.choose(proposal)
        accepted = 0
        while accepted < chosen and stands[accepted] < text.chance(match, accepted):
            accepted += 1
        if budget is not None:
            budget.learn(proposal, chosen, accepted, draft_s, curve[chosen])
        emitted += accepted + 1
        seconds += draft_s + curve[chosen]
    return seconds / emitted


def known(curve: tuple[float, ...]) -> StepCosts:
    """What an earlier process has measured on this machine."""
    return StepCosts({rows: curve[rows - 1] for rows in (1, 2, 3, 5, 9, 17, 33)})


def against_plain(
    text: Text, curve: tuple[float, ...], costs: Callable[[], StepCosts], tokens: int = 256
) -> float:
    """The time against plain decoding's, the mean of many texts."""
    runs = [decode(text, curve, AutoBudget(costs()), tokens, seed) for seed in range(20)]
    return float(np.mean(runs)) / curve[0]


@CURVES
@pytest.mark.parametrize(
    "text", [pytest.param(NOTHING, id="accidents"), pytest.param(NEVER, id="never")]
)
def test_a_hopeless_text_costs_at_most_three_percent(text: Text, curve: tuple[float, ...]) -> None:
    assert against_plain(text, curve, lambda: known(curve)) <= 1.03


@CURVES
def test_so_it_does_where_nothing_was_measured_before(curve: tuple[float, ...]) -> None:
    assert against_plain(NOTHING, curve, StepCosts) <= 1.03


@CURVES
@pytest.mark.parametrize("draft_s", [0.05, 0.3])
def test_looking_in_vain_is_counted_even_where_nothing_is_found(
    curve: tuple[float, ...], draft_s: float
) -> None:
    """As on a model whose forward takes no longer than the looking."""
    silent = Text(0.0, (1,), lambda match, i: 0.0, draft_s=draft_s)
    assert against_plain(silent, curve, lambda: known(curve)) <= 1.03


@CURVES
@pytest.mark.parametrize(
    ("text", "least"), [pytest.param(CHAT, 0.95, id="chat"), pytest.param(COPY, 0.85, id="copy")]
)
def test_most_of_what_an_oracle_gains_is_gained(
    text: Text, least: float, curve: tuple[float, ...]
) -> None:
    oracle = np.mean([decode(text, curve, None, 256, seed) for seed in range(20)])
    auto = against_plain(text, curve, lambda: known(curve)) * curve[0]
    assert oracle <= curve[0]
    assert oracle / auto >= least


@CURVES
def test_a_text_that_turns_to_copying_is_noticed(curve: tuple[float, ...]) -> None:
    budget = AutoBudget(known(curve))
    decode(NEVER, curve, budget, 256, 0)
    oracle = decode(COPY, curve, None, 512, 1)
    assert oracle / decode(COPY, curve, budget, 512, 1) >= 0.6
