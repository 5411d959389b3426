"""Whatever proposes, and however much: the text is the target's own.

A new generator joins by one line in ``GENERATORS``.
"""

import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pytest

from edgespec import CandidateGenerator, Candidates, EdgeGenerator, PromptLookupCandidateGenerator
from edgespec.arrays import Logits, TokenIds
from edgespec.candidates.assisted import AssistedCandidateGenerator
from edgespec.candidates.ngram_cache import NgramCacheCandidateGenerator
from edgespec.candidates.prompt_lookup import MatchPolicy
from edgespec.candidates.suffix import PastOutputs, SuffixCandidateGenerator
from edgespec.candidates.universal import UniversalAssistedCandidateGenerator
from edgespec.logits import make_draft_pick
from edgespec.model import CausalLM
from edgespec.ngram_store import NgramStore
from edgespec.options import Options
from edgespec.tokenizer import Tokenizer
from tests.fakes import CountingModel
from tests.folders import few_letters, write_folder
from tests.inplace import reference, weights
from tests.toylm import HASH, MARKOV, Rule, oracle

pytestmark = pytest.mark.onnx

Budget = int | Literal["auto"]


class Chance:
    """Proposes any token at all."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        return Candidates(self.rng.integers(0, 64, self.rng.integers(0, max_candidates + 1)))

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...


class Seer:
    """Proposes what HASH will say, and lies at the ``lies_at``-th candidate if there is one."""

    def __init__(self, lies_at: int | None = None) -> None:
        self.lies_at = lies_at

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        tokens = np.array(oracle(HASH, input_ids.tolist(), max_candidates))
        if self.lies_at is not None:
            tokens[self.lies_at :] = (tokens[self.lies_at :] + 1) % 64
        return Candidates(tokens)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...


def respelling() -> CandidateGenerator:
    """A draft that counts in other tokens: letters in another order, and some pairs of them."""
    letters = [chr(ord("0") + i) for i in range(64)]
    pairs = [a + b for a, b in pairwise(letters[::-1])][::3]
    vocab = {token: i for i, token in enumerate([*reversed(letters), *pairs])}
    tokenizers = []
    with TemporaryDirectory() as folder:
        for name, made in (
            ("draft", few_letters(vocab, [(pair[0], pair[1]) for pair in pairs])),
            ("target", few_letters({letter: i for i, letter in enumerate(letters)}, [])),
        ):
            made.save(str(Path(folder, name)))
            tokenizers.append(Tokenizer(Path(folder, name)))
    return UniversalAssistedCandidateGenerator(
        CountingModel(len(vocab)), *tokenizers, assistant_confidence_threshold=0
    )


def drawing() -> CandidateGenerator:
    """A draft that draws its candidates by chance of its own."""
    pick = make_draft_pick(Options(do_sample=True, seed=1), prompt_length=1, vocab_limit=64)
    return AssistedCandidateGenerator(CountingModel(), vocab_size=64, pick=pick)


GENERATORS: dict[str, Callable[[], CandidateGenerator]] = {
    "lookup": PromptLookupCandidateGenerator,
    "lookup, the first match": lambda: PromptLookupCandidateGenerator(policy="first"),
    "lookup, the latest match": lambda: PromptLookupCandidateGenerator(policy="latest"),
    "lookup of single tokens": lambda: PromptLookupCandidateGenerator(10, 1, 1),
    "a draft model": lambda: AssistedCandidateGenerator(CountingModel(), vocab_size=64),
    "a draft model that draws": drawing,
    "a draft with another tokenizer": respelling,
    "n-grams": NgramCacheCandidateGenerator,
    "n-grams, past ones too": lambda: NgramCacheCandidateGenerator(past=NgramStore()),
    "suffixes": SuffixCandidateGenerator,
    "suffixes, past ones too": lambda: SuffixCandidateGenerator(past=PastOutputs()),
    "chance": Chance,
    "always right": Seer,
    "right twice": lambda: Seer(lies_at=2),
    "never right": lambda: Seer(lies_at=0),
}
BUDGETS: tuple[Budget, ...] = (0, 1, 3, 10, "auto")
MODELS: dict[str, Rule | None] = {
    "hash_model": HASH,
    "markov": MARKOV,
    "in_place": None,
    "static": None,
}


def prompts(count: int, seed: int) -> Iterator[list[int]]:
    """Prompts that repeat themselves, and some that count upwards."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        words = [rng.integers(0, 64, rng.integers(1, 4)).tolist() for _ in range(3)]
        words.append(((rng.integers(0, 64) + np.arange(6)) % 64).tolist())
        chosen = rng.integers(0, len(words), rng.integers(1, 8))
        yield [token for word in chosen for token in words[word]] or [1]


