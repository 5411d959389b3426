"""An export from checkpoint to folder: load, trace, cache, fuse, round, write, check."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from edgespec.errors import ExportError
from edgespec.manifest import Manifest
from edgespec_export import checkpoint, folder, half, parity, quality, requirements, weights
from edgespec_export import graph as g
from edgespec_export.cache_layouts import growing, in_place, static
from edgespec_export.cache_layouts.base import CacheShape
from edgespec_export.cache_layouts.in_place import HEAD_SINK_INPUT
from edgespec_export.drafts import Draft, DraftProgress
from edgespec_export.experts import put_experts
from edgespec_export.fuse import fuse
from edgespec_export.names import name_plainly
from edgespec_export.old_opset import spell_out
from edgespec_export.placeholders import ATTENTION, EXPERTS, check_terms
from edgespec_export.precision import Precision
from edgespec_export.progress import Progress
from edgespec_export.quantize import quantize
from edgespec_export.tidy import tidy
from edgespec_export.trace import trace

LAYOUTS = {"in_place": in_place, "static": static, "growing": growing}
"""The pass of each cache layout, with the opsets, IR version and ONNX Runtime that it needs."""
MIN_FOR_SINKS_AND_EXPERTS = "1.23"
"""1.22 refuses the input ``head_sink``, and has no kernel for experts on the CPU (tried)."""
MIN_QUANTISED = "1.23"
"""1.22 refuses embeddings of bytes (tried)."""


@dataclass(frozen=True, slots=True)
class Share:
    """A draft that is a part of its target.

    Attributes:
        layers: How many of the first layers it has.
        target: The target's written graph, whose weights it reads.
    """

    layers: int
    target: Path


def run(
    source: str,
    out: Path,
    *,
    model_type: str,
    cache: str,
    precision: Precision,
    max_length: int | None,
    force: bool,
    half_weights: bool,
    check: bool,
    progress: Progress,
    draft: Draft | None = None,
    shares: Share | None = None,
) -> None:
    """Export ``source`` to the folder ``out``; arguments as for :func:`edgespec_export.export`.

    ``draft`` is exported to the folder's ``draft/``; ``shares`` makes of this a draft of its
    target's first layers.
    """
    with folder.built_whole(out, force=force) as building:
        with progress.step("load checkpoint"):
            loaded = checkpoint.load(source, model_type, max_length)
            if shares is not None:
                loaded = loaded.first_layers(shares.layers)
            if half_weights:
                loaded.round_weights(torch.float16)
        with progress.step("trace"):
            model = trace(loaded.copy_for_trace(), loaded.max_length)
            check_terms(model, LAYOUTS[cache])
        with progress.step("cache"):
            tidy(model.graph)
            windows = _windows(model)
            shape = LAYOUTS[cache].apply(model)
        with progress.step("fuse"):
            finish(model, cache, loaded.max_length)
        if precision.is_quantised:
            with progress.step(f"to {precision.name}"):
                quantize(model.graph, precision, shape.num_layers)
                model.opset_imports[g.MICROSOFT] = 1
        elif precision.name == "fp16":
            with progress.step("to fp16"):
                tokens, _ = quality.texts(loaded.encode, loaded.max_length)
                half.to_half(model.graph, half.overflowing(loaded.model, tokens))
        with progress.step("write"):
            if half_weights:
                weights.store_in_half(model.graph)
            graph = building / folder.MODEL
            if shares is not None:
                graph = shares.target.with_name(folder.DRAFT_GRAPH)
                weights.write_sharing(model, graph, shares.target)
            else:
                apart = draft is not None and draft.layers is not None
                weights.write_model(model, graph, apart=apart)
            loaded.write_metadata(building)
        measured: dict[str, Any] = {}
        if check:
            with progress.step("check"):
                measured = _check(graph, loaded, shape, cache, precision, windows)
        Manifest(
            architecture=model_type,
            vocab_size=loaded.vocab_size,
            max_length=loaded.max_length,
            cache_layout=cache,
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            cache_dtype="float16" if precision.name == "fp16" else "float32",
            precision=precision.name,
            accuracy_level=precision.accuracy_level if precision.is_quantised else None,
            block_size=precision.block_size if precision.is_quantised else None,
            int8_layers=precision.int8_layers if precision.name == "int4" else None,
            weights_dtype=_weights_dtype(precision, half_weights=half_weights),
            eos_token_ids=loaded.eos_token_ids,
            bos_token_id=loaded.bos_token_id,
            pad_token_id=loaded.pad_token_id,
            tokenizer_sha256=digest(building / "tokenizer.json"),
            source=named(source),
            versions=versions(model),
            parity=measured,
            min_onnxruntime=_min_onnxruntime(model, cache, precision),
            graph=None if shares is None else f"../{folder.DRAFT_GRAPH}",
        ).write(building)
        if draft is not None:
            target = building / folder.MODEL
            run(
                draft.source,
                building / folder.DRAFT,
                model_type=draft.model_type,
                cache=cache,
                precision=draft.precision,
                max_length=draft.max_length,
                force=False,
                half_weights=half_weights and draft.precision.name == "fp32",
                check=check,
                progress=DraftProgress(progress),
                shares=None if draft.layers is None else Share(draft.layers, target),
            )


def finish(model: ir.Model, cache: str, max_length: int) -> None:
    """Fuse, or spell out, what surrounds the attention; then the graph can be written."""
    layout = LAYOUTS[cache]
    if g.MICROSOFT in layout.OPSETS:
        put_experts(model.graph)
        fuse(model.graph, max_length)
    elif any(node.op_type == EXPERTS for node in model.graph):
        raise ExportError(
            f"the cache layout {cache} cannot do mixtures of experts, which this architecture asks "
            "for; export it in_place"
        )
    else:
        spell_out(model.graph)
    name_plainly(model.graph)
    model.opset_imports.update(layout.OPSETS)
    model.ir_version = layout.IR_VERSION


def _check(
    path: Path,
    loaded: checkpoint.Checkpoint,
    shape: CacheShape,
    cache: str,
    precision: Precision,
    windows: tuple[int, ...],
) -> dict[str, Any]:
    """What the gate measured: to rounding in fp32, by divergence elsewhere."""
    if precision.name == "fp32":
        return parity.check(
            path,
            loaded.model,
            shape,
            layout=cache,
            max_length=loaded.max_length,
            windows=windows,
        )
    return quality.check(
        path,
        loaded.model,
        shape,
        layout=cache,
        precision=precision.name,
        encode=loaded.encode,
        max_length=loaded.max_length,
    )


def _min_onnxruntime(model: ir.Model, cache: str, precision: Precision) -> str:
    """The oldest ONNX Runtime that can run all operators of a finished graph."""
    needed: list[str] = [LAYOUTS[cache].MIN_ONNXRUNTIME]
    if precision.is_quantised:
        needed.append(MIN_QUANTISED)
    if any(
        node.op_type == "MoE"
        or (node.op_type == "GroupQueryAttention" and len(node.inputs) > HEAD_SINK_INPUT)
        for node in model.graph
    ):
        needed.append(MIN_FOR_SINKS_AND_EXPERTS)
    return max(needed, key=lambda version: [int(part) for part in version.split(".")])


def _weights_dtype(precision: Precision, *, half_weights: bool) -> str:
    if precision.is_quantised:
        return precision.name
    return "float16" if half_weights or precision.name == "fp16" else "float32"


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
    return Path(source).resolve().name if Path(source).exists() else source


def versions(model: ir.Model) -> dict[str, str]:
    """The tools that made ``model``, and the versions of its form."""
    return {
        **requirements.versions(),
        "onnx_ir_version": str(model.ir_version),
        "onnx_opset": str(model.opset_imports[""]),
    }
