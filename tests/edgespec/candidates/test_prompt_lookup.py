import numpy as np
import pytest

from edgespec.candidates.base import Candidates
from edgespec.candidates.prompt_lookup import MatchPolicy, PromptLookupCandidateGenerator

POLICIES: tuple[MatchPolicy, ...] = ("first", "latest", "longest")


def proposed(
    tokens: list[int], count: int = 3, largest: int = 3, smallest: int = 1, policy: str = "longest"
) -> list[int]:
    generator = PromptLookupCandidateGenerator(10, largest, smallest, policy)  # type: ignore[arg-type]
    found = generator.get_candidates(np.array(tokens, np.int64), count)
    return [int(token) for token in found.tokens]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("tokens", "largest", "want"),
    [
        pytest.param([11, 12, 13, 14, 15, 12, 13], 2, [14, 15, 12], id="continues the match"),
        pytest.param([1, 2, 3, 4], 2, [], id="nothing repeats"),
        pytest.param([7], 2, [], id="one token has no past"),
        pytest.param([], 2, [], id="no token at all"),
        pytest.param([7, 1, 2, 3, 1, 2], 2, [3, 1, 2], id="output is searched like the prompt"),
    ],
)
def test_the_text_is_continued_as_it_was_before(
    policy: MatchPolicy, tokens: list[int], largest: int, want: list[int]
) -> None:
    """huggingface/transformers#46790 and vllm-project/vllm#22437."""
    assert proposed(tokens, 3, largest, policy=policy) == want


def test_an_n_gram_longer_than_the_text_is_no_harm() -> None:
    assert proposed([1, 2, 1], 2, 500) == [2, 1]


@pytest.mark.parametrize(
    ("policy", "want"), [("first", [30]), ("latest", [40]), ("longest", [40])], ids=POLICIES
)
def test_of_equal_matches_the_policy_takes_the_oldest_or_the_newest(
    policy: str, want: list[int]
) -> None:
    tokens = [1, 2, 30, 1, 2, 40, 1, 2]
    assert proposed(tokens, 1, policy=policy) == want


def test_longest_prefers_a_longer_common_past_to_a_newer_place() -> None:
    tokens = [8, 9, 1, 50, 7, 1, 60, 8, 9, 1]
    assert proposed(tokens, 1, 1, policy="longest") == [50]
    assert proposed(tokens, 1, 1, policy="latest") == [60]


def test_a_short_pattern_is_continued_round_and_round() -> None:
    assert proposed([4, 4, 4, 4], 5, 2) == [4] * 5
    assert proposed([1, 2, 3, 1, 2], 7, 2) == [3, 1, 2, 3, 1, 2, 3]
    assert proposed([1, 2, 3, 1, 2], 7, 2, policy="first") == [3, 1, 2]


@pytest.mark.parametrize(("smallest", "want"), [(1, [2, 9]), (2, [])])
def test_the_smallest_n_gram_is_honoured(smallest: int, want: list[int]) -> None:
    """vllm-project/vllm#40875."""
    assert proposed([5, 1, 9, 2, 9], 4, 3, smallest, policy="first") == want


def test_no_more_is_proposed_than_is_asked_for_or_allowed() -> None:
    generator = PromptLookupCandidateGenerator(num_output_tokens=2)
    tokens = np.array([1, 2, 3, 4, 1])
    assert len(generator.get_candidates(tokens, 9).tokens) == 2
    assert len(generator.get_candidates(tokens, 1).tokens) == 1
    assert len(generator.get_candidates(tokens, 0).tokens) == 0


def test_a_proposal_is_not_a_window_on_the_text() -> None:
    """What is proposed must not change when the text's buffer is written to."""
    text = np.array([1, 2, 3, 1, 2, 0, 0, 0])
    candidates = PromptLookupCandidateGenerator().get_candidates(text[:5], 3)
    before = candidates.tokens.tolist()
    text[5:] = [9, 9, 9]
    assert candidates.tokens.tolist() == before == [3, 1, 2]


def test_a_new_request_knows_nothing_of_the_last_one() -> None:
    """ggml-org/llama.cpp#27852."""
    generator = PromptLookupCandidateGenerator()
    first = np.array([1, 2, 77, 1, 2])
    generator.begin(first)
    assert generator.get_candidates(first, 3).tokens.tolist() == [77, 1, 2]
    second = np.array([5, 6, 9, 1, 2])  # as long, with the same end: only begin() tells
    generator.begin(second)
    assert generator.get_candidates(second, 3).tokens.tolist() == []


