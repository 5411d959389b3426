"""The layout ``in_place``: past and present are one buffer, and rewinding is a counter.

``com.microsoft::GroupQueryAttention`` writes the new keys and values behind the old ones when
its past and its present are bound to the same memory. What lies beyond ``attention_mask`` is
never read, so a cache is rewound by a shorter mask.
"""

from dataclasses import dataclass

import onnx_ir as ir

from edgespec_export import graph as g
from edgespec_export.distance_bias import distance_bias
from edgespec_export.trace import ATTENTION, KEEP_LAST_ROWS


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a layer's cache looks like; the same for every layer of a model."""

    num_layers: int
    num_kv_heads: int
    head_size: int


def apply(model: ir.Model) -> CacheShape:
    """Replace the placeholders and add the inputs and outputs that a cache needs.

    Afterwards the graph reads ``attention_mask`` [batch_size, total_sequence_length],
    ``num_logits_to_keep`` [] and, for each layer N, ``past_key_values.N.key`` and ``.value``
    [batch_size, H, max_sequence_length, D]; it gives ``present.N.key`` and ``.value`` of the
    same shape, and ``logits`` [batch_size, num_logits, V].

    Raises:
        ValueError: If the layers' caches differ in shape.
    """
    graph = model.graph
    model.opset_imports.update(g.OPSETS)
    model.opset_imports.pop("edgespec", None)
    model.ir_version = g.IR_VERSION
    placeholders = [node for node in graph if node.op_type == ATTENTION]
    lengths = _add_lengths(graph)
    for node in graph:
        if node.op_type == KEEP_LAST_ROWS:
            _keep_last_rows(graph, node)
    shapes = {_attend(graph, node, lengths) for node in placeholders}
    if len(shapes) != 1:
        raise ValueError(f"all layers must have a cache of one shape, got {sorted(shapes)}")
    g.remove_dead_nodes(graph)
    ((num_kv_heads, head_size),) = shapes
    return CacheShape(len(placeholders), num_kv_heads, head_size)


def _add_lengths(graph: ir.Graph) -> tuple[ir.Value, ir.Value]:
    """seqlens_k [batch_size] and total_sequence_length [], int32, from the attention mask."""
    mask = add_input(
        graph, "attention_mask", ir.DataType.INT64, "batch_size", "total_sequence_length"
    )
    first = graph[0]
    ones = g.insert_before(first, "ReduceSum", [mask, g.add_ints(graph, [1])], keepdims=0)
    last = g.insert_before(first, "Sub", [ones, g.add_ints(graph, [1])])
    seqlens_k = g.insert_before(first, "Cast", [last], to=6, dtype=ir.DataType.INT32)
    size = g.insert_before(first, "Shape", [mask], start=1, end=2, dtype=ir.DataType.INT64)
    size = g.insert_before(first, "Squeeze", [size])
    total = g.insert_before(first, "Cast", [size], to=6, dtype=ir.DataType.INT32)
    return seqlens_k, total


def _keep_last_rows(graph: ir.Graph, node: ir.Node) -> None:
    """Slice the hidden states before the head; 0 keeps them all, as transformers has it."""
    hidden = node.inputs[0]
    assert hidden is not None
    assert hidden.shape is not None
    keep = add_input(graph, "num_logits_to_keep", ir.DataType.INT64)
    start = g.insert_before(node, "Neg", [keep])
    start = g.insert_before(node, "Unsqueeze", [start, g.add_ints(graph, [0])])
    end = g.add_ints(graph, [2**63 - 1])
    kept = g.insert_before(
        node,
        "Slice",
        [hidden, start, end, g.add_ints(graph, [1])],
        shape=ir.Shape([hidden.shape[0], "num_logits", hidden.shape[2]]),
    )
    ir.convenience.replace_all_uses_with(node.outputs[0], kept)
    (logits,) = graph.outputs
    assert logits.shape is not None
    logits.shape = ir.Shape(["batch_size", "num_logits", logits.shape[2]])


def _attend(graph: ir.Graph, node: ir.Node, lengths: tuple[ir.Value, ir.Value]) -> tuple[int, int]:
    """Put GroupQueryAttention in a placeholder's place; give key/value heads and head size."""
    query, key, value = (flat_heads(graph, node, heads) for heads in node.inputs[:3])
    layer = node.attributes["layer"].as_int()
    num_heads, head_size = heads_of(node.inputs[0])
    num_kv_heads, _ = heads_of(node.inputs[1])
    axes = ("batch_size", num_kv_heads, "max_sequence_length", head_size)
    dtype = query.dtype
    assert dtype is not None
    past = [
        add_input(graph, f"past_key_values.{layer}.{kind}", dtype, *axes)
        for kind in ("key", "value")
    ]
    window = node.attributes["window"].as_int()
    bias = [None, None, None, distance_bias(graph, node, node.inputs[3])] if node.inputs[3:] else []
    attention = ir.node(
        "GroupQueryAttention",
        [query, key, value, *past, *lengths, *bias],
        {
            "num_heads": num_heads,
            "kv_num_heads": num_kv_heads,
            "scale": node.attributes["scale"].as_float(),
            "local_window_size": window or -1,
            "softcap": node.attributes["softcap"].as_float(),
        },
        domain=g.MICROSOFT,
        num_outputs=3,
    )
    graph.insert_before(node, attention)
    rows, *present = attention.outputs
    rows.shape, rows.dtype = query.shape, dtype
    for kind, output in zip(("key", "value"), present, strict=True):
        output.name = f"present.{layer}.{kind}"
        output.shape, output.dtype = ir.Shape(axes), dtype
        graph.outputs.append(output)
    heads = g.insert_before(
        node,
        "Reshape",
        [rows, g.add_ints(graph, [0, 0, num_heads, head_size])],
        shape=node.outputs[0].shape,
    )
    g.replace(node.outputs[0], heads)
    return num_kv_heads, head_size


def heads_of(value: ir.Value | None) -> tuple[int, int]:
    """How many heads a value [B, H, S, D] has, and their size."""
    assert value is not None
    assert value.shape is not None
    count, size = value.shape[1], value.shape[3]
    assert isinstance(count, int)
    assert isinstance(size, int)
    return count, size


def flat_heads(graph: ir.Graph, node: ir.Node, heads: ir.Value | None) -> ir.Value:
    """[B, H, S, D] -> [B, S, H*D], as GroupQueryAttention reads it."""
    assert heads is not None
    assert heads.shape is not None
    count, size = heads_of(heads)
    batch, _, length, _ = heads.shape
    turned = g.insert_before(
        node,
        "Transpose",
        [heads],
        perm=[0, 2, 1, 3],
        shape=ir.Shape([batch, length, count, size]),
    )
    width = count * size
    return g.insert_before(
        node,
        "Reshape",
        [turned, g.add_ints(graph, [0, 0, width])],
        shape=ir.Shape([batch, length, width]),
    )


def add_input(graph: ir.Graph, name: str, dtype: ir.DataType, *axes: str | int) -> ir.Value:
    """A further input of the graph."""
    value = ir.Value(name=name, shape=ir.Shape(axes), type=ir.TensorType(dtype))
    graph.inputs.append(value)
    return value
