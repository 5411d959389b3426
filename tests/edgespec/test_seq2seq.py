"""A text-to-text model writes its own text, whoever proposes; lookup copies from what it read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import EdgeGenerator, EdgeSeq2Seq
from edgespec.errors import ModelFolderError
from tests.folders import write_folder
from tests.heard import write_text
from tests.toylm import HASH

pytestmark = pytest.mark.onnx

SOURCE = "The harbour was quiet in the early morning."
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 3},
    "with rules": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
}


@pytest.fixture(scope="module")
def text_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text")
    write_text(root / "target")
    write_text(root / "identical")
    write_text(root / "other decoder", seed=7)
    write_text(root / "random", seed=7, encoder_seed=8)
    return root


@pytest.fixture(scope="module")
def plain(text_models: Path) -> EdgeSeq2Seq:
    return EdgeSeq2Seq(text_models / "target")


@pytest.mark.parametrize("draft", ["identical", "other decoder", "random"])
def test_a_draft_changes_the_speed_and_never_the_text(
    draft: str, text_models: Path, plain: EdgeSeq2Seq
) -> None:
    assisted = EdgeSeq2Seq(text_models / "target", draft=text_models / draft)
    for way in ("greedy", "with rules"):
        found = assisted.generate(SOURCE, num_assistant_tokens=4, **WAYS[way])
        expected = plain.generate(SOURCE, **WAYS[way])
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.stats.evaluated > 0
    if draft == "identical":
        assert found.stats.acceptance_rate == 1.0


def test_a_draft_that_draws_repeats_a_run_by_its_seed(text_models: Path) -> None:
    assisted = EdgeSeq2Seq(text_models / "target", draft=text_models / "random")
    first, second = (
        assisted.generate(SOURCE, do_sample=True, seed=4, num_assistant_tokens=3) for _ in range(2)
    )
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.stats.evaluated > 0


@pytest.mark.parametrize("way", WAYS)
def test_lookup_changes_the_speed_and_never_the_text(way: str, plain: EdgeSeq2Seq) -> None:
    expected = plain.generate(SOURCE, **WAYS[way])
    found = plain.generate(SOURCE, lookup=True, num_assistant_tokens=5, **WAYS[way])
    assert found.tokens.tolist() == expected.tokens.tolist()


def test_lookup_searches_what_the_encoder_read(plain: EdgeSeq2Seq) -> None:
    text = np.array([0, 9, 50, 51, 52])
    stream = plain.stream(np.arange(40, 80), lookup=True)
    lookup = stream._decoding.generator
    assert lookup is not None
    assert lookup.get_candidates(text, 4).tokens.tolist() == [53, 54, 55, 56]


def test_references_are_searched_too(plain: EdgeSeq2Seq) -> None:
    written = plain.generate(SOURCE).tokens.tolist()
    found = plain.generate(SOURCE, lookup_references=[written], num_assistant_tokens=8)
    assert found.tokens.tolist() == written
    assert found.stats.rounds < len(written) / 3


def test_the_source_decides(plain: EdgeSeq2Seq) -> None:
    one, other = plain.generate([SOURCE, "Another text."])
    assert one.tokens.tolist() != other.tokens.tolist()


def test_streams_on_one_model_do_not_read_each_others_source(plain: EdgeSeq2Seq) -> None:
    texts = [SOURCE, "Another text."]
    alone = [result.text for result in plain.generate(texts)]
    streams = [plain.stream(text) for text in texts]
    found = ["", ""]
    for _ in range(100):
        for i, stream in enumerate(streams):
            found[i] += "".join(chunk.text for chunk in [next(stream, None)] if chunk is not None)
    assert found == alone


def test_lengths_count_the_new_text(plain: EdgeSeq2Seq) -> None:
    assert len(plain.generate(SOURCE, max_new_tokens=5).tokens) == 5
    assert len(plain.generate(SOURCE, max_length=5).tokens) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exact": True}, "exact cannot be had with an encoder-decoder; leave it out"),
        ({"max_length": 1}, "max_length must be at least 2 here, got 1"),
        ({"lokup": True}, "'lokup' is not an option of generate; did you mean 'lookup'?"),
    ],
)
def test_what_cannot_be_meant_is_said(
    options: dict[str, Any], message: str, plain: EdgeSeq2Seq
) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole message is compared
        plain.stream(SOURCE, **options)
    assert str(raised.value) == message


def test_a_prompt_of_nothing_or_of_no_ids_is_refused(plain: EdgeSeq2Seq) -> None:
    with pytest.raises(ValueError, match="prompt must hold at least one token"):
        plain.generate([])
    with pytest.raises(ValueError, match=r"prompt holds the token id 999, .* below 257"):
        plain.generate([999])


def test_each_class_names_the_right_one(tmp_path: Path, text_models: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"\(t5\), which EdgeGenerator .* EdgeSeq2Seq$"):
        EdgeGenerator(text_models / "target")
    with pytest.raises(ModelFolderError, match=r"which EdgeSeq2Seq .* with EdgeGenerator$"):
        EdgeSeq2Seq(write_folder(tmp_path / "toy", HASH))
