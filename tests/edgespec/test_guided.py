import json
import re
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as FastTokenizer

from edgespec import EdgeGenerator
from edgespec.arrays import TokenIds
from edgespec.errors import MissingExtraError
from edgespec.guided import Guide
from edgespec.options import GenerateOptions
from edgespec.tokenizer import Tokenizer
from tests.folders import EOS, byte_tokenizer, metaspace_tokenizer, write_folder
from tests.toylm import HASH

V = 300
"""Wider than the tokenizer, as padded vocabularies are."""
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", None]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
REGEXES = [
    r"[a-c]{3}-[0-9]{2}",
    "(yes|no|perhaps)",
    "(\u00e9|\u20ac|\U0001f600){2}!",
    "[^a-z]{1,3}x",
]
GRAMMAR = 'start: "<" (start | /[0-9]/) ">"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hardly surer of one token than of the others, so that sampled texts are of all kinds."""
    path = tmp_path_factory.mktemp("guided")
    return write_folder(path, HASH, V, tokenizer=byte_tokenizer(), eos=EOS, height=1.0)


@pytest.fixture(scope="module")
def model(folder: Path) -> EdgeGenerator:
    return EdgeGenerator(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder / "tokenizer.json")


def ids(text: str | bytes) -> TokenIds:
    """Of the byte tokenizer."""
    return np.array(list(text.encode() if isinstance(text, str) else text), np.int64)


def texts_of(
    model: EdgeGenerator, count: int, eos: Sequence[int] = (EOS,), **rule: Any
) -> list[str]:
    """``count`` complete texts, the first greedy, the others sampled."""
    texts = []
    for seed in range(count):
        prompt = [1 + seed, 9]
        guide = Guide(tokenizer_of(model), prompt_length=2, eos_token_ids=eos, **rule)
        result = model.generate(
            prompt,
            max_new_tokens=200,
            do_sample=seed > 0,
            seed=seed,
            eos_token_id=eos,
            logits_processors=[guide],
            stopping_criteria=[] if eos else [guide.is_complete],
        )
        assert result.finish_reason == ("eos" if eos else "stop")
        texts.append(bytes(t for t in result.tokens.tolist() if t < 256).decode())
        assert len(texts[-1].encode()) == len(result.tokens) - len(eos)
    return texts


def tokenizer_of(model: EdgeGenerator) -> Tokenizer:
    assert model.tokenizer is not None
    return model.tokenizer


@pytest.mark.onnx
@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON)], ids=["a mapping", "text"])
def test_every_text_follows_the_schema(model: EdgeGenerator, schema: object) -> None:
    for text in texts_of(model, 25, json_schema=schema):
        said = json.loads(text)
        assert list(said) == ["name", "age", "kind"]
        assert isinstance(said["name"], str)
        assert 1 <= len(said["name"]) <= 4
        assert type(said["age"]) is int
        assert 0 <= said["age"] <= 120
        assert said["kind"] in ("cat", "dog", None)
        assert json.dumps(said["age"]) in text
        assert "\n" not in text


@pytest.mark.onnx
@pytest.mark.parametrize("regex", REGEXES)
def test_every_text_matches_the_expression(model: EdgeGenerator, regex: str) -> None:
    texts = texts_of(model, 25, regex=regex)
    assert all(re.fullmatch(regex, text) for text in texts), texts
    assert len(set(texts)) > 2


@pytest.mark.onnx
def test_every_text_follows_the_grammar(model: EdgeGenerator) -> None:
    texts = texts_of(model, 25, grammar=GRAMMAR)
    for text in texts:
        depth = len(text) // 2
        assert re.fullmatch(f"<{{{depth}}}[0-9]>{{{depth}}}", text), text
    assert len({len(text) for text in texts}) > 1


@pytest.mark.onnx
@pytest.mark.parametrize("rule", [{"json_schema": PERSON}, {"regex": REGEXES[2]}], ids=str)
def test_without_an_end_token_the_text_ends_where_the_grammar_does(
    model: EdgeGenerator, rule: dict[str, Any]
) -> None:
    for text in texts_of(model, 5, eos=(), **rule):
        assert json.loads(text) if "json_schema" in rule else re.fullmatch(rule["regex"], text)


@pytest.mark.onnx
def test_a_vocabulary_of_pieces_is_followed_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, HASH, V, tokenizer=metaspace_tokenizer(), eos=2, height=1.0)
    model = EdgeGenerator(folder)
    regex = "( ?Hello| world|!|\u00e9){3}"
    texts = set()
    for seed in range(20):
        guide = Guide(tokenizer_of(model), prompt_length=2, eos_token_ids=(2,), regex=regex)
        result = model.generate(
            [3, 4], max_new_tokens=99, do_sample=True, seed=seed, logits_processors=[guide]
        )
        assert result.finish_reason == "eos"
        assert re.fullmatch(regex, result.text), result.text
        texts.add(result.text)
    assert len(texts) > 5


