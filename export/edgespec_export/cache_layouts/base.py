"""What every cache layout does to a trace: its inputs, its outputs, the rows that get logits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgespec_export import graph as g
from edgespec_export.trace import ATTENTION, KEEP_LAST_ROWS


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a layer's cache looks like; the same for every layer of a model."""

    num_layers: int
    num_kv_heads: int
    head_size: int


Attend = Callable[[ir.Node], ir.Value]
"""Puts operators before a placeholder and gives what it gave: [B, S, Hq, D]."""


def replace_placeholders(model: ir.Model, attend: Attend) -> CacheShape:
    """Put real operators in the place of every placeholder.

    Raises:
        ValueError: If the layers' caches differ in shape.
    """
    graph = model.graph
    model.opset_imports.pop("edgespec", None)
    for node in list(graph):
        if node.op_type == KEEP_LAST_ROWS:
            _keep_last_rows(graph, node)
    placeholders = [node for node in graph if node.op_type == ATTENTION]
    shapes = {heads(node.inputs[1]) for node in placeholders}
    if len(shapes) != 1:
        raise ValueError(f"all layers must have a cache of one shape, got {sorted(shapes)}")
    for node in placeholders:
        g.replace(node.outputs[0], attend(node))
    g.remove_dead_nodes(graph)
    ((num_kv_heads, head_size),) = shapes
    return CacheShape(len(placeholders), num_kv_heads, head_size)


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


def add_attention_mask(graph: ir.Graph) -> ir.Value:
    """The input ``attention_mask`` [batch_size, total_sequence_length]."""
    return add_input(
        graph, "attention_mask", ir.DataType.INT64, "batch_size", "total_sequence_length"
    )


def add_past(graph: ir.Graph, node: ir.Node, positions: str) -> tuple[ir.Value, ir.Value]:
    """The inputs ``past_key_values.N.key`` and ``.value`` of a placeholder's layer."""
    axes = ("batch_size", heads(node.inputs[1])[0], positions, heads(node.inputs[1])[1])
    dtype = node.inputs[1].dtype if node.inputs[1] is not None else None
    assert dtype is not None
    layer = node.attributes["layer"].as_int()
    key, value = (
        add_input(graph, f"past_key_values.{layer}.{kind}", dtype, *axes)
        for kind in ("key", "value")
    )
    return key, value


def add_present(
    graph: ir.Graph, node: ir.Node, key: ir.Value, value: ir.Value, positions: str
) -> None:
    """The outputs ``present.N.key`` and ``.value`` of a placeholder's layer."""
    num_kv_heads, head_size = heads(node.inputs[1])
    layer = node.attributes["layer"].as_int()
    for kind, output in (("key", key), ("value", value)):
        output.name = f"present.{layer}.{kind}"
        output.shape = ir.Shape(("batch_size", num_kv_heads, positions, head_size))
        assert node.inputs[1] is not None
        g.set_dtype(output, node.inputs[1].dtype)
        graph.outputs.append(output)


def heads(value: ir.Value | None) -> tuple[int, int]:
    """How many heads a value [B, H, S, D] has, and their size."""
    assert value is not None
    assert value.shape is not None
    count, size = value.shape[1], value.shape[3]
    assert isinstance(count, int)
    assert isinstance(size, int)
    return count, size


def add_input(graph: ir.Graph, name: str, dtype: ir.DataType, *axes: str | int) -> ir.Value:
    """A new graph input."""
    value = ir.Value(name=name, shape=ir.Shape(axes), type=ir.TensorType(dtype))
    graph.inputs.append(value)
    return value


def length_of(anchor: ir.Node, value: ir.Value, axis: int) -> ir.Value:
    """How long ``value`` is along ``axis``, [1]."""
    return g.insert_before(
        anchor, "Shape", [value], start=axis, end=axis + 1, dtype=ir.DataType.INT64
    )


def count_to(graph: ir.Graph, anchor: ir.Node, length: ir.Value) -> ir.Value:
    """0, 1, 2 and so on, [length]."""
    zero, one = (g.add_constant(graph, f"int_{n}", np.array(n, np.int64)) for n in (0, 1))
    limit = g.insert_before(anchor, "Squeeze", [length])
    return g.insert_before(anchor, "Range", [zero, limit, one])
