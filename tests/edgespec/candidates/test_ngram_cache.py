from collections import Counter

import numpy as np
import pytest

from edgespec.candidates.ngram_cache import NgramCacheCandidateGenerator
from edgespec.ngram_store import NgramStore
from tests.edgespec.candidates.texts import grown

# As the docstrings say them; here so that a change of either is noticed.
THIS_TEXT = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
PAST = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}
CORPUS = dict.fromkeys((1, 2, 3, 4), (2, 50))


def store_of(*texts: list[int]) -> NgramStore:
    store = NgramStore()
    for text in texts:
        store.add(np.array(text, np.int64))
    return store


def drafted(
    text: list[int],
    count: int = 1,
    past: NgramStore | None = None,
    corpus: NgramStore | None = None,
) -> tuple[list[int], int | None]:
    generator = NgramCacheCandidateGenerator(past=past, corpus=corpus)
    found = generator.get_candidates(np.array(text, np.int64), count)
    return found.tokens.tolist(), found.match_length


class TestThisText:
    @pytest.mark.parametrize(
        ("text", "want", "n"),
        [
            pytest.param([], [], None, id="no token at all"),
            pytest.param([7], [], None, id="one token has no past"),
            pytest.param([1, 2, 3], [], None, id="nothing repeats"),
            pytest.param([1, 5, 2, 1], [], None, id="one token seen once is not enough"),
            pytest.param([1, 5, 2, 1, 5, 3, 1], [5], 1, id="one token seen twice is"),
            pytest.param([1, 5, 2, 1, 5, 3, 1, 6, 4, 1], [5], 1, id="2 of 3 are 66 percent"),
            pytest.param([1, 5, 2, 1, 6, 3, 1], [], None, id="1 of 2 are not"),
            pytest.param([8, 1, 5, 8, 1], [], None, id="two tokens seen once are not enough"),
            pytest.param([8, 1, 5, 8, 1, 5, 8, 1], [5], 4, id="the longest n-gram first"),
            pytest.param(
                [8, 1, 5, 3, 8, 1, 5, 4, 9, 8, 1], [5], 2, id="two tokens seen twice are enough"
            ),
            pytest.param(
                [8, 1, 5, 3, 8, 1, 6, 4, 9, 8, 1], [6], 2, id="1 of 2 do behind two, the latest"
            ),
            pytest.param([9, 8, 1, 5, 9, 8, 1], [5], 3, id="three tokens seen once are enough"),
        ],
    )
    def test_a_token_is_taken_if_enough_was_seen(
        self, text: list[int], want: list[int], n: int | None
    ) -> None:
        assert drafted(text) == (want, n)

    def test_the_draft_is_its_own_context(self) -> None:
        text = [1, 2, 3, 4, 5, 6, 1, 2, 3]
        assert drafted(text, 3) == ([4, 5, 6], 3)
        assert drafted(text, 7) == ([4, 5, 6, 1, 2, 3, 4], 3)

    def test_the_draft_ends_where_nothing_is_sure(self) -> None:
        assert drafted([9, 8, 1, 5, 7, 9, 8, 1], 5)[0] == [5, 7, 9, 8, 1]
        assert drafted([9, 8, 7, 1, 2, 5, 9, 8, 7, 1, 2, 6, 9, 8, 7, 1, 2, 4, 9, 8, 7], 5)[0] == [
            1,
            2,
        ]

    def test_what_was_only_drafted_is_not_counted(self) -> None:
        generator = NgramCacheCandidateGenerator()
        text = np.array([9, 8, 1, 5, 9, 8, 1])
        for _ in range(3):
            assert generator.get_candidates(text, 9).tokens.tolist()[0] == 5
        assert generator.get_candidates(np.append(text, [6, 9, 8, 1]), 1).tokens.tolist() == [6]


