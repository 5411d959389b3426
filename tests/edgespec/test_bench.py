from pathlib import Path

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.bench import Comparison, Report, measure
from edgespec.errors import TokenizerError

pytestmark = pytest.mark.onnx


def comparison(prompt: str, speed_up: float) -> Comparison:
    return Comparison(prompt, 10.0, 10.0 * speed_up, 0.5, 2.0, 16, True)


def test_forwards_saved_by_lookup_are_counted_where_it_is_right(markov: EdgeGenerator) -> None:
    counting = [*range(60), *range(10)]
    report = measure(
        markov, {"count": counting}, num_assistant_tokens=10, max_new_tokens=32, repeats=1
    )
    (count,) = report.comparisons
    assert count.target_calls <= 6
    assert (count.same_text, count.acceptance_rate) == (True, 1.0)
    assert count.tokens_per_round == pytest.approx(32 / count.target_calls)


def test_text_that_cannot_be_guessed_is_the_same_and_gains_nothing(
    hash_model: EdgeGenerator,
) -> None:
    prompt = np.random.default_rng(0).integers(0, 64, 40).tolist()
    report = measure(hash_model, {"noise": prompt}, max_new_tokens=32, repeats=1)
    (noise,) = report.comparisons
    assert noise.same_text
    assert noise.target_calls > 25


def test_the_time_of_forwards_is_told_by_their_rows(markov: EdgeGenerator) -> None:
    report = measure(markov, {}, repeats=1)
    assert list(report.step_ms) == [1, 2, 3, 5, 9, 17]
    assert all(ms > 0 for ms in report.step_ms.values())


@pytest.mark.parametrize(
    ("gains", "advice"),
    [
        ([2.0, 1.5], "lookup pays: 2.0x on a, 1.5x on b; turn it on"),
        ([2.0, 1.0], "lookup pays on a (2.0x on a, 1.0x on b); turn it on where text repeats"),
        ([1.0, 0.9], "lookup does not pay here (1.0x on a, 0.9x on b); leave it off"),
    ],
)
def test_the_advice_follows_from_the_figures(gains: list[float], advice: str) -> None:
    report = Report(tuple(comparison(n, g) for n, g in zip("ab", gains, strict=True)), {})
    assert report.advice == advice


def test_prompts_of_text_need_a_tokenizer(hash_model: EdgeGenerator, models: Path) -> None:
    with pytest.raises(
        TokenizerError,
        match=r"tokenizer.json does not exist, and the prompts are text; copy it from the ",
    ):
        measure(hash_model)
