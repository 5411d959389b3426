"""Says in opset 17 what a trace says in opset 20, with operators of the standard alone.

Opset 17 and IR version 8 came with ONNX 1.12. Of what changed since then, only what traces of
language models contain is rewritten; the parity gate runs the file, so anything else is found.
"""

import math

import onnx_ir as ir

from edgespec_export import graph as g
from edgespec_export.fuse import lay_out_weights


def spell_out(graph: ir.Graph) -> None:
    """Rewrite a graph with its cache in place; it computes the same afterwards."""
    for node in list(graph):
        if node.op_type.startswith("Reduce") and len(node.inputs) > 1:
            _reduce_over_an_attribute(node)
        elif node.op_type == "Gelu":
            _spell_gelu(graph, node)
        elif node.op_type == "Split" and "num_outputs" in node.attributes:
            _split_by_sizes(graph, node)
        elif node.op_type == "Cast":
            node.attributes.pop("saturate", None)
    lay_out_weights(graph, fused=False)
    g.remove_dead_nodes(graph)


def _reduce_over_an_attribute(node: ir.Node) -> None:
    """Axes became an input with opset 18; of ReduceSum already with 13."""
    axes = g.constant(node.inputs[1])
    if node.op_type == "ReduceSum" or axes is None:
        return
    node.resize_inputs(1)
    node.attributes.pop("noop_with_empty_axes", None)
    node.attributes["axes"] = ir.AttrInt64s("axes", [int(axis) for axis in axes.reshape(-1)])


def _spell_gelu(graph: ir.Graph, node: ir.Node) -> None:
    """Gelu is an operator since opset 20. Spelled as ONNX Runtime knows it and fuses it again."""
    (x,) = node.inputs
    assert x is not None

    def put(op_type: str, *inputs: ir.Value | float) -> ir.Value:
        values = [g.add_number(graph, v) if isinstance(v, float) else v for v in inputs]
        return g.insert_before(node, op_type, values, dtype=x.dtype, shape=x.shape)

    if g.attribute(node, "approximate", "none") == "tanh":
        cubed = put("Mul", put("Pow", x, 3.0), 0.044715)
        inner = put("Mul", put("Add", x, cubed), math.sqrt(2 / math.pi))
        share = put("Add", put("Tanh", inner), 1.0)
        g.replace(node.outputs[0], put("Mul", share, put("Mul", x, 0.5)))
        return
    share = put("Add", put("Erf", put("Div", x, math.sqrt(2))), 1.0)
    g.replace(node.outputs[0], put("Mul", put("Mul", x, share), 0.5))


def _split_by_sizes(graph: ir.Graph, node: ir.Node) -> None:
    """A number of parts can be asked for since opset 18; before, their sizes."""
    source, axis = node.inputs[0], g.attribute(node, "axis", 0)
    whole = source.shape[axis] if source is not None and source.shape is not None else None
    if not isinstance(whole, int):
        return
    parts = int(node.attributes.pop("num_outputs").value)
    size = -(-whole // parts)
    node.resize_inputs(2)
    sizes = [size] * (parts - 1) + [whole - size * (parts - 1)]
    node.replace_input_with(1, g.add_ints(graph, sizes))
