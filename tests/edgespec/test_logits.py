"""Processors by hand, and picks by their promises."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.arrays import Logits, TokenIds
from edgespec.errors import LogitsError
from edgespec.logits import make_distribution, make_pick, make_processing
from edgespec.options import Options
from edgespec.verify import verify_match

INF = math.inf


def row_of(*scores: float) -> Logits:
    """A row of scores [V] that nobody may write to, as a session's buffer is by contract."""
    row = np.array(scores, np.float32)
    row.flags.writeable = False
    return row


def tokens_of(*tokens: int) -> TokenIds:
    return np.array(tokens, np.int64)


def processed(
    row: Logits, prefix: TokenIds, *, prompt_length: int = 1, **settings: Any
) -> list[float]:
    process = make_processing(
        Options(**settings), prompt_length=prompt_length, vocab_limit=len(row)
    )
    left: list[float] = process(row, prefix).tolist()
    return left


def written(row: Logits, prompt: TokenIds, count: int, options: Options) -> list[int]:
    """``count`` tokens of a model that always says ``row``."""
    pick = make_pick(options, prompt_length=len(prompt), vocab_limit=len(row))
    tokens = prompt
    for _ in range(count):
        tokens = np.append(tokens, pick(row, tokens))
    new: list[int] = tokens[len(prompt) :].tolist()
    return new


def test_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_not() -> None:
    row, prefix = row_of(3.0, -3.0, 3.0, 0.0), tokens_of(0, 1, 0, 3)
    assert processed(row, prefix, repetition_penalty=1.5) == [2.0, -4.5, 3.0, 0.0]


def test_count_penalties_count_what_the_model_wrote_and_not_the_prompt() -> None:
    row, prefix = row_of(0.0, 0.0, 0.0, 0.0), tokens_of(0, 0, 1, 2, 1)
    left = processed(row, prefix, prompt_length=2, presence_penalty=1.0, frequency_penalty=0.5)
    assert left == [0.0, -2.0, -1.5, 0.0]


@pytest.mark.parametrize(
    ("size", "prefix", "forbidden"),
    [
        pytest.param(1, (0, 2), {0, 2}, id="size 1 forbids all that was there"),
        pytest.param(2, (0, 1, 0, 3, 0), {1, 3}, id="what followed the last token"),
        pytest.param(3, (0, 1, 2, 0, 1), {2}, id="what followed the last two"),
        pytest.param(3, (0, 1), set(), id="too short a text"),
        pytest.param(2, (0, 9, 0), set(), id="an id that the scores lack"),
    ],
)
def test_no_ngram_comes_twice(size: int, prefix: tuple[int, ...], forbidden: set[int]) -> None:
    left = processed(row_of(0, 0, 0, 0), tokens_of(*prefix), no_repeat_ngram_size=size)
    assert {t for t, score in enumerate(left) if score == -INF} == forbidden


@pytest.mark.parametrize(
    ("prefix", "forbidden"),
    [
        pytest.param((0,), {3}, id="single"),
        pytest.param((2,), {1, 3}, id="a pair, in a prefix shorter than the longest word"),
        pytest.param((0, 1, 2), {0, 1, 3}, id="the pair and the four"),
    ],
)
def test_bad_words_are_never_completed(prefix: tuple[int, ...], forbidden: set[int]) -> None:
    words = ((3,), (2, 1), (0, 1, 2, 0), (4,))
    left = processed(
        row_of(0, 0, 0, 0, 0), tokens_of(*prefix), bad_words_ids=words, eos_token_id=(4,)
    )
    assert {t for t, score in enumerate(left) if score == -INF} == forbidden


def test_end_tokens_wait_for_min_new_tokens() -> None:
    row = row_of(0.0, 2.0, 3.0, 1.0)
    options = Options(min_new_tokens=2, eos_token_id=(1, 2))
    assert written(row, tokens_of(0, 0, 0), 4, options) == [3, 3, 2, 2]


def test_tokens_are_suppressed_always_or_at_first() -> None:
    options = Options(suppress_tokens=(2,), begin_suppress_tokens=(1,))
    assert written(row_of(0.0, 2.0, 3.0, 1.0), tokens_of(0, 0), 3, options) == [3, 1, 1]


def test_logit_bias_is_added_before_penalties() -> None:
    left = processed(
        row_of(0.5, 0.0, 0.0), tokens_of(0), logit_bias={0: -1.0, 2: -INF}, repetition_penalty=2.0
    )
    assert left == [-1.0, 0.0, -INF]  # the other way round, 0.5 / 2 - 1 = -0.75


def test_the_callers_processors_come_after_ours_in_their_order() -> None:
    seen = []

    def first(input_ids: TokenIds, scores: Logits) -> Logits:
        seen.append((input_ids.tolist(), scores.tolist()))
        return scores + np.float32(1)

    def second(input_ids: TokenIds, scores: Logits) -> Logits:
        seen.append((input_ids.tolist(), scores.tolist()))
        scores *= 2
        return scores

    left = processed(
        row_of(1.0, 5.0, 2.0),
        tokens_of(7),
        suppress_tokens=(1,),
        logits_processors=(first, second),
    )
    assert left == [4.0, -INF, 6.0]
    assert seen == [([7], [1.0, -INF, 2.0]), ([7], [2.0, -INF, 3.0])]


