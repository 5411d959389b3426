from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.bench.engines import Ours, Written
from edgespec.bench.measure import figures, step_ms
from edgespec.bench.prompts import BenchPrompt
from edgespec.errors import TokenizerError

COUNTING = BenchPrompt("count", "copying", [*range(60), *range(10)])


class Scripted:
    """Writes with the speeds that it is told, in order."""

    name = "scripted"
    methods: tuple[str, ...] = ("plain", "lookup")

    def __init__(self, **speeds: list[float]) -> None:
        self.speeds = speeds
        self.asked: list[str] = []

    def write(self, method: str, prompt: str | Sequence[int], max_new_tokens: int) -> Written:
        self.asked.append(method)
        return Written(f"text of {method}", self.speeds[method].pop(0), 0.0)


def test_the_first_run_is_not_counted_and_the_order_alternates() -> None:
    engine = Scripted(plain=[1.0, 10.0, 30.0, 20.0], lookup=[1.0, 50.0, 40.0, 60.0])
    plain, lookup = figures([engine], [COUNTING], repeats=3)
    assert (plain.tokens_per_s, lookup.tokens_per_s) == (20.0, 50.0)
    assert engine.asked == ["lookup", "plain", "plain", "lookup"] * 2
    assert (plain.same_text, lookup.same_text) == (True, False)


@pytest.mark.onnx
def test_forwards_saved_are_counted_where_candidates_are_right(markov: EdgeGenerator) -> None:
    ours = Ours(markov, ["plain", "lookup"], num_assistant_tokens=10)
    plain, lookup = figures([ours], [COUNTING], max_new_tokens=32, repeats=1)
    assert plain.tokens_per_round == 1.0
    assert lookup.tokens_per_round is not None
    assert lookup.tokens_per_round > 5
    assert (lookup.same_text, lookup.acceptance_rate) == (True, 1.0)
    assert lookup.accepted_by_position[0] == lookup.evaluated_by_position[0]


@pytest.mark.onnx
def test_the_time_of_forwards_is_told_by_their_rows(markov: EdgeGenerator) -> None:
    took = step_ms(markov, repeats=1)
    assert list(took) == [1, 2, 3, 5, 9, 17, 33]
    assert all(ms > 0 for ms in took.values())


@pytest.mark.onnx
def test_measuring_forwards_leaves_the_model_ready(markov: EdgeGenerator) -> None:
    before = markov.generate([3, 4, 5], max_new_tokens=8).tokens
    step_ms(markov, repeats=1)
    assert np.array_equal(markov.generate([3, 4, 5], max_new_tokens=8).tokens, before)


@pytest.mark.onnx
def test_prompts_of_text_need_a_tokenizer(hash_model: EdgeGenerator, models: Path) -> None:
    ours = Ours(hash_model, ["plain"])
    with pytest.raises(
        TokenizerError,
        match=r"tokenizer.json does not exist, and the prompts are text; copy it from the ",
    ):
        ours.write("plain", "text", 8)
