"""The layout ``in_place``: past and present are one buffer, and rewinding is a counter.

``com.microsoft::GroupQueryAttention`` writes the new keys and values behind the old ones when
its past and its present are bound to the same memory. What lies beyond ``attention_mask`` is
never read, so a cache is rewound by a shorter mask.
"""

import onnx_ir as ir

from edgespec_export import graph as g
from edgespec_export.cache_layouts import base
from edgespec_export.distance_bias import distance_bias
from edgespec_export.placeholders import attention_terms

OPSETS = g.OPSETS
IR_VERSION = g.IR_VERSION
MIN_ONNXRUNTIME = "1.22"
"""The oldest ONNX Runtime on which exported graphs ran; 1.21 knows no position_ids in attention."""
TERMS = frozenset(("sinks", "key_bias", "distance_bias"))
"""What this layout can do beyond plain attention; see ``placeholders.TERMS``."""
HEAD_SINK_INPUT = 11
"""The place of the sinks among GroupQueryAttention's inputs."""

POSITIONS = "max_sequence_length"


def apply(model: ir.Model) -> base.CacheShape:
    """Replace the placeholders and add the inputs and outputs that a cache needs.

    Afterwards the graph reads ``attention_mask`` [batch_size, total_sequence_length],
    ``num_logits_to_keep`` [] and, for each layer N, ``past_key_values.N.key`` and ``.value``
    [batch_size, H, max_sequence_length, D]; it gives ``present.N.key`` and ``.value`` of the
    same shape, and ``logits`` [batch_size, num_logits, V].

    Raises:
        ValueError: If the layers' caches differ in shape.
    """
    lengths = _add_lengths(model.graph)
    biases: dict[ir.Value, ir.Value] = {}
    return base.replace_placeholders(
        model, lambda node: _attend(model.graph, node, lengths, biases)
    )


def _add_lengths(graph: ir.Graph) -> tuple[ir.Value, ir.Value]:
    """seqlens_k [batch_size] and total_sequence_length [], int32, from the attention mask."""
    mask = base.add_attention_mask(graph)
    first = graph[0]
    ones = g.insert_before(first, "ReduceSum", [mask, g.add_ints(graph, [1])], keepdims=0)
    last = g.insert_before(first, "Sub", [ones, g.add_ints(graph, [1])])
    seqlens_k = g.insert_before(first, "Cast", [last], to=6, dtype=ir.DataType.INT32)
    size = g.insert_before(first, "Shape", [mask], start=1, end=2, dtype=ir.DataType.INT64)
    size = g.insert_before(first, "Squeeze", [size])
    total = g.insert_before(first, "Cast", [size], to=6, dtype=ir.DataType.INT32)
    return seqlens_k, total


def _attend(
    graph: ir.Graph,
    node: ir.Node,
    lengths: tuple[ir.Value, ir.Value],
    biases: dict[ir.Value, ir.Value],
) -> ir.Value:
    """GroupQueryAttention for a placeholder."""
    query, key, value = (flat_heads(graph, node, value) for value in node.inputs[:3])
    num_heads, head_size = base.heads(node.inputs[0])
    num_kv_heads, _ = base.heads(node.inputs[1])
    past = base.add_past(graph, node, POSITIONS)
    terms = attention_terms(node)
    inputs: list[ir.Value | None] = [query, key, value, *past, *lengths]
    if "key_bias" in terms:
        inputs += [None, None, None, _bias(graph, node, terms["key_bias"], biases)]
    if "distance_bias" in terms:
        inputs += [None, None, None, distance_bias(graph, node, terms["distance_bias"])]
    if "sinks" in terms:
        inputs += [None] * (HEAD_SINK_INPUT - len(inputs))
        inputs.append(terms["sinks"])
    attention = ir.node(
        "GroupQueryAttention",
        inputs,
        {
            "num_heads": num_heads,
            "kv_num_heads": num_kv_heads,
            "scale": node.attributes["scale"].as_float(),
            "local_window_size": node.attributes["window"].as_int() or -1,
            "softcap": node.attributes["softcap"].as_float(),
        },
        domain=g.MICROSOFT,
        num_outputs=3,
    )
    graph.insert_before(node, attention)
    rows, present_key, present_value = attention.outputs
    rows.shape = query.shape
    g.set_dtype(rows, query.dtype)
    base.add_present(graph, node, present_key, present_value, POSITIONS)
    return g.insert_before(
        node,
        "Reshape",
        [rows, g.add_ints(graph, [0, 0, num_heads, head_size])],
        shape=node.outputs[0].shape,
    )


def _bias(
    graph: ir.Graph, node: ir.Node, table: ir.Value, known: dict[ir.Value, ir.Value]
) -> ir.Value:
    """[Hq, max_length] -> [1, Hq, sequence_length, total_sequence_length], once for all layers."""
    if table in known:
        return known[table]
    sizes = {value.name: value for value in graph.inputs}
    total, new = (
        g.insert_before(node, "Shape", [sizes[name]], start=1, end=2, dtype=ir.DataType.INT64)
        for name in ("attention_mask", "input_ids")
    )
    zero, one = g.add_ints(graph, [0]), g.add_ints(graph, [1])
    # The operator spreads a bias over texts and heads, and not over queries.
    row = g.insert_before(node, "Slice", [table, zero, total, one])
    row = g.insert_before(node, "Unsqueeze", [row, g.add_ints(graph, [0, 2])])
    shape = g.insert_before(node, "Concat", [one, one, new, one], axis=0)
    known[table] = g.insert_before(node, "Expand", [row, shape], dtype=table.dtype)
    return known[table]


def flat_heads(graph: ir.Graph, node: ir.Node, heads: ir.Value | None) -> ir.Value:
    """[B, H, S, D] -> [B, S, H*D], as GroupQueryAttention reads it."""
    assert heads is not None
    assert heads.shape is not None
    count, size = base.heads(heads)
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
