"""One trace of a transformers model: an onnx-ir graph that knows no cache.

Each attention layer becomes one placeholder, ``edgespec::CachedAttention``, and the rows before
the head pass through another, ``edgespec::KeepLastRows``. A pass of ``cache_layouts`` puts real
operators in their place, so that one trace serves every layout.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from edgespec.errors import ExportError
from edgespec_export import experts
from edgespec_export.attention_adapters import adapt
from edgespec_export.placeholders import ATTENTION, DOMAIN, KEEP_LAST_ROWS, cached_attention

# Arguments by which an attention layer asks for more than the placeholder can say.
UNKNOWN_TERMS = ("position_bias", "head_mask", "cu_seq_lens_q")


def trace(model: PreTrainedModel, max_length: int) -> ir.Model:
    """Trace ``model`` without a cache, with its batch and sequence length left open.

    Args:
        model: A copy that the trace may change, as ``Checkpoint.copy_for_trace`` makes it.
        max_length: The longest text in tokens.

    Returns:
        A graph from ``input_ids`` and ``position_ids``, both [batch_size, sequence_length], to
        ``logits`` [batch_size, sequence_length, V], with placeholders in it.

    Raises:
        ExportError: If the attention asks for something that no cache layout can do, or if
            PyTorch cannot trace the model.
    """
    AttentionInterface.register(DOMAIN, _attention)
    AttentionMaskInterface.register(DOMAIN, no_mask)
    if not adapt(model, max_length):
        model.set_attn_implementation(DOMAIN)
    experts.trace_as_placeholders(model)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise ExportError(f"{type(model).__name__} has no output embeddings, so it makes no logits")
    head.register_forward_pre_hook(keep_last_rows)

    # Two texts of five tokens: torch.export takes a size of 0 or 1 for a constant.
    input_ids = torch.arange(10).reshape(2, 5) % model.config.get_text_config().vocab_size
    position_ids = torch.arange(5)[None].repeat(2, 1)
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    found = to_graph(
        _Logits(model),
        {"input_ids": input_ids, "position_ids": position_ids},
        (axes, axes),
        ["logits"],
    )
    _check_windows(found, model.config.get_text_config())
    return found


def to_graph(
    module: nn.Module, inputs: Mapping[str, torch.Tensor], axes: Any, outputs: Sequence[str]
) -> ir.Model:
    """Trace ``module`` on ``inputs`` with the dynamic ``axes`` of each left open."""
    with torch.no_grad():
        program = torch.export.export(
            module, tuple(inputs.values()), dynamic_shapes=axes, strict=False
        )
        traced = torch.onnx.export(
            program,
            f=None,
            dynamo=True,
            # Its optimizer folds constants one by one, for longer than all our passes take.
            optimize=False,
            verbose=False,
            input_names=list(inputs),
            output_names=list(outputs),
        )
    assert traced is not None
    found: ir.Model = traced.model
    return found


class _Logits(nn.Module):
    """A causal language model as a function of ids and positions alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=input_ids, attention_mask=None, position_ids=position_ids, use_cache=False
        )
        logits: torch.Tensor = output.logits
        return logits


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    **terms: Any,
) -> tuple[torch.Tensor, None]:
    """Emit the placeholder: query [B, Hq, S, D], key and value [B, H, S, D] -> [B, S, Hq, D]."""
    name = type(module).__name__
    asked = [term for term in UNKNOWN_TERMS if terms.get(term) is not None]
    if attention_mask is not None:
        asked.append("a mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        asked.append("attention in both directions")
    if key.shape[-1] != value.shape[-1] or query.shape[-1] != key.shape[-1]:
        asked.append("values of another size than the keys")
    if asked:
        raise ExportError(f"{name} asks for {', '.join(asked)}, which no cache layout can do")
    output = cached_attention(
        query,
        key,
        value,
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        scale=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        window=int(sliding_window or 0),
        softcap=float(softcap or 0.0),
        sinks=s_aux,
    )
    return output, None


def no_mask(*_: Any, **__: Any) -> None:
    """What is visible to whom is the attention operator's business."""


def keep_last_rows(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
    """A hook before the head that marks where rows can be left out."""
    hidden = inputs[0]
    return (
        torch.onnx.ops.symbolic(
            f"{DOMAIN}::{KEEP_LAST_ROWS}", (hidden,), dtype=hidden.dtype, shape=hidden.shape
        ),
    )


def _check_windows(model: ir.Model, config: PretrainedConfig) -> None:
    """Refuse a model whose configuration speaks of a window that its attention does not mention.

    Such a model builds its window into the mask alone, and the graph would see too far.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return
    for node in model.graph:
        if node.op_type != ATTENTION:
            continue
        layer, found = node.attributes["layer"].as_int(), node.attributes["window"].as_int()
        expected = window if kinds is None or kinds[layer] == "sliding_attention" else 0
        if found != expected:
            raise ExportError(
                f"layer {layer} of {config.model_type} should attend to "
                f"{expected or 'all'} tokens as its configuration says, its attention asks for "
                f"{found or 'all'}; exporting it needs a change in edgespec_export/trace.py"
            )
