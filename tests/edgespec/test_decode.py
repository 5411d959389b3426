import numpy as np
import pytest

from edgespec.arrays import Probs, TokenIds
from edgespec.budget import ConstantBudget
from edgespec.candidates.base import CandidateGenerator, Candidates
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.decode import Decoding, Round
from edgespec.errors import CandidateError
from edgespec.sampling import Distribution
from edgespec.stopping import Stopping, StoppingCriterion, StopText
from edgespec.verify import Sampler, pick_greedy
from tests.fakes import CountingModel


class Counter:
    """Proposes by a counting model of its own, and notes what it is asked and told."""

    def __init__(self, draft: CountingModel | None = None, extra: int = 0) -> None:
        self.draft = draft or CountingModel()
        self.extra = extra
        self.asked: list[tuple[list[int], int]] = []
        self.told: list[tuple[list[int], int]] = []

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        self.asked.append((input_ids.tolist(), max_candidates))
        tokens = [int(input_ids[-1])]
        for _ in range(max_candidates + self.extra):
            tokens.append(int(self.draft.forward(np.array(tokens[-1:])).argmax()))
        return Candidates(np.array(tokens[1:]))

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        self.told.append((input_ids.tolist(), num_matches))


def decoding(
    target: CountingModel,
    generator: CandidateGenerator | None,
    prompt: list[int],
    new: int,
    *,
    budget: int = 4,
    eos: frozenset[int] = frozenset(),
    criteria: tuple[StoppingCriterion, ...] = (),
) -> Decoding:
    return Decoding(
        target,
        generator,
        np.array(prompt),
        pick=pick_greedy,
        budget=ConstantBudget(budget),
        stopping=Stopping(len(prompt) + new, eos, StopText((), None), criteria=criteria),
        vocab_size=target.vocab_size,
    )


def emitted(rounds: list[Round]) -> list[int]:
    return [int(token) for done in rounds for token in done.tokens]


@pytest.mark.parametrize("budget", [0, 1, 2, 5])
@pytest.mark.parametrize(
    "lies_at",
    [
        pytest.param(frozenset(), id="draft always right"),
        pytest.param(frozenset({2}), id="draft wrong once a turn"),
        pytest.param(frozenset({1, 3}), id="draft wrong twice a turn"),
        pytest.param(frozenset(range(5)), id="draft always wrong"),
    ],
)
def test_text_and_cache_are_right_after_every_round(lies_at: frozenset[int], budget: int) -> None:
    target = CountingModel(5)
    text = [0, 1, 2]
    for done in decoding(target, Counter(CountingModel(5, lies_at)), text, 40, budget=budget):
        text = [*text, *done.tokens.tolist()]
        assert text == [i % 5 for i in range(len(text))]
        assert target.cached == text[:-1]
    assert len(text) == 43


def test_the_last_token_costs_no_candidate() -> None:
    """One token comes with every verification, so a text of 5 needs 4 candidates at most."""
    generator = Counter()
    rounds = list(decoding(CountingModel(), generator, [7], 5, budget=10))
    assert emitted(rounds) == [8, 9, 10, 11, 12]
    assert generator.asked == [([7], 4)]


def test_a_plain_step_feeds_one_token() -> None:
    target = CountingModel()
    lookup = PromptLookupCandidateGenerator()
    list(decoding(target, lookup, [1, 2, 3], 4))
    assert target.forwards == [1, 1, 1, 1]


def test_the_prompt_is_read_once_and_after_that_only_what_is_new() -> None:
    """huggingface/optimum#1087."""
    target = CountingModel()
    list(decoding(target, Counter(), list(range(30)), 12, budget=3))
    assert target.forwards == [4, 4, 4]
    assert target.cached == list(range(41))


def test_a_round_says_what_it_did() -> None:
    target, generator = CountingModel(), Counter(CountingModel(lies_at=frozenset({11})))
    first, *_ = decoding(target, generator, [9], 10, budget=4)
    # proposed 10 11 14 15; the target says 12 after 11
    assert first.tokens.tolist() == [10, 11, 12]
    assert (first.num_proposed, first.num_verified, first.num_accepted) == (4, 4, 2)
    assert (first.source, first.finish_reason) == ("Counter", None)


def test_a_generator_learns_what_stands_and_how_many_were_its_own() -> None:
    generator = Counter(CountingModel(lies_at=frozenset({11})))
    list(decoding(CountingModel(), generator, [9], 6, budget=4))
    assert generator.told == [([9, 10, 11, 12], 2), (list(range(9, 16)), 2)]


def test_an_end_token_cuts_the_block_before_anyone_hears_of_the_rest() -> None:
    target, generator = CountingModel(), Counter()
    rounds = list(decoding(target, generator, [9], 20, budget=8, eos=frozenset({12})))
    assert emitted(rounds) == [10, 11, 12]
    assert rounds[-1].finish_reason == "eos"
    assert rounds[-1].num_accepted == 3
    assert target.forwards == [4]  # nothing is verified behind an end token
    assert target.cached == [9, 10, 11]
    assert generator.told == [([9, 10, 11, 12], 3)]


