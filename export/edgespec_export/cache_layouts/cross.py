"""Attention without a cache of its own: within the encoder, and from the decoder to it."""

import onnx_ir as ir

from edgespec_export import graph as g
from edgespec_export.cache_layouts.base import add_input, heads
from edgespec_export.cache_layouts.in_place import flat_heads
from edgespec_export.trace_parts import CROSS_ATTENTION, FULL_ATTENTION, HIDDEN


def apply(model: ir.Model) -> None:
    """Put MultiHeadAttention in place of the placeholders that have no cache.

    A decoder afterwards reads ``cross_key_values.N.key`` and ``.value`` [1, H, N, D] for each
    layer instead of the encoder's output.
    """
    graph = model.graph
    model.opset_imports.update(g.OPSETS)
    model.opset_imports.pop("edgespec", None)
    model.ir_version = g.IR_VERSION
    for node in list(graph):
        if node.op_type == FULL_ATTENTION:
            key, value = (flat_heads(graph, node, value) for value in node.inputs[1:3])
            _attend(graph, node, key, value)
        elif node.op_type == CROSS_ATTENTION:
            key, value = (_given(graph, node, kind) for kind in ("key", "value"))
            _attend(graph, node, key, value)
    g.remove_dead_nodes(graph)
    unread = [v for v in graph.inputs if v.name == HIDDEN and not v.uses()]
    for value in unread:
        graph.inputs.remove(value)


def _given(graph: ir.Graph, node: ir.Node, kind: str) -> ir.Value:
    """A layer's keys or values as an input of the graph."""
    given = node.inputs[1 if kind == "key" else 2]
    assert given is not None
    assert given.dtype is not None
    count, size = heads(given)
    assert given.shape is not None
    length = given.shape[2] if isinstance(given.shape[2], int) else "encoder_sequence_length"
    layer = node.attributes["layer"].as_int()
    name = f"cross_key_values.{layer}.{kind}"
    return add_input(graph, name, given.dtype, 1, count, length, size)


def _attend(graph: ir.Graph, node: ir.Node, key: ir.Value, value: ir.Value) -> None:
    query = flat_heads(graph, node, node.inputs[0])
    num_heads, head_size = heads(node.inputs[0])
    bias = [None, None, node.inputs[3]] if node.inputs[3:] else []
    rows = g.insert_before(
        node,
        "MultiHeadAttention",
        [query, key, value, *bias],
        domain=g.MICROSOFT,
        shape=query.shape,
        num_heads=num_heads,
        scale=node.attributes["scale"].as_float(),
    )
    apart = g.insert_before(
        node,
        "Reshape",
        [rows, g.add_ints(graph, [0, 0, num_heads, head_size])],
        shape=node.outputs[0].shape,
    )
    g.replace(node.outputs[0], apart)
