import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.manifest import Manifest
from tests.folders import move_weights_out, write_in_place_folder
from tests.inplace import LAYERS, POSITIONS, D, V
from tests.others import hides_nothing, merged, one_behind_the_other, write_as
from tests.toylm import HASH

pytestmark = pytest.mark.onnx

Run = Callable[..., Any]


def test_json_says_what_the_folder_is(edgespec: Run, models: Path) -> None:
    said = json.loads(edgespec("info", models / "in_place", "--json", "--provider", "cpu").out)
    assert said["graph"] == str(models / "in_place" / "model.onnx")
    assert (said["made_by"], said["cache_layout"]) == ("edgespec", "in_place")
    assert (said["vocabulary"], said["layers"], said["head_size"]) == (V, LAYERS, D)
    assert (said["longest_text"], said["tokenizer"]) == (POSITIONS, None)
    assert said["provider"] == "CPUExecutionProvider"
    assert said["cache_bytes_per_token"] == 2 * LAYERS * 2 * D * 4
    assert said["verifies_candidates"] is True
    assert said["why"] == "checked when it was exported"
    assert said["inputs"] == ["input_ids", "attention_mask", "position_ids"]
    size = (models / "in_place" / "model.onnx").stat().st_size
    assert said["size_bytes"] == {"model.onnx": size}


def test_the_table_says_the_same(edgespec: Run, models: Path) -> None:
    told = edgespec("info", models / "text")
    assert (told.err, told.code) == ("", 0)
    rows = dict(line.split(maxsplit=1) for line in told.out.splitlines() if " " in line.strip())
    assert rows["architecture"].strip() == "toy"
    assert rows["tokenizer"].strip() == "257"
    assert rows["provider"].strip().endswith("ExecutionProvider")


def test_a_quantised_folder_says_how_and_how_near(edgespec: Run, tmp_path: Path) -> None:
    folder = write_in_place_folder(tmp_path)
    manifest = Manifest.read(folder)
    assert manifest is not None
    dataclasses.replace(
        manifest, precision="int4", accuracy_level=4, block_size=32, parity={"kl": 0.003}
    ).write(folder)
    said = json.loads(edgespec("info", folder, "--json").out)
    assert (said["precision"], said["accuracy_level"], said["block_size"]) == ("int4", 4, 32)
    assert said["kl_against_fp32"] == 0.003
    assert "kl against fp32" in edgespec("info", folder).out


def test_a_draft_in_the_folder_is_told_and_what_float32_has_not_is_left_out(
    edgespec: Run, tmp_path: Path
) -> None:
    folder = write_in_place_folder(tmp_path)
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert json.loads(edgespec("info", folder, "--json").out)["draft"] == {}
    (folder / "draft").mkdir()
    dataclasses.replace(manifest, precision="int4", parity={"kl": 0.003}).write(folder / "draft")
    said = json.loads(edgespec("info", folder, "--json").out)["draft"]
    layers = manifest.num_layers
    assert (said["precision"], said["layers"], said["kl_against_fp32"]) == ("int4", layers, 0.003)
    told = edgespec("info", folder).out
    assert "precision int4" in told
    assert "accuracy level" not in told


def test_weights_beside_the_graph_count(edgespec: Run, tmp_path: Path) -> None:
    folder = write_in_place_folder(tmp_path)
    move_weights_out(folder / "model.onnx")
    said = json.loads(edgespec("info", folder, "--json").out)
    assert set(said["size_bytes"]) == {"model.onnx", "model.onnx.data"}


def test_what_another_exporter_made_is_recognised(edgespec: Run, tmp_path: Path) -> None:
    write_as(tmp_path / "decoder_model_merged.onnx", HASH, merged)
    write_as(tmp_path / "decoder_model.onnx", HASH)
    (tmp_path / "decoder_model.onnx_data").write_bytes(b"")
    said = json.loads(edgespec("info", tmp_path, "--json").out)
    assert (said["made_by"], said["cache_layout"]) == ("optimum", "growing")
    assert said["cache_axes"] == "[B, H, S, D]"
    assert said["inputs"][-1] == "use_cache_branch"
    assert said["verifies_candidates"] is True
    assert said["why"].startswith("tokens read together and one by one gave the same scores")
    assert set(said["size_bytes"]) == {"decoder_model_merged.onnx"}


def test_what_the_probe_found_is_told(edgespec: Run, tmp_path: Path) -> None:
    write_as(tmp_path / "model.onnx", HASH, hides_nothing, one_behind_the_other)
    told = edgespec("info", tmp_path)
    lines = " ".join(told.out.split())
    assert "verifies candidates False" in lines
    assert "why it scores tokens that it reads together otherwise than one by one" in lines
    assert "cache axes [B, H, S, 2D]" in lines


def test_a_missing_model_is_told_in_one_sentence(edgespec: Run, tmp_path: Path) -> None:
    path = tmp_path / "missing"
    told = edgespec("info", path)
    said = f"edgespec: {path} does not exist; pass a model's folder or .onnx file\n"
    assert (told.out, told.err, told.code) == ("", said, 1)