class TestAllowed:
    def test_the_end_token_is_allowed_exactly_where_the_grammar_may_end(
        self, tokenizer: Tokenizer
    ) -> None:
        guide = Guide(tokenizer, prompt_length=1, eos_token_ids=[EOS], regex="ab?")
        found = {
            text: np.flatnonzero(guide.allowed(ids("?" + text))).tolist()
            for text in ("", "a", "ab")
        }
        assert found == {"": [ord("a")], "a": [ord("b"), EOS], "ab": [EOS]}

    def test_an_end_token_that_is_text_is_forbidden_within_the_text(
        self, tokenizer: Tokenizer
    ) -> None:
        guide = Guide(tokenizer, prompt_length=0, eos_token_ids=[ord("x")], regex="[wxy]z")
        assert np.flatnonzero(guide.allowed(ids(""))).tolist() == list(b"wy")
        assert np.flatnonzero(guide.allowed(ids("wz"))).tolist() == list(b"x")

    def test_after_an_end_token_there_is_nothing_else(self, tokenizer: Tokenizer) -> None:
        guide = Guide(tokenizer, prompt_length=0, eos_token_ids=[EOS], regex="a+")
        ended = np.append(ids("aa"), EOS)
        assert np.flatnonzero(guide.allowed(ended)).tolist() == [EOS]
        assert np.flatnonzero(guide.allowed(ids("a"))).tolist() == [ord("a"), EOS]

    def test_without_an_end_token_rows_beyond_the_end_can_be_judged(
        self, tokenizer: Tokenizer
    ) -> None:
        """A candidate may stand there, before the criterion cuts it off."""
        guide = Guide(tokenizer, prompt_length=0, regex="ab")
        for text in ("ab", "abx", "abxy"):
            assert guide.allowed(ids(text)).all()
            assert guide.is_complete(ids(text))
            assert guide.forced_bytes(ids(text)) == b""
            assert guide.count_allowed(ids(text), ids("x")) == 0
        assert not guide.is_complete(ids("a"))

    def test_bytes_of_a_character_come_in_their_order(self, tokenizer: Tokenizer) -> None:
        guide = Guide(tokenizer, prompt_length=0, regex="[\u20ac\U0001f600]")
        euro = "\u20ac".encode()
        assert np.flatnonzero(guide.allowed(ids(b""))).tolist() == [euro[0], 0xF0]
        assert np.flatnonzero(guide.allowed(ids(euro[:1]))).tolist() == [euro[1]]
        assert np.flatnonzero(guide.allowed(ids(euro[:2]))).tolist() == [euro[2]]

    def test_several_tokens_of_the_same_bytes_are_all_allowed(self, tmp_path: Path) -> None:
        metaspace_tokenizer().save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer(tmp_path / "tokenizer.json")
        guide = Guide(tokenizer, prompt_length=0, regex=" !")
        both = [tokenizer.id_of("<0x20>"), tokenizer.id_of("\u2581")]
        assert np.flatnonzero(guide.allowed(ids(""))).tolist() == both

    def test_a_space_that_the_tokenizer_adds_is_not_taken_for_text(self, tmp_path: Path) -> None:
        spaced = metaspace_tokenizer()
        spaced.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
        spaced.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer(tmp_path / "tokenizer.json")
        guide = Guide(tokenizer, prompt_length=0, regex="Hi you[!?]")
        written: list[int] = []
        while not guide.is_complete(np.array(written, np.int64)):
            written.append(int(np.flatnonzero(guide.allowed(np.array(written, np.int64)))[0]))
        assert b"".join(tokenizer.spelling[token] for token in written) == b"Hi you!"

    def test_what_has_a_name_and_no_text_can_be_asked_for(self, tokenizer: Tokenizer) -> None:
        guide = Guide(tokenizer, prompt_length=0, grammar='start: "a" <eos> "b"')
        assert np.flatnonzero(guide.allowed(ids("a"))).tolist() == [EOS]
        assert guide.count_allowed(ids("a"), np.array([EOS, ord("b")])) == 2

    @pytest.mark.parametrize("width", [100, 257, V])
    def test_scores_may_be_of_any_width(self, tokenizer: Tokenizer, width: int) -> None:
        guide = Guide(tokenizer, prompt_length=0, eos_token_ids=[EOS, 299], regex="[a-z]*")
        scores = guide(ids(""), np.ones(width, np.float32))
        want = [i for i in [*range(97, 123), EOS] if i < width]
        assert np.flatnonzero(scores > -np.inf).tolist() == want


