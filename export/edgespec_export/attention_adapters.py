"""Attention of families that do not go through transformers' AttentionInterface.

Each adapter is the part of a family's attention that the cache is in, written with the placeholder.
It takes the method's place on the copy of the model that is traced; the checks against the
checkpoint compare it with the original.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_alibi
from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor as mpt_alibi

from edgespec_export.placeholders import cached_attention

IGNORED_MASK = "edgespec_ignored_mask"


@dataclass(frozen=True, slots=True)
class Adapter:
    """How a family's attention becomes placeholders.

    Attributes:
        class_name: The class of its attention layers.
        method: What of it is replaced.
        forward: By what; it is given the layer and the model before the method's arguments.
        key_bias: Gives what is added to the scores of the key at each position [Hq, max_length].
    """

    class_name: str
    method: str
    forward: Callable[..., Any]
    key_bias: Callable[[PretrainedConfig, int], torch.Tensor] | None = None


def adapt(model: PreTrainedModel, max_length: int) -> bool:
    """Put placeholders into a model that needs an adapter; False if it needs none.

    Args:
        model: A copy that may be changed.
        max_length: The longest text in tokens.
    """
    adapter = ADAPTERS.get(model.config.model_type)
    layers = _layers(model, adapter) if adapter is not None else []
    if adapter is None or not layers:
        return False
    # These models do sums with their mask on the way, which nothing reads in the end.
    AttentionMaskInterface.register(IGNORED_MASK, lambda *_, **__: torch.ones(()))
    model.config._attn_implementation = IGNORED_MASK
    table = None if adapter.key_bias is None else adapter.key_bias(model.config, max_length)
    model.register_buffer("key_bias", table, persistent=False)
    for layer in layers:
        setattr(layer, adapter.method, partial(adapter.forward, layer, model))
    return True


def _layers(model: PreTrainedModel, adapter: Adapter) -> list[nn.Module]:
    """The layers to change: none where transformers has come to use the interface."""
    return [
        layer
        for layer in model.modules()
        if type(layer).__name__ == adapter.class_name and hasattr(type(layer), adapter.method)
    ]


def _gpt_neo(
    layer: Any, _: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any
) -> tuple[torch.Tensor, None]:
    """Nothing is scaled, and every second layer is local."""
    is_local = layer.config.attention_layers[layer.layer_id] == "local"
    window = layer.config.window_size if is_local else 0
    output = cached_attention(query, key, value, layer=layer.layer_id, scale=1.0, window=window)
    return output.transpose(1, 2), None


def _codegen(
    layer: Any, _: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any
) -> tuple[torch.Tensor, None]:
    """As plain as can be, but up to transformers 4 not through the interface."""
    scale = layer.head_dim**-0.5
    output = cached_attention(query, key, value, layer=layer.layer_idx, scale=scale)
    return output.transpose(1, 2), None


def _bloom(
    layer: Any, model: Any, hidden: torch.Tensor, residual: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    query, key, value = layer._reshape(layer.query_key_value(hidden))
    output = cached_attention(
        query,
        key,
        value,
        layer=layer.layer_idx,
        scale=layer.inv_norm_factor,
        key_bias=model.key_bias,
    )
    return layer.dense(output.flatten(2)) + residual, None


def _bloom_bias(config: PretrainedConfig, max_length: int) -> torch.Tensor:
    mask = torch.ones(1, max_length, dtype=torch.long)
    return bloom_alibi(mask, config.n_head, torch.float32)[:, 0]


def _mpt(
    layer: Any, model: Any, hidden: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    rows = layer.Wqkv(hidden)
    if layer.clip_qkv:
        rows = rows.clamp(min=-layer.clip_qkv, max=layer.clip_qkv)
    query, key, value = (
        part.unflatten(-1, (layer.n_heads, layer.head_dim)).transpose(1, 2)
        for part in rows.chunk(3, dim=2)
    )
    output = cached_attention(
        query,
        key,
        value,
        layer=layer.layer_idx,
        scale=layer.softmax_scale,
        key_bias=model.key_bias,
    )
    return layer.out_proj(output.flatten(2)), None


def _mpt_bias(config: PretrainedConfig, max_length: int) -> torch.Tensor:
    # It counts back from the last key, the others from the first: the softmax sees no difference.
    table: torch.Tensor = mpt_alibi(config.n_heads, max_length)  # type: ignore[no-untyped-call]
    return table[:, 0].float()


def _falcon(
    layer: Any,
    _: nn.Module,
    hidden: torch.Tensor,
    *__: Any,
    position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    **___: Any,
) -> tuple[torch.Tensor, None]:
    query, key, value = _falcon_heads(layer, layer.query_key_value(hidden))
    assert position_embeddings is not None
    query, key = apply_rotary_pos_emb(query, key, *position_embeddings)  # type: ignore[no-untyped-call]
    output = cached_attention(query, key, value, layer=layer.layer_idx, scale=layer.inv_norm_factor)
    return layer.dense(output.flatten(2)), None


def _falcon_heads(layer: Any, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[B, H, S, D] of queries, keys and values, which lie in one of three orders."""
    if layer.new_decoder_architecture:
        # Each group of queries is followed by the key and the value that it shares.
        group = layer.num_heads // layer.num_kv_heads
        batch, length, _ = rows.shape
        parts = rows.view(batch, length, layer.num_kv_heads, group + 2, layer.head_dim)
        query, key, value = parts[..., :-2, :].flatten(2, 3), parts[..., -2, :], parts[..., -1, :]
    else:
        query, key, value = layer._split_heads(rows)
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


ADAPTERS = {
    "bloom": Adapter("BloomAttention", "forward", _bloom, _bloom_bias),
    "codegen": Adapter("CodeGenAttention", "_attn", _codegen),
    "falcon": Adapter("FalconAttention", "forward", _falcon),
    "gpt_neo": Adapter("GPTNeoSelfAttention", "_attn", _gpt_neo),
    "mpt": Adapter("MptAttention", "forward", _mpt, _mpt_bias),
}
