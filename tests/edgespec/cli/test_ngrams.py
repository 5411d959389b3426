from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.ngram_store import NgramStore, ngram_keys
from edgespec.tokenizer import Tokenizer
from tests.folders import byte_tokenizer, metaspace_tokenizer

Run = Callable[..., Any]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two texts, one of them in a folder of the folder, and what is no text."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "a.txt").write_text("abcd", encoding="utf-8")
    (folder / "more" / "b.md").write_text("\ufeffabce", encoding="utf-8")
    (folder / "more" / "empty.py").write_text("", encoding="utf-8")
    (folder / "picture").write_bytes(b"\xff\xfeabcf")
    (folder / "zeros").write_bytes(b"abcg\0")
    (folder / ".hidden").write_text("abch", encoding="utf-8")
    (folder / ".git" / "c").write_text("abci", encoding="utf-8")
    return folder


def followers(path: Path, gram: bytes) -> dict[str, int]:
    found = NgramStore.load(path).top(ngram_keys(list(gram))[-1])
    return {chr(token): count for token, count in found.items()}


class TestBuild:
    def test_a_folder_of_texts_is_counted(
        self, edgespec: Run, tokenizer: Path, corpus: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "grams"
        told = edgespec("ngrams", "build", corpus, "-o", file, "--tokenizer", tokenizer)
        # Of 3 tokens ahead each: a, b, ab; c, bc, abc and their two ends.
        assert (told.out, told.err, told.code) == (
            f"{file}: 8 tokens counted, 9 entries, from 3 files\n",
            "",
            0,
        )
        assert followers(file, b"abc") == {"d": 1, "e": 1}
        assert followers(file, b"ab") == {"c": 2}
        store = NgramStore.load(file, tokenizer_sha256=Tokenizer(tokenizer).sha256())
        assert store.max_entries == 1_000_000

    def test_files_may_be_named_and_entries_bounded(
        self, edgespec: Run, tokenizer: Path, corpus: Path, tmp_path: Path
    ) -> None:
        file, texts = tmp_path / "grams", [corpus / "a.txt", corpus / "more"]
        options = ("--tokenizer", tokenizer, "--max-entries", 3)
        told = edgespec("ngrams", "build", *texts, "-o", file, *options)
        assert told.out == f"{file}: 8 tokens counted, 3 entries, from 3 files\n"
        assert followers(file, b"ab") == {"c": 2}

    def test_the_tokens_are_those_of_a_model(
        self, edgespec: Run, models: Path, corpus: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "grams"
        told = edgespec("ngrams", "build", corpus, "--output", file, "--model", models / "text")
        assert told.code == 0
        sha256 = Tokenizer(models / "text" / "tokenizer.json").sha256()
        assert NgramStore.load(file).tokenizer_sha256 == sha256

    def test_a_long_text_is_counted_in_pieces(
        self,
        edgespec: Run,
        tokenizer: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("edgespec.cli.ngrams._PIECE", 4)
        text, file = tmp_path / "text", tmp_path / "grams"
        text.write_bytes(b"abcdef\nghijkl\n\nmn\nop")
        told = edgespec("ngrams", "build", text, "-o", file, "--tokenizer", tokenizer)
        assert told.out.startswith(f"{file}: 20 tokens counted")
        assert followers(file, b"f") == {"\n": 1}
        assert followers(file, b"m") == {"n": 1}

    def test_beginning_and_end_of_a_text_are_not_tokens_of_it(
        self, edgespec: Run, tmp_path: Path
    ) -> None:
        path, text, file = (tmp_path / name for name in ("tokenizer.json", "text", "grams"))
        metaspace_tokenizer(adds_bos=True).save(str(path))
        text.write_text("ab", encoding="utf-8")
        told = edgespec("ngrams", "build", text, "-o", file, "--tokenizer", path)
        assert told.out == f"{file}: 2 tokens counted, 1 entries, from 1 file\n"

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["{corpus}"], 2, "Missing option '-o'"),
            (["-o", "x"], 2, "Missing argument 'CORPUS...'"),
            (["{corpus}/none", "-o", "x"], 2, "none' does not exist"),
            (["{corpus}", "-o", "x", "--max-entries", "0"], 2, "0 is not in the range x>=1"),
            (["{corpus}", "-o", "x", "--model", "m", "--tokenizer", "t"], 2, "whose tokens to co"),
            (["{corpus}", "-o", "x", "--tokenizer", "missing"], 1, "missing does not exist; copy"),
            (["{corpus}", "-o", "x", "--model", "missing"], 1, "missing does not exist; pass a"),
            (
                ["{corpus}/picture", "-o", "x", "--tokenizer", "{tokenizer}"],
                1,
                "picture cannot be read as UTF-8 text",
            ),
            (
                ["{corpus}/more/empty.py", "-o", "x", "--tokenizer", "{tokenizer}"],
                1,
                "empty.py: nothing to count",
            ),
            (
                ["{corpus}", "-o", "{corpus}/none/x", "--tokenizer", "{tokenizer}"],
                1,
                "cannot be written: No such file or directory",
            ),
        ],
        ids=[
            "no output",
            "no corpus",
            "missing corpus",
            "no entries",
            "two tokenizers",
            "missing tokenizer",
            "missing model",
            "no text",
            "an empty text",
            "nowhere to write to",
        ],
    )
    def test_what_cannot_be_done_is_said_in_a_sentence(
        self,
        edgespec: Run,
        tokenizer: Path,
        corpus: Path,
        arguments: list[str],
        code: int,
        said: str,
    ) -> None:
        filled = [a.format(corpus=corpus, tokenizer=tokenizer) for a in arguments]
        told = edgespec("ngrams", "build", *filled)
        assert (told.out, told.code) == ("", code)
        assert said in told.err.replace("\n", " ")
        assert "Traceback" not in told.err
        assert not Path("x").exists()