@cache
def plain(model_name: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """The text that ``model_name`` writes, without ONNX and without a cache."""
    rule = MODELS[model_name]
    if rule is not None:
        return oracle(rule, prompt, count)
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference(tokens, weights())[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("model_name", MODELS)
def test_candidates_change_the_speed_and_never_the_text(
    name: str,
    model_name: str,
    request: pytest.FixtureRequest,
) -> None:
    model: EdgeGenerator = request.getfixturevalue(model_name)
    generator = GENERATORS[name]()
    for prompt, budget in product(prompts(5, seed=len(name)), BUDGETS):
        stream = model.stream(
            prompt, max_new_tokens=20, candidate_generator=generator, num_assistant_tokens=budget
        )
        tokens = list(prompt)
        for chunk in stream:
            tokens += chunk.tokens.tolist()
            assert model.model.length == len(tokens) - 1
        assert tokens[len(prompt) :] == plain(model_name, tuple(prompt), 20), (prompt, budget)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("policy", ["first", "latest", "longest"])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 1), (3, 3)], ids=str)
def test_settings_of_lookup_never_change_the_text(
    hash_model: EdgeGenerator, policy: MatchPolicy, budget: Budget, sizes: tuple[int, int]
) -> None:
    for prompt in prompts(4, seed=sum(sizes)):
        result = hash_model.generate(
            prompt,
            max_new_tokens=20,
            lookup=True,
            num_assistant_tokens=budget,
            prompt_lookup_policy=policy,
            max_matching_ngram_size=sizes[0],
            min_matching_ngram_size=sizes[1],
        )
        assert result.tokens.tolist() == oracle(HASH, prompt, 20)


