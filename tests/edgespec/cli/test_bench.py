import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edgespec.cli.conftest import Told

pytestmark = pytest.mark.onnx
QUICK = ("--kind", "copying", "-n", 8, "--repeats", 1, "--methods", "lookup")


def test_a_table_and_advice(edgespec: Callable[..., Told], models: Path) -> None:
    told = edgespec("bench", models / "text", *QUICK)
    assert told.code == 0
    assert "edgespec, plain" in told.out
    assert told.out.splitlines()[-1].startswith("lookup ")


def test_json_has_every_figure(edgespec: Callable[..., Told], models: Path) -> None:
    told = json.loads(edgespec("bench", models / "text", *QUICK, "--json").out)
    assert [(f["prompt"], f["method"]) for f in told["figures"]] == [
        ("paragraph", "plain"),
        ("paragraph", "lookup"),
        ("numbers", "plain"),
        ("numbers", "lookup"),
    ]
    assert told["model"] == "text"


def test_a_picture_and_markdown(
    edgespec: Callable[..., Told], models: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "bench.svg"
    told = edgespec("bench", models / "text", *QUICK, "--markdown", "--chart", picture)
    assert told.out.splitlines()[2] == "| tokens/s (against plain) | copying | text differs on |"
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


def test_what_proposes_is_chosen_where_nothing_is_said(
    edgespec: Callable[..., Told], models: Path
) -> None:
    told = edgespec("bench", models / "text", *QUICK[:-2], "--json")
    methods = {f["method"] for f in json.loads(told.out)["figures"]}
    assert methods == {"plain", "lookup", "suffix", "ngram", "mixed"}  # it has no draft


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--methods", "magic"), "methods must be of plain, lookup, .*, got 'magic'"),
        (("--kind", "poems"), "kind must be one of copying, code edit, chat, JSON, got 'poems'"),
        (("--chart", "bench.jpg"), "chart must end in .png or .svg, got 'bench.jpg'"),
        (("--chart", "nowhere/bench.svg"), "nowhere does not exist; make it first"),
        (("--prompts", "nowhere.json"), "nowhere.json cannot be read as JSON"),
        (("--against", "vllm"), "'vllm' is not one of 'genai'"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_is_loaded(
    edgespec: Callable[..., Told], arguments: tuple[str, ...], said: str
) -> None:
    told = edgespec("bench", "no_such_model", *arguments)
    assert told.code == 2
    assert told.out == ""
    assert re.search(said, told.err)
