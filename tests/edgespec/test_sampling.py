"""Distributions by hand, and against the definition that sorts and sums everything."""

from typing import Any

import numpy as np
import pytest

from edgespec.arrays import Logits, Probs
from edgespec.sampling import Distribution, distribute

P = np.array([0.1, 0.4, 0.05, 0.25, 0.2])
LOG_P: Logits = np.log(P).astype(np.float32)


def softmax(scores: Probs) -> Probs:
    weights: Probs = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights


def dense(
    scores: Logits,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> Probs:
    """The definition, [V] at every step."""
    left = scores.astype(np.float64) / temperature
    ids = np.arange(len(left))
    if top_k:
        left[left < np.sort(left)[-min(top_k, len(left))]] = -np.inf
    if top_p < 1:
        probs = softmax(left)
        order = np.lexsort((ids, -left))
        left[order[np.cumsum(probs[order]) - probs[order] >= top_p]] = -np.inf
    probs = softmax(left)
    left[probs < min_p * probs.max()] = -np.inf
    if typical_p < 1:
        probs = softmax(left)
        information = np.full(len(left), np.inf)
        information[probs > 0] = -np.log(probs[probs > 0])
        entropy = (probs[probs > 0] * information[probs > 0]).sum()
        distance = np.abs(information - entropy)
        order = np.argsort(distance, kind="stable")
        last = (np.cumsum(probs[order]) < typical_p).sum()
        left[distance > distance[order[min(last, len(left) - 1)]]] = -np.inf
    return softmax(left)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 50},
    {"top_k": 10_000},
    {"top_p": 0.9},
    {"top_p": 0.35},
    {"top_p": 1e-9},
    {"top_p": 0.999, "temperature": 1.7},
    {"min_p": 0.05},
    {"typical_p": 0.9},
    {"typical_p": 0.2, "temperature": 0.5},
    {"top_k": 50, "top_p": 0.9, "temperature": 0.8},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.8},
    {"top_p": 0.95, "min_p": 0.001, "typical_p": 0.7},
]


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("vocab_size", [3, 1000, 7000])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_few_tokens_give_what_all_would(
    settings: dict[str, Any], vocab_size: int, ties: bool, spread: float
) -> None:
    rng = np.random.default_rng(vocab_size)
    for _ in range(3):
        scores = rng.normal(scale=spread, size=vocab_size).astype(np.float32)
        if ties:
            scores = np.round(scores, 1)
        scores[rng.integers(0, vocab_size, vocab_size // 10)] = -np.inf
        expected = dense(scores, **settings)
        found = distribute(scores, **settings)
        np.testing.assert_array_equal(found.ids, np.flatnonzero(expected))
        np.testing.assert_allclose(found.dense(vocab_size), expected, rtol=1e-9)
        assert found.probs.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, [1, 3]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.5}, [1, 3]),
        ({"top_p": 0.99}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.45}, [1, 3, 4]),  # of 0.4: at least 0.18
        ({"min_p": 1.0}, [1]),
        # The expected information is 1.415 nats; theirs are 1.386, 1.609, 0.916, 2.303 and 2.996.
        ({"typical_p": 0.2}, [3]),
        ({"typical_p": 0.4}, [3, 4]),
        ({"typical_p": 0.6}, [1, 3, 4]),
        ({"top_k": 3, "top_p": 0.7}, [1, 3]),  # 0.4 and 0.25 are 0.76 of what top-k leaves
    ],
    ids=str,
)
def test_five_tokens_by_hand(settings: dict[str, Any], kept: list[int]) -> None:
    found = distribute(LOG_P, **settings)
    assert found.ids.tolist() == kept
    np.testing.assert_allclose(found.probs, P[kept] / P[kept].sum(), rtol=1e-6)


def test_top_k_keeps_all_that_equal_the_last() -> None:
    scores = np.array([1, 3, 2, 2, 0, 2], np.float32)
    assert distribute(scores, top_k=2).ids.tolist() == [1, 2, 3, 5]


def test_top_k_does_not_revive_what_is_forbidden() -> None:
    scores = np.array([1, -np.inf, 2, -np.inf], np.float32)
    assert distribute(scores, top_k=3).ids.tolist() == [0, 2]


@pytest.mark.parametrize("vocab_size", [8, 8192])
def test_top_p_keeps_only_as_many_equals_as_it_needs(vocab_size: int) -> None:
    found = distribute(np.zeros(vocab_size, np.float32), top_p=0.5)
    assert found.ids.tolist() == list(range(vocab_size // 2))


def test_top_p_takes_the_lowest_ids_of_equals_among_near_equals() -> None:
    scores = np.where(np.arange(1000) % 2, -1e-5, 0.0).astype(np.float32)
    scores[999] = -1
    # The weights are 500 of 1, 499 of 0.99999 and 0.37; of their sum 0.75 is 749.5, to which the
    # first add 500 and each of the others 0.99999.
    expected = sorted([*range(0, 1000, 2), *range(1, 501, 2)])
    assert distribute(scores, top_p=0.75).ids.tolist() == expected


def test_typical_p_keeps_all_equals() -> None:
    assert len(distribute(np.zeros(8, np.float32), typical_p=0.5).ids) == 8


def test_temperature_divides_the_scores() -> None:
    found = distribute(np.array([0, 1], np.float32), temperature=0.5)
    assert found.probs[1] == pytest.approx(1 / (1 + np.exp(-2)))


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.1}])
def test_a_tiny_temperature_leaves_the_likeliest(settings: dict[str, Any]) -> None:
    scores = np.array([0, 5, 4.9, -3e38], np.float32)
    assert distribute(scores, temperature=1e-308, **settings).ids.tolist() == [1]


def test_scores_are_only_read() -> None:
    scores = LOG_P.copy()
    scores.flags.writeable = False
    distribute(scores, top_k=3, top_p=0.9, min_p=0.01, typical_p=0.9, temperature=0.5)
    np.testing.assert_array_equal(scores, LOG_P)


@pytest.mark.parametrize(
    ("chance", "token"), [(0.0, 2), (0.249, 2), (0.25, 5), (0.749, 5), (0.75, 9), (1 - 2**-53, 9)]
)
def test_tokens_share_the_chances_in_order_of_their_ids(chance: float, token: int) -> None:
    found = Distribution(np.array([2, 5, 9]), np.array([0.25, 0.5, 0.25]))
    assert found.draw(chance) == token


@pytest.mark.parametrize("vocab_size", [3, 10, 1000])
def test_the_highest_chance_falls_on_the_last_token_however_the_sum_is_rounded(
    vocab_size: int,
) -> None:
    for seed in range(50):
        scores = np.random.default_rng(seed).normal(size=vocab_size).astype(np.float32)
        assert distribute(scores).draw(1 - 2**-53) == vocab_size - 1