def test_a_processor_cannot_change_the_tokens() -> None:
    def meddle(input_ids: TokenIds, scores: Logits) -> Logits:
        input_ids[0] = 1
        return scores

    with pytest.raises(ValueError, match="read-only"):
        processed(row_of(0, 0), tokens_of(0), logits_processors=(meddle,))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            np.zeros((1, 3), np.float32),
            "logits processor wrong must return scores of shape (3,), got (1, 3)",
        ),
        (None, "logits processor wrong must return scores of shape (3,), got ()"),
        (np.full(3, np.nan), "logits processor wrong returned NaN after 2 tokens"),
    ],
    ids=["shape", "nothing", "nan"],
)
def test_what_a_processor_returns_is_checked(returned: Any, message: str) -> None:
    def wrong(input_ids: TokenIds, scores: Logits) -> Any:
        return returned

    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        processed(row_of(0, 0, 0), tokens_of(0, 0), logits_processors=(wrong,))


def test_a_text_is_the_same_with_refused_candidates() -> None:
    row, options = row_of(2.0, 1.9, 1.0, 0.0), Options(repetition_penalty=1.5)
    assert written(row, tokens_of(3), 6, options) == [0, 1, 0, 0, 0, 0]

    pick = make_pick(options, prompt_length=1, vocab_limit=4)
    candidates, tokens = tokens_of(0, 0, 0, 0), tokens_of(3)
    while len(tokens) < 7:
        known = np.append(tokens, candidates)
        verdict = verify_match(known, candidates, np.tile(row, (5, 1)), pick)
        tokens = np.append(tokens, verdict.tokens)
    assert tokens[:7].tolist() == [3, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "settings", [{}, {"suppress_tokens": (3,)}], ids=["plain", "with processors"]
)
def test_greedy_takes_the_lowest_of_equals(settings: dict[str, Any]) -> None:
    pick = make_pick(Options(**settings), prompt_length=1, vocab_limit=4)
    assert pick(row_of(1, 3, 3, 0), tokens_of(0)) == 1


def revive(input_ids: TokenIds, scores: Logits) -> Logits:
    """Forgets every ban; the higher the id the better."""
    return np.arange(len(scores), dtype=np.float32)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repetition_penalty": 1.1},
        {"logits_processors": (revive,)},
        {"do_sample": True, "top_k": 0},
        {"do_sample": True, "top_k": 5},
        {"do_sample": True, "top_p": 0.9, "logits_processors": (revive,)},
    ],
    ids=["greedy", "processed", "revived", "sampled", "top-k", "sampled and revived"],
)
def test_ids_at_and_above_the_limit_are_never_picked(settings: dict[str, Any]) -> None:
    row = row_of(*np.linspace(0, 1, 60), 3, 3, 9, 3)
    pick = make_pick(Options(seed=0, **settings), prompt_length=1, vocab_limit=60)
    draws = 5_000 if settings.get("do_sample") else 1
    assert max(pick(row, tokens_of(62)) for _ in range(draws)) < 60


def test_a_processor_sees_all_scores_with_those_above_the_limit_forbidden() -> None:
    seen = []

    def look(input_ids: TokenIds, scores: Logits) -> Logits:
        seen.append(scores.tolist())
        return scores

    options = Options(logits_processors=(look,))
    assert make_pick(options, prompt_length=1, vocab_limit=2)(row_of(1, 2, 3), tokens_of(0)) == 1
    assert seen == [[1.0, 2.0, -INF]]


def test_bans_on_ids_above_the_limit_are_no_error() -> None:
    left = processed(row_of(1, 2), tokens_of(0), suppress_tokens=(2, 50), bad_words_ids=((1, 7),))
    assert left == [1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suppress_tokens": (-1,)}, "suppress_tokens must hold token ids from 0, got -1"),
        (
            {"bad_words_ids": ((1,), ())},
            "bad_words_ids must be rows of token ids, got the row []",
        ),
        ({"logit_bias": {4: 1.0}}, "logit_bias must name token ids below 4, got 4"),
        (
            {"logit_bias": {1: INF}},
            "logit_bias must be numbers below infinity, got {1: inf}",
        ),
    ],
    ids=["negative", "empty word", "unknown id", "infinite"],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_pick(Options(**settings), prompt_length=1, vocab_limit=4)


MODES: list[dict[str, Any]] = [
    {},
    {"suppress_tokens": (0,)},
    {"do_sample": True},
    {"do_sample": True, "repetition_penalty": 1.1, "top_k": 0},
]


@pytest.mark.parametrize("settings", MODES, ids=str)
def test_nan_among_the_scores_is_an_error(settings: dict[str, Any]) -> None:
    pick = make_pick(Options(**settings), prompt_length=1, vocab_limit=3)
    with pytest.raises(
        LogitsError, match=r"^the model returned nan as its highest logit after 2 tokens; "
    ):
        pick(row_of(1.0, 2.0, math.nan, 3.0), tokens_of(0, 1))


