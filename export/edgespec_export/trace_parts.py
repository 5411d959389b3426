"""Three traces of an encoder-decoder: the encoder, its keys and values, and the decoder.

A decoder attends to the encoder's output through keys and values that depend on nothing else.
They are a graph of their own, computed once a source, so that a decoder can also work on what
another model's encoder has heard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_outputs import BaseModelOutput

from edgespec.errors import ExportError
from edgespec_export.placeholders import ATTENTION, DOMAIN, cached_attention
from edgespec_export.trace import keep_last_rows, no_mask, to_graph

FULL_ATTENTION = "FullAttention"
CROSS_ATTENTION = "CrossAttention"
ATTENTION_NAME = f"{DOMAIN}_parts"
HIDDEN = "encoder_hidden_states"


@dataclass(frozen=True, slots=True)
class Parts:
    """The graphs of an encoder-decoder, with placeholders in them.

    Attributes:
        encoder: The source to ``encoder_hidden_states`` [1, N, E]; None for a decoder that works
            on another model's.
        cross: ``encoder_hidden_states`` to ``cross_key_values.N.key|value`` [1, H, N, D].
        decoder: ``input_ids``, ``position_ids`` and ``encoder_hidden_states`` to ``logits``.
    """

    encoder: ir.Model | None
    cross: ir.Model
    decoder: ir.Model


def cross_names(num_layers: int) -> list[str]:
    """The keys and values of all layers, as the cross graph gives and the decoder takes them."""
    return [f"cross_key_values.{n}.{kind}" for n in range(num_layers) for kind in ("key", "value")]


def trace_parts(model: PreTrainedModel) -> Parts:
    """Trace ``model`` without a cache, for one text of any length.

    Args:
        model: A copy that the trace may change.

    Raises:
        ExportError: If the model's attention cannot be told from outside, or PyTorch cannot trace
            it.
    """
    AttentionInterface.register(ATTENTION_NAME, _attention)
    AttentionMaskInterface.register(ATTENTION_NAME, no_mask)
    model.set_attn_implementation(ATTENTION_NAME)
    hears = model.config.model_type == "whisper"
    decoder = model.get_decoder()  # type: ignore[no-untyped-call]
    (_look_up_positions if hears else _tabulate_distances)(decoder)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    head.register_forward_pre_hook(keep_last_rows)
    encoder = _trace_encoder(model, hears=hears) if model.config.is_encoder_decoder else None
    length = model.config.max_source_positions if hears else 7
    hidden = torch.zeros(1, length, model.config.d_model)
    any_length = None if hears else {1: torch.export.Dim("encoder_sequence_length")}
    pairs = _projections(decoder, hears=hears)
    cross = to_graph(_Cross(pairs), {HIDDEN: hidden}, (any_length,), cross_names(len(pairs)))
    # torch.export takes a size of 0 or 1 for a constant, so five tokens.
    ids = torch.arange(5)[None]
    positions = ids.clone()  # one tensor given twice would become one input
    tokens = {1: torch.export.Dim("sequence_length")}
    inputs = {"input_ids": ids, "position_ids": positions, HIDDEN: hidden}
    traced = to_graph(_Decoder(model), inputs, (tokens, tokens, any_length), ["logits"])
    if not any(node.op_type == ATTENTION for node in traced.graph):
        raise ExportError(
            f"{type(model).__name__} does not ask transformers for its kind of attention in this "
            "version, so it cannot be traced; install transformers 5.24 or later"
        )
    return Parts(encoder, cross, traced)


def _trace_encoder(model: PreTrainedModel, *, hears: bool) -> ir.Model:
    encoder = _Encoder(model.get_encoder())
    if hears:
        frames = 2 * model.config.max_source_positions
        features = torch.zeros(1, model.config.num_mel_bins, frames)
        return to_graph(encoder, {"input_features": features}, (None,), [HIDDEN])
    axes = {1: torch.export.Dim("encoder_sequence_length")}
    return to_graph(encoder, {"input_ids": torch.arange(7)[None]}, (axes,), [HIDDEN])


class _Encoder(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.model = encoder

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model(source).last_hidden_state
        return hidden


class _Cross(nn.Module):
    """Every layer's keys and values of the encoder's output."""

    def __init__(self, pairs: Sequence[tuple[nn.Module, nn.Module, int]]) -> None:
        super().__init__()
        self.model = nn.ModuleList([nn.ModuleList([key, value]) for key, value, _ in pairs])
        self._num_heads = pairs[0][2]

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            projection(hidden).unflatten(-1, (self._num_heads, -1)).transpose(1, 2).contiguous()
            for layer in self.model
            for projection in layer  # type: ignore[attr-defined]
        )


class _Decoder(nn.Module):
    """The whole model as a function of the new tokens, with the encoder's output given."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        return decoder_logits(self.model, input_ids, hidden, position_ids)


