"""How weights lie in the file: beside it, once, or in half the bytes."""

import shutil
from pathlib import Path

import edgespec_export
import numpy as np
import onnx
import onnxruntime
import pytest

from edgespec.threads import pool_is_shared
from tests.export.checkpoints import reference_logits, write_checkpoint

pytestmark = pytest.mark.export

TOKENS = [5, 9, 77, 300, 41, 8]


def logits(path: Path) -> np.ndarray:
    from edgespec_export.cache_layouts.base import CacheShape
    from edgespec_export.written import Written

    return Written(path, CacheShape(2, 2, 16), 64).read(TOKENS)


def test_external_data_moves_with_its_folder(
    llama_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec_export import weights

    monkeypatch.setattr(weights, "EXTERNAL_DATA_FROM_BYTES", 0)
    made = edgespec_export.export(llama_checkpoint, tmp_path / "made")
    before = logits(made / "model.onnx")
    model = onnx.load(made / "model.onnx", load_external_data=False)
    places = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert places == {"model.onnx.data"}

    moved = tmp_path / "elsewhere" / "model"
    shutil.copytree(made, moved)
    shutil.rmtree(made)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    np.testing.assert_array_equal(logits(moved / "model.onnx"), before)


def test_a_small_model_is_one_file(llama_folder: Path) -> None:
    assert not (llama_folder / "model.onnx.data").exists()


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama tied", vocab_size=8000)
    folder = edgespec_export.export(checkpoint, tmp_path / "out", check=False)
    embedding_bytes = 8000 * 64 * 4
    weights = (checkpoint / "model.safetensors").stat().st_size
    assert weights > embedding_bytes
    assert (folder / "model.onnx").stat().st_size < weights + embedding_bytes // 4


def test_weights_stored_in_half_compute_as_weights_rounded_to_half(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama tied")
    whole = edgespec_export.export(checkpoint, tmp_path / "whole")
    half = edgespec_export.export(checkpoint, tmp_path / "half", weights="fp16")
    assert (half / "model.onnx").stat().st_size < 0.7 * (whole / "model.onnx").stat().st_size

    exact = reference_logits(checkpoint, TOKENS)
    file = checkpoint / "model.safetensors"
    rounded = {name: w.to(torch.float16).float() for name, w in load_file(file).items()}
    save_file(rounded, file, metadata={"format": "pt"})
    expected = reference_logits(checkpoint, TOKENS)
    assert np.abs(logits(half / "model.onnx") - expected).max() < 1e-5
    assert np.abs(expected - exact).max() > 1e-4


def test_rotation_tables_keep_their_precision_in_half(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama")
    half = edgespec_export.export(checkpoint, tmp_path / "half", weights="fp16", check=False)
    model = onnx.load(half / "model.onnx")
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    tables = {kind for name, kind in kinds.items() if name.startswith(("cos_", "sin_"))}
    assert tables == {onnx.TensorProto.FLOAT}
    assert onnx.TensorProto.FLOAT16 in kinds.values()


def test_one_session_reads_several_sizes(llama_folder: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = not pool_is_shared()
    inputs = onnxruntime.InferenceSession(llama_folder / "model.onnx", options).get_inputs()
    shapes = {value.name: value.shape for value in inputs}
    assert shapes["input_ids"] == ["batch_size", "sequence_length"]
    assert shapes["attention_mask"] == ["batch_size", "total_sequence_length"]
    assert shapes["num_logits_to_keep"] == []
    assert shapes["past_key_values.1.value"] == ["batch_size", 2, "max_sequence_length", 16]
