import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from edgespec import CandidateGenerator, Candidates, EdgeGenerator, PromptLookupCandidateGenerator
from edgespec.arrays import Logits, TokenIds
from edgespec.candidates.assisted import AssistedCandidateGenerator
from edgespec.candidates.base import NO_CANDIDATES
from edgespec.candidates.grammar import GrammarCandidateGenerator
from edgespec.errors import CandidateError
from edgespec.guided import Guide
from edgespec.logits import make_draft_pick
from edgespec.options import Options
from tests.folders import EOS, byte_tokenizer, write_folder
from tests.toylm import HASH, MARKOV, oracle

V = 400
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "colour": {"enum": ["green", "grey", "gr\u00fcn", "gr\u00f6n"]},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 2},
    },
    "required": ["name", "colour", "tags"],
    "additionalProperties": False,
}
RULES: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": SCHEMA},
    "regex": {"regex": "(\u00e9t\u00e9|\u00e8re|\u20ac[0-9]{1,3}), the end[.!]"},
    "grammar": {
        "grammar": 'start: item ("; " item)~1..3 "."\nitem: "name" | "colour" | /[x-z]{2}/'
    },
}


class Chance:
    """Proposes any tokens at all."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        return Candidates(self.rng.integers(0, 257, max_candidates))

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...


class Scripted:
    """Proposes the same at every place."""

    def __init__(self, tokens: bytes, draft_probs: Any = None) -> None:
        self.candidates = Candidates(ids(tokens), draft_probs, match_length=2)
        self.begun: list[int] = []
        self.told: list[int] = []

    def begin(self, input_ids: TokenIds) -> None:
        self.begun.append(len(input_ids))

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        return self.candidates

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        self.told.append(num_matches)


GENERATORS: dict[str, Callable[[Guide], CandidateGenerator]] = {
    "forced tokens": GrammarCandidateGenerator,
    "forced tokens and lookup": lambda guide: GrammarCandidateGenerator(
        guide, PromptLookupCandidateGenerator()
    ),
    "forced tokens and chance": lambda guide: GrammarCandidateGenerator(guide, Chance()),
    "lookup alone": lambda guide: PromptLookupCandidateGenerator(),
    "chance alone": lambda guide: Chance(),
}


def ids(text: str | bytes) -> TokenIds:
    """Of the byte tokenizer."""
    return np.array(list(text.encode() if isinstance(text, str) else text), np.int64)


def piece_tokenizer() -> FastTokenizer:
    """Byte-level BPE whose merges are those of some JSON: ``": "`` and ``", "`` are tokens."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    said = [json.dumps({"name": "ana", "colour": c, "tags": ["old", "new"]}) for c in "ab"]
    tokenizer.train_from_iterator(said * 9, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> EdgeGenerator:
    """Hardly surer of one token than of the others."""
    path = tmp_path_factory.mktemp("bytes")
    return EdgeGenerator(
        write_folder(path, HASH, V, tokenizer=byte_tokenizer(), eos=EOS, height=1.0)
    )


@pytest.fixture(scope="module")
def piece_model(tmp_path_factory: pytest.TempPathFactory) -> EdgeGenerator:
    path = tmp_path_factory.mktemp("pieces")
    return EdgeGenerator(
        write_folder(path, HASH, V, tokenizer=piece_tokenizer(), eos=0, height=1.0)
    )


def guide_for(model: EdgeGenerator, prompt_length: int = 0, **rule: Any) -> Guide:
    assert model.tokenizer is not None
    ends = model.folder.manifest.eos_token_ids
    return Guide(model.tokenizer, prompt_length=prompt_length, eos_token_ids=ends, **rule)


def written(
    model: EdgeGenerator,
    rule: dict[str, Any],
    make: Callable[[Guide], CandidateGenerator] | None,
    budget: int | Literal["auto"] = "auto",
    seed: int | None = None,
) -> tuple[list[int], int]:
    """The tokens of a complete text, and in how many rounds they came."""
    prompt = [7, 9, 7, 9, 7]
    guide = guide_for(model, len(prompt), **rule)
    stream = model.stream(
        prompt,
        max_new_tokens=150,
        do_sample=seed is not None,
        seed=seed,
        logits_processors=[guide],
        candidate_generator=None if make is None else make(guide),
        num_assistant_tokens=budget,
    )
    tokens: list[int] = []
    for chunk in stream:
        tokens += chunk.tokens.tolist()
        assert model.model.length == len(prompt) + len(tokens) - 1
    assert chunk.finish_reason == "eos"
    return tokens, chunk.stats.rounds


@pytest.mark.onnx
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("model_name", ["byte_model", "piece_model"])
def test_candidates_change_the_speed_and_never_the_text(
    name: str, rule: dict[str, Any], model_name: str, request: pytest.FixtureRequest
) -> None:
    model: EdgeGenerator = request.getfixturevalue(model_name)
    budgets: tuple[int | Literal["auto"], ...] = (1, 5, "auto")
    for seed in (None, 1, 2):
        want, _ = written(model, rule, None, seed=seed)
        for budget in budgets:
            got, _ = written(model, rule, GENERATORS[name], budget, seed)
            assert got == want, (seed, budget)


@pytest.mark.onnx
@pytest.mark.parametrize("name", [*GENERATORS, "a draft beyond the end"])
def test_without_an_end_token_candidates_may_run_over_the_end_of_the_grammar(
    name: str, byte_model: EdgeGenerator, tmp_path: Path
) -> None:
    assert byte_model.tokenizer is not None
    draft = EdgeGenerator(write_folder(tmp_path, HASH, V, tokenizer=byte_tokenizer()))
    texts = []
    for budget in (0, 1, 4, 20):
        guide = Guide(byte_model.tokenizer, prompt_length=2, regex="(\u00e9t\u00e9|[a-c]{4}), done")
        options = Options(logits_processors=(guide,))
        pick = make_draft_pick(options, prompt_length=2, vocab_limit=257)
        inner = AssistedCandidateGenerator(
            draft.model, vocab_size=257, width=V, pick=pick, assistant_confidence_threshold=0.0
        )
        result = byte_model.generate(
            [7, 8],
            max_new_tokens=50,
            eos_token_id=(),
            logits_processors=[guide],
            stopping_criteria=[guide.is_complete],
            candidate_generator=GENERATORS[name](guide)
            if name in GENERATORS
            else GrammarCandidateGenerator(guide, inner),
            num_assistant_tokens=budget,
        )
        assert result.finish_reason == "stop"
        texts.append(result.text)
    assert texts == ["aaaa, done"] * 4


@pytest.mark.onnx
@pytest.mark.parametrize("model_name", ["byte_model", "piece_model"])
def test_forced_tokens_save_rounds(model_name: str, request: pytest.FixtureRequest) -> None:
    model: EdgeGenerator = request.getfixturevalue(model_name)
    tokens, plain = written(model, RULES["schema"], None)
    _, guided = written(model, RULES["schema"], GrammarCandidateGenerator, 20)
    assert plain == len(tokens)
    assert guided < 0.7 * plain


@pytest.mark.onnx
def test_a_text_that_is_forced_as_a_whole_takes_one_round_with_its_end(
    byte_model: EdgeGenerator,
) -> None:
    tokens, rounds = written(byte_model, {"regex": "certainly"}, GrammarCandidateGenerator, 20)
    assert tokens == [*b"certainly", EOS]
    assert rounds == 1


@pytest.mark.onnx
def test_where_a_guide_was_before_leaves_no_trace(piece_model: EdgeGenerator) -> None:
    """Pieces may run over the end of forced text, and the parser must not mind the way there."""
    rng = np.random.default_rng(0)
    asked = guide_for(piece_model, json_schema=SCHEMA)
    texts = [written(piece_model, RULES["schema"], None, seed=seed)[0] for seed in range(4)]
    assert piece_model.tokenizer is not None
    assert all(json.loads(piece_model.tokenizer.decode(text)) for text in texts)
    for _ in range(200):
        row = np.array(texts[rng.integers(4)], np.int64)
        prefix = row[: rng.integers(0, len(row) + 1)]
        asked.count_allowed(prefix, rng.integers(0, asked.size, 5))
        fresh = guide_for(piece_model, json_schema=SCHEMA)
        assert asked.allowed(prefix).tolist() == fresh.allowed(prefix).tolist()
        assert asked.forced_bytes(prefix) == fresh.forced_bytes(prefix)


@pytest.mark.onnx
@pytest.mark.parametrize("obeys", [True, False], ids=["obeys the grammar", "knows nothing of it"])
def test_a_draft_that_draws_keeps_the_distribution(
    byte_model: EdgeGenerator, tmp_path: Path, obeys: bool
) -> None:
    draft = EdgeGenerator(
        write_folder(tmp_path, MARKOV, V, tokenizer=byte_tokenizer(), eos=EOS, height=2.0)
    )
    prompt, regex = [ord("c")], "[a-d]{2}"
    counts = np.zeros((4, 4))

    def only_d_to_z(input_ids: TokenIds, scores: Logits) -> Logits:
        scores[: ord("d")] = scores[ord("z") + 1 :] = -np.inf
        return scores

    for seed in range(300):
        guide = guide_for(byte_model, 1, regex=regex)
        options = Options(
            do_sample=True,
            top_k=0,
            seed=seed,
            eos_token_id=(EOS,),
            logits_processors=(guide if obeys else only_d_to_z,),
        )
        inner = AssistedCandidateGenerator(
            draft.model,
            vocab_size=257,
            width=V,
            pick=make_draft_pick(options, prompt_length=1, vocab_limit=257),
            assistant_confidence_threshold=0.0,
        )
        result = byte_model.generate(
            prompt,
            max_new_tokens=3,
            do_sample=True,
            top_k=0,
            seed=seed,
            logits_processors=[guide],
            candidate_generator=GrammarCandidateGenerator(guide, inner),
            num_assistant_tokens=3,
        )
        first, second = result.tokens[:2] - ord("a")
        counts[first, second] += 1

    def p(tokens: list[int]) -> Any:
        heights = [float(oracle(HASH, tokens, 1, V) == [t]) for t in b"abcd"]
        return np.exp(heights) / np.exp(heights).sum()

    expected = 300 * np.array([p(prompt)[i] * p([*prompt, 97 + i]) for i in range(4)])
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # chi-square, 15 degrees, p = .001


class TestProposals:
    def test_forced_tokens_come_first_and_are_at_most_as_many_as_asked_for(
        self, byte_model: EdgeGenerator
    ) -> None:
        generator = GrammarCandidateGenerator(
            guide_for(byte_model, regex="abc[xy]"), Scripted(b"zzz")
        )
        for count in (1, 2, 3, 8):
            candidates = generator.get_candidates(ids(""), count)
            assert bytes(candidates.tokens.tolist()) == b"abc"[:count]
            assert candidates.source == "GrammarCandidateGenerator"
        assert not len(generator.get_candidates(ids(""), 0).tokens)

    def test_the_tokens_are_those_that_the_tokenizer_would_choose(
        self, piece_model: EdgeGenerator
    ) -> None:
        generator = GrammarCandidateGenerator(guide_for(piece_model, json_schema=SCHEMA))
        tokens = generator.get_candidates(ids(""), 20).tokens
        assert piece_model.tokenizer is not None
        assert tokens.tolist() == piece_model.tokenizer.encode('{"name": "').tolist()
        assert len(tokens) < len('{"name": "')

    def test_half_a_character_is_not_proposed(self, byte_model: EdgeGenerator) -> None:
        generator = GrammarCandidateGenerator(guide_for(byte_model, regex="n(\u00e9|\u00e8)"))
        assert generator.get_candidates(ids(""), 9).tokens.tolist() == [ord("n")]
        assert generator.get_candidates(ids("n"), 9) is NO_CANDIDATES

    def test_an_end_token_is_proposed_where_nothing_else_may_follow(
        self, byte_model: EdgeGenerator
    ) -> None:
        generator = GrammarCandidateGenerator(guide_for(byte_model, regex="ab|ac+"))
        assert generator.get_candidates(ids("ab"), 9).tokens.tolist() == [EOS]
        assert generator.get_candidates(ids("ac"), 9) is NO_CANDIDATES
        assert generator.get_candidates(np.append(ids("ab"), EOS), 9) is NO_CANDIDATES

    def test_the_other_generator_is_cut_at_what_the_grammar_forbids_and_goes_on_with_the_forced(
        self, byte_model: EdgeGenerator
    ) -> None:
        inner = Scripted(b"12x")
        generator = GrammarCandidateGenerator(guide_for(byte_model, regex="[0-9]{2} pieces"), inner)
        candidates = generator.get_candidates(ids(""), 6)
        assert bytes(candidates.tokens.tolist()) == b"12 pie"
        assert (candidates.source, candidates.match_length) == ("Scripted", 2)
        generator.update_candidate_strategy(ids("12 pi!"), 5)
        assert inner.told == [2]

    def test_an_end_token_stands_only_where_the_grammar_may_end(
        self, byte_model: EdgeGenerator
    ) -> None:
        guide = guide_for(byte_model, regex="[a-c]{2,3}")
        assert [
            guide.count_allowed(ids(""), np.array([*text, EOS, 97])) for text in (b"a", b"ab")
        ] == [1, 3]

    def test_what_was_drawn_passes_whole(self, byte_model: EdgeGenerator) -> None:
        probs = np.full((3, V), 1 / V)
        inner = Scripted(b"1x2", probs)
        generator = GrammarCandidateGenerator(guide_for(byte_model, regex="[0-9]+!"), inner)
        candidates = generator.get_candidates(ids(""), 3)
        assert bytes(candidates.tokens.tolist()) == b"1x2"
        assert candidates.draft_probs is probs

    def test_only_who_proposed_is_told_and_all_hear_of_a_new_request(
        self, byte_model: EdgeGenerator
    ) -> None:
        inner = Scripted(b"1")
        generator = GrammarCandidateGenerator(guide_for(byte_model, regex="no [0-9]"), inner)
        generator.begin(ids(""))
        generator.get_candidates(ids(""), 3)
        generator.update_candidate_strategy(ids("no "), 3)
        assert (inner.begun, inner.told) == ([0], [])
        generator.get_candidates(ids("no "), 3)
        generator.update_candidate_strategy(ids("no 1"), 1)
        assert inner.told == [1]

    def test_a_promise_that_the_other_generator_broke_bears_its_name(
        self, byte_model: EdgeGenerator
    ) -> None:
        inner = Scripted(b"")
        inner.candidates = Candidates(np.array([300]))
        generator = GrammarCandidateGenerator(guide_for(byte_model, regex="[ab]"), inner)
        with pytest.raises(
            CandidateError, match=r"^Scripted must return token ids below 257, got 300$"
        ):
            generator.get_candidates(ids(""), 3)
