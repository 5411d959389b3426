"""Every supported family computes with a cache what transformers computes without one."""

import json
import subprocess
import sys
from pathlib import Path

import edgespec_export
import numpy as np
import onnx
import pytest
from edgespec_export import families

from edgespec.errors import ExportError, ModelFolderError, UnsupportedArchitectureError
from edgespec.manifest import Manifest
from tests.export.checkpoints import CASES, reference_logits, write_checkpoint

pytestmark = pytest.mark.export

CHUNKS = (10, 1, 5, 1, 8, 15)
"""Forty tokens, five times the windows of 8, read in pieces of many sizes."""
NOT_ROTATED_INSIDE = {"gpt2", "opt", "gptj", "llama, odd heads", "phi, small part"}


def test_every_supported_family_is_tested() -> None:
    assert {model_type for model_type, _ in CASES.values()} == set(families.SUPPORTED)


@pytest.mark.parametrize("case", CASES)
def test_reading_in_chunks_equals_one_full_pass(case: str, tmp_path: Path) -> None:
    from edgespec_export.cache_layouts.base import CacheShape
    from edgespec_export.written import Written

    checkpoint = write_checkpoint(tmp_path / "checkpoint", case)
    folder = edgespec_export.export(checkpoint, tmp_path / "out")

    manifest = Manifest.read(folder)
    assert manifest is not None
    cache = CacheShape(manifest.num_layers, manifest.num_kv_heads, manifest.head_size)
    written = Written(folder / "model.onnx", cache, 64)
    tokens = np.random.default_rng(1).integers(3, 300, sum(CHUNKS)).tolist()
    rows = [written.read(tokens[written.length : written.length + size]) for size in CHUNKS]
    expected = reference_logits(checkpoint, tokens)
    assert np.abs(np.concatenate(rows) - expected).max() < 1e-4

    rotated = [n for n in _attention(folder) if _int(n, "do_rotary")]
    wanted = sum(_uses_positions(case, layer) for layer in range(manifest.num_layers))
    assert len(rotated) == wanted


def _uses_positions(case: str, layer: int) -> bool:
    # SmolLM3 leaves positions out of every second layer, as its tiny checkpoint says.
    return case not in NOT_ROTATED_INSIDE and not (case == "smollm3" and layer % 2)


def _attention(folder: Path) -> list[onnx.NodeProto]:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def _int(node: onnx.NodeProto, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)


def test_an_unknown_architecture_is_refused_before_pytorch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}), encoding="utf-8")
    code = (
        "import sys, edgespec_export\n"
        "try: edgespec_export.export(sys.argv[1])\n"
        "except edgespec_export.families.UnsupportedArchitectureError as error: print(error)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=_with_paths(),
    )
    assert done.stdout.startswith("model_type 'mamba' cannot be exported (transformers ")
    assert "supported are cohere, gemma2" in done.stdout


def _with_paths() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_unsupported_architecture_names_the_supported_ones() -> None:
    with pytest.raises(UnsupportedArchitectureError, match=r"supported are .*llama.*qwen2.*; for"):
        families.check_architecture({"model_type": "rwkv"})


def test_quantised_weights_are_refused() -> None:
    with pytest.raises(ExportError, match="weights are quantised already"):
        families.check_architecture({"model_type": "llama", "quantization_config": {"bits": 4}})


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"has no config\.json; give the folder"):
        families.read_config(str(tmp_path))


def test_what_is_neither_folder_nor_hub_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is no folder; give a folder with"):
        families.read_config(str(tmp_path / "nothing" / "here"))


def test_a_hub_that_does_not_answer_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route to host\nmore")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(ExportError, match=r"^a/b is no folder here, .*: no route to host$"):
        families.read_config("a/b")
