"""What a trace leaves open: operators of our own that passes put real ones in the place of."""

from types import ModuleType
from typing import Any

import onnx_ir as ir
import torch

from edgespec.errors import ExportError

DOMAIN = "edgespec"
ATTENTION = "CachedAttention"
KEEP_LAST_ROWS = "KeepLastRows"
EXPERTS = "Experts"
TERMS = ("sinks", "key_bias", "distance_bias")
"""Inputs behind query, key and value that an attention may have; most have none."""


def cached_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    layer: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_bias: torch.Tensor | None = None,
    distance_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Emit the attention of one layer: causal, over what is cached and what is new.

    Args:
        query: [B, Hq, S, D].
        key: [B, H, S, D].
        value: [B, H, S, D].
        layer: Its place in the model, from 0.
        scale: What scores are multiplied by.
        window: How many tokens a token sees, itself included; 0 for all.
        softcap: c in c * tanh(score / c); 0 for none.
        sinks: [Hq] a score for each head that takes part in the softmax and has no value.
        key_bias: [Hq, max_length] added to the scores of the key at each position.
        distance_bias: [distances, Hq] added to the scores by how far back a key is; it stays the
            same beyond the last.

    Returns:
        [B, S, Hq, D].
    """
    terms = [sinks, key_bias, distance_bias]
    while terms and terms[-1] is None:
        terms.pop()
    attributes: dict[str, Any] = {
        "layer": layer,
        "scale": scale,
        "window": window,
        "softcap": softcap,
    }
    output: torch.Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{ATTENTION}",
        (query, key, value, *terms),
        attributes,
        dtype=query.dtype,
        shape=(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]),
    )
    return output


def attention_terms(node: ir.Node) -> dict[str, ir.Value]:
    """The inputs of an attention beyond query, key and value, by their names in ``TERMS``."""
    found = zip(TERMS, node.inputs[3:], strict=False)
    return {name: value for name, value in found if value is not None}


def check_terms(model: ir.Model, layout: ModuleType) -> None:
    """Return if a cache layout can do all that the attentions of a trace ask for.

    Args:
        model: A trace.
        layout: A module of ``cache_layouts``; its ``TERMS``, if it has any, say what it can do.

    Raises:
        ExportError: If an attention has a term that is not among them.
    """
    known: frozenset[str] = getattr(layout, "TERMS", frozenset())
    asked = {
        name for node in model.graph if node.op_type == ATTENTION for name in attention_terms(node)
    }
    unknown = sorted(asked - known)
    if unknown:
        raise ExportError(
            f"the cache layout {layout.__name__.rpartition('.')[2]} cannot do attention with "
            f"{', '.join(unknown)}, which this architecture asks for; export it in_place"
        )
