import threading
from collections import Counter

import numpy as np
import pytest

from edgespec.candidates import suffix
from edgespec.candidates.suffix import PastOutputs, SuffixCandidateGenerator
from tests.edgespec.candidates.texts import grown


def proposed(text: list[int], count: int = 20, **options: float) -> tuple[list[int], int | None]:
    generator = SuffixCandidateGenerator(**options)  # type: ignore[arg-type]
    found = generator.get_candidates(np.array(text, np.int64), count)
    return found.tokens.tolist(), found.match_length


def past_of(*outputs: list[int], max_tokens: int = 1000) -> PastOutputs:
    past = PastOutputs(max_tokens)
    for output in outputs:
        past.add(np.array(output, np.int64))
    return past


class TestDraft:
    @pytest.mark.parametrize(
        ("text", "want", "matched"),
        [
            pytest.param([], [], None, id="no token at all"),
            pytest.param([7], [], None, id="one token has no past"),
            pytest.param([1, 2, 3], [], None, id="nothing repeats"),
            pytest.param([1, 5, 6, 7, 1], [5], 1, id="a match of one gives one"),
            pytest.param([9, 1, 5, 6, 7, 9, 1], [5, 6], 2, id="a match of two gives two"),
            pytest.param([8, 9, 1, 5, 6, 7, 8, 9, 1], [5, 6, 7], 3, id="a match of three three"),
        ],
    )
    def test_it_is_as_long_as_the_match(
        self, text: list[int], want: list[int], matched: int | None
    ) -> None:
        assert proposed(text) == (want, matched)

    def test_the_factor_makes_it_longer_or_shorter(self) -> None:
        text = [8, 9, 1, 5, 6, 7, 8, 9, 1]
        assert proposed(text, max_spec_factor=2)[0] == [5, 6, 7, 8, 9, 1]
        assert proposed(text, 7, max_spec_factor=float("inf"))[0] == [5, 6, 7, 8, 9, 1, 5]
        assert proposed(text, max_spec_factor=0.4)[0] == [5]
        assert proposed(text, max_spec_factor=0.3)[0] == []

    def test_it_ends_where_the_places_part_too_often(self) -> None:
        # behind 1 2 3: 4 5, 4 6, 4 7; a third each from the second on
        text = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 9, 1, 2, 3, 4, 7, 8, 1, 2, 3]
        assert proposed(text, min_token_prob=0.3)[0] == [4, 7, 8]
        assert proposed(text, min_token_prob=0.4)[0] == [4]

    def test_the_majority_is_followed_and_of_equals_the_newest(self) -> None:
        assert proposed([1, 5, 8, 1, 5, 9, 1, 6, 7, 1], min_token_prob=0)[0] == [5]
        assert proposed([1, 5, 8, 1, 6, 7, 1])[0] == [6]

    def test_only_places_that_agreed_so_far_are_followed(self) -> None:
        # Behind 1 2: 5 9, 5 9, 6 3, 6 3, 6 3; the 6 is followed by 3 whatever follows the 5.
        text = [1, 2, 5, 9, 1, 2, 5, 9, 1, 2, 6, 3, 4, 1, 2, 6, 3, 4, 1, 2, 6, 3, 7, 1, 2]
        assert proposed(text) == ([6, 3], 2)

    def test_a_short_match_that_is_certain_beats_a_longer_one_that_is_not(self) -> None:
        # 1 2 was seen before three different tokens (0.33 + 0.33 expected), 2 mostly before 5.
        text = [2, 5, 0, 2, 5, 3, 2, 5, 4, 1, 2, 6, 9, 1, 2, 7, 8, 1, 2, 5, 11, 1, 2]
        assert proposed(text, max_spec_factor=1) == ([5, 11], 2)  # .33 + .33 > 4 / 6
        assert proposed(text, count=1) == ([5], 1)  # .33 < .67

    def test_a_short_pattern_is_continued_round_and_round(self) -> None:
        assert proposed([4, 4, 4, 4]) == ([4, 4, 4], 3)
        assert proposed([1, 2, 3, 1, 2, 3, 1, 2, 3, 1]) == ([2, 3, 1, 2, 3, 1, 2], 7)

    def test_matches_are_compared_up_to_a_length(self) -> None:
        text = list(range(10, 20)) * 2
        assert proposed(text) == (list(range(10, 20)), 10)
        assert proposed(text, max_match_length=3) == ([10, 11, 12], 3)
        assert proposed(text, max_match_length=1) == ([10], 1)