class TestTiers:
    def test_past_texts_are_asked_with_stricter_thresholds(self) -> None:
        assert drafted([1], past=store_of(*[[1, 5]] * 3)) == ([], None)
        assert drafted([1], past=store_of(*[[1, 5]] * 4)) == ([5], 1)
        assert drafted([1], past=store_of(*[[1, 5]] * 3, [1, 6])) == ([5], 1)  # 75 %
        assert drafted([1], past=store_of(*[[1, 5]] * 5, [1, 6], [1, 6])) == ([], None)  # 71 %
        assert drafted([2, 1], past=store_of(*[[2, 1, 5]] * 2)) == ([], None)
        assert drafted([2, 1], past=store_of(*[[2, 1, 5]] * 2, [2, 1, 6])) == ([5], 2)  # 66 %
        assert drafted([3, 2, 1], past=store_of([3, 2, 1, 5])) == ([], None)
        assert drafted([3, 2, 1], past=store_of(*[[3, 2, 1, 5]] * 2)) == ([5], 3)

    def test_a_corpus_is_asked_last(self) -> None:
        assert drafted([1], corpus=store_of([1, 5])) == ([], None)
        assert drafted([1], corpus=store_of([1, 5], [1, 5], [1, 6], [1, 7])) == ([5], 1)
        assert drafted([1], corpus=store_of([1, 5], [1, 5], [1, 6], [1, 7], [1, 8])) == ([], None)
        past = store_of(*[[1, 6]] * 4)
        assert drafted([1], past=past, corpus=store_of([1, 5], [1, 5])) == ([6], 1)

    def test_this_text_comes_first(self) -> None:
        past = store_of(*[[1, 6]] * 9)
        assert drafted([1, 5, 2, 1, 5, 3, 1], past=past) == ([5], 1)

    def test_the_corpus_decides_what_this_text_leaves_open(self) -> None:
        text = [8, 1, 5, 3, 8, 1, 6, 4, 9, 8, 1]
        assert drafted(text)[0] == [6]
        assert drafted(text, corpus=store_of([8, 1, 5]))[0] == [5]
        assert drafted(text, corpus=store_of([8, 1, 5], [8, 1, 6], [8, 1, 6]))[0] == [6]
        assert drafted(text, corpus=store_of([7, 1, 5]))[0] == [6]  # other two tokens
        # Known to the corpus, but too rare here: 1 of 4
        text = [8, 1, 5, 3, *[8, 1, 6, 4] * 3, 9, 8, 1]
        assert drafted(text)[0] == [6]
        assert drafted(text, corpus=store_of([8, 1, 5]))[0] == []

    def test_one_store_cannot_be_both(self) -> None:
        store = NgramStore()
        with pytest.raises(ValueError, match=r"^past and corpus must be two stores: past is writ"):
            NgramCacheCandidateGenerator(past=store, corpus=store)


Tier = dict[tuple[int, ...], Counter[int]]


def tier_of(text: list[int], start: int = 0) -> Tier:
    found: Tier = {}
    for n in range(1, 5):
        for place in range(max(n, start), len(text)):
            found.setdefault(tuple(text[place - n : place]), Counter())[text[place]] += 1
    return found


def latest_best(text: list[int], gram: tuple[int, ...]) -> int:
    """The successor that was the first to reach the largest count, or the latest to equal it."""
    counts: Counter[int] = Counter()
    best = -1
    for place in range(len(gram), len(text)):
        if tuple(text[place - len(gram) : place]) == gram:
            counts[text[place]] += 1
            if best < 0 or counts[text[place]] >= counts[best]:
                best = text[place]
    return best


def recount(text: list[int], count: int, past: Tier, corpus: Tier) -> list[int]:
    """What the thresholds promise, by counting all again for every token."""
    context, known = list(text), tier_of(text)

    def step() -> int | None:
        bigram = corpus.get(tuple(context[-2:]), Counter()) if len(context) > 1 else Counter[int]()
        for tier, thresholds in ((known, THIS_TEXT), (past, PAST), (corpus, CORPUS)):
            for n in range(min(4, len(context)), 0, -1):
                gram = tuple(context[-n:])
                after = tier.get(gram)
                if not after:
                    continue
                best = min(after, key=lambda t: (-after[t], t))
                if tier is known:
                    best = latest_best(text, gram)
                    score = after[best] * 100 * bigram[best] or after[best]
                    for token in sorted(bigram, key=lambda t: (-bigram[t], t)):
                        if after[token] * 100 * bigram[token] > score:
                            best, score = token, after[token] * 100 * bigram[token]
                least, percent = thresholds[n]
                if after.total() >= least and 100 * after[best] >= percent * after.total():
                    return best
        return None

    while len(context) < len(text) + count and (token := step()) is not None:
        context.append(token)
    return context[len(text) :]


