"""Every supported family computes with a cache what transformers computes without one."""

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import edgespec_export
import numpy as np
import onnx
import pytest
from edgespec_export import families

from edgespec import EdgeGenerator
from edgespec.errors import ExportError, ModelFolderError, UnsupportedArchitectureError
from edgespec.manifest import Manifest
from tests.export.checkpoints import reference_logits, write_checkpoint
from tests.export.family_cases import CASES, TAIL

pytestmark = pytest.mark.export

TABLE = Path(__file__).parents[2] / "docs" / "families.md"
MARK = "<!-- table: families -->"

CHUNKS = (10, 1, 5, 1, 8, 15)
"""Forty tokens, five times the windows of 8, read in pieces of many sizes."""
NOT_ROTATED_INSIDE = {
    # Positions are learned, or are a bias.
    *("gpt2", "opt", "biogpt", "gpt_bigcode", "gpt_neo", "bloom", "mpt"),
    # Heads, or the rotated part of them, are no multiple of 16.
    *("llama, odd heads", "phi, small part", "nemotron", "persimmon"),
    # Rotated with something else between.
    *("gptj", "codegen", "ministral3", "hunyuan_v1_dense"),
}
NEWER_ONNXRUNTIME = {
    *("gpt_oss", "granitemoe", "mixtral", "olmoe", "qwen3_moe"),
}
"""Sinks and experts, which ONNX Runtime 1.22 has not."""
WITHOUT_POSITIONS = {"smollm3": {1, 3}, "cohere2": {1}, "exaone4": {1}}
"""Layers that leave positions out, as the tiny configurations say."""


def _cases() -> list[Any]:
    """All that the installed transformers has; slow is what adds no new form."""
    installed = importlib.metadata.version("transformers")
    return [
        pytest.param(case, marks=[pytest.mark.slow] if case in TAIL else [])
        for case, (model_type, _) in CASES.items()
        if families.is_served(families.FAMILIES[model_type], installed)
    ]


def test_every_supported_family_is_tested() -> None:
    assert {model_type for model_type, _ in CASES.values()} == set(families.SUPPORTED)


@pytest.mark.parametrize("case", _cases())
def test_reading_in_chunks_equals_one_full_pass(case: str, tmp_path: Path) -> None:
    from edgespec_export.cache_layouts.base import CacheShape
    from edgespec_export.written import Written

    checkpoint = write_checkpoint(tmp_path / "checkpoint", case)
    folder = edgespec_export.export(checkpoint, tmp_path / "out")

    manifest = Manifest.read(folder)
    assert manifest is not None
    assert manifest.min_onnxruntime == ("1.23" if case in NEWER_ONNXRUNTIME else "1.22")
    cache = CacheShape(manifest.num_layers, manifest.num_kv_heads, manifest.head_size)
    written = Written(folder / "model.onnx", cache, 64)
    tokens = np.random.default_rng(1).integers(3, 300, sum(CHUNKS)).tolist()
    rows = [written.read(tokens[written.length : written.length + size]) for size in CHUNKS]
    expected = reference_logits(checkpoint, tokens)
    assert np.abs(np.concatenate(rows) - expected).max() < 1e-4

    rotated = {layer for layer, n in enumerate(_attention(folder)) if _int(n, "do_rotary")}
    every = set() if case in NOT_ROTATED_INSIDE else set(range(manifest.num_layers))
    assert rotated == every - WITHOUT_POSITIONS.get(case, set())
    _check_lookup(folder)


def _check_lookup(folder: Path) -> None:
    """The runtime's text is the same with candidates, some of which are refused."""
    generator = EdgeGenerator(folder)
    prompt = "def add(a, b):\n    return a + b\n" * 2
    plain = generator.generate(prompt, max_new_tokens=20)
    told = generator.generate(prompt, max_new_tokens=20, lookup=True, num_assistant_tokens=4)
    assert told.tokens.tolist() == plain.tokens.tolist()
    assert told.stats.proposed > 0


def _attention(folder: Path) -> list[onnx.NodeProto]:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


def _int(node: onnx.NodeProto, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)


def test_an_unknown_architecture_is_refused_before_pytorch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
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
    assert done.stdout.startswith("model_type 'bert' cannot be exported (transformers ")
    assert "supported are apertus, arcee" in done.stdout


