"""float16 for CUDA: products, attention and cache in half the bytes, float32 between them.

The residual sum, the norms and the logits stay float32, as float16 ends at 65504. So do products
whose activations come near to that on the text of the gate. ONNX Runtime's CPU provider has no
float16 products and casts each weight in every run: the graph runs there, slowly.
"""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
import torch
from transformers import PreTrainedModel

from edgespec_export import graph as g

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
NEAR_OVERFLOW = 65504 / 4
"""Activations above this, in a text of 200 tokens, call for float32: others may be larger."""
ATTENTION_INPUTS = (0, 1, 2, 7, 8)
"""Query, key, value, and the tables of the rotation: what GroupQueryAttention wants of one type."""


def overflowing(model: PreTrainedModel, tokens: list[int]) -> frozenset[str]:
    """Names of the modules with a weight that read or write numbers near float16's end."""
    found: set[str] = set()
    hooks = []
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2 or isinstance(module, torch.nn.Embedding):
            continue

        def note(
            _: torch.nn.Module,
            inputs: tuple[torch.Tensor, ...],
            output: torch.Tensor,
            name: str = name,
        ) -> None:
            if max(float(inputs[0].abs().max()), float(output.abs().max())) > NEAR_OVERFLOW:
                found.add(name)

        hooks.append(module.register_forward_hook(note))
    with torch.no_grad():
        model(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return frozenset(found)


def to_half(graph: ir.Graph, kept: Collection[str]) -> None:
    """Compute products and attention in float16, but those of the modules ``kept``."""
    for node in list(graph):
        if node.op_type == "GroupQueryAttention":
            _attend_in_half(graph, node)
        elif node.op_type in ("MatMul", "FusedMatMul") and _weight_of(node) is not None:
            if _module(node) not in kept:
                _cast_inputs(graph, node, (0, 1))
                _widen(graph, node.outputs[0])
        elif node.op_type == "Gather" and _weight_of(node, 0) is not None:
            _cast_inputs(graph, node, (0,))
            _widen(graph, node.outputs[0])
    _drop_round_trips(graph)
    g.remove_dead_nodes(graph)


def _weight_of(node: ir.Node, place: int = 1) -> ir.Value | None:
    """The constant float32 matrix that a node reads at ``place``."""
    weight = node.inputs[place] if len(node.inputs) > place else None
    if weight is None or weight.const_value is None or weight.dtype != FLOAT:
        return None
    return weight if len(weight.const_value.shape.numpy()) == 2 else None


def _module(node: ir.Node) -> str:
    return str(node.inputs[1].name).removesuffix(".T").removesuffix(".weight")  # type: ignore[union-attr]


def _attend_in_half(graph: ir.Graph, node: ir.Node) -> None:
    _cast_inputs(graph, node, [i for i in ATTENTION_INPUTS if i < len(node.inputs)])
    for value in [*node.inputs[3:5], *node.outputs[1:3]]:
        if value is not None:
            value.dtype = HALF
    _widen(graph, node.outputs[0])


def _cast_inputs(graph: ir.Graph, node: ir.Node, places: Collection[int]) -> None:
    for place in places:
        value = node.inputs[place]
        if value is None or value.dtype == HALF:
            continue
        if value.const_value is not None:
            node.replace_input_with(place, _stored_in_half(graph, value))
        else:
            node.replace_input_with(
                place, g.insert_before(node, "Cast", [value], to=10, dtype=HALF)
            )


def _stored_in_half(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """The constant rounded to float16 when it is written; one for all its readers."""
    name = f"{value.name}.fp16"
    tensor = value.const_value
    assert tensor is not None
    if name in graph.initializers:
        return graph.initializers[name]
    later = ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().astype(np.float16), name=name),
        dtype=HALF,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
    )
    return g.add_tensor(graph, name, later)


def _widen(graph: ir.Graph, value: ir.Value) -> None:
    """Let everything behind a float16 value read it as float32, the logits' caller too."""
    node = value.producer()
    assert node is not None
    cast = ir.node("Cast", [value], {"to": int(FLOAT)})
    wide = cast.outputs[0]
    wide.shape, wide.dtype = value.shape, FLOAT
    value.dtype = HALF
    g.replace(value, wide)
    cast.replace_input_with(0, value)
    graph.insert_after(node, cast)


def _drop_round_trips(graph: ir.Graph) -> None:
    """Products that feed each other pass float16 on as it is."""
    for node in graph:
        back = g.produced_by(node.inputs[0], "Cast") if node.op_type == "Cast" else None
        if back is not None and g.attribute(node, "to") == int(HALF):
            source = back.inputs[0]
            if source is not None and source.dtype == HALF:
                g.replace(node.outputs[0], source)