@pytest.mark.parametrize("settings", MODES, ids=str)
def test_nan_above_the_limit_is_not_looked_at(settings: dict[str, Any]) -> None:
    pick = make_pick(Options(seed=0, **settings), prompt_length=1, vocab_limit=3)
    assert pick(row_of(-INF, -INF, 0.0, math.nan), tokens_of(0)) == 2


def test_where_every_token_is_forbidden_the_error_says_by_what() -> None:
    options = Options(
        suppress_tokens=(0,),
        bad_words_ids=((1,),),
        no_repeat_ngram_size=2,
        repetition_penalty=1.2,
        do_sample=True,
    )
    pick = make_pick(options, prompt_length=1, vocab_limit=3)
    message = (
        "no token may follow the 3 tokens so far; "
        "loosen no_repeat_ngram_size or bad_words_ids or suppress_tokens"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        pick(row_of(1, 1, 1), tokens_of(0, 2, 0))


@pytest.mark.parametrize("score", [INF, -INF])
@pytest.mark.parametrize("settings", MODES[1:], ids=str)
def test_a_highest_score_of_infinity_is_an_error(settings: dict[str, Any], score: float) -> None:
    pick = make_pick(Options(**settings), prompt_length=1, vocab_limit=2)
    with pytest.raises(
        LogitsError, match=f"^the model returned {score} as its highest logit after 1 tokens; "
    ):
        pick(row_of(score, -INF), tokens_of(0))


def test_a_processor_cannot_force_a_draw_by_infinity() -> None:
    def force(input_ids: TokenIds, scores: Logits) -> Logits:
        scores[1] = INF
        return scores

    options = Options(do_sample=True, logits_processors=(force,))
    pick = make_pick(options, prompt_length=1, vocab_limit=2)
    with pytest.raises(ValueError, match=r"^a score of infinity leaves no distribution"):
        pick(row_of(0, 0), tokens_of(0))


def test_masks_of_the_lowest_float_do_not_overflow() -> None:
    lowest = float(np.finfo(np.float32).min)
    options = Options(do_sample=True, repetition_penalty=2.0, temperature=1e-3)
    assert written(row_of(lowest, 1.0, 0.0), tokens_of(0), 2, options) == [1, 1]


def sampler(seed: int | None, **settings: Any) -> Callable[[], int]:
    """Draws from four tokens with the probabilities of :data:`P`."""
    options = Options(do_sample=True, seed=seed, **settings)
    pick = make_pick(options, prompt_length=1, vocab_limit=4)
    row = row_of(*np.log(P))
    return lambda: pick(row, tokens_of(0))


P = (0.4, 0.3, 0.2, 0.1)


def test_a_seed_repeats_its_draws_and_other_seeds_do_not() -> None:
    def draws(seed: int | None) -> tuple[int, ...]:
        draw = sampler(seed)
        return tuple(draw() for _ in range(30))

    before = np.random.get_state()  # noqa: NPY002 (the claim is that nobody else uses it)
    assert draws(1) == draws(1)
    assert len({draws(seed) for seed in (1, 2, 3, 4, 5, None, None)}) == 7
    after = np.random.get_state()  # noqa: NPY002
    assert str(before) == str(after)


def test_every_pick_takes_exactly_one_random_number() -> None:
    numbers = np.random.default_rng(7)
    draw = sampler(7)
    expected = np.searchsorted(np.cumsum(P), numbers.random(200), side="right")
    assert [draw() for _ in range(200)] == expected.tolist()


def test_a_pick_that_has_no_choice_takes_its_random_number_too() -> None:
    pick = make_pick(Options(do_sample=True, seed=7), prompt_length=1, vocab_limit=4)
    numbers = np.random.default_rng(7)
    rows = [row_of(*np.log(P)), row_of(0, -INF, -INF, -INF)] * 50
    at = np.searchsorted(np.cumsum(P), numbers.random(100), side="right")
    expected = [0 if i % 2 else int(t) for i, t in enumerate(at)]
    assert [pick(row, tokens_of(0)) for row in rows] == expected


def chi_square(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    expected = counts.sum() * probs
    return float(((counts - expected) ** 2 / expected).sum())


def test_draws_follow_the_distribution() -> None:
    draw = sampler(0)
    counts = np.bincount([draw() for _ in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, P, atol=0.02)
    # Three degrees of freedom: 16.3 is exceeded once in a thousand, and by a fault of .02.
    assert chi_square(counts, np.array(P)) < 16.3
    assert chi_square(counts, np.array([0.42, 0.28, 0.2, 0.1])) > 16.3


def test_the_distribution_is_the_one_that_picks_come_from() -> None:
    options = Options(do_sample=True, seed=3, top_k=3, top_p=0.8, temperature=0.7)
    row = row_of(*np.random.default_rng(0).normal(size=50))
    pick = make_pick(options, prompt_length=1, vocab_limit=50)
    distribution = make_distribution(options, prompt_length=1, vocab_limit=50)
    numbers = np.random.default_rng(3)
    for _ in range(100):
        assert pick(row, tokens_of(0)) == distribution(row, tokens_of(0)).draw(numbers.random())
