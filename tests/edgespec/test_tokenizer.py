from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel

from edgespec.errors import TokenizerError, VocabularyMismatchError
from edgespec.tokenizer import Tokenizer, require_same_token_ids
from tests.folders import METASPACE, byte_tokenizer, metaspace_tokenizer


def opened(made: FastTokenizer, folder: Path) -> Tokenizer:
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def in_bytes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return opened(byte_tokenizer(), tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return opened(metaspace_tokenizer(), tmp_path_factory.mktemp("metaspace"))


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return opened(metaspace_tokenizer(adds_bos=True), tmp_path_factory.mktemp("bos"))


def pieces(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    """The text of each of ``tokens`` after ``prompt``, and what is left at the end."""
    stream = tokenizer.stream(np.array(prompt, np.int64))
    return [*map(stream.push, tokens), stream.flush()]


def fallback(text: str) -> list[int]:
    """Byte tokens of the metaspace tokenizer."""
    return [3 + byte for byte in text.encode()]


class TestEncode:
    """One beginning-of-text token, whoever spells it out: huggingface/transformers#37686."""

    @pytest.mark.parametrize(
        ("text", "add", "want"),
        [
            ("Hello", True, ["<s>", "H", "e", "l", "l", "o"]),
            ("<s>Hello", True, ["<s>", "H", "e", "l", "l", "o"]),
            ("<s>Hello", False, ["<s>", "H", "e", "l", "l", "o"]),
            ("Hello", False, ["H", "e", "l", "l", "o"]),
            ("<s><s>", True, ["<s>", "<s>"]),
            ("", True, ["<s>"]),
        ],
    )
    def test_beginning(self, with_bos: Tokenizer, text: str, add: bool, want: list[str]) -> None:
        ids = with_bos.encode(text, add_special_tokens=add)
        assert ids.dtype == np.int64
        spelt = [METASPACE[i] for i in ids]
        assert spelt == [f"<0x{ord(p):02X}>" if len(p) == 1 else p for p in want]

    @pytest.mark.parametrize("text", ["aa", "====", "\n\n\nx", "a"])
    def test_a_text_that_begins_with_a_repetition_loses_nothing(
        self, in_bytes: Tokenizer, with_bos: Tokenizer, text: str
    ) -> None:
        assert in_bytes.encode(text).tolist() == list(text.encode())
        assert with_bos.encode(text).tolist() == [1, *fallback(text)]

    def test_decode_undoes_it(self, in_bytes: Tokenizer) -> None:
        text = "na\u00efve \U0001f600\n"
        assert in_bytes.decode(in_bytes.encode(text)) == text


class TestStream:
    """Pieces joined are the text, and none holds half a character: onnxruntime-genai#314."""

    def test_a_character_comes_whole_with_its_last_byte(self, in_bytes: Tokenizer) -> None:
        got = pieces(in_bytes, list(b"Hi "), list("\U0001f600 n\u00e9!".encode()))
        assert got == ["", "", "", "\U0001f600", " ", "n", "", "\u00e9", "!", ""]

    def test_a_character_that_never_ends_comes_as_a_mark_at_the_end(
        self, in_bytes: Tokenizer
    ) -> None:
        assert pieces(in_bytes, [65], [66, 0xF0, 0x9F]) == ["B", "", "", "\ufffd"]

    def test_a_byte_that_fits_nothing_is_given_out_when_the_next_shows_it(
        self, in_bytes: Tokenizer
    ) -> None:
        assert pieces(in_bytes, [65], [0xFF, 66]) == ["", "\ufffdB", ""]

    def test_a_leading_space_is_kept(self, metaspace: Tokenizer) -> None:
        """huggingface/tokenizers#1141."""
        hello, world, bang = (METASPACE.index(p) for p in ("Hello", "\u2581world", "!"))
        assert pieces(metaspace, [hello], [world, bang]) == [" world", "!", ""]
        assert metaspace.decode([hello, world, bang]) == "Hello world!"

    def test_the_space_at_the_start_of_a_whole_text_is_not(self, metaspace: Tokenizer) -> None:
        world = METASPACE.index("\u2581world")
        assert pieces(metaspace, [1], [world]) == ["world", ""]

    def test_end_tokens_have_no_text(self, in_bytes: Tokenizer) -> None:
        assert pieces(in_bytes, [65], [66, 256]) == ["B", "", ""]

    @pytest.mark.parametrize("kind", ["in_bytes", "metaspace"])
    def test_any_text_comes_back_whole(self, kind: str, request: pytest.FixtureRequest) -> None:
        tokenizer: Tokenizer = request.getfixturevalue(kind)
        ids = fallback if kind == "metaspace" else lambda text: list(text.encode())
        rng = np.random.default_rng(0)
        for _ in range(60):
            prompt, text = (
                "".join(rng.choice(list("ab \u00e9\u65e5\U0001f600"), size))
                for size in (rng.integers(1, 9), 40)
            )
            got = pieces(tokenizer, ids(prompt), ids(text))
            assert "".join(got) == text
            assert not any("\ufffd" in piece for piece in got)

    def test_any_bytes_come_back_as_the_decoder_sees_them(self, in_bytes: Tokenizer) -> None:
        rng = np.random.default_rng(1)
        for kinds in (range(256), (0xF0, 0x9F, 0x98, 0x80, 0x41, 0xC3, 0xA9)):
            for _ in range(40):
                tokens = rng.choice(list(kinds), 50).tolist()
                got = pieces(in_bytes, [65], tokens)
                assert "".join(got) == bytes(tokens).decode("utf-8", "replace")

    def test_many_characters_in_a_row_of_bytes_stay_whole(self, metaspace: Tokenizer) -> None:
        text = "\U0001f600" * 20
        assert "".join(pieces(metaspace, [1], fallback(text))) == text

    def test_a_wrong_byte_does_not_swallow_what_follows(self, metaspace: Tokenizer) -> None:
        """Byte fallback turns a whole row of bytes to marks for one of them."""
        hello, bang = METASPACE.index("Hello"), METASPACE.index("!")
        got = pieces(metaspace, fallback("AB"), [3 + 0xC3, hello, bang])
        assert got == ["", "\ufffdHello", "!", ""]

    @pytest.mark.parametrize("kind", ["in_bytes", "metaspace"])
    def test_a_prompt_that_ends_within_a_character_is_continued(
        self, kind: str, request: pytest.FixtureRequest
    ) -> None:
        tokenizer: Tokenizer = request.getfixturevalue(kind)
        add = 3 if kind == "metaspace" else 0
        for text in ("\U0001f600\U0001f600", "na\u00ef\U0001f600"):
            tokens = [add + byte for byte in text.encode()]
            for cut in range(len(tokens) - 3, len(tokens)):
                assert "".join(pieces(tokenizer, tokens[:cut], tokens[cut:])) == "\U0001f600"

    def test_the_characters_before_the_answer_are_never_repeated(
        self, metaspace: Tokenizer
    ) -> None:
        bang = METASPACE.index("!")
        assert pieces(metaspace, fallback("\U0001f600\U0001f600"), [bang]) == ["!", ""]


class TestSize:
    def test_all_ids_count(self, in_bytes: Tokenizer, metaspace: Tokenizer) -> None:
        assert (in_bytes.size, metaspace.size) == (257, len(METASPACE))

    def test_ids_beyond_a_gap_count(self, tmp_path: Path) -> None:
        made = FastTokenizer(WordLevel({"a": 0, "b": 5}, unk_token="a"))
        tokenizer = opened(made, tmp_path)
        assert tokenizer.encode("b").tolist() == [5]
        assert tokenizer.size == 6


class TestFiles:
    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError) as raised:
            Tokenizer(tmp_path / "tokenizer.json")
        assert str(raised.value) == (
            f"{tmp_path / 'tokenizer.json'} does not exist; "
            "copy tokenizer.json from the checkpoint, or export again"
        )

    def test_a_file_that_is_no_tokenizer_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_text('{"version": "1.0"}')
        with pytest.raises(TokenizerError) as raised:
            Tokenizer(path)
        said = str(raised.value)
        assert said.startswith(f"{path} cannot be read as a tokenizer: ")
        assert said.endswith("; copy tokenizer.json from the checkpoint again")

    def test_truncation_and_padding_of_training_days_are_off(self, tmp_path: Path) -> None:
        made = byte_tokenizer()
        made.enable_truncation(4)
        made.enable_padding(length=8)
        assert opened(made, tmp_path).encode("abcdef").tolist() == list(b"abcdef")


class TestSameTokenIds:
    """ggml-org/llama.cpp#3812."""

    def test_the_same_file_or_the_same_ids_are_fine(
        self, in_bytes: Tokenizer, tmp_path: Path
    ) -> None:
        made = byte_tokenizer()
        made.enable_truncation(7)  # another file, the same ids
        require_same_token_ids(in_bytes, in_bytes)
        require_same_token_ids(opened(made, tmp_path), in_bytes)

    def test_other_ids_are_refused(self, in_bytes: Tokenizer, metaspace: Tokenizer) -> None:
        with pytest.raises(VocabularyMismatchError) as raised:
            require_same_token_ids(metaspace, in_bytes)
        said = str(raised.value)
        assert str(metaspace.path) in said
        assert str(in_bytes.path) in said
        assert "tokenizer" in said

    def test_more_ids_are_refused(self, in_bytes: Tokenizer, tmp_path: Path) -> None:
        made = byte_tokenizer()
        made.add_special_tokens([AddedToken("<pad>", special=True)])
        with pytest.raises(VocabularyMismatchError, match="257"):
            require_same_token_ids(opened(made, tmp_path), in_bytes)
