"""An export from checkpoint to folder: load, trace, cache, fuse, write, check."""

import hashlib
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from edgespec.manifest import Manifest
from edgespec_export import checkpoint, folder, half, parity, quality, requirements, weights
from edgespec_export.cache_layouts import in_place
from edgespec_export.fuse import fuse
from edgespec_export.names import name_plainly
from edgespec_export.precision import Precision
from edgespec_export.progress import Progress
from edgespec_export.quantize import quantize
from edgespec_export.tidy import tidy
from edgespec_export.trace import ATTENTION, trace

MIN_ONNXRUNTIME = "1.22"
"""The oldest ONNX Runtime on which exported graphs ran; 1.21 knows no position_ids in attention."""
MIN_QUANTISED = "1.23"
"""The same with integer weights; 1.22 refuses embeddings of bytes."""


def run(
    source: str,
    out: Path,
    *,
    model_type: str,
    precision: Precision,
    max_length: int | None,
    force: bool,
    half_weights: bool,
    check: bool,
    progress: Progress,
) -> None:
    """Export ``source`` to the folder ``out``; arguments as for :func:`edgespec_export.export`."""
    with folder.built_whole(out, force=force) as building:
        with progress.step("load checkpoint"):
            loaded = checkpoint.load(source, model_type, max_length)
            if half_weights:
                loaded.round_weights(torch.float16)
        with progress.step("trace"):
            model = trace(loaded.copy_for_trace())
        with progress.step("cache in place"):
            tidy(model.graph)
            windows = _windows(model)
            cache = in_place.apply(model)
        with progress.step("fuse"):
            fuse(model.graph, loaded.max_length)
            name_plainly(model.graph)
        if precision.is_quantised:
            with progress.step(f"to {precision.name}"):
                quantize(model.graph, precision, cache.num_layers)
        elif precision.name == "fp16":
            with progress.step("to fp16"):
                tokens, _ = quality.texts(loaded.encode, loaded.max_length)
                half.to_half(model.graph, half.overflowing(loaded.model, tokens))
        with progress.step("write"):
            if half_weights:
                weights.store_in_half(model.graph)
            weights.write_model(model, building / folder.MODEL)
            loaded.write_metadata(building)
        measured: dict[str, Any] = {}
        if check:
            with progress.step("check"):
                measured = _check(building / folder.MODEL, loaded, cache, precision, windows)
        tokenizer = (building / "tokenizer.json").read_bytes()
        Manifest(
            architecture=model_type,
            vocab_size=loaded.vocab_size,
            max_length=loaded.max_length,
            cache_layout="in_place",
            num_layers=cache.num_layers,
            num_kv_heads=cache.num_kv_heads,
            head_size=cache.head_size,
            cache_dtype="float16" if precision.name == "fp16" else "float32",
            precision=precision.name,
            accuracy_level=precision.accuracy_level if precision.is_quantised else None,
            block_size=precision.block_size if precision.is_quantised else None,
            int8_layers=precision.int8_layers if precision.name == "int4" else None,
            weights_dtype=_weights_dtype(precision, half_weights=half_weights),
            eos_token_ids=loaded.eos_token_ids,
            bos_token_id=loaded.bos_token_id,
            pad_token_id=loaded.pad_token_id,
            tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
            # A path would tell about the machine that exported; its last part names the model.
            source=Path(source).resolve().name if Path(source).is_dir() else source,
            versions=_versions(model),
            parity=measured,
            min_onnxruntime=MIN_QUANTISED if precision.is_quantised else MIN_ONNXRUNTIME,
        ).write(building)


def _check(
    path: Path,
    loaded: checkpoint.Checkpoint,
    cache: in_place.CacheShape,
    precision: Precision,
    windows: tuple[int, ...],
) -> dict[str, Any]:
    """What the gate measured: to rounding in fp32, by divergence elsewhere."""
    if precision.name == "fp32":
        return parity.check(
            path, loaded.model, cache, max_length=loaded.max_length, windows=windows
        )
    return quality.check(
        path,
        loaded.model,
        cache,
        precision=precision.name,
        encode=loaded.encode,
        max_length=loaded.max_length,
    )


def _weights_dtype(precision: Precision, *, half_weights: bool) -> str:
    if precision.is_quantised:
        return precision.name
    return "float16" if half_weights or precision.name == "fp16" else "float32"


def _windows(model: ir.Model) -> tuple[int, ...]:
    """The sizes of the attention windows in a trace, without repetition."""
    layers = [node for node in model.graph if node.op_type == ATTENTION]
    found = {node.attributes["window"].as_int() for node in layers}
    return tuple(sorted(found - {0}))


def _versions(model: ir.Model) -> dict[str, str]:
    return {
        **requirements.versions(),
        "onnx_ir_version": str(model.ir_version),
        "onnx_opset": str(model.opset_imports[""]),
    }
