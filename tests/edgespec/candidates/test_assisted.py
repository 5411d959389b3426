import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.arrays import Logits, TokenIds
from edgespec.budget import ConstantBudget
from edgespec.candidates.assisted import (
    IN_VAIN,
    LABELS,
    AssistedCandidateGenerator,
    best_threshold,
)
from edgespec.decode import Decoding, Round
from edgespec.errors import ModelFolderError, VocabularyMismatchError
from edgespec.logits import make_draft_pick, make_pick
from edgespec.options import Options, Schedule
from edgespec.stopping import Stopping, StopText
from edgespec.verify import Sampler, pick_greedy
from tests.chances import follows
from tests.fakes import CountingModel
from tests.folders import byte_tokenizer, few_letters, metaspace_tokenizer, write_folder
from tests.toylm import HASH, MARKOV, oracle


def assisted(draft: CountingModel, **settings: Any) -> AssistedCandidateGenerator:
    return AssistedCandidateGenerator(draft, **({"vocab_size": 64} | settings))


def certain(draft: CountingModel | None = None, **settings: Any) -> AssistedCandidateGenerator:
    """The counting model's scores are flat; its word is taken all the same."""
    settings.setdefault("assistant_confidence_threshold", 0)
    return assisted(draft or CountingModel(), **settings)


def drafted(generator: AssistedCandidateGenerator, text: list[int], count: int) -> list[int]:
    return [int(token) for token in generator.get_candidates(np.array(text), count).tokens]


class TestDrafting:
    def test_the_draft_says_what_it_would_say_alone(self) -> None:
        assert drafted(certain(), [3, 4, 5], 4) == [6, 7, 8, 9]

    def test_after_an_end_token_nothing_is_drafted(self) -> None:
        assert drafted(certain(eos_token_ids=[7]), [5], 9) == [6, 7]

    def test_only_ids_that_both_have_are_drafted(self) -> None:
        """huggingface/transformers#45307: rows of the draft may be wider than its target's."""
        got = drafted(certain(CountingModel(72), vocab_size=60), [57], 6)
        assert got[:2] == [58, 59]
        assert max(got) < 60

    def test_a_doubtful_token_is_the_last(self) -> None:
        # the likeliest of 64 has e / (e + 63) = 4 % here
        assert drafted(assisted(CountingModel()), [5], 4) == [6]
        sure = assisted(CountingModel(), assistant_confidence_threshold=0.04)
        assert drafted(sure, [5], 4) == [6, 7, 8, 9]
        assert drafted(certain(), [5], 2) == [6, 7]

    def test_a_text_longer_than_the_draft_reads_is_left_to_the_target(self) -> None:
        generator = certain(max_length=6)
        assert drafted(generator, [1, 2, 3, 4], 9) == [5, 6]
        assert drafted(generator, [1, 2, 3, 4, 5, 6], 9) == []
        assert generator.draft.length <= 6


@pytest.mark.parametrize("budget", [1, 2, 5])
@pytest.mark.parametrize(
    ("lies_at", "rate"),
    [
        pytest.param(frozenset(), 1.0, id="always right"),
        pytest.param(frozenset({4, 9}), None, id="wrong now and then"),
        pytest.param(frozenset(range(10)), 0.0, id="always wrong"),
    ],
)
def test_the_draft_has_read_all_of_the_text_but_what_it_said_last(
    lies_at: frozenset[int], rate: float | None, budget: int
) -> None:
    """lablup/mlxcel#994: draft and target forget different amounts."""
    target, draft = CountingModel(10), CountingModel(10, lies_at)
    decoding = Decoding(
        target,
        certain(draft, vocab_size=10),
        np.array([0, 1, 2]),
        pick=pick_greedy,
        budget=ConstantBudget(budget),
        stopping=Stopping(63, frozenset(), StopText((), None)),
        vocab_size=10,
    )
    text, accepted, verified = [0, 1, 2], 0, 0
    for done in decoding:
        text += done.tokens.tolist()
        accepted, verified = accepted + done.num_accepted, verified + done.num_verified
        assert target.cached == text[:-1]
        stood = len(text) - len(done.tokens) + done.num_accepted
        common = min(len(draft.cached), stood)
        assert draft.cached[:common] == text[:common]
    assert text == [i % 10 for i in range(63)]
    assert set(draft.forwards) == {1}  # nothing is read twice, and after a prefill token by token
    if rate is not None:
        assert accepted / verified == rate


