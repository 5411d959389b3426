"""T5's bias on the attention by how far back a token is, for a text with a past."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgespec_export import graph as g
from edgespec_export.cache_layouts import base


def distance_bias(graph: ir.Graph, node: ir.Node, table: ir.Value) -> ir.Value:
    """The bias [1, H, S, P] of S new tokens towards all P, those before them and themselves.

    Args:
        graph: With the inputs ``position_ids`` [1, S] and ``attention_mask`` [1, P].
        node: Where it is needed; it is computed once and serves all layers after it.
        table: [distances, H] the bias by distance; it stays the same beyond the last.
    """
    done = next((n for n in graph if n.name == "distance_bias"), None)
    if done is not None:
        return done.outputs[0]
    inputs = {value.name: value for value in graph.inputs}
    assert table.shape is not None
    heads = table.shape[1]
    length = base.length_of(node, inputs["attention_mask"], 1)
    keys = base.count_to(graph, node, length)  # [P]
    nought = g.add_constant(graph, "nought", _number(0))
    axis = g.add_ints(graph, [2])
    queries = g.insert_before(node, "Unsqueeze", [inputs["position_ids"], axis])  # [1, S, 1]
    back = g.insert_before(node, "Sub", [queries, keys])
    farthest = g.add_constant(graph, "farthest", _number(int(table.shape[0]) - 1))  # type: ignore[arg-type]
    # What lies ahead has no distance; the attention is causal and does not look there.
    back = g.insert_before(node, "Clip", [back, nought, farthest])
    found = g.insert_before(node, "Gather", [table, back], axis=0)  # [1, S, P, H]
    shape = ir.Shape([1, heads, "sequence_length", "total_sequence_length"])
    bias = g.insert_before(node, "Transpose", [found], perm=[0, 3, 1, 2], shape=shape)
    producer = bias.producer()
    assert producer is not None
    producer.name = "distance_bias"
    return bias


def _number(value: int) -> NDArray[np.int64]:
    return np.array(value, np.int64)