def follow(text: list[int], places: list[int], count: int, is_text: bool) -> list[list[int]]:
    """What stands behind each place; in the text itself, the draft follows."""
    follows = []
    for place in places:
        copied: list[int] = []
        for i in range(count):
            at = place + i
            if at < len(text):
                copied.append(text[at])
            elif is_text:
                copied.append(copied[at - len(text)])
        follows.append(copied)
    return follows


def recount(
    source: list[int], text: list[int], count: int, depth: int, factor: float, is_text: bool
) -> tuple[list[int], float]:
    """The best draft over all lengths of the match, by looking at every place each time."""
    best: tuple[list[int], float] = ([], 0.0)
    for m in range(min(len(text), depth), 0, -1):
        places = [p for p in range(len(source) - 1, m - 1, -1) if source[p - m : p] == text[-m:]]
        budget = min(count, int(factor * m))
        follows = follow(source, places, budget, is_text)
        drafted: list[int] = []
        prob, score = 1.0, 0.0
        for i in range(budget if places else 0):
            shares = Counter(f[i] for f in follows)
            token, times = shares.most_common(1)[0]  # of equals the first met: the newest
            prob *= times / len(follows)
            if token == suffix._END or prob < 0.1:
                break
            drafted.append(token)
            score += prob
            follows = [f for f in follows if f[i] == token]
        if round(score, 9) > best[1]:
            best = drafted, round(score, 9)
    return best


@pytest.mark.parametrize("depth", [1, 3, 24])
@pytest.mark.parametrize("with_past", [False, True], ids=["this text", "past outputs"])
def test_the_draft_is_that_of_a_recount(
    depth: int, with_past: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suffix, "_PLACES", 1000)
    monkeypatch.setattr(suffix, "_CHAIN", 1000)
    monkeypatch.setattr(suffix, "_FEWEST_BUCKETS", 4)  # grow and collide
    rng = np.random.default_rng(depth)
    for _ in range(60):
        alphabet, factor = int(rng.integers(2, 7)), float(rng.choice([0.5, 1.0, 3.0]))
        outputs = rng.integers(0, alphabet, (3, 25)).tolist()
        generator = SuffixCandidateGenerator(
            9,
            max_match_length=depth,
            max_spec_factor=factor,
            past=past_of(*outputs, max_tokens=60) if with_past else None,
        )
        kept = [token for output in outputs[-2:] for token in [*output, suffix._END]]
        for text in grown(rng, alphabet):
            found = generator.get_candidates(np.array(text), 9)
            want, score = recount(text, text, 9, depth, factor, is_text=True)
            if with_past:
                other, their_score = recount(kept, text, 9, depth, factor, is_text=False)
                want = other if their_score > score else want
            assert found.tokens.tolist() == want, text


def test_long_texts_are_searched_in_their_newest_places() -> None:
    """The bound on the places compared: memory and time stay, the answer may be another one."""
    text = [1, 5, 2] * 40 + [1, 6, 2] * 32 + [1]
    assert proposed(text, max_match_length=1)[0] == [6]


class TestRequests:
    def test_a_new_request_knows_nothing_of_the_last_one(self) -> None:
        """ggml-org/llama.cpp#27852."""
        generator = SuffixCandidateGenerator()
        first = np.array([1, 2, 77, 1, 2])
        generator.begin(first)
        assert generator.get_candidates(first, 3).tokens.tolist()[0] == 77
        second = np.array([5, 6, 9, 1, 2])
        generator.begin(second)
        assert generator.get_candidates(second, 3).tokens.tolist() == []

    @pytest.mark.parametrize(
        "second",
        [
            pytest.param([5, 6, 1, 2], id="shorter"),
            pytest.param([5, 6, 1, 2, 3, 4, 9, 1, 2], id="longer"),
            pytest.param([9, 9, 1, 4, 2], id="as long, with the same end"),
        ],
    )
    def test_another_text_is_noticed_even_without_begin(self, second: list[int]) -> None:
        generator = SuffixCandidateGenerator()
        generator.get_candidates(np.array([1, 2, 77, 1, 2]), 3)
        assert 77 not in generator.get_candidates(np.array(second), 3).tokens.tolist()

    def test_the_output_and_nothing_else_is_kept_and_once_only(self) -> None:
        past = PastOutputs()
        generator = SuffixCandidateGenerator(past=past)
        generator.begin(np.array([1, 2, 3]))
        generator.get_candidates(np.array([1, 2, 3, 4]), 1)
        assert len(past) == 0
        generator.end(np.array([1, 2, 3, 4, 5, 6]))
        assert past._places.tokens == [4, 5, 6, suffix._END]
        generator.begin(np.array([4, 5]))
        assert generator.get_candidates(np.array([4, 5]), 3).tokens.tolist() == [6]
        generator.begin(np.array([1]))
        assert len(past) == 3
        assert proposed([4, 5]) == ([], None)

    def test_the_next_request_keeps_what_no_end_was_said_of(self) -> None:
        past = PastOutputs()
        generator = SuffixCandidateGenerator(past=past)
        generator.begin(np.array([1]))
        generator.get_candidates(np.array([1, 4, 5]), 1)
        other = SuffixCandidateGenerator(past=past)
        assert other.get_candidates(np.array([4]), 1).tokens.tolist() == []
        generator.begin(np.array([1]))
        assert other.get_candidates(np.array([7, 4]), 1).tokens.tolist() == [5]


