"""An export from checkpoint to folder: load, trace, cache, fuse, round, write, check."""

import hashlib
from dataclasses import dataclass, replace
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
class Form:
    """What a folder's graph is to be.

    Attributes:
        cache: The layout of its cache.
        precision: How it computes.
        half_weights: Whether float32 weights are rounded to float16, and lie so in the file.
        check: Whether it is compared with the checkpoint.
    """

    cache: str
    precision: Precision
    half_weights: bool
    check: bool

    @property
    def leaves_weights(self) -> bool:
        """Whether checkpoint and graph are the same after it was written as before."""
        return self.precision.name == "fp32" and not self.half_weights


@dataclass(frozen=True, slots=True)
class Made:
    """A checkpoint and the float32 graph that computes it.

    Attributes:
        source: Where the checkpoint came from.
        model_type: As its configuration says.
        loaded: The checkpoint.
        model: The graph with its cache.
        shape: Shape of that cache.
        windows: Sizes of the layers' attention windows, if they have any.
    """

    source: str
    model_type: str
    loaded: checkpoint.Checkpoint
    model: ir.Model
    shape: CacheShape
    windows: tuple[int, ...]


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
) -> None:
    """Export ``source`` to the folder ``out``; arguments as for :func:`edgespec_export.export`.

    ``draft`` is exported to the folder's ``draft/``.
    """
    form = Form(cache, precision, half_weights, check)
    with folder.built_whole(out, force=force) as building:
        loaded = _load(source, model_type, max_length, form, progress)
        made = _make(source, model_type, loaded, form, progress)
        apart = draft is not None and draft.layers is not None
        _write(made, form, building, progress, weights_apart=apart)
        if draft is not None:
            _run_draft(draft, made, form, building, DraftProgress(progress))


def _run_draft(draft: Draft, target: Made, form: Form, beside: Path, progress: Progress) -> None:
    """Export ``draft`` beside its target, which was written to ``beside`` in ``form``.

    Of the target's own checkpoint, nothing is loaded or traced a second time that is still as it
    was.
    """
    half_weights = form.half_weights and draft.precision.name == "fp32"
    wanted = replace(form, precision=draft.precision, half_weights=half_weights)
    source, loaded = draft.source or target.source, target.loaded
    out = beside / folder.DRAFT
    out.mkdir()
    if draft.source is None and draft.layers is None and form.leaves_weights:
        _write(target, wanted, out, progress)
    elif draft.layers is not None:
        made = _make(source, draft.model_type, loaded.first_layers(draft.layers), wanted, progress)
        _write(made, wanted, out, progress, shared_with=beside / folder.MODEL)
    else:
        longest = loaded.max_length if draft.source is None else None
        loaded = _load(source, draft.model_type, longest, wanted, progress)
        _write(_make(source, draft.model_type, loaded, wanted, progress), wanted, out, progress)


def _load(
    source: str, model_type: str, max_length: int | None, form: Form, progress: Progress
) -> checkpoint.Checkpoint:
    with progress.step("load checkpoint"):
        loaded = checkpoint.load(source, model_type, max_length)
        if form.half_weights:
            loaded.round_weights(torch.float16)
    return loaded


def _make(
    source: str, model_type: str, loaded: checkpoint.Checkpoint, form: Form, progress: Progress
) -> Made:
    """Trace a checkpoint and put the cache of ``form`` into the graph."""
    with progress.step("trace"):
        model = trace(loaded.copy_for_trace(), loaded.max_length)
        check_terms(model, LAYOUTS[form.cache])
    with progress.step("cache"):
        tidy(model.graph)
        windows = _windows(model)
        shape = LAYOUTS[form.cache].apply(model)
    with progress.step("fuse"):
        finish(model, form.cache, loaded.max_length)
    return Made(source, model_type, loaded, model, shape, windows)


def _write(
    made: Made,
    form: Form,
    out: Path,
    progress: Progress,
    *,
    weights_apart: bool = False,
    shared_with: Path | None = None,
) -> None:
    """Write graph, tokenizer and manifest to the folder ``out``; the graph takes on its ``form``.

    Args:
        made: What is written.
        form: How.
        out: A folder that is there.
        progress: Is told of the steps.
        weights_apart: Whether the weights lie in a file of their own however few they are.
        shared_with: A written graph whose weights this one reads; it then lies beside that.
    """
    model, loaded, precision = made.model, made.loaded, form.precision
    if precision.is_quantised:
        with progress.step(f"to {precision.name}"):
            quantize(model.graph, precision, made.shape.num_layers)
            model.opset_imports[g.MICROSOFT] = 1
    elif precision.name == "fp16":
        with progress.step("to fp16"):
            tokens, _ = quality.texts(loaded.encode, loaded.max_length)
            half.to_half(model.graph, half.overflowing(loaded.model, tokens))
    graph = out / folder.MODEL
    with progress.step("write"):
        if form.half_weights:
            weights.store_in_half(model.graph)
        if shared_with is None:
            weights.write_model(model, graph, apart=weights_apart)
        else:
            graph = shared_with.with_name(folder.DRAFT_GRAPH)
            weights.write_sharing(model, graph, shared_with)
        loaded.write_metadata(out)
    measured: dict[str, Any] = {}
    if form.check:
        with progress.step("check"):
            measured = _check(graph, made, form)
    _manifest(made, form, out, measured, graph=graph).write(out)


def _manifest(
    made: Made, form: Form, out: Path, measured: dict[str, Any], *, graph: Path
) -> Manifest:
    """What is to be known of the folder ``out``, whose graph is ``graph``."""
    loaded, precision = made.loaded, form.precision
    shape = made.shape
    return Manifest(
        architecture=made.model_type,
        vocab_size=loaded.vocab_size,
        max_length=loaded.max_length,
        cache_layout=form.cache,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        cache_dtype="float16" if precision.name == "fp16" else "float32",
        precision=precision.name,
        accuracy_level=precision.accuracy_level if precision.is_quantised else None,
        block_size=precision.block_size if precision.is_quantised else None,
        int8_layers=precision.int8_layers if precision.name == "int4" else None,
        weights_dtype=weights_dtype(precision, half_weights=form.half_weights),
        eos_token_ids=loaded.eos_token_ids,
        bos_token_id=loaded.bos_token_id,
        pad_token_id=loaded.pad_token_id,
        tokenizer_sha256=digest(out / "tokenizer.json"),
        source=named(made.source),
        versions=versions(made.model),
        parity=measured,
        min_onnxruntime=min_onnxruntime(made.model, form.cache, precision),
        graph=None if graph.parent == out else f"../{graph.name}",
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


def _check(path: Path, made: Made, form: Form) -> dict[str, Any]:
    """What the gate measured: to rounding in fp32, by divergence elsewhere."""
    loaded = made.loaded
    if form.precision.name == "fp32":
        return parity.check(
            path,
            loaded.model,
            made.shape,
            layout=form.cache,
            max_length=loaded.max_length,
            windows=made.windows,
        )
    return quality.check(
        path,
        loaded.model,
        made.shape,
        layout=form.cache,
        precision=form.precision.name,
        encode=loaded.encode,
        max_length=loaded.max_length,
    )


def min_onnxruntime(model: ir.Model, cache: str, precision: Precision) -> str:
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


def weights_dtype(precision: Precision, *, half_weights: bool) -> str:
    """How the weights of a graph lie in its file, as the manifest says it."""
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