def decoder_logits(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    hidden: torch.Tensor,
    position_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """``model``'s logits [1, T, V] of T tokens, given the encoder's output [1, N, E]."""
    whole = model.config.is_encoder_decoder
    given: dict[str, Any] = {"decoder_input_ids" if whole else "input_ids": input_ids}
    if position_ids is not None and model.config.model_type == "whisper":
        given["decoder_position_ids" if whole else "position_ids"] = position_ids
    output = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=hidden), use_cache=False, **given
    )
    logits: torch.Tensor = output.logits
    return logits


def _projections(decoder: Any, *, hears: bool) -> list[tuple[nn.Module, nn.Module, int]]:
    """Each layer's key and value projection of the encoder's output, and the number of heads."""
    if hears:
        layers = [layer.encoder_attn for layer in decoder.layers]
        return [(layer.k_proj, layer.v_proj, layer.num_heads) for layer in layers]
    layers = [block.layer[1].EncDecAttention for block in decoder.block]
    return [(layer.k, layer.v, layer.n_heads) for layer in layers]


def _look_up_positions(decoder: Any) -> None:
    """Let Whisper gather the rows of its positions: indexing becomes a copy of the whole table."""

    def rows(self: Any, *_: Any, position_ids: torch.Tensor, **__: Any) -> torch.Tensor:
        return nn.functional.embedding(position_ids, self.weight)

    decoder.embed_positions.forward = MethodType(rows, decoder.embed_positions)


def _tabulate_distances(decoder: Any) -> None:
    """Let T5's first layer hand on a table of its bias by distance, in place of the bias itself.

    The bias depends on how far back a token is, and a trace without a cache knows only the new
    ones. Beyond the largest distance it stays the same.
    """
    first = decoder.block[0].layer[0].SelfAttention

    def table(self: Any, *_: Any, **__: Any) -> torch.Tensor:
        distances = torch.arange(self.relative_attention_max_distance + 1)
        buckets = self._relative_position_bucket(
            -distances,
            bidirectional=False,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        bias: torch.Tensor = self.relative_attention_bias(buckets)
        return bias  # [distances, H]

    first.compute_bias = MethodType(table, first)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Emit a placeholder: query [B, H, S, D], key and value [B, H, N, D] -> [B, S, H, D]."""
    if attention_mask is not None:
        raise ExportError(f"{type(module).__name__} asks for a mask of its own")
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    if module.is_causal:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        output = cached_attention(
            query, key, value, layer=layer, scale=scale, distance_bias=position_bias
        )
        return output, None
    inputs = [query, key, value]
    attributes: dict[str, Any] = {"scale": scale}
    kind = FULL_ATTENTION
    if module.is_decoder:
        kind = CROSS_ATTENTION
        attributes["layer"] = int(module.layer_idx)  # type: ignore[arg-type]
    elif position_bias is not None:
        inputs.append(position_bias)
    output = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{kind}",
        inputs,
        attributes,
        dtype=query.dtype,
        shape=(query.shape[0], query.shape[2], query.shape[1], value.shape[3]),
    )
    return output, None