class TestPastOutputs:
    def test_the_oldest_are_forgotten_first(self) -> None:
        past = past_of([1, 10, 11], [2, 20, 21], [3, 30, 31], max_tokens=6)
        generator = SuffixCandidateGenerator(past=past)
        firsts = [generator.get_candidates(np.array([i]), 1).tokens.tolist() for i in (1, 2, 3)]
        assert firsts == [[], [20], [30]]
        assert len(past) == 6

    def test_an_output_longer_than_all_room_keeps_its_end(self) -> None:
        past = past_of([9, 9], list(range(10)), max_tokens=4)
        assert past._places.tokens[past._places.first :] == [6, 7, 8, 9, suffix._END]

    def test_memory_is_bounded(self) -> None:
        past = PastOutputs(100)
        rng = np.random.default_rng(0)
        for _ in range(200):
            past.add(rng.integers(0, 50, rng.integers(0, 40)))
            assert 0 < len(past) <= 100
            assert len(past._places.tokens) <= 4 * 100
        kept = past._places.tokens[past._places.first :]
        assert len([token for token in kept if token != suffix._END]) == len(past)

    def test_nothing_is_proposed_beyond_the_end_of_an_output(self) -> None:
        past = past_of([7, 8, 1, 2], [5, 6])
        generator = SuffixCandidateGenerator(max_spec_factor=9, past=past)
        assert generator.get_candidates(np.array([7, 8]), 9).tokens.tolist() == [1, 2]
        assert generator.get_candidates(np.array([1, 2]), 9).tokens.tolist() == []

    def test_this_text_is_preferred_to_an_equal_one(self) -> None:
        past = past_of([1, 9, 3], [2, 1, 8, 3])
        generator = SuffixCandidateGenerator(past=past)
        assert generator.get_candidates(np.array([1, 5, 4, 1]), 9).tokens.tolist() == [5]
        # but a longer match is a longer draft
        assert generator.get_candidates(np.array([1, 5, 2, 1]), 9).tokens.tolist() == [8, 3]

    def test_threads_share_them(self) -> None:
        past = PastOutputs(300)
        generators = [SuffixCandidateGenerator(past=past) for _ in range(4)]

        def write(generator: SuffixCandidateGenerator) -> None:
            for _ in range(50):
                generator.begin(np.array([0]))
                for length in range(1, 20):
                    found = generator.get_candidates(np.arange(length) % 7, 5).tokens
                    assert found.tolist() == [(length + i) % 7 for i in range(len(found))]

        threads = [threading.Thread(target=write, args=(g,)) for g in generators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 280 <= len(past) <= 300

    def test_a_bound_that_cannot_be_meant_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^max_tokens must be at least 1, got 0$"):
            PastOutputs(0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_output_tokens": 0}, "num_output_tokens must be at least 1, got 0"),
        ({"max_match_length": 0}, "max_match_length must be at least 1, got 0"),
        ({"max_spec_factor": 0.0}, "max_spec_factor must be above 0, got 0.0"),
        ({"max_spec_factor": float("nan")}, "max_spec_factor must be above 0, got nan"),
        ({"min_token_prob": 1.5}, "min_token_prob must be from 0 to 1, got 1.5"),
    ],
    ids=["no candidates", "no match", "no factor", "not a number", "no probability"],
)
def test_settings_that_cannot_be_meant_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        SuffixCandidateGenerator(**options)  # type: ignore[arg-type]


def test_no_more_is_proposed_than_is_asked_for_or_allowed() -> None:
    generator = SuffixCandidateGenerator(2)
    tokens = np.array([1, 2, 3, 4] * 3)
    assert [len(generator.get_candidates(tokens, n).tokens) for n in (9, 1, 0)] == [2, 1, 0]
