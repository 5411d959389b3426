import numpy as np
import pytest

from edgespec.arrays import TokenIds
from edgespec.errors import LogitsError
from edgespec.verify import pick_greedy, verify_match


@pytest.mark.parametrize(
    ("candidates", "accepted", "tokens"),
    [
        pytest.param([3, 4, 5], 2, [3, 4, 9], id="up to the first wrong one"),
        pytest.param([3, 4, 9], 3, [3, 4, 9, 6], id="all, and one of the target's own"),
        pytest.param([4, 4, 9], 0, [3], id="none where the first is wrong"),
        pytest.param([], 0, [3], id="a plain step"),
    ],
)
def test_candidates_stand_up_to_the_first_that_the_target_would_not_say(
    candidates: list[int], accepted: int, tokens: list[int]
) -> None:
    logits = np.eye(10, dtype=np.float32)[[3, 4, 9, 6]]  # the target would say 3 4 9 6
    known = np.array([7, 8, *candidates])
    verdict = verify_match(known, np.array(candidates, np.int64), logits, pick_greedy)
    assert (verdict.num_accepted, verdict.tokens.tolist()) == (accepted, tokens)


def test_a_pick_sees_each_prefix_once_and_none_behind_a_refused_candidate() -> None:
    seen = []

    def pick(row: np.ndarray[tuple[int], np.dtype[np.float32]], prefix: TokenIds) -> int:
        seen.append(prefix.tolist())
        return int(row.argmax())

    logits = np.eye(10, dtype=np.float32)[[3, 4, 9, 6]]
    verify_match(np.array([7, 8, 3, 5, 9]), np.array([3, 5, 9]), logits, pick)
    assert seen == [[7, 8], [7, 8, 3]]


def test_of_equal_scores_the_lowest_id_is_picked() -> None:
    """vllm-project/vllm#7627."""
    row = np.array([1, 3, 3, 0], np.float32)
    assert pick_greedy(row, np.array([0])) == 1
    verdict = verify_match(np.array([0, 2]), np.array([2]), np.stack([row, row]), pick_greedy)
    assert (verdict.num_accepted, verdict.tokens.tolist()) == (0, [1])


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("at", [0, 2])
def test_scores_that_are_no_numbers_are_refused(at: int, value: str) -> None:
    row = np.array([1, 3, 2], np.float32)
    row[at] = float(value)
    said = (
        f"^the model returned {value} as its highest logit after 2 tokens; its weights overflow "
        "at this precision: export it with another --precision$"
    )
    with pytest.raises(LogitsError, match=said):
        pick_greedy(row, np.array([5, 6]))