def test_what_a_criterion_cuts_off_was_not_accepted() -> None:
    target = CountingModel()
    rounds = list(decoding(target, Counter(), [9], 20, criteria=(lambda t: int(t[-1]) == 11,)))
    assert emitted(rounds) == [10, 11]
    assert (rounds[-1].num_accepted, rounds[-1].finish_reason) == (2, "stop")
    assert target.cached == [9, 10]


@pytest.mark.parametrize("new", [1, 2, 3, 7, 8])
def test_a_text_is_exactly_as_long_as_asked_for(new: int) -> None:
    rounds = list(decoding(CountingModel(), Counter(), [3, 4], new, budget=5))
    assert emitted(rounds) == list(range(5, 5 + new))
    assert rounds[-1].finish_reason == "length"


def test_another_reader_in_between_is_noticed() -> None:
    target = CountingModel()
    one = iter(decoding(target, Counter(), [1, 2], 12, budget=2))
    two = iter(decoding(target, None, [30, 31, 32], 12))
    text = emitted([next(one), next(two), next(two), next(one), next(one)])
    assert text == [3, 4, 5, 33, 34, 6, 7, 8, 9, 10, 11]
    assert target.cached == list(range(1, 11))


def test_the_tokens_shown_to_a_generator_cannot_be_written_to() -> None:
    class Scribbler(Counter):
        def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
            input_ids[0] = 0
            return super().get_candidates(input_ids, max_candidates)

    with pytest.raises(ValueError, match="read-only"):
        list(decoding(CountingModel(), Scribbler(), [5], 3))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1, 2, 3], "Liar must return at most 2 candidates, got 3"),
        ([1, 64], "Liar must return token ids below 64, got 64"),
        ([-1], "Liar must return token ids below 64, got -1"),
        ([1.5], r"Liar must return token ids \[K\] as whole numbers, got float64 of shape \[1\]"),
        (
            [[1, 2]],
            r"Liar must return token ids \[K\] as whole numbers, got int64 of shape \[1, 2\]",
        ),
    ],
    ids=["too many", "too high", "negative", "not whole", "not a row"],
)
def test_a_generator_that_breaks_its_promise_is_named(returned: list[int], said: str) -> None:
    class Liar(Counter):
        def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
            return Candidates(np.array(returned))

    with pytest.raises(CandidateError, match=f"^{said}$"):
        list(decoding(CountingModel(), Liar(), [5], 3))


@pytest.mark.parametrize(
    ("draft_probs", "said"),
    [
        (
            np.eye(64)[[6, 9]],
            "Liar must draw its candidates from draft_probs, but the probability of token 7 there "
            "is 0.0",
        ),
        (
            np.full((2, 64), np.nan),
            "Liar must draw its candidates from draft_probs, but the probability of token 6 there "
            "is nan",
        ),
        (
            np.ones((2, 4)),
            "Liar must draw its candidates from draft_probs, but the probability of token 6 there "
            "is 0.0",
        ),
        (
            np.ones((1, 64)),
            r"Liar must return draft_probs \[K, V\] with a row for each of its 2 candidates, got "
            r"the shape \[1, 64\]",
        ),
    ],
    ids=["never drawn", "not a number", "too narrow", "a row too few"],
)
def test_candidates_that_cannot_have_been_drawn_are_refused(draft_probs: Probs, said: str) -> None:
    class Liar(Counter):
        def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
            return Candidates(np.array([6, 7]), draft_probs)

    with pytest.raises(CandidateError, match=f"^{said}$"):
        list(decoding(CountingModel(), Liar(), [5], 3))


def test_drawn_candidates_are_sampled_by_rejection_and_others_matched() -> None:
    """What the target gives no chance at all is matched away, and redrawn where it was drawn."""
    p, q = Distribution(np.array([1]), np.array([1.0])), np.full((4, 64), 1 / 64)

    class Drawer(Counter):
        def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
            return Candidates(np.full(max_candidates, 1), q[:max_candidates])

    chance = np.random.default_rng(0)
    made = decoding(CountingModel(), Drawer(), [5], 9)
    made.pick = Sampler(lambda row, prefix: p, chance)
    assert emitted(list(made)) == [1] * 9
    # A number to judge each candidate by, and one for the token of the target's own.
    same = np.random.default_rng(0)
    same.random(9)
    assert chance.random() == same.random()


def test_a_new_request_is_announced_to_a_generator_that_wants_to_know() -> None:
    class Beginner(Counter):
        def begin(self, input_ids: TokenIds) -> None:
            self.began = input_ids.tolist()

    generator = Beginner()
    list(decoding(CountingModel(), generator, [5, 6], 3))
    assert generator.began == [5, 6]
