import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edgespec.stopping import Stopping, StopText
from edgespec.tokenizer import Tokenizer
from tests.folders import byte_tokenizer, few_letters


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return Tokenizer(path)


def told(
    tokenizer: Tokenizer, stop: list[str], text: str, *, include_stop: bool = False
) -> tuple[list[str], bool]:
    """What comes out for each byte of ``text``, and whether a stop string was found."""
    watched = StopText(stop, tokenizer.stream(np.array([32])), include_stop=include_stop)
    for byte in text.encode():
        if watched.push(byte):
            return watched.drain(), True
    return watched.drain(last=True), False


@pytest.mark.parametrize(
    ("stop", "text", "pieces", "found"),
    [
        pytest.param(["fgh"], "defgh", ["d", "e", "", "", ""], True, id="none of it is given out"),
        pytest.param(["fx"], "defg", ["d", "e", "", "fg", ""], False, id="released if it is none"),
        pytest.param(["fx"], "def", ["d", "e", "", "f"], False, id="released at the end"),
        pytest.param(["fgh", "e"], "defgh", ["d", ""], True, id="the first that comes"),
        pytest.param(["ef", "def"], "cdef", ["c", "", "", ""], True, id="the one that began first"),
        pytest.param(["aab"], "aaab", ["", "", "a", ""], True, id="begun twice"),
        pytest.param(["\u00e9"], "d\u00e9", ["d", "", ""], True, id="within a character"),
        pytest.param([], "de", ["d", "e", ""], False, id="none to look for"),
    ],
)
def test_stop_strings(
    tokenizer: Tokenizer, stop: list[str], text: str, pieces: list[str], found: bool
) -> None:
    """openvinotoolkit/openvino.genai#817 and ollama#4524."""
    assert told(tokenizer, stop, text) == (pieces, found)


@pytest.mark.parametrize(
    ("stop", "text", "pieces", "found"),
    [
        pytest.param(["fgh"], "defgh", ["d", "e", "", "", "fgh"], True, id="all of it"),
        pytest.param(["fx"], "def", ["d", "e", "", "f"], False, id="released at the end"),
        pytest.param(["efg", "ef"], "defg", ["d", "", "ef"], True, id="the first that is complete"),
        pytest.param(["\u00e9"], "d\u00e9", ["d", "", "\u00e9"], True, id="within a character"),
    ],
)
def test_stop_strings_may_be_part_of_the_text(
    tokenizer: Tokenizer, stop: list[str], text: str, pieces: list[str], found: bool
) -> None:
    assert told(tokenizer, stop, text, include_stop=True) == (pieces, found)


@pytest.mark.parametrize(("include_stop", "text"), [(False, "ab"), (True, "abcd")])
def test_a_token_of_several_letters_ends_the_text_where_its_letters_would(
    tmp_path: Path, include_stop: bool, text: str
) -> None:
    """The token is "bcdx"; of the stop strings "cd" is complete first, then "bcdx"."""
    letters = ["a", "b", "c", "d", "x", "cd", "bcd", "bcdx"]
    merges = [("c", "d"), ("b", "cd"), ("bcd", "x")]
    few_letters({letter: i for i, letter in enumerate(letters)}, merges).save(
        str(tmp_path / "tokenizer.json")
    )
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    for tokens in ([0, 7], [0, 1, 2, 3, 4]):
        watched = StopText(
            ["bcdx", "cd"], tokenizer.stream(np.array([0])), include_stop=include_stop
        )
        assert any([watched.push(token) for token in tokens])
        assert "".join(watched.drain(last=True)) == text


def test_no_part_of_a_stop_string_ever_comes_out(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        text = "".join(rng.choice(list("ab"), 24))
        stop = ["".join(rng.choice(list("ab"), size)) for size in rng.integers(2, 6, 2)]
        got, found = told(tokenizer, stop, text)
        ends = [text.find(s) + len(s) for s in stop if s in text]
        assert found == bool(ends)
        if ends:
            text = text[: min(ends)]
            text = text[: min(text.find(s) for s in stop if s in text)]
        assert "".join(got) == text


def test_an_empty_stop_string_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"^stop strings must not be empty, got ''$"):
        StopText(["a", ""], tokenizer.stream(np.array([1])))


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    said = (
        r"^stop strings need the model's tokenizer, and its folder has no tokenizer\.json; "
        r"copy it there, or stop by eos_token_id$"
    )
    with pytest.raises(ValueError, match=said):
        StopText(["a"], None)


def stopping(max_length: int = 10, deadline: float | None = None) -> Stopping:
    return Stopping(
        max_length,
        frozenset({7}),
        StopText((), None),
        deadline=deadline,
        criteria=(lambda tokens: int(tokens[-1]) == 5,),
        cancelled=threading.Event(),
    )


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([1, 2], None),
        ([1, 7], "eos"),
        ([7, 1], None),
        ([1, 5], "stop"),
        ([1] * 10, "length"),
        ([1] * 9 + [7], "eos"),
        ([1] * 9 + [5], "stop"),
    ],
    ids=[
        "nothing",
        "an end token",
        "an end token long ago",
        "a criterion",
        "the length",
        "an end token at the length",
        "a criterion at the length",
    ],
)
def test_why_a_text_ends(tokens: list[int], reason: str | None) -> None:
    assert stopping().judge(np.array(tokens)) == reason


def test_time_is_up_after_the_token_in_work() -> None:
    assert stopping(deadline=time.monotonic() - 1).judge(np.array([1])) == "time"
    assert stopping(deadline=time.monotonic() + 1000).judge(np.array([1])) is None


def test_a_cancelled_text_ends_with_the_token_in_work() -> None:
    one = stopping()
    one.cancelled.set()
    assert one.judge(np.array([1])) == "cancelled"