@pytest.fixture
def built(edgespec: Run, tokenizer: Path, corpus: Path, tmp_path: Path) -> list[Path]:
    files = [tmp_path / "one", tmp_path / "two"]
    for file, text in zip(files, ("a.txt", "more/b.md"), strict=True):
        edgespec("ngrams", "build", corpus / text, "-o", file, "--tokenizer", tokenizer)
    return files


class TestInfo:
    def test_it_says_what_the_file_holds(
        self, edgespec: Run, built: list[Path], tokenizer: Path
    ) -> None:
        told = edgespec("ngrams", "info", built[0])
        assert (told.err, told.code) == ("", 0)
        said = dict(line.split("  ", 1) for line in told.out.splitlines() if "  " in line)
        assert {name: fact.strip() for name, fact in said.items()} == {
            "file": str(built[0]),
            "format": "1",
            "size": "0.0 MB",
            "tokenizer sha256": Tokenizer(tokenizer).sha256(),
            "tokens counted": "4",
            "entries of 1-grams": "3",
            "entries of 2-grams": "2",
            "entries of 3-grams": "1",
            "entries of 4-grams": "0",
            "most entries": "1,000,000",
        }

    def test_a_file_that_is_none_exits_with_1(self, edgespec: Run, tokenizer: Path) -> None:
        told = edgespec("ngrams", "info", tokenizer)
        assert (told.out, told.code) == ("", 1)
        assert told.err == (
            f"edgespec: {tokenizer} is no file of n-grams; edgespec ngrams build writes one\n"
        )


class TestMerge:
    def test_counts_are_added_up(self, edgespec: Run, built: list[Path], tmp_path: Path) -> None:
        file = tmp_path / "both"
        told = edgespec("ngrams", "merge", *built, "-o", file)
        assert told.out == f"{file}: 8 tokens counted, 9 entries, from 2 files\n"
        assert (told.err, told.code) == ("", 0)
        assert followers(file, b"abc") == {"d": 1, "e": 1}

    def test_entries_may_be_bounded(self, edgespec: Run, built: list[Path]) -> None:
        told = edgespec("ngrams", "merge", *built, "-o", built[0], "--max-entries", 2)
        assert told.out == f"{built[0]}: 8 tokens counted, 2 entries, from 2 files\n"

    def test_files_of_two_tokenizers_are_refused(
        self, edgespec: Run, built: list[Path], corpus: Path, tmp_path: Path
    ) -> None:
        other, file = tmp_path / "other.json", tmp_path / "three"
        metaspace_tokenizer().save(str(other))
        edgespec("ngrams", "build", corpus, "-o", file, "--tokenizer", other)
        told = edgespec("ngrams", "merge", built[0], file, "-o", tmp_path / "both")
        assert (told.out, told.code) == ("", 1)
        assert told.err.startswith(f"edgespec: {built[0]} and {file}: n-grams of the tokenizers ")
        assert not (tmp_path / "both").exists()

    def test_one_file_is_not_enough(self, edgespec: Run, built: list[Path]) -> None:
        told = edgespec("ngrams", "merge", built[0], "-o", built[1])
        assert (told.out, told.code) == ("", 2)
        assert "expected two files or more to merge, got 1" in told.err


def test_the_group_lists_its_commands(edgespec: Run) -> None:
    told = edgespec("ngrams", "--help")
    assert told.code == 0
    assert all(name in told.out for name in ("build", "info", "merge"))