@pytest.mark.parametrize("tiers", ["this text", "past", "corpus", "all"])
def test_the_counts_kept_are_those_of_a_recount(tiers: str) -> None:
    rng = np.random.default_rng(len(tiers))
    for _ in range(60):
        alphabet = int(rng.integers(2, 7))
        texts = rng.integers(0, alphabet, (2, 60)).tolist()
        past = store_of(texts[0]) if tiers in ("past", "all") else None
        corpus = store_of(texts[1]) if tiers in ("corpus", "all") else None
        generator = NgramCacheCandidateGenerator(8, past=past, corpus=corpus)
        for text in grown(rng, alphabet):
            found = generator.get_candidates(np.array(text), 8).tokens.tolist()
            tiers_of_stores = (
                tier_of(texts[0]) if past else {},
                tier_of(texts[1]) if corpus else {},
            )
            want = recount(text, 8, *tiers_of_stores)
            assert found == want, text


class TestRequests:
    def test_a_new_request_knows_nothing_of_the_last_one(self) -> None:
        """ggml-org/llama.cpp#27852."""
        generator = NgramCacheCandidateGenerator()
        first = np.array([1, 2, 77, 1, 2, 77, 1, 2])
        generator.begin(first)
        assert generator.get_candidates(first, 1).tokens.tolist() == [77]
        second = np.array([5, 6, 1, 2])
        generator.begin(second)
        assert generator.get_candidates(second, 3).tokens.tolist() == []

    @pytest.mark.parametrize(
        "second",
        [
            pytest.param([5, 6, 1, 2], id="shorter"),
            pytest.param([5, 6, 1, 2, 3, 4, 9, 8, 1, 2, 3], id="longer"),
            pytest.param([9, 9, 9, 1, 4, 8, 1, 2], id="as long, with the same end"),
        ],
    )
    def test_another_text_is_noticed_even_without_begin(self, second: list[int]) -> None:
        generator = NgramCacheCandidateGenerator()
        generator.get_candidates(np.array([1, 2, 77, 1, 2, 77, 1, 2]), 3)
        assert 77 not in generator.get_candidates(np.array(second), 3).tokens.tolist()

    def test_the_output_and_nothing_else_goes_to_the_past_that_was_passed(self) -> None:
        store = NgramStore()
        generator = NgramCacheCandidateGenerator(past=store)
        generator.begin(np.array([1, 2, 3, 4, 5, 6]))
        generator.get_candidates(np.array([1, 2, 3, 4, 5, 6]), 1)
        assert store.num_tokens == 0
        generator.end(np.array([1, 2, 3, 4, 5, 6, 7, 8]))
        want = NgramStore()
        want.add(np.array([1, 2, 3, 4, 5, 6, 7, 8]), 6)
        assert store.num_tokens == 2
        for rows in ("keys", "tokens", "counts"):
            left, right = getattr(store.entries(), rows), getattr(want.entries(), rows)
            assert left.tolist() == right.tolist()
        generator.begin(np.array([1]))
        assert store.num_tokens == 2  # and once only

    def test_the_next_request_keeps_what_no_end_was_said_of(self) -> None:
        store = NgramStore()
        generator = NgramCacheCandidateGenerator(past=store)
        for _ in range(4):
            generator.begin(np.array([1]))
            generator.get_candidates(np.array([1, 5]), 1)
        generator.begin(np.array([1]))
        assert generator.get_candidates(np.array([1]), 1).tokens.tolist() == [5]
        other = NgramCacheCandidateGenerator(past=store)
        assert other.get_candidates(np.array([1]), 1).tokens.tolist() == [5]
        alone = NgramCacheCandidateGenerator()
        assert alone.get_candidates(np.array([1]), 1).tokens.tolist() == []

    def test_the_corpus_is_never_written_to(self) -> None:
        corpus = store_of([1, 2, 3])
        generator = NgramCacheCandidateGenerator(corpus=corpus)
        for _ in range(2):
            generator.begin(np.array([1]))
            generator.get_candidates(np.array([1, 5, 6]), 1)
            generator.end(np.array([1, 5, 6, 7]))
        assert corpus.num_tokens == 3


def test_no_more_is_proposed_than_is_asked_for_or_allowed() -> None:
    generator = NgramCacheCandidateGenerator(2)
    tokens = np.array([1, 2, 3, 4] * 3)
    assert [len(generator.get_candidates(tokens, n).tokens) for n in (9, 1, 0)] == [2, 1, 0]
    with pytest.raises(ValueError, match=r"^num_output_tokens must be at least 1, got 0$"):
        NgramCacheCandidateGenerator(0)
