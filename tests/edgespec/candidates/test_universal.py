import pickle
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from edgespec import EdgeGenerator, session
from edgespec.arrays import Logits, TokenIds
from edgespec.budget import ConstantBudget
from edgespec.candidates.universal import (
    Respelt,
    UniversalAssistedCandidateGenerator,
    adds_space,
    ids_behind,
    shared_ids,
    spelt,
    whole_characters,
)
from edgespec.decode import Decoding, Round
from edgespec.errors import VocabularyMismatchError
from edgespec.logits import make_draft_pick
from edgespec.options import Options
from edgespec.stopping import Stopping, StopText
from edgespec.tokenizer import Tokenizer
from edgespec.verify import pick_greedy
from tests.chances import follows
from tests.fakes import CountingModel
from tests.folders import byte_tokenizer, few_letters, metaspace_tokenizer, write_folder
from tests.toylm import HASH, MARKOV, oracle

TEXT = (
    "def naïve(x):\n    return 'café ☕ 😀😀' + x  # Hello world Hello world!\n"
    "abcabcabcdefdefdef\n\n\n\tżółć łódź 日本語 e\u0301 👩\u200d👩\u200d👧 aaaaaaaaaaa\n"
) * 4


def pair_tokenizer() -> FastTokenizer:
    """Bytes as ids, as the byte tokenizer has them, and pairs of letters that stand together."""
    base = byte_tokenizer()
    letters = {token: i for token, i in base.get_vocab().items() if i < 256}
    pairs = [a + b for a, b in ("ab", "cd", "ef", "de", "ll", "aa", "re", "tu", "Ġx", "Ã©", "ðŁ")]
    vocab = letters | {pair: 256 + i for i, pair in enumerate(pairs)}
    tokenizer = FastTokenizer(models.BPE(vocab=vocab, merges=[(p[0], p[1]) for p in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def lower_tokenizer() -> FastTokenizer:
    """Spells every text in small letters: not the text byte for byte."""
    tokenizer = pair_tokenizer()
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def spaced_tokenizer() -> FastTokenizer:
    """As Llama's: a start token, and a space before every text that is not the text's own."""
    tokenizer = metaspace_tokenizer(adds_bos=True)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return tokenizer


TOKENIZERS = {
    "bytes": byte_tokenizer,
    "pairs": pair_tokenizer,
    "metaspace": metaspace_tokenizer,
    "metaspace with bos": lambda: metaspace_tokenizer(adds_bos=True),
    "a space before": spaced_tokenizer,
    "small letters": lower_tokenizer,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    tokenizers = {}
    for name, make in TOKENIZERS.items():
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        make().save(str(path))
        tokenizers[name] = Tokenizer(path)
    return tokenizers


class Reciter(CountingModel):
    """Knows a text by heart, and continues from however much of it has been read.

    Attributes:
        cached: The token ids read.
    """

    def __init__(self, tokenizer: Tokenizer, text: bytes) -> None:
        super().__init__(tokenizer.size)
        self.tokenizer, self.text = tokenizer, text
        ids, ends = spelt(tokenizer, text)
        self.next_at = dict(zip([0, *ends], ids, strict=False))
        self.by_byte = {piece: i for i, piece in enumerate(tokenizer.spelling) if len(piece) == 1}

    def forward(self, tokens: TokenIds) -> Logits:
        self.cached += tokens.tolist()
        self.forwards.append(len(tokens))
        said = []
        for count in range(len(self.cached) - len(tokens) + 1, len(self.cached) + 1):
            read = self.spelt(self.cached[:count])
            at = len(read) if self.text.startswith(read) else 0
            token = self.next_at.get(at, self.by_byte.get(self.text[at : at + 1], 0))
            said.append(token)
        return 20 * np.eye(self.vocab_size, dtype=np.float32)[said]

    def spelt(self, ids: list[int]) -> bytes:
        read = b"".join(self.tokenizer.spelling[i] for i in ids)
        return read.removeprefix(b" ") if adds_space(self.tokenizer) else read


class Script(CountingModel):
    """Says its tokens one after the other."""

    def __init__(self, tokens: list[int], vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.tokens = tokens

    def forward(self, tokens: TokenIds) -> Logits:
        start = len(self.cached)
        self.cached += tokens.tolist()
        said = self.tokens[start + 1 : len(self.cached) + 1]
        return 20 * np.eye(self.vocab_size, dtype=np.float32)[said]


def walk(
    target: Script, generator: UniversalAssistedCandidateGenerator, prompt: int, budget: int = 6
) -> Iterator[Round]:
    yield from Decoding(
        target,
        generator,
        np.array(target.tokens[:prompt]),
        pick=pick_greedy,
        budget=ConstantBudget(budget),
        stopping=Stopping(len(target.tokens) - 1, frozenset(), StopText((), None)),
        vocab_size=target.vocab_size,
    )


PAIRS = [
    (draft, target)
    for draft, target in product(TOKENIZERS, TOKENIZERS)
    if draft != target and "small letters" not in (draft, target)
]


@pytest.mark.parametrize(("draft_name", "target_name"), PAIRS, ids=str)
def test_a_draft_that_knows_the_text_is_right_to_its_end(
    made: dict[str, Tokenizer], draft_name: str, target_name: str
) -> None:
    """huggingface/transformers#46124: no second start token, no drift, characters whole."""
    ours, theirs = made[draft_name], made[target_name]
    draft = Reciter(ours, TEXT.encode())
    tokens = theirs.encode(TEXT).tolist()
    target = Script(tokens, theirs.size)
    generator = UniversalAssistedCandidateGenerator(draft, ours, theirs)
    text, accepted, verified = tokens[:7], 0, 0
    opening = ours.opening.tolist()
    for done in walk(target, generator, 7):
        text += done.tokens.tolist()
        accepted, verified = accepted + done.num_accepted, verified + done.num_verified
        assert draft.cached[: len(opening)] == opening
        assert sum(token in opening for token in draft.cached) == len(opening)
        read = draft.spelt(draft.cached)
        assert TEXT.encode().startswith(read)
    assert text == tokens[:-1]
    assert verified > 0.5 * len(text)
    assert accepted > 0.95 * verified
    # The text in the draft's tokens is what its tokenizer makes of it, after thousands of bytes.
    whole = generator._bytes[: whole_characters(generator._bytes)]
    assert generator._respelt.ids == spelt(ours, whole)[0]


def test_a_draft_that_spells_another_text_is_no_harm(made: dict[str, Tokenizer]) -> None:
    ours, theirs = made["small letters"], made["bytes"]
    tokens = theirs.encode(TEXT[:200]).tolist()
    draft = Reciter(made["pairs"], TEXT.lower().encode())
    generator = UniversalAssistedCandidateGenerator(draft, ours, theirs)
    rounds = list(walk(Script(tokens, theirs.size), generator, 3))
    assert [t for done in rounds for t in done.tokens.tolist()] == tokens[3:-1]
    assert sum(done.num_accepted for done in rounds) > 100


def test_bytes_that_are_no_text_are_no_harm(made: dict[str, Tokenizer]) -> None:
    tokens = [*b"ab", *range(128, 256), *b"cdefcdef", *range(190, 256)]
    draft = Reciter(made["pairs"], b"ab")
    generator = UniversalAssistedCandidateGenerator(draft, made["pairs"], made["bytes"])
    rounds = list(walk(Script(tokens, 257), generator, 2))
    assert [t for done in rounds for t in done.tokens.tolist()] == tokens[2:-1]


class TestSpelling:
    def test_a_text_that_grows_is_spelt_as_if_at_once(self, made: dict[str, Tokenizer]) -> None:
        rng = np.random.default_rng(0)
        for name in ("bytes", "pairs", "metaspace"):
            respelt, end = Respelt(made[name]), 0
            text = TEXT * 4
            while end < len(text):
                end += int(rng.integers(1, 9))
                respelt.grow(text[:end].encode())
            assert respelt.ids == spelt(made[name], text.encode())[0]

    def test_only_the_end_is_encoded_again(self, made: dict[str, Tokenizer]) -> None:
        respelt = Respelt(made["pairs"])
        respelt.grow(b"abcdef" * 500)
        lengths = []

        class Watched(Tokenizer):
            def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
                lengths.append(len(text))
                return super().encode(text, add_special_tokens=add_special_tokens)

        respelt._tokenizer = Watched(made["pairs"].path)
        for end in (b"x", b"xa", b"xab", b"xab\n"):
            respelt.grow(b"abcdef" * 500 + end)
        assert len(lengths) == 4
        assert max(lengths) < 100

    def test_a_word_begun_by_the_target_is_not_joined_to_what_follows(
        self, made: dict[str, Tokenizer]
    ) -> None:
        pairs = made["pairs"]
        assert ids_behind(pairs, b"xa", b"b cd") == pairs.encode("b cd").tolist()
        assert ids_behind(pairs, b"xy", b"ab") == pairs.encode("ab").tolist()

    @pytest.mark.parametrize(
        ("text", "whole"),
        [
            (b"", 0),
            (b"ab", 2),
            ("aé".encode(), 3),
            ("aé".encode()[:-1], 1),
            ("😀".encode()[:3], 0),
            ("😀".encode(), 4),
            (b"a\xbf\xbf\xbf\xbf", 5),
        ],
        ids=repr,
    )
    def test_an_unfinished_character_is_seen(self, text: bytes, whole: int) -> None:
        assert whole_characters(text) == whole

    def test_vocabularies_share_what_they_spell_alike(self, made: dict[str, Tokenizer]) -> None:
        ours, theirs = shared_ids(made["metaspace with bos"], made["pairs"])
        assert len(ours) == len(set(ours.tolist())) == 256
        space = dict(zip(ours.tolist(), theirs.tolist(), strict=True))
        # Of two ids for a space the one that tokenizing gives: the other is a byte for want of it.
        assert space[made["metaspace"].id_of("\u2581") or -1] == ord(" ")
        assert space[ord("A") + 3] == ord("A")
        assert shared_ids(made["bytes"], made["pairs"])[0].tolist() == list(range(256))


class TestRequests:
    def test_a_new_request_reads_its_text_from_the_start(self, made: dict[str, Tokenizer]) -> None:
        draft = Reciter(made["pairs"], b"abcdefabcdef")
        generator = UniversalAssistedCandidateGenerator(draft, made["pairs"], made["bytes"])
        first = generator.get_candidates(np.array([*b"abc"]), 3)
        assert bytes(first.tokens.tolist()) == b"def"
        generator.begin(np.array([*b"ab"]))
        assert generator._respelt.ids == []
        assert bytes(generator.get_candidates(np.array([*b"ab"]), 2).tokens.tolist()) == b"cd"
        assert draft.spelt(draft.cached).startswith(b"ab")

    def test_another_text_without_notice_is_noticed(self, made: dict[str, Tokenizer]) -> None:
        draft = Reciter(made["pairs"], b"abcdefabcdef")
        generator = UniversalAssistedCandidateGenerator(draft, made["pairs"], made["bytes"])
        generator.get_candidates(np.array([*b"xyz"]), 3)
        got = generator.get_candidates(np.array([*b"abcd"]), 2)
        assert bytes(got.tokens.tolist()) == b"ef"

    def test_a_text_longer_than_the_draft_reads_is_left_to_the_target(
        self, made: dict[str, Tokenizer]
    ) -> None:
        draft = Reciter(made["pairs"], b"abcdefabcdef")
        generator = UniversalAssistedCandidateGenerator(
            draft, made["pairs"], made["bytes"], max_length=3
        )
        assert len(generator.get_candidates(np.array([*b"abcd"]), 9).tokens) == 2
        assert len(generator.get_candidates(np.array([*b"abcdef"]), 9).tokens) == 0

    def test_a_character_that_the_draft_leaves_unfinished_is_held_back(
        self, made: dict[str, Tokenizer]
    ) -> None:
        draft = Reciter(made["bytes"], "abcdé!".encode())
        generator = UniversalAssistedCandidateGenerator(draft, made["bytes"], made["pairs"])
        cd = made["pairs"].id_of("cd")
        text = made["pairs"].encode("ab")  # one token, two of the draft's: it says up to twice 2
        assert generator.get_candidates(text, 1).tokens.tolist() == [cd]
        assert draft.cached == [*b"abc"]
        generator.begin(text)
        draft.by_byte = {}
        odd = np.array([*b"ab"])  # spelt letter by letter
        assert generator.get_candidates(odd, 3).tokens.tolist() == [cd]
        assert draft.cached == [*b"abcd"]

    def test_an_end_token_of_the_draft_is_the_targets(self, made: dict[str, Tokenizer]) -> None:
        end = made["pairs"].id_of("<end>")
        assert end is not None

        class Ending(Reciter):
            def forward(self, tokens: TokenIds) -> Logits:
                rows = super().forward(tokens)
                if self.spelt(self.cached) == b"abcd":
                    rows[-1] = 20 * np.eye(self.vocab_size, dtype=np.float32)[end]
                return rows

        generator = UniversalAssistedCandidateGenerator(
            Ending(made["pairs"], b"abcdef"),
            made["pairs"],
            made["bytes"],
            eos_token_ids=[end],
            target_eos_token_ids=[256],
        )
        assert generator.get_candidates(np.array([*b"ab"]), 9).tokens.tolist() == [*b"cd", 256]


@pytest.mark.onnx
class TestModels:
    """With real graphs, by the option ``universal_draft``."""

    def test_a_draft_with_another_tokenizer_leaves_the_text_alone(
        self, text_model: EdgeGenerator, tmp_path: Path
    ) -> None:
        """huggingface/transformers#46936: positions and masks are of the draft's own tokens."""
        draft = write_folder(tmp_path, MARKOV, 300, tokenizer=pair_tokenizer())
        prompt = [*b"abcabc"]
        result = text_model.generate(
            "abcabc", max_new_tokens=12, draft=draft, universal_draft=True, num_assistant_tokens=4
        )
        assert result.tokens.tolist() == oracle(MARKOV, prompt, 12, 257)
        assert result.stats.accepted > 0

    def test_the_drafts_positions_count_its_own_tokens(
        self, text_model: EdgeGenerator, tmp_path: Path
    ) -> None:
        draft = EdgeGenerator(write_folder(tmp_path, MARKOV, 300, tokenizer=pair_tokenizer()))
        # The first time a draft is used its graph may be loaded again, to share threads.
        text_model.generate("abc", max_new_tokens=2, draft=draft, universal_draft=True)
        fed: list[tuple[int, int]] = []
        run = draft.model._run

        def watch(tokens: TokenIds, *, logits: bool) -> None:
            past = draft.model.length
            run(tokens, logits=logits)
            positions = draft.model._bound[logits].position_ids[0].tolist()
            assert positions == list(range(past, past + len(tokens)))
            fed.append((past, len(tokens)))

        draft.model._run = watch  # type: ignore[method-assign, assignment]
        text_model.generate(
            "abcabc",
            max_new_tokens=12,
            draft=draft,
            universal_draft=True,
            num_assistant_tokens=4,
            reuse_prefix=False,
        )
        assert len(fed) > 4
        assert fed[0] == (0, 3)  # "abcabc" is ab c ab c, and the last is read for its logits
        assert fed[1] == (3, 1)

    def test_without_the_option_it_is_refused(
        self, text_model: EdgeGenerator, tmp_path: Path
    ) -> None:
        """ggml-org/llama.cpp#3812."""
        draft = write_folder(tmp_path, MARKOV, 265, tokenizer=metaspace_tokenizer())
        said = "tokenizer.json has .*; a draft .* or be asked for with universal_draft=True$"
        with pytest.raises(VocabularyMismatchError, match=said):
            text_model.stream("abc", max_new_tokens=3, draft=draft)

    def test_the_option_needs_a_draft(self, text_model: EdgeGenerator) -> None:
        said = "^universal_draft has no effect without draft=...; name the draft model$"
        with pytest.raises(ValueError, match=said):
            text_model.stream("abc", max_new_tokens=3, universal_draft=True)

    def test_a_generator_may_be_made_with_such_a_draft(self, models: Path, tmp_path: Path) -> None:
        folder = write_folder(tmp_path, MARKOV, 300, tokenizer=pair_tokenizer())
        generator = EdgeGenerator(models / "text", draft=folder, universal_draft=True)
        result = generator.generate("abcabc", max_new_tokens=12, num_assistant_tokens=4)
        assert result.tokens.tolist() == oracle(MARKOV, [*b"abcabc"], 12, 257)
        assert list(result.stats.by_source) == ["UniversalAssistedCandidateGenerator"]
        again = pickle.loads(pickle.dumps(generator))
        assert again.generate("abc", max_new_tokens=4).text == "defg"
        with pytest.raises(ValueError, match=r"^universal_draft has no effect without draft=...;"):
            EdgeGenerator(models / "text", universal_draft=True)

    def test_without_the_option_it_is_refused_before_a_model_is_loaded(
        self, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = write_folder(tmp_path, MARKOV, 300, tokenizer=pair_tokenizer())
        target, draft = EdgeGenerator(models / "text"), EdgeGenerator(other)

        def never(*arguments: object) -> None:
            raise AssertionError("loaded")

        monkeypatch.setattr(session, "_load", never)
        for refused in (
            lambda: EdgeGenerator(models / "text", draft=other),
            lambda: EdgeGenerator(models / "text", draft=draft),
            lambda: target.stream("abc", draft=other),
            lambda: target.stream("abc", draft=draft),
        ):
            with pytest.raises(VocabularyMismatchError, match=r"tokenizer.json has "):
                refused()

    def test_the_option_changes_nothing_for_a_draft_of_the_same_tokenizer(
        self, text_model: EdgeGenerator, tmp_path: Path
    ) -> None:
        draft = write_folder(tmp_path, MARKOV, 257, tokenizer=byte_tokenizer())
        result = text_model.generate("abc", max_new_tokens=5, draft=draft, universal_draft=True)
        assert result.text == "defgh"
        assert list(result.stats.by_source) == ["AssistedCandidateGenerator"]


@pytest.mark.onnx
@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_sampled_text_follows_the_target(tmp_path: Path, threshold: float) -> None:
    """Four tokens for the target; the draft has three of them, in another order, and a pair."""
    target = EdgeGenerator(
        write_folder(
            tmp_path / "target",
            HASH,
            4,
            height=1.0,
            tokenizer=few_letters({"a": 0, "b": 1, "c": 2, "d": 3}, []),
        )
    )
    tokenizer = few_letters({"x": 0, "d": 1, "c": 2, "a": 3, "ac": 4, "b": 5}, [("a", "c")])
    draft = EdgeGenerator(
        write_folder(tmp_path / "draft", MARKOV, 8, height=2.0, tokenizer=tokenizer)
    )
    texts, accepted = [], 0
    for seed in range(800):
        result = target.generate(
            [1, 2],
            max_new_tokens=4,
            do_sample=True,
            seed=seed,
            draft=draft,
            universal_draft=True,
            num_assistant_tokens=3,
            assistant_confidence_threshold=threshold,
        )
        texts.append(tuple(result.tokens.tolist()[:2]))
        accepted += result.stats.accepted
    likely = np.e / (np.e + 3)
    expected = {}
    for text in product(range(4), repeat=2):
        known, prob = [1, 2], 1.0
        for token in text:
            prob *= likely if token == HASH.next(known, 4) else (1 - likely) / 3
            known.append(token)
        expected[text] = prob
    assert follows(texts, expected)
    assert accepted > 300


@pytest.mark.parametrize("target_name", ["pairs", "bytes"])
def test_a_sure_draft_draws_what_follows_in_the_targets_tokens(
    made: dict[str, Tokenizer], target_name: str
) -> None:
    pick = make_draft_pick(Options(do_sample=True, seed=0), prompt_length=1, vocab_limit=257)
    draft = Reciter(made["metaspace with bos"], TEXT.encode())
    generator = UniversalAssistedCandidateGenerator(
        draft, made["metaspace with bos"], made[target_name], pick=pick
    )
    got = generator.get_candidates(np.array([*b"def na"]), 9)
    assert bytes(got.tokens.tolist()) == TEXT.encode()[6:15]


def test_only_shared_tokens_are_drawn_and_none_within_a_character(
    made: dict[str, Tokenizer],
) -> None:
    pick = make_draft_pick(
        Options(do_sample=True, seed=0, top_k=0), prompt_length=1, vocab_limit=257
    )
    draft = Reciter(made["pairs"], TEXT.encode())
    generator = UniversalAssistedCandidateGenerator(
        draft,
        made["pairs"],
        made["bytes"],
        width=300,
        pick=pick,
        assistant_confidence_threshold=0,
    )
    got = generator.get_candidates(np.array([*b"def na"]), 5)
    assert got.draft_probs is not None
    assert got.draft_probs.shape == (5, 300)
    assert not got.draft_probs[:, 256:].any()
    assert got.draft_probs.sum(axis=1) == pytest.approx(np.ones(5))
    unfinished = np.array([*"def naï".encode()[:-1]])
    assert len(generator.get_candidates(unfinished, 5).tokens) == 0
    assert len(generator.get_candidates(np.array([*"def naï".encode()]), 5).tokens) == 5


@pytest.mark.parametrize("sample", [False, True])
def test_an_end_token_that_the_target_lacks_is_not_proposed(
    text_model: EdgeGenerator, tmp_path: Path, sample: bool
) -> None:
    """-1 stands for "none" in many a configuration."""
    draft = write_folder(tmp_path, MARKOV, 300, tokenizer=pair_tokenizer(), eos=ord("k"))
    for none in (-1, 999):
        said: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": none}
        said |= {"do_sample": sample, "temperature": 1e-3} if sample else {}
        plain = text_model.generate("abcabc", lookup=False, **said)
        result = text_model.generate("abcabc", draft=draft, universal_draft=True, **said)
        assert result.tokens.tolist() == plain.tokens.tolist()