def test_what_was_accepted_is_not_read_again() -> None:
    draft = CountingModel()
    generator = certain(draft)
    drafted(generator, [1, 2, 3], 3)  # 4 5 6, of which the draft has read 4 and 5
    assert draft.cached == [1, 2, 3, 4, 5]
    drafted(generator, [1, 2, 3, 4, 5, 6, 7], 1)  # all stand, and 7 is the target's own
    assert draft.cached == [1, 2, 3, 4, 5, 6, 7]
    assert draft.forwards == [1] * 4
    drafted(generator, [1, 2, 3, 4, 5, 6, 7, 20], 1)  # 8 was refused
    assert draft.cached == [1, 2, 3, 4, 5, 6, 7, 20]


def test_a_new_request_reads_its_text_from_the_start() -> None:
    draft = CountingModel()
    generator = certain(draft)
    drafted(generator, [1, 2, 3, 4], 2)
    generator.begin(np.array([9, 2, 3]))
    assert drafted(generator, [9, 2, 3], 1) == [4]
    assert draft.cached == [9, 2, 3]


def test_a_draft_that_others_used_meanwhile_reads_again() -> None:
    draft = CountingModel()
    one, two = (certain(draft) for _ in range(2))
    drafted(one, [1, 2, 3], 2)
    drafted(two, [30, 31], 2)
    assert drafted(one, [1, 2, 3, 4], 2) == [5, 6]
    assert draft.cached == [1, 2, 3, 4, 5]


class TestRounds:
    """Acceptance round by round, and what both caches hold after each."""

    def walk(self, draft: CountingModel, budget: int, new: int) -> Iterator[Round]:
        target = CountingModel(10)
        text = [0, 1, 2]
        decoding = Decoding(
            target,
            certain(draft, vocab_size=10),
            np.array(text),
            pick=pick_greedy,
            budget=ConstantBudget(budget),
            stopping=Stopping(3 + new, frozenset(), StopText((), None)),
            vocab_size=10,
        )
        for done in decoding:
            text += done.tokens.tolist()
            assert target.cached == text[:-1]
            yield done
            # The draft has read what it proposed but its last; of that, what stood is text.
            stood = len(text) - len(done.tokens) + done.num_accepted
            kept = min(len(draft.cached), stood)
            assert kept >= stood - 1 or not done.num_proposed
            assert draft.cached[:kept] == text[:kept]

    def test_a_draft_equal_to_its_target_is_right_in_every_round(self) -> None:
        """lablup/mlxcel#994: acceptance decays where a cache is rewound too little or too far."""
        rounds = list(self.walk(CountingModel(10), 4, 64))
        assert all(done.num_accepted == done.num_verified for done in rounds)
        assert [done.num_verified for done in rounds[:-1]] == [4] * (len(rounds) - 1)

    def test_a_draft_wrong_at_every_fifth_token_is_right_in_between(self) -> None:
        rounds = list(self.walk(CountingModel(10, frozenset({4, 9})), 4, 64))
        # At most 4 candidates up to the wrong one, and the target's own word puts it right.
        assert [done.num_accepted for done in rounds[:3]] == [2, 4, 4]
        assert min(done.num_accepted for done in rounds[1:-1]) == 4

    def test_a_cache_rewound_one_too_far_or_too_little_is_noticed(self) -> None:
        class Careless(CountingModel):
            def rewind(self, length: int) -> None:
                if 0 < length < len(self.cached):
                    length += 1  # a refused candidate stays
                super().rewind(length)

        with pytest.raises(AssertionError):
            list(self.walk(Careless(10, frozenset({4, 9})), 4, 64))