def _with_paths() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_unsupported_architecture_names_the_supported_ones() -> None:
    with pytest.raises(UnsupportedArchitectureError, match=r"supported are .*llama.*qwen2.*; for"):
        families.check_architecture({"model_type": "bert"})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "lfm2"}, "its layers keep a recurrent state, which cannot be set back"),
        ({"model_type": "falcon", "alibi": True}, "with alibi, the graph differs"),
        ({"model_type": "qwen3_vl"}, "it reads images or sound besides text"),
        (
            {"model_type": "granitemoehybrid", "layer_types": ["attention", "mamba"]},
            "its layers keep a recurrent state",
        ),
    ],
)
def test_what_is_known_to_be_impossible_is_refused_with_the_reason(
    config: dict[str, Any], said: str
) -> None:
    expected = f"^model_type '{config['model_type']}' cannot be exported: {said}.*supported are"
    with pytest.raises(UnsupportedArchitectureError, match=expected):
        families.check_architecture(config)


def test_no_architecture_is_both_supported_and_refused() -> None:
    assert not set(families.SUPPORTED) & set(families.REFUSED)


def test_a_family_newer_than_the_installed_transformers_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "4.57.6")
    assert families.check_architecture({"model_type": "qwen3"}) == "qwen3"
    expected = r"needs transformers 5\.0 or newer, 4\.57\.6 is installed; run: pip install"
    with pytest.raises(UnsupportedArchitectureError, match=expected):
        families.check_architecture({"model_type": "qwen3_moe"})


def test_a_layout_that_cannot_do_what_an_attention_asks_for_is_refused() -> None:
    import onnx_ir as ir
    from edgespec_export.placeholders import check_terms

    rows = [ir.Value(name=name) for name in ("query", "key", "value", "sinks")]
    node = ir.node("CachedAttention", rows, domain="edgespec")
    model = ir.Model(ir.Graph(rows, [], nodes=[node], opset_imports={"": 20}), ir_version=10)
    layout = ModuleType("cache_layouts.growing")
    with pytest.raises(ExportError, match="layout growing cannot do attention with sinks"):
        check_terms(model, layout)
    layout.TERMS = frozenset(("sinks",))  # type: ignore[attr-defined]
    check_terms(model, layout)


def test_experts_that_the_operator_does_not_compute_are_refused() -> None:
    from edgespec_export.experts import _gate

    def of(gate: Callable[[Any, Any], Any]) -> SimpleNamespace:
        return SimpleNamespace(
            has_gate=True,
            has_post_expert_norm=False,
            is_concatenated=True,
            _apply_gate=lambda both: gate(*both.chunk(2, dim=-1)),
        )

    import torch

    assert _gate(of(lambda a, b: torch.nn.functional.silu(a) * b))["beta"] == 0.0
    with pytest.raises(ExportError, match=r"gates its experts in a way .*; it computes SwiGLU"):
        _gate(of(lambda a, b: torch.nn.functional.gelu(a) * b))


def test_the_table_in_the_documentation_is_true() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert f"{MARK}\n{table()}\n" in text, f"paste into {TABLE.name}:\n\n{table()}"


def table() -> str:
    """docs/families.md's table: what families.py says and the cases that are tested."""
    from edgespec_export.cache_layouts import in_place

    def can(family: families.Family) -> list[str]:
        asked = {*family.terms, *(["experts"] if "experts" in family.note else [])}
        layouts = {
            "in_place": {*in_place.TERMS, "experts"},
            "static": {"experts"},
            "growing": set(),
        }
        return [layout for layout, terms in layouts.items() if terms >= asked]

    lines = [
        "| model_type | particular | transformers | layouts | precisions | tested as |",
        "|---|---|---|---|---|---|",
    ]
    for name, family in families.FAMILIES.items():
        cases = [case for case, (model_type, _) in CASES.items() if model_type == name]
        cells = [
            f"`{name}`",
            family.note,
            f"{family.since} and newer",
            ", ".join(can(family)),
            ", ".join(edgespec_export.PRECISIONS),
            "; ".join(cases),
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def test_quantised_weights_are_refused() -> None:
    with pytest.raises(ExportError, match="weights are quantised already"):
        families.check_architecture({"model_type": "llama", "quantization_config": {"bits": 4}})


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"has no config\.json; give the folder"):
        families.read_config(str(tmp_path))


def test_what_is_neither_folder_nor_hub_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is no folder and no GGUF file; give a folder with"):
        families.read_config(str(tmp_path / "nothing" / "here"))


def test_a_hub_that_does_not_answer_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route to host\nmore")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(ExportError, match=r"^a/b is no folder here, .*: no route to host$"):
        families.read_config("a/b")
