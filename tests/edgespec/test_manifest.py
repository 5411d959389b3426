import dataclasses
import json
from pathlib import Path

import pytest

from edgespec.errors import ModelFolderError
from edgespec.manifest import Manifest

FACTS = Manifest(
    architecture="llama",
    vocab_size=99,
    max_length=None,
    cache_layout="in_place",
    num_layers=2,
    num_kv_heads=1,
    head_size=8,
    eos_token_ids=(3, 4),
    source="na\u00efve/model",
    versions={"onnx": "1.19"},
    parity={"max_difference": 1e-6},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    FACTS.write(tmp_path)
    assert Manifest.read(tmp_path) == FACTS


def test_precision_goes_both_ways_and_may_be_left_out(tmp_path: Path) -> None:
    said = dataclasses.replace(
        FACTS, precision="int4", accuracy_level=4, block_size=32, int8_layers="mixed"
    )
    said.write(tmp_path)
    assert Manifest.read(tmp_path) == said
    path = tmp_path / "edgespec.json"
    written = json.loads(path.read_text())
    older = {k: v for k, v in written.items() if k not in ("block_size", "int8_layers")}
    path.write_text(json.dumps(older))
    assert Manifest.read(tmp_path) == dataclasses.replace(said, block_size=None, int8_layers=None)


def test_a_folder_without_one_is_no_error(tmp_path: Path) -> None:
    assert Manifest.read(tmp_path) is None


def test_an_unknown_layout_is_named(tmp_path: Path) -> None:
    FACTS.write(tmp_path)
    path = tmp_path / "edgespec.json"
    path.write_text(path.read_text().replace("in_place", "paged"))
    with pytest.raises(ModelFolderError) as raised:
        Manifest.read(tmp_path)
    assert str(raised.value) == (
        f"{path} names the cache layout 'paged', known are in_place, static, growing; "
        "export the model again"
    )


def test_no_end_token_may_be_written_as_null(tmp_path: Path) -> None:
    FACTS.write(tmp_path)
    path = tmp_path / "edgespec.json"
    text = path.read_text()
    path.write_text(text.replace('"eos_token_ids": [\n    3,\n    4\n  ]', '"eos_token_ids": null'))
    assert path.read_text() != text
    read = Manifest.read(tmp_path)
    assert read is not None
    assert read.eos_token_ids == ()
