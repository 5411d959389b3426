"""An export of an encoder-decoder: encoder, cross-attention keys and values, decoder."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from edgespec.errors import ExportError
from edgespec.manifest import CROSS, ENCODER, Manifest
from edgespec_export import checkpoint, families, folder, pipeline, weights
from edgespec_export import graph as g
from edgespec_export.cache_layouts import cross, in_place
from edgespec_export.drafts import Draft
from edgespec_export.parts_parity import check_parts
from edgespec_export.precision import Precision
from edgespec_export.progress import Progress
from edgespec_export.quantize import quantize
from edgespec_export.tidy import tidy
from edgespec_export.trace_parts import trace_parts


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

    Raises:
        ExportError: If something is asked for that is only for decoders.
    """
    _check_asked(model_type, cache, precision, draft)
    with folder.built_whole(out, force=force) as building:
        with progress.step("load checkpoint"):
            loaded = checkpoint.load(source, model_type, max_length, _task(source, model_type))
            if half_weights:
                loaded.round_weights(torch.float16)
        with progress.step("trace"):
            parts = trace_parts(loaded.copy_for_trace())
        with progress.step("cache in place"):
            for part in (parts.encoder, parts.cross, parts.decoder):
                if part is not None:
                    tidy(part.graph)
                    cross.apply(part)
            shape = in_place.apply(parts.decoder)
        graphs = {folder.MODEL: parts.decoder, CROSS: parts.cross}
        if parts.encoder is not None:
            graphs[ENCODER] = parts.encoder
        with progress.step("fuse"):
            for part in graphs.values():
                pipeline.finish(part, "in_place", loaded.max_length)
        if precision.is_quantised:
            # The decoder alone: an encoder in float32 is its target's, and serves both.
            with progress.step(f"to {precision.name}"):
                quantize(parts.decoder.graph, precision, shape.num_layers)
                parts.decoder.opset_imports[g.MICROSOFT] = 1
        with progress.step("write"):
            for name, part in graphs.items():
                if half_weights:
                    weights.store_in_half(part.graph)
                weights.write_model(part, building / name)
            loaded.write_metadata(building)
        measured: dict[str, Any] = {}
        if check:
            with progress.step("check"):
                measured = check_parts(building, loaded, shape, precision.name)
        Manifest(
            architecture=model_type,
            kind="encoder_decoder",
            vocab_size=loaded.vocab_size,
            max_length=loaded.max_length,
            cache_layout="in_place",
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            precision=precision.name,
            accuracy_level=precision.accuracy_level if precision.is_quantised else None,
            block_size=precision.block_size if precision.is_quantised else None,
            int8_layers=precision.int8_layers if precision.name == "int4" else None,
            weights_dtype=pipeline.weights_dtype(precision, half_weights=half_weights),
            eos_token_ids=loaded.eos_token_ids,
            bos_token_id=loaded.bos_token_id,
            pad_token_id=loaded.pad_token_id,
            decoder_start_token_id=_start(loaded.model),
            encoder_sha256=_digest(loaded.model),
            tokenizer_sha256=pipeline.digest(building / "tokenizer.json"),
            source=pipeline.named(source),
            versions=pipeline.versions(parts.decoder),
            parity=measured,
            min_onnxruntime=pipeline.min_onnxruntime(parts.decoder, "in_place", precision),
        ).write(building)


def _check_asked(model_type: str, cache: str, precision: Precision, draft: Draft | None) -> None:
    asked = {
        f"--precision {precision.name}": precision.name == "fp16",
        f"--cache {cache}": cache != "in_place",
        "--draft": draft is not None,
    }
    for option, is_asked in asked.items():
        if is_asked:
            raise ExportError(
                f"{option} is not to be had for {model_type}, an encoder-decoder; leave it out"
            )


def _task(source: str, model_type: str) -> str:
    """The task by optimum's name; a decoder without its encoder writes text."""
    classes = families.read_config(source).get("architectures") or [""]
    alone = classes[0].endswith("ForCausalLM")
    return "text-generation" if alone else families.ENCODER_DECODERS[model_type]


def _start(model: PreTrainedModel) -> int | None:
    for said in (model.generation_config, model.config):
        found = getattr(said, "decoder_start_token_id", None)
        if found is not None:
            return int(found)
    return None


def _digest(model: PreTrainedModel) -> str | None:
    """SHA-256 of the encoder's weights, None for a decoder alone."""
    if not model.config.is_encoder_decoder:
        return None
    found = hashlib.sha256()
    for name, weight in sorted(model.get_encoder().state_dict().items()):
        found.update(name.encode())
        found.update(weight.numpy().tobytes())
    return found.hexdigest()