@pytest.mark.parametrize(
    "second",
    [
        pytest.param([5, 6, 1, 2], id="shorter"),
        pytest.param([5, 6, 1, 2, 3, 4, 9, 1, 3], id="longer"),
        pytest.param([9, 9, 1, 4, 2], id="as long, with the same end"),
    ],
)
def test_another_text_is_noticed_even_without_begin(second: list[int]) -> None:
    generator = PromptLookupCandidateGenerator()
    generator.get_candidates(np.array([1, 2, 77, 1, 2]), 3)
    found = generator.get_candidates(np.array(second), 3)
    assert 77 not in found.tokens.tolist()


def rescan(tokens: list[int], count: int, largest: int, smallest: int, policy: str) -> list[int]:
    """What each policy promises, by looking at every place again."""
    for n in range(min(largest, len(tokens) - 1), smallest - 1, -1):
        places = [i for i in range(n, len(tokens)) if tokens[i - n : i] == tokens[-n:]]
        if not places:
            continue

        def common_past(place: int, n: int = n) -> int:
            length = n
            while length < min(place, 32) and tokens[place - length - 1] == tokens[-length - 1]:
                length += 1
            return length

        if policy == "first":
            return tokens[places[0] : places[0] + count]
        nearest = places[-1:] if policy == "latest" else places[-17:]
        follows = tokens[max(reversed(nearest), key=common_past) :]  # of equals the newest
        return [follows[i % len(follows)] for i in range(count)]
    return []


@pytest.mark.parametrize("policy", POLICIES)
def test_the_index_finds_what_a_rescan_finds(policy: MatchPolicy) -> None:
    rng = np.random.default_rng(POLICIES.index(policy))
    for _ in range(60):
        alphabet, largest = int(rng.integers(2, 7)), int(rng.integers(1, 5))
        smallest, count = int(rng.integers(1, largest + 1)), int(rng.integers(1, 9))
        generator = PromptLookupCandidateGenerator(8, largest, smallest, policy)
        for _ in range(2):  # the second text with what is left of the first, if anything is
            tokens = rng.integers(0, alphabet, 40)
            length = int(rng.integers(1, 10))
            generator.begin(tokens[:length])
            while length <= len(tokens):
                found: Candidates = generator.get_candidates(tokens[:length], count)
                want = rescan(tokens[:length].tolist(), count, largest, smallest, policy)
                assert found.tokens.tolist() == want, tokens[:length]
                length += int(rng.integers(1, 5))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_output_tokens": 0}, "prompt_lookup_num_tokens must be at least 1, got 0"),
        (
            {"max_matching_ngram_size": 0},
            "max_matching_ngram_size must be at least 1, got 0",
        ),
        (
            {"min_matching_ngram_size": 0},
            "min_matching_ngram_size must be at least 1, got 0",
        ),
        (
            {"max_matching_ngram_size": 2, "min_matching_ngram_size": 3},
            r"min_matching_ngram_size must be at most max_matching_ngram_size \(2\), got 3",
        ),
        ({"policy": "best"}, "policy must be one of first, latest, longest, got 'best'"),
    ],
    ids=["no candidates", "no n-gram", "an empty n-gram", "sizes crossed", "unknown policy"],
)
def test_settings_that_cannot_be_meant_are_refused(
    arguments: dict[str, int | str], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        PromptLookupCandidateGenerator(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["first", "latest", "longest"])
def test_references_are_copied_from_and_end_where_they_end(policy: MatchPolicy) -> None:
    generator = PromptLookupCandidateGenerator(policy=policy, references=[[7, 8, 9, 10]])
    assert generator.get_candidates(np.array([1, 7, 8]), 5).tokens.tolist() == [9, 10]
    assert generator.get_candidates(np.array([1, 7, 8, 10]), 5).tokens.tolist() == []


def test_the_text_comes_before_a_reference_unless_the_reference_agrees_for_longer() -> None:
    text, reference = np.array([5, 1, 2, 30, 6, 1, 2]), [6, 1, 2, 40]
    near = PromptLookupCandidateGenerator(max_matching_ngram_size=2, references=[reference])
    assert near.get_candidates(text, 1).tokens.tolist() == [40]
    for policy in ("first", "latest"):
        first = PromptLookupCandidateGenerator(5, 2, 1, policy, [reference])
        assert first.get_candidates(text, 1).tokens.tolist() == [30]


def test_references_stay_when_a_new_request_begins() -> None:
    generator = PromptLookupCandidateGenerator(references=[[7, 8, 9]])
    generator.begin(np.array([1]))
    assert generator.get_candidates(np.array([7, 8]), 5).tokens.tolist() == [9]