def test_where_a_text_was_before_leaves_no_trace(tokenizer: Tokenizer) -> None:
    """Prefixes of many texts in any order: as a guide that sees each for the first time."""
    rng = np.random.default_rng(0)
    texts = [
        '{"name": "\u00e9a", "age": 7, "kind": "cat"}',
        '{"name": "x", "age": 120, "kind": null}',
    ]
    rows = [np.append(ids("p" + text), EOS) for text in texts]
    asked = Guide(tokenizer, prompt_length=1, eos_token_ids=[EOS], json_schema=PERSON)
    for _ in range(200):
        row = rows[rng.integers(2)]
        prefix = row[: rng.integers(1, len(row) + 1)]
        asked.count_allowed(prefix, rng.integers(0, 257, 5))
        fresh = Guide(tokenizer, prompt_length=1, eos_token_ids=[EOS], json_schema=PERSON)
        assert asked.allowed(prefix).tolist() == fresh.allowed(prefix).tolist()
        assert (
            asked.is_complete(prefix) == fresh.is_complete(prefix) == (len(prefix) >= len(row) - 1)
        )
        assert asked.forced_bytes(prefix) == fresh.forced_bytes(prefix)


def test_a_forbidden_token_in_the_text_is_named_and_forgotten(tokenizer: Tokenizer) -> None:
    guide = Guide(tokenizer, prompt_length=1, regex="abc")
    with pytest.raises(
        ValueError, match=r"^regex forbids the token 120, which stands behind 1 new tokens$"
    ):
        guide.allowed(ids("?ax"))
    assert np.flatnonzero(guide.allowed(ids("?ab"))).tolist() == [ord("c")]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "exactly one of json_schema, regex and grammar must be given, got none"),
        (
            {"json_schema": {}, "grammar": "start: /a/"},
            "exactly one of json_schema, regex and grammar must be given, "
            "got json_schema and grammar",
        ),
        ({"json_schema": '{"type":'}, "json_schema must be JSON: Expecting value: line 1 column 9"),
        ({"json_schema": {"a": {1}}}, "json_schema must be JSON: Object of type set is not JSON"),
        ({"json_schema": 3}, "json_schema must be a mapping or JSON text, got 3"),
        ({"json_schema": {"type": "strng"}}, "json_schema cannot be followed: Invalid type: strng"),
        (
            {"json_schema": {"not": {"type": "string"}}},
            'json_schema cannot be followed: Unimplemented keys: ["not"]',
        ),
        ({"regex": "(ab"}, "regex cannot be followed: unclosed group"),
        ({"regex": "(?=a)b"}, "regex cannot be followed: look-around, including look-ahead"),
        ({"regex": r"[^\x00-\U0010ffff]"}, "regex cannot be followed: no text matches it"),
        ({"regex": 3}, "regex must be a string, got 3"),
        ({"grammar": "start: nope"}, 'grammar cannot be followed: at 1(8): unknown name: "nope"'),
        ({"grammar": b"x"}, "grammar must be a string, got b'x'"),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_said_in_a_sentence(
    tokenizer: Tokenizer, rule: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)) as raised:
        Guide(tokenizer, prompt_length=0, **rule)
    assert "\n" not in str(raised.value)


def test_where_the_vocabulary_lacks_what_must_follow_nothing_is_allowed(tmp_path: Path) -> None:
    bare = FastTokenizer(models.WordLevel({"a": 0, "b": 1, "<eos>": 2}, unk_token="a"))
    bare.add_special_tokens([AddedToken("<eos>", special=True)])
    bare.save(str(tmp_path / "tokenizer.json"))
    guide = Guide(
        Tokenizer(tmp_path / "tokenizer.json"),
        prompt_length=0,
        eos_token_ids=[2],
        regex="(ab|ac|bc)",
    )
    assert [guide.allowed(np.array(row)).tolist() for row in ([0], [1], [0, 1])] == [
        [False, True, False],
        [False] * 3,
        [False, False, True],
    ]
    assert not guide.is_complete(np.array([1]))


def test_a_grammar_that_grows_too_complex_is_an_error_and_no_wrong_text(
    tokenizer: Tokenizer,
) -> None:
    guide = Guide(tokenizer, prompt_length=0, regex="([a-z]{0,2000}x){0,500}[a-z]*y")
    prefixes = [ids("xa" * count) for count in range(1000)]
    with pytest.raises(
        ValueError,
        match=r"^regex cannot be followed any further than \d+ new tokens: lexer error: too many",
    ):
        deque(map(guide.allowed, prefixes), maxlen=0)
    assert np.count_nonzero(guide.allowed(ids("xa"))) == 26


def test_without_llguidance_the_way_to_it_is_said(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        MissingExtraError,
        match=r"^regex needs the package llguidance, which is not installed: "
        r'pip install "edgespec\[guided\]"$',
    ):
        Guide(tokenizer, prompt_length=0, regex="a")


def test_the_options_of_a_call_reach_the_text(text_model: EdgeGenerator) -> None:
    options: GenerateOptions = {"regex": "[a-c]{4}", "max_new_tokens": 20}
    forced = text_model.generate("abc", **options)
    options["lookup"] = False
    plain = text_model.generate("abc", **options)
    assert re.fullmatch("[a-c]{4}", plain.text)
    assert forced.tokens.tolist() == plain.tokens.tolist()


def test_a_text_follows_one_constraint(text_model: EdgeGenerator) -> None:
    with pytest.raises(
        ValueError, match=r"^json_schema and regex exclude each other: a text follows one$"
    ):
        text_model.generate("abc", regex="a", json_schema={})
