import json

import numpy as np
import pytest

from edgespec.decode import Round
from edgespec.stats import Stats


def a_round(tokens: int, accepted: int, verified: int, proposed: int, verify_s: float) -> Round:
    source = "Lookup" if proposed else None
    return Round(
        np.zeros(tokens, np.int64),
        accepted,
        proposed,
        verified,
        source,
        0.25,
        verify_s,
        0.125,
        None,
    )


@pytest.fixture
def stats() -> Stats:
    stats = Stats(prompt_tokens=9)
    stats.add(a_round(1, 0, 0, 0, 2.0))
    stats.add(a_round(3, 2, 4, 6, 3.0))
    stats.add(a_round(1, 0, 2, 2, 2.5))
    stats.add(a_round(1, 0, 0, 3, 4.0))
    stats.decode_s = 12.0
    return stats


def test_rounds_add_up(stats: Stats) -> None:
    assert (stats.rounds, stats.emitted) == (4, 6)
    assert (stats.proposed, stats.evaluated, stats.accepted) == (11, 6, 2)
    assert (stats.draft_s, stats.verify_s, stats.rewind_s) == (1.0, 11.5, 0.5)
    assert stats.by_source == {"Lookup": (6, 2)}


def test_positions_tell_how_far_a_proposal_holds(stats: Stats) -> None:
    assert stats.evaluated_by_position == [2, 2, 1, 1]
    assert stats.accepted_by_position == [1, 1, 0, 0]


def test_rates(stats: Stats) -> None:
    assert stats.acceptance_rate == pytest.approx(2 / 6)
    assert stats.tokens_per_round == 1.5
    assert stats.tokens_per_s == 0.5


def test_the_gain_is_measured_against_this_calls_own_plain_steps(stats: Stats) -> None:
    assert stats.plain_step_s == 3.0  # the median of 2 and 4
    assert stats.speed_up == 1.5


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    fresh = Stats()
    assert fresh.acceptance_rate is None
    assert fresh.tokens_per_round is None
    assert fresh.tokens_per_s is None
    assert fresh.speed_up is None


def test_everything_is_ready_for_json(stats: Stats) -> None:
    said = json.loads(json.dumps(stats.as_dict()))
    assert said["by_source"] == {"Lookup": {"evaluated": 6, "accepted": 2}}
    public = {name for name in Stats.__dataclass_fields__ if not name.startswith("_")}
    assert public <= set(said)
