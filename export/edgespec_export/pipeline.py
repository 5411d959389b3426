"""An export from checkpoint to folder: load, trace, cache, fuse, write, check."""

import hashlib
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from edgespec.manifest import Manifest
from edgespec_export import checkpoint, folder, parity, requirements, weights
from edgespec_export.cache_layouts import in_place
from edgespec_export.fuse import fuse
from edgespec_export.names import name_plainly
from edgespec_export.progress import Progress
from edgespec_export.tidy import tidy
from edgespec_export.trace import ATTENTION, trace

MIN_ONNXRUNTIME = "1.22"
"""The oldest ONNX Runtime on which exported graphs ran; 1.21 knows no position_ids in attention."""


def run(
    source: str,
    out: Path,
    *,
    model_type: str,
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
        with progress.step("write"):
            if half_weights:
                weights.store_in_half(model.graph)
            weights.write_model(model, building / folder.MODEL)
            loaded.write_metadata(building)
        measured: dict[str, Any] = {}
        if check:
            with progress.step("check"):
                measured = parity.check(
                    building / folder.MODEL,
                    loaded.model,
                    cache,
                    max_length=loaded.max_length,
                    windows=windows,
                )
        Manifest(
            architecture=model_type,
            vocab_size=loaded.vocab_size,
            max_length=loaded.max_length,
            cache_layout="in_place",
            num_layers=cache.num_layers,
            num_kv_heads=cache.num_kv_heads,
            head_size=cache.head_size,
            weights_dtype="float16" if half_weights else "float32",
            eos_token_ids=loaded.eos_token_ids,
            bos_token_id=loaded.bos_token_id,
            pad_token_id=loaded.pad_token_id,
            tokenizer_sha256=digest(building / "tokenizer.json"),
            source=named(source),
            versions=versions(model),
            parity=measured,
            min_onnxruntime=MIN_ONNXRUNTIME,
        ).write(building)


def _windows(model: ir.Model) -> tuple[int, ...]:
    """The sizes of the attention windows in a trace, without repetition."""
    layers = [node for node in model.graph if node.op_type == ATTENTION]
    found = {node.attributes["window"].as_int() for node in layers}
    return tuple(sorted(found - {0}))


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def named(source: str) -> str:
    """A name for the checkpoint: a whole path would tell about the machine that exported."""
    return Path(source).resolve().name if Path(source).is_dir() else source


def versions(model: ir.Model) -> dict[str, str]:
    """The tools that made ``model``, and the versions of its form."""
    return {
        **requirements.versions(),
        "onnx_ir_version": str(model.ir_version),
        "onnx_opset": str(model.opset_imports[""]),
    }