def test_markers_all_over_the_prompt_mislead_lookup_and_not_the_text(
    hash_model: EdgeGenerator,
) -> None:
    """vllm-project/vllm#40875."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        prompt = [t for _ in range(6) for t in (60, 60, *rng.integers(0, 60, 3).tolist())]
        prompt += [60, 60]
        result = hash_model.generate(prompt, max_new_tokens=12, prompt_lookup_num_tokens=4)
        assert result.tokens.tolist() == oracle(HASH, prompt, 12)
        assert result.stats.evaluated > 0


def test_two_heads_in_half_precision_rewind_alike(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, HASH, heads=2, cache_dtype="float16")
    with pytest.warns(RuntimeWarning, match="made for float16"):
        model = EdgeGenerator(folder)
    for prompt in prompts(10, seed=3):
        result = model.generate(
            prompt, max_new_tokens=16, candidate_generator=Seer(2), num_assistant_tokens=6
        )
        assert result.tokens.tolist() == oracle(HASH, prompt, 16)


class TestEndOfText:
    """The text is cut in the middle of a block of accepted candidates."""

    @pytest.mark.parametrize("eos", [20, [99, 20], [20, 21]], ids=str)
    @pytest.mark.parametrize("budget", BUDGETS)
    def test_an_end_token_within_a_block_is_the_last_token(
        self, markov: EdgeGenerator, eos: int | list[int], budget: Budget
    ) -> None:
        """huggingface/transformers#47912."""
        prompt = [17, 18, 19, 20, 21, 22, 5, 17]
        result = markov.generate(
            prompt,
            max_new_tokens=10,
            lookup=True,
            max_matching_ngram_size=1,
            num_assistant_tokens=budget,
            eos_token_id=eos,
        )
        assert result.tokens.tolist() == [18, 19, 20]
        assert result.finish_reason == "eos"
        assert markov.model.length == len(prompt) + 2

    @pytest.mark.parametrize("generator", [Seer(), Seer(3)], ids=["right", "right thrice"])
    def test_no_generator_can_write_beyond_an_end_token(
        self, hash_model: EdgeGenerator, generator: Seer
    ) -> None:
        for prompt in prompts(20, seed=5):
            end = oracle(HASH, prompt, 9)[-1]
            result = hash_model.generate(
                prompt,
                max_new_tokens=30,
                eos_token_id=end,
                candidate_generator=generator,
                num_assistant_tokens=7,
            )
            assert result.tokens.tolist() == oracle(HASH, prompt, 30, eos=[end])
            assert hash_model.model.length == len(prompt) + len(result.tokens) - 1

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_never_more_tokens_than_asked_for(self, markov: EdgeGenerator, count: int) -> None:
        """huggingface/transformers#46993."""
        result = markov.generate(
            [17, 18, 19, 20, 21, 22, 5, 17], max_new_tokens=count, prompt_lookup_num_tokens=5
        )
        assert result.tokens.tolist() == [18, 19, 20][:count]
        assert result.finish_reason == "length"

    def test_a_stop_string_within_a_block_ends_the_text(self, text_model: EdgeGenerator) -> None:
        for budget in BUDGETS:
            result = text_model.generate(
                "defghi abc",
                stop="gh",
                max_new_tokens=20,
                lookup=True,
                num_assistant_tokens=budget,
            )
            assert (result.text, result.finish_reason) == ("def", "stop")
            assert text_model.model.length == len("defghi abc") + len(result.tokens) - 1

    def test_a_criterion_sees_every_token_once_and_in_order(self, markov: EdgeGenerator) -> None:
        seen: list[list[int]] = []

        def criterion(tokens: TokenIds) -> bool:
            seen.append(tokens.tolist())
            return int(tokens[-1]) == 20

        prompt = [17, 18, 19, 20, 21, 22, 5, 17]
        result = markov.generate(
            prompt, max_new_tokens=10, prompt_lookup_num_tokens=5, stopping_criteria=[criterion]
        )
        assert result.tokens.tolist() == [18, 19, 20]
        assert seen == [[*prompt, 18], [*prompt, 18, 19], [*prompt, 18, 19, 20]]

    @pytest.mark.parametrize("model_name", MODELS)
    def test_an_exception_in_a_criterion_spoils_nothing(
        self,
        model_name: str,
        request: pytest.FixtureRequest,
    ) -> None:
        """microsoft/onnxruntime-genai#2140."""
        model: EdgeGenerator = request.getfixturevalue(model_name)
        prompt = [7, 8, 9, 10, 7, 8]

        def criterion(tokens: TokenIds) -> bool:
            if len(tokens) == len(prompt) + 3:
                raise RuntimeError("no more")
            return False

        with pytest.raises(RuntimeError, match="no more"):
            model.generate(prompt, max_new_tokens=12, lookup=True, stopping_criteria=[criterion])
        result = model.generate(prompt, max_new_tokens=12, lookup=True)
        assert result.tokens.tolist() == plain(model_name, tuple(prompt), 12)

    @pytest.mark.parametrize("model_name", MODELS)
    def test_a_stream_left_half_way_spoils_nothing(
        self,
        model_name: str,
        request: pytest.FixtureRequest,
    ) -> None:
        model: EdgeGenerator = request.getfixturevalue(model_name)
        stream = model.stream([7, 8, 9, 10, 7, 8], max_new_tokens=40, lookup=True)
        count = sum(len(chunk.tokens) for chunk in islice(stream, 2))
        assert model.model.length == 6 + count - 1
        del stream
        for prompt in ([3], [1, 2, 3, 1, 2, 3, 1], [5, 6]):
            result = model.generate(prompt, max_new_tokens=12, lookup=True)
            assert result.tokens.tolist() == plain(model_name, tuple(prompt), 12)


