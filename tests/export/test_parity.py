"""The gate refuses graphs that are nearly right, and says where they first go wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import edgespec_export
import numpy as np
import onnx
import pytest

from edgespec.errors import ParityError
from edgespec.manifest import Manifest

pytestmark = pytest.mark.export

Damage = Callable[[onnx.ModelProto], None]


def attention(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def set_attribute(node: onnx.NodeProto, name: str, value: float | int) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])


def shorten_window(model: onnx.ModelProto) -> None:
    set_attribute(attention(model)[0], "local_window_size", 4)


def change_scale(model: onnx.ModelProto) -> None:
    set_attribute(attention(model)[1], "scale", 0.3)


def forget_rotation(model: onnx.ModelProto) -> None:
    set_attribute(attention(model)[1], "do_rotary", 0)


def count_positions_from_zero(model: onnx.ModelProto) -> None:
    """Each call starts at position 0, as a graph does that forgets its past."""
    for name, op, inputs in (
        ("first", "Slice", ["position_ids", "zero", "one", "one"]),
        ("from_zero", "Sub", ["position_ids", "first"]),
    ):
        node = onnx.helper.make_node(op, inputs, [name])
        model.graph.node.insert(0 if op == "Slice" else 1, node)
    for name, number in (("zero", 0), ("one", 1)):
        tensor = onnx.numpy_helper.from_array(np.array([number]), name)
        model.graph.initializer.append(tensor)
    model.graph.node[0].input[3] = "one"
    for attend in attention(model):
        attend.input[9] = "from_zero"


def make_one_weight_nan(model: onnx.ModelProto) -> None:
    weight = next(t for t in model.graph.initializer if "down_proj" in t.name)
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0, 0] = np.nan
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shorten_window, r"^past 0, new 12: step 4 \(position 4\) differs from the checkpoint by"),
        (change_scale, r"^past 0, new 12: step 1 \(position 1\) differs"),
        (forget_rotation, r"^past 0, new 12: step 1 \(position 1\) differs"),
        (count_positions_from_zero, r"^past 1, new 11: step 1 \(position 1\) differs"),
        (make_one_weight_nan, r"^past 0, new 12: step 0 \(position 0\) has logits that are not"),
    ],
)
def test_a_damaged_graph_is_refused_at_its_first_wrong_step(
    damage: Damage, said: str, llama_checkpoint: Path, llama_folder: Path, tmp_path: Path
) -> None:
    model = onnx.load(llama_folder / "model.onnx")
    damage(model)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ParityError, match=said):
        check(tmp_path / "model.onnx", llama_checkpoint)


def check(path: Path, checkpoint_folder: Path) -> dict[str, object]:
    from edgespec_export import checkpoint, parity
    from edgespec_export.cache_layouts.base import CacheShape
    from edgespec_export.quiet import quiet

    with quiet():
        loaded = checkpoint.load(str(checkpoint_folder), "llama", None)
        return parity.check(path, loaded.model, CacheShape(2, 2, 16), max_length=64)


def test_an_export_that_fails_the_gate_leaves_no_folder(
    llama_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec_export import weights

    write = weights.write_model

    def write_damaged(model: Any, path: Path, **options: Any) -> None:
        write(model, path, **options)
        damaged = onnx.load(path)
        change_scale(damaged)
        onnx.save(damaged, path)

    monkeypatch.setattr(weights, "write_model", write_damaged)
    with pytest.raises(ParityError, match="step 1"):
        edgespec_export.export(llama_checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_tells_what_was_measured(llama_folder: Path) -> None:
    manifest = Manifest.read(llama_folder)
    assert manifest is not None
    assert manifest.parity["greedy_equal"] == manifest.parity["greedy_tokens"] == 32
    measured = manifest.parity["max_abs_diff"]
    cases = ["past 0, new 12", "past 1, new 11", "past 7, new 5", "past 11, new 1", "rewind"]
    assert list(measured) == cases
    assert max(measured.values()) < 1e-4


def test_the_folder_holds_all_that_a_device_needs(
    llama_folder: Path, llama_checkpoint: Path, tmp_path: Path
) -> None:
    names = {path.name for path in llama_folder.iterdir()}
    assert {
        "model.onnx",
        "edgespec.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "config.json",
    } <= names
    manifest = Manifest.read(llama_folder)
    assert manifest is not None
    assert (manifest.architecture, manifest.source) == ("llama", "tiny-llama")
    assert (manifest.eos_token_ids, manifest.max_length, manifest.vocab_size) == ((2,), 64, 320)
    assert str(llama_checkpoint.parent) not in (llama_folder / "edgespec.json").read_text("utf-8")
    shutil.copytree(llama_folder, tmp_path / "moved")
    assert check(tmp_path / "moved" / "model.onnx", llama_checkpoint)["greedy_equal"] == 32


def test_the_graph_tells_nothing_of_the_machine_that_exported(llama_folder: Path) -> None:
    written = (llama_folder / "model.onnx").read_bytes()
    assert b"site-packages" not in written
    assert b"stack_trace" not in written
