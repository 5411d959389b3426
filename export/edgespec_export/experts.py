"""Mixtures of experts: a placeholder while tracing, then ``com.microsoft::MoE``.

transformers' own ways loop over the experts that a text happens to use, or gather a copy of the
weights for each token; neither can be in a graph that is fast. The operator computes the chosen
experts alone. It chooses by itself, by a softmax over the largest scores, and families choose in
many ways; so it is given the logarithms of the weights that the family's own router arrived at,
whose softmax is those weights again, divided by their sum.
"""

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from edgespec.errors import ExportError
from edgespec_export import graph as g
from edgespec_export.placeholders import DOMAIN, EXPERTS

NOT_CHOSEN = -1e30
"""A score so low that its softmax is 0."""


def trace_as_placeholders(model: PreTrainedModel) -> None:
    """Let every layer of experts of ``model`` emit a placeholder.

    Raises:
        ExportError: If the experts compute something that the operator does not.
    """
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "_apply_gate")]
    if not layers:
        return
    # transformers 4.57 has no such interface, and no module that would get here.
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    # Found out here, as nothing can be compared while tracing.
    gates = {layer: _gate(layer) for layer in layers}
    ALL_EXPERTS_FUNCTIONS.register(DOMAIN, partial(_experts, gates))
    for layer in layers:
        layer.config._experts_implementation = DOMAIN


def _experts(
    gates: dict[nn.Module, dict[str, float]],
    experts: Any,
    hidden: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Emit the placeholder: hidden [N, M], chosen and weights [N, k] -> [N, M]."""
    scores = torch.full((hidden.shape[0], experts.num_experts), NOT_CHOSEN)
    smallest = torch.finfo(torch.float32).tiny
    scores = scores.scatter(1, chosen, weights.float().clamp_min(smallest).log())
    biases = (experts.gate_up_proj_bias, experts.down_proj_bias) if experts.has_bias else ()
    mixed: torch.Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{EXPERTS}",
        (hidden, scores, experts.gate_up_proj, experts.down_proj, *biases),
        {
            "k": int(chosen.shape[-1]),
            "interleaved": int(not experts.is_concatenated),
            "transposed": int(experts.is_transposed),
            **gates[experts],
        },
        dtype=hidden.dtype,
        shape=hidden.shape,
    )
    return mixed * weights.sum(-1, keepdim=True)


def _gate(experts: Any) -> dict[str, float]:
    """alpha, beta and limit in ``g * sigmoid(alpha * g) * (u + beta)``, g and u clamped before.

    Raises:
        ExportError: If the experts' own gate is something else.
    """
    name = type(experts).__name__
    if not experts.has_gate or experts.has_post_expert_norm:
        raise ExportError(f"{name} has experts of a form that no operator of ONNX Runtime computes")
    found = {
        "alpha": float(getattr(experts, "alpha", 1.0)),
        "beta": 1.0 if hasattr(experts, "alpha") else 0.0,
        "limit": float(getattr(experts, "limit", None) or 0.0),
    }
    limit = found["limit"] or float("inf")
    with torch.no_grad():
        gate, up = 10 * torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
        both = torch.cat([gate, up]) if experts.is_concatenated else torch.stack([gate, up], 1)
        given = experts._apply_gate(both.flatten()[None])[0]
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        made = gate * torch.sigmoid(found["alpha"] * gate) * (up + found["beta"])
        if not torch.allclose(given, made, atol=1e-5):
            raise ExportError(
                f"{name} gates its experts in a way that no operator of ONNX "
                "Runtime computes; it computes SwiGLU"
            )
    return found


def put_experts(graph: ir.Graph) -> None:
    """Put ``com.microsoft::MoE`` in the place of each placeholder."""
    for node in [node for node in graph if node.op_type == EXPERTS]:
        hidden, scores, gate_up, down, *biases = node.inputs
        assert gate_up is not None
        assert down is not None
        interleaved = bool(g.attribute(node, "interleaved"))
        transposed = bool(g.attribute(node, "transposed"))
        bias_in, bias_out = biases or (None, None)
        if bias_in is not None and not interleaved:
            bias_in = _laid_out(graph, bias_in, interleaved=False, transposed=False)
        limit = g.attribute(node, "limit")
        mixed = g.insert_before(
            node,
            "MoE",
            [
                hidden,
                scores,
                _laid_out(graph, gate_up, interleaved=interleaved, transposed=transposed),
                bias_in,
                _laid_out(graph, down, interleaved=True, transposed=transposed),
                bias_out,
            ],
            domain=g.MICROSOFT,
            shape=node.outputs[0].shape,
            k=g.attribute(node, "k"),
            activation_type="swiglu",
            # Gates and values take turns: the only order that the CPU's kernel knows (1.32).
            swiglu_fusion=1,
            activation_alpha=g.attribute(node, "alpha"),
            activation_beta=g.attribute(node, "beta"),
            **({"swiglu_limit": limit} if limit else {}),
            normalize_routing_weights=1,
        )
        g.replace(node.outputs[0], mixed)
    g.remove_dead_nodes(graph)


def _laid_out(
    graph: ir.Graph, weight: ir.Value, *, interleaved: bool, transposed: bool
) -> ir.Value:
    """A weight [E, outputs, inputs], gates and values in turn; made when it is written."""
    tensor = weight.const_value
    assert tensor is not None
    if interleaved and not transposed:
        return weight
    shape = list(tensor.shape.numpy())
    if transposed:
        shape[1:] = shape[:0:-1]
    name = f"{weight.name}.rows"

    def compute() -> NDArray[Any]:
        array = tensor.numpy()
        if transposed:
            array = np.swapaxes(array, 1, 2)
        if not interleaved:
            array = np.stack(np.split(array, 2, axis=1), axis=2).reshape(shape)
        return np.ascontiguousarray(array)

    later = ir.LazyTensor(
        lambda: ir.tensor(compute(), name=name),
        dtype=tensor.dtype,
        shape=ir.Shape(shape),
        name=name,
    )
    return g.add_tensor(graph, name, later)