class TestSampling:
    @pytest.mark.parametrize("model_name", ["flat", "in_place"])
    # Judging what was drawn takes random numbers of its own; the distribution stays.
    @pytest.mark.parametrize("name", sorted(GENERATORS.keys() - {"a draft model that draws"}))
    def test_a_seed_gives_the_same_text_with_and_without_candidates(
        self, name: str, model_name: str, request: pytest.FixtureRequest
    ) -> None:
        model: EdgeGenerator = request.getfixturevalue(model_name)
        for seed, prompt in enumerate(prompts(3, seed=11)):
            want = model.generate(prompt, max_new_tokens=20, do_sample=True, top_k=8, seed=seed)
            for budget in BUDGETS:
                got = model.generate(
                    prompt,
                    max_new_tokens=20,
                    do_sample=True,
                    top_k=8,
                    seed=seed,
                    candidate_generator=GENERATORS[name](),
                    num_assistant_tokens=budget,
                )
                assert got.tokens.tolist() == want.tokens.tolist()

    def test_seeds_differ_and_repeat(self, flat: EdgeGenerator) -> None:
        """vllm-project/vllm#6038."""
        before = str(np.random.get_state())  # noqa: NPY002  # what must not be touched

        def text(seed: int | None) -> list[int]:
            result = flat.generate(
                [1, 2, 3], max_new_tokens=30, do_sample=True, seed=seed, lookup=True
            )
            return [int(token) for token in result.tokens]

        texts = [text(seed) for seed in range(5)]
        assert len({tuple(one) for one in texts}) == 5
        assert texts == [text(seed) for seed in range(5)]
        assert text(None) != text(None)
        assert str(np.random.get_state()) == before  # noqa: NPY002

    def test_a_draft_that_is_always_right_leaves_the_distribution_alone(
        self, flat: EdgeGenerator
    ) -> None:
        """jaymody/speculative-sampling#3."""
        likeliest = oracle(HASH, [9, 9], 1)[0]
        drawn = [
            flat.generate(
                [9, 9],
                max_new_tokens=2,
                do_sample=True,
                top_k=0,
                temperature=0.25,
                seed=seed,
                candidate_generator=Seer(),
                num_assistant_tokens=1,
            ).tokens[0]
            for seed in range(400)
        ]
        expected = np.exp(1 / 0.25) / (np.exp(1 / 0.25) + 63)
        assert drawn.count(likeliest) / len(drawn) == pytest.approx(expected, abs=0.08)