class TestConfidence:
    def judged(
        self, generator: AssistedCandidateGenerator, text: list[int], said: int
    ) -> list[int]:
        """A round: draft one, and let ``said`` be what the target says."""
        got = drafted(generator, text, 1)
        generator.update_candidate_strategy(np.array([*text, said]), int(got == [said]))
        return got

    def test_the_best_threshold_parts_what_stood_from_what_did_not(self) -> None:
        sure = np.array([0.9, 0.8, 0.3, 0.2])
        assert best_threshold(sure, np.array([True, True, False, False])) == 0.8
        # To miss one that stands costs three times what a wrong one does.
        assert best_threshold(sure, np.array([True, False, False, True])) == 0.2

    def test_of_equally_good_thresholds_the_highest_is_taken(self) -> None:
        # fpr + 3 (1 - tpr) is 2 at 0.9, 3 at 0.8 and 0.7, 2 at 0.6 and 0.5, 1 at 0.4
        sure = np.array([0.9, 0.8, 0.7])
        stood = np.array([True, False, False])
        assert best_threshold(sure, stood) == 0.9
        assert best_threshold(np.array([0.5, 0.5]), np.array([True, False])) == 0.5

    @pytest.mark.parametrize("seed", range(20))
    def test_the_best_threshold_is_that_of_trying_all(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sure = rng.integers(1, 12, 40) / 16
        stood = rng.random(40) < sure
        stood[:2] = True, False

        def cost(t: float) -> float:
            tpr, fpr = (sure[stood] >= t).mean(), (sure[~stood] >= t).mean()
            return round(float(fpr + 3 * (1 - tpr)), 9)

        least = min(cost(float(t)) for t in sure)
        assert best_threshold(sure, stood) == max(t for t in sure if cost(float(t)) == least)

    def test_the_threshold_moves_to_where_it_tells_right_from_wrong(self) -> None:
        generator = assisted(Doubter(), assistant_confidence_threshold=0.4)
        for i in range(5):
            even = i % 2 == 0
            self.judged(generator, [10 + even], 11 + even if even else 0)
        assert generator.threshold == 0.4  # six must be judged before it moves
        for i in range(5):
            even = i % 2 == 0
            self.judged(generator, [10 + even], 11 + even if even else 0)
        # odd tokens are said with 90 %, and stand; even ones with 45 %, and do not
        assert generator.threshold == pytest.approx(0.9)
        assert drafted(generator, [10], 5) == [11]
        generator.begin(np.array([1]))
        assert generator.threshold == 0.4

    def test_no_threshold_is_not_moved(self) -> None:
        generator = assisted(Doubter(), assistant_confidence_threshold=0)
        for i in range(20):
            self.judged(generator, [10 + i % 2], 11 + i % 2 if i % 2 else 0)
        assert generator.threshold == 0

    def test_what_was_never_judged_teaches_nothing(self) -> None:
        generator = certain()
        drafted(generator, [1], 5)  # 2 3 4 5 6
        generator.update_candidate_strategy(np.array([1, 2, 3, 9]), 2)
        assert [stood for _, stood in generator._judged] == [True, True, False]
        drafted(generator, [1, 2, 3, 9], 4)  # 10 11 12 13, of which two are verified
        generator.update_candidate_strategy(np.array([1, 2, 3, 9, 10, 11, 12]), 2)
        assert [stood for _, stood in generator._judged][3:] == [True, True, True]

    def test_what_is_kept_is_bounded(self) -> None:
        generator = certain()
        for start in range(LABELS + 9):
            text = np.arange(start, start + 2) % 60
            drafted(generator, text.tolist(), 3)
            generator.update_candidate_strategy(np.append(text, text[-1] + 1), 1)
        assert len(generator._judged) == LABELS


class Doubter(CountingModel):
    """Counts, with 90 % for odd numbers and 45 % for even ones."""

    def forward(self, tokens: TokenIds) -> Logits:
        rows = super().forward(tokens).astype(np.float64)
        likely = np.where(rows.argmax(axis=1) % 2, 0.45, 0.9)[:, None]
        rest = (1 - likely) / (self.vocab_size - 1)
        return np.log(np.where(rows > 0, likely, rest)).astype(np.float32)


class TestInVain:
    def rounds(self, generator: AssistedCandidateGenerator, count: int, said: int) -> None:
        for _ in range(count):
            drafted(generator, [1], 5)
            generator.update_candidate_strategy(np.array([1, said]), int(said == 2))

    def test_a_draft_that_is_never_right_is_warned_of_once(self) -> None:
        """openvinotoolkit/openvino.genai#4425."""
        generator = certain()
        self.rounds(generator, IN_VAIN // 5 - 1, 9)
        with pytest.warns(UserWarning, match=f"^none of the draft's {IN_VAIN} candidates stood"):
            self.rounds(generator, 1, 9)
        self.rounds(generator, 2 * IN_VAIN, 9)

    def test_one_that_stood_is_enough(self) -> None:
        generator = certain()
        self.rounds(generator, 1, 2)
        self.rounds(generator, IN_VAIN, 9)


class TestDrawing:
    """Where the call samples the draft draws too, and says from what."""

    def sampling(self, draft: CountingModel | None = None, **options: Any) -> Any:
        pick = make_draft_pick(
            Options(do_sample=True, seed=3, **options), prompt_length=1, vocab_limit=64
        )
        return assisted(draft or CountingModel(), pick=pick, assistant_confidence_threshold=0)

    def test_each_token_comes_with_what_it_was_drawn_from(self) -> None:
        got = self.sampling(top_k=0, temperature=0.3).get_candidates(np.array([5]), 4)
        assert got.draft_probs.shape == (4, 64)
        high, low = np.exp(1 / 0.3), 1.0
        for before, q in zip([5, *got.tokens[:-1]], got.draft_probs, strict=True):
            assert q[(before + 1) % 64] == pytest.approx(high / (high + 63 * low))
            assert q.sum() == pytest.approx(1)

    def test_drawn_tokens_follow_it(self) -> None:
        generator = self.sampling(top_k=0, temperature=0.3, bad_words_ids=((9,),))
        firsts, q = [], np.zeros(64)
        for _ in range(2000):
            got = generator.get_candidates(np.array([5]), 1)
            firsts.append(int(got.tokens[0]))
            q = got.draft_probs[0]
        assert q[9] == 0
        assert follows(firsts, dict(enumerate(q)))

    def test_likeliest_tokens_are_certain(self) -> None:
        assert certain().get_candidates(np.array([5]), 3).draft_probs is None

    def test_the_drafts_chance_is_not_the_targets(self) -> None:
        options = Options(do_sample=True, seed=3)
        target = make_pick(options, prompt_length=1, vocab_limit=64)
        draft = make_draft_pick(options, prompt_length=1, vocab_limit=64)
        assert isinstance(target, Sampler)
        assert isinstance(draft, Sampler)
        assert target.rng.random() == np.random.default_rng(3).random()
        assert draft.rng.random() != np.random.default_rng(3).random()

    def test_a_seed_repeats_the_draft(self) -> None:
        once, twice = (self.sampling(top_k=0).get_candidates(np.array([5]), 9) for _ in range(2))
        assert once.tokens.tolist() == twice.tokens.tolist()

    def test_a_doubtful_token_is_the_last_and_stays(self) -> None:
        generator = self.sampling(top_k=0)
        generator.threshold = 0.5  # all are below
        assert len(generator.get_candidates(np.array([5]), 4).tokens) == 1

    def test_rules_that_leave_nothing_end_the_drafting(self) -> None:
        """The target may never come where the draft went."""
        pick = make_draft_pick(Options(no_repeat_ngram_size=1), prompt_length=1, vocab_limit=4)
        draft = CountingModel(4)
        assert drafted(certain(draft, pick=pick, vocab_size=4), [1], 9) == [2, 3, 0]

    def test_rules_see_rows_as_wide_as_the_targets(self) -> None:
        seen = []

        def rule(input_ids: TokenIds, scores: Logits) -> Logits:
            seen.append((len(scores), bool(np.isneginf(scores[60:]).all())))
            return scores

        pick = make_draft_pick(Options(logits_processors=(rule,)), prompt_length=1, vocab_limit=60)
        for width in (60, 72):
            drafted(certain(CountingModel(width), pick=pick, vocab_size=60, width=66), [1], 2)
        assert seen == [(66, True)] * 4


@pytest.mark.onnx
class TestModels:
    """With real graphs, by the option ``draft``."""

    @pytest.fixture
    def draft(self, models: Path) -> EdgeGenerator:
        return EdgeGenerator(models / "hash")

    def test_a_draft_equal_to_its_target_is_always_right(
        self, hash_model: EdgeGenerator, draft: EdgeGenerator
    ) -> None:
        """openvinotoolkit/openvino.genai#4425."""
        result = hash_model.generate(
            [3, 9, 4], max_new_tokens=30, draft=draft, num_assistant_tokens=4
        )
        assert result.tokens.tolist() == oracle(HASH, [3, 9, 4], 30)
        assert result.stats.accepted == result.stats.evaluated == 24
        assert result.stats.rounds == 6

    def test_a_folder_is_loaded_once(self, hash_model: EdgeGenerator, models: Path) -> None:
        for _ in range(2):
            result = hash_model.generate([3, 9], max_new_tokens=6, draft=models / "markov")
            assert result.tokens.tolist() == oracle(HASH, [3, 9], 6)
        assert list(hash_model._drafts) == [str(models / "markov")]

    def test_rows_of_another_width_are_no_harm(self, markov: EdgeGenerator, tmp_path: Path) -> None:
        wide = write_folder(tmp_path, MARKOV, 72)
        result = markov.generate([58], max_new_tokens=9, draft=wide, num_assistant_tokens=4)
        assert result.tokens.tolist() == oracle(MARKOV, [58], 9)
        assert result.stats.accepted > 0

    def test_a_draft_with_another_tokenizer_is_refused(
        self, text_model: EdgeGenerator, tmp_path: Path
    ) -> None:
        """ggml-org/llama.cpp#3812."""
        other = write_folder(tmp_path, MARKOV, 265, tokenizer=metaspace_tokenizer())
        with pytest.raises(VocabularyMismatchError, match="must be exported with its target's"):
            text_model.stream("abc", max_new_tokens=3, draft=other)
        same = write_folder(tmp_path / "same", MARKOV, 300, tokenizer=byte_tokenizer())
        assert text_model.generate("abc", max_new_tokens=3, draft=same).text == "def"

    def test_a_draft_that_is_not_there_is_named(self, markov: EdgeGenerator) -> None:
        with pytest.raises(ModelFolderError, match="does not exist; pass a model's folder"):
            markov.stream([1], max_new_tokens=3, draft="missing")
        with pytest.raises(ModelFolderError, match=r"holds no draft/; pass draft= the folder of"):
            markov.stream([1], max_new_tokens=3, draft=True)

    def test_a_model_cannot_draft_for_itself(self, markov: EdgeGenerator) -> None:
        said = (
            "^draft must be another EdgeGenerator than its target: each needs a cache of its own$"
        )
        with pytest.raises(ValueError, match=said):
            markov.stream([1], max_new_tokens=3, draft=markov)

    def test_threads_share_a_draft(self, hash_model: EdgeGenerator, draft: EdgeGenerator) -> None:
        got: dict[int, list[int]] = {}

        def write(i: int) -> None:
            target = hash_model if i % 2 else draft
            other = draft if i % 2 else None
            result = target.generate([i, 2, 3], max_new_tokens=20, draft=other)
            got[i] = result.tokens.tolist()

        threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {i: oracle(HASH, [i, 2, 3], 20) for i in range(6)}

    @pytest.mark.parametrize("budget", [2, 8])
    @pytest.mark.parametrize(
        "penalty", [{"repetition_penalty": 1.5}, {"frequency_penalty": 4.0}], ids=str
    )
    def test_the_draft_keeps_the_rules_of_the_call(
        self, hash_model: EdgeGenerator, draft: EdgeGenerator, penalty: Any, budget: int
    ) -> None:
        """osaurus-ai/vmlx-swift#357."""
        plain = hash_model.generate([3, 9, 4], max_new_tokens=30, **penalty)
        result = hash_model.generate(
            [3, 9, 4], max_new_tokens=30, draft=draft, num_assistant_tokens=budget, **penalty
        )
        assert result.tokens.tolist() == plain.tokens.tolist()
        assert result.stats.accepted == result.stats.evaluated > 0

    @pytest.mark.parametrize("do_sample", [False, True])
    def test_padding_of_either_vocabulary_is_never_said(
        self, tmp_path: Path, do_sample: bool
    ) -> None:
        """huggingface/transformers#45307: 60 tokens, rows of 64 and of 72."""
        tokenizer = few_letters({chr(ord("0") + i): i for i in range(60)}, [])
        target, draft = (
            EdgeGenerator(write_folder(tmp_path / str(v), MARKOV, v, tokenizer=tokenizer))
            for v in (64, 72)
        )
        how: Any = {"do_sample": True, "seed": 1, "top_k": 0, "temperature": 9} if do_sample else {}
        result = target.generate(
            [50], max_new_tokens=60, draft=draft, num_assistant_tokens=4, **how
        )
        assert max(result.tokens.tolist()) < 60
        assert result.stats.accepted > 0
        if not do_sample:
            assert (
                result.tokens.tolist() == target.generate([50], max_new_tokens=60).tokens.tolist()
            )

    def test_thirty_fresh_generators_are_all_right(
        self, models: Path, draft: EdgeGenerator
    ) -> None:
        """openvinotoolkit/openvino.genai#4425: some accepted nothing, and the text was right."""
        accepted = set()
        for _ in range(30):
            fresh = EdgeGenerator(models / "hash", draft=draft)
            result = fresh.generate([3, 9, 4], max_new_tokens=10, num_assistant_tokens=4)
            accepted.add(result.stats.accepted)
        assert len(accepted) == 1
        assert accepted.pop() > 0

    def test_a_constant_schedule_begins_where_the_others_do(
        self, hash_model: EdgeGenerator, draft: EdgeGenerator
    ) -> None:
        stats = hash_model.generate(
            [3, 9], max_new_tokens=18, draft=draft, num_assistant_tokens_schedule="constant"
        ).stats
        assert (stats.rounds, stats.evaluated) == (3, 15)

    @pytest.mark.parametrize("schedule", ["heuristic", "heuristic_transient"])
    def test_schedules_are_kept_from_call_to_call_or_not(
        self, models: Path, draft: EdgeGenerator, schedule: Schedule
    ) -> None:
        fresh = EdgeGenerator(models / "hash", draft=draft)
        verified = []
        for _ in range(2):
            stats = fresh.generate(
                [3, 9, 4], max_new_tokens=30, num_assistant_tokens_schedule=schedule
            ).stats
            verified.append(stats.evaluated / stats.rounds)
        assert (verified[1] > verified[0]) == (schedule == "heuristic")

    def test_an_unknown_schedule_is_refused(self, markov: EdgeGenerator) -> None:
        said = (
            "^num_assistant_tokens_schedule must be one of constant, heuristic, "
            "heuristic_transient, or None, got 'steady'$"
        )
        schedule: Any = "steady"
        with pytest.raises(ValueError, match=said):
            markov.stream([1], max_new_tokens=3, num_assistant_tokens_schedule=schedule)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> EdgeGenerator:
    return EdgeGenerator(write_folder(tmp_path_factory.mktemp("t"), HASH, 4, height=1.0))


@pytest.fixture(scope="module", params=["the same model", "another", "a wider one"])
def its_draft(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> EdgeGenerator:
    rule, width = {
        "the same model": (HASH, 4),
        "another": (MARKOV, 4),
        "a wider one": (MARKOV, 7),
    }[request.param]
    folder = tmp_path_factory.mktemp("d")
    return EdgeGenerator(write_folder(folder, rule, width, height=1.0 if rule is HASH else 2.0))


@pytest.mark.onnx
class TestSampledText:
    """End to end, on four tokens, against the exact distribution."""

    @pytest.mark.parametrize("budget", [3, "auto"])
    @pytest.mark.parametrize("threshold", [0.0, 0.4])
    def test_it_follows_the_target(
        self,
        small: EdgeGenerator,
        its_draft: EdgeGenerator,
        budget: int | Literal["auto"],
        threshold: float,
    ) -> None:
        texts, accepted, verified = [], 0, 0
        for seed in range(500):
            result = small.generate(
                [1, 2],
                max_new_tokens=4,
                do_sample=True,
                seed=seed,
                draft=its_draft,
                num_assistant_tokens=budget,
                assistant_confidence_threshold=threshold,
            )
            texts.append(tuple(result.tokens.tolist()[:2]))
            accepted += result.stats.accepted
            verified += result.stats.evaluated
        assert follows(texts, sampled_exactly(4))
        assert 0 < accepted <= verified

    def test_an_end_token_among_the_candidates_is_the_last_token(
        self, small: EdgeGenerator, its_draft: EdgeGenerator
    ) -> None:
        """huggingface/transformers#28508: nothing is drawn again, or behind it."""
        texts = []
        for seed in range(500):
            result = small.generate(
                [1, 2],
                max_new_tokens=2,
                do_sample=True,
                seed=seed,
                draft=its_draft,
                num_assistant_tokens=3,
                eos_token_id=2,
            )
            texts.append(tuple(result.tokens.tolist()))
        expected: dict[tuple[int, ...], float] = {}
        for text, prob in sampled_exactly(4).items():
            ended = text[:1] if text[0] == 2 else text
            expected[ended] = expected.get(ended, 0.0) + prob
        assert follows(texts, expected)

    def test_the_same_model_is_always_right(self, small: EdgeGenerator, tmp_path: Path) -> None:
        its_draft = EdgeGenerator(write_folder(tmp_path, HASH, 4, height=1.0))
        for seed in range(50):
            stats = small.generate(
                [1, 2],
                max_new_tokens=9,
                do_sample=True,
                seed=seed,
                draft=its_draft,
                num_assistant_tokens=3,
            ).stats
            assert stats.accepted == stats.evaluated > 0

    def test_a_seed_repeats_the_text(self, small: EdgeGenerator, its_draft: EdgeGenerator) -> None:
        def text(seed: int) -> list[int]:
            result = small.generate(
                [1, 2],
                max_new_tokens=20,
                do_sample=True,
                seed=seed,
                draft=its_draft,
                num_assistant_tokens=3,
            )
            return [int(token) for token in result.tokens]

        assert [text(seed) for seed in range(5)] == [text(seed) for seed in range(5)]
        assert len({tuple(text(seed)) for seed in range(5)}) == 5


def sampled_exactly(vocab_size: int) -> dict[tuple[int, ...], float]:
    """How likely each two tokens are after [1, 2], by HASH's flat scores."""
    likely = np.e / (np.e + vocab_size - 1)
    texts = {}
    for text in product(range(vocab_size), repeat=2):
        known, prob = [1, 2], 1.0
        for token in text:
            said = HASH.next(known, vocab_size)
            prob *= likely if token == said else (1 - likely) / (vocab_size - 1)
            known.append(token)
        texts[text] = prob
    return texts