class TestTurns:
    def test_streams_of_one_generator_do_not_disturb_each_other(
        self, hash_model: EdgeGenerator
    ) -> None:
        starts = list(prompts(5, seed=17))
        streams = [
            hash_model.stream(
                p, max_new_tokens=20, candidate_generator=Seer(i), num_assistant_tokens=4
            )
            for i, p in enumerate(starts)
        ]
        texts: list[list[int]] = [[] for _ in streams]
        rng = np.random.default_rng(1)
        while any(len(text) < 20 for text in texts):
            i = int(rng.integers(len(streams)))
            for chunk in islice(streams[i], 1):
                texts[i] += chunk.tokens.tolist()
        assert texts == [oracle(HASH, p, 20) for p in starts]

    def test_a_call_in_between_does_not_disturb_a_sampled_stream(self, flat: EdgeGenerator) -> None:
        want = flat.generate([1, 2], max_new_tokens=20, do_sample=True, seed=4).tokens.tolist()
        got = []
        for chunk in flat.stream([1, 2], max_new_tokens=20, do_sample=True, seed=4):
            got += chunk.tokens.tolist()
            flat.generate([7, 7, 7], max_new_tokens=2, do_sample=True, seed=9)
        assert got == want

    @pytest.mark.parametrize("model_name", MODELS)
    def test_threads_take_turns(
        self,
        model_name: str,
        request: pytest.FixtureRequest,
    ) -> None:
        model: EdgeGenerator = request.getfixturevalue(model_name)
        starts = list(prompts(8, seed=23))
        want = [plain(model_name, tuple(p), 20) for p in starts]
        got: list[list[int]] = [[] for _ in starts]

        def write(i: int) -> None:
            got[i] = model.generate(starts[i], max_new_tokens=20, lookup=i % 2 == 0).tokens.tolist()

        threads = [threading.Thread(target=write, args=(i,)) for i in range(len(starts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == want


def rows_and_text(
    model: EdgeGenerator, prompt: list[int], **options: Any
) -> tuple[list[bytes], list[int]]:
    """The bits of every row of logits that a token was picked by, and the tokens."""
    rows: list[bytes] = []

    def watch(input_ids: TokenIds, scores: Logits) -> Logits:
        rows.append(scores.tobytes())
        return scores

    result = model.generate(
        prompt, max_new_tokens=16, exact=True, logits_processors=[watch], **options
    )
    return rows, result.tokens.tolist()


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("model_name", ["in_place", "int4"])
def test_exact_logits_are_the_same_bit_for_bit(
    name: str, model_name: str, request: pytest.FixtureRequest
) -> None:
    model: EdgeGenerator = request.getfixturevalue(model_name)
    for prompt in prompts(2, seed=31):
        want = rows_and_text(model, prompt, lookup=False)
        for budget in BUDGETS:
            candidates = GENERATORS[name]()
            got = rows_and_text(
                model, prompt, candidate_generator=candidates, num_assistant_tokens=budget
            )
            assert got == want


BY_NAME: tuple[dict[str, Any], ...] = (
    {"lookup": True},
    {"ngram": True},
    {"suffix": True},
    {"draft": True},
    {"lookup": True, "ngram": True, "suffix": True, "draft": True},
)


@pytest.mark.parametrize("options", BY_NAME, ids=str)
def test_the_embedded_model_writes_its_own_text_whoever_is_named(options: dict[str, Any]) -> None:
    model = EdgeGenerator()
    prompt = "for i in range(10):\n    print(i)\n\nfor i in range(10):\n"
    ways: tuple[dict[str, Any], ...] = ({}, {"do_sample": True, "seed": 5, "exact": True})
    for sampled in ways:
        if sampled and options.get("draft"):
            continue  # drawn drafts take random numbers of their own
        want = model.generate(prompt, max_new_tokens=40, lookup=False, **sampled)
        for budget in BUDGETS[1:]:
            got = model.generate(
                prompt, max_new_tokens=40, num_assistant_tokens=budget, **sampled, **options
            )
            assert got.tokens.tolist() == want.tokens.tolist()
            # What pays is measured: where the machine is busy it may be nothing.
            assert got.stats.accepted > 0 or budget == "auto"


class RewindsOneTooFar(CausalLM):
    def rewind(self, length: int) -> None:
        super().rewind(max(0, length - 1))


class NeverRewinds(CausalLM):
    def rewind(self, length: int) -> None:
        if length == 0:
            super().rewind(0)


class RewindsOneTooLittle(CausalLM):
    def rewind(self, length: int) -> None:
        super().rewind(min(self.length, length + 1) if length else 0)


@pytest.mark.parametrize("fault", [RewindsOneTooFar, NeverRewinds, RewindsOneTooLittle])
@pytest.mark.parametrize("model_name", ["hash_model", "in_place", "static"])
def test_the_law_would_notice_a_wrong_rewind(
    fault: type[CausalLM],
    model_name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a fault planted, texts differ: the tests above are not green for want of teeth."""
    model: EdgeGenerator = request.getfixturevalue(model_name)
    faulty = fault(model.session, model.folder.manifest, model.max_length)
    monkeypatch.setattr(model._loading, "_model", faulty)
    differ = [
        prompt
        for prompt in prompts(5, seed=29)
        if model.generate(
            prompt, max_new_tokens=20, candidate_generator=Seer(2), num_assistant_tokens=4
        ).tokens.tolist()
        != plain(model_name, tuple(prompt), 20)
    ]
    assert differ
