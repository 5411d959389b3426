"""The layout ``growing``: past concatenated to present, in standard operators that are years old.

It costs a copy of the past a step, and a rewind costs one more. What it brings: it runs on old
runtimes and on others than ONNX Runtime, and a batch of texts padded at the left, as transformers
pads them, needs nothing but its ``attention_mask``.
"""

import numpy as np
import onnx_ir as ir

from edgespec_export import graph as g
from edgespec_export.cache_layouts import base

OPSETS = {"": 17}
IR_VERSION = 8
MIN_ONNXRUNTIME = "1.12"
"""The oldest ONNX Runtime that was tried: the one that came with opset 17."""

HIDDEN = float(np.finfo(np.float32).min)
"""What is added to a score that must not count. Not -inf: a row of padding sees nothing at all,
and its softmax would be NaN."""


def apply(model: ir.Model) -> base.CacheShape:
    """Replace the placeholders and add the inputs and outputs that a cache needs.

    Afterwards the graph reads ``attention_mask`` [batch_size, total_sequence_length], 0 where a
    position is padding, ``num_logits_to_keep`` [] and, for each layer N,
    ``past_key_values.N.key`` and ``.value`` [batch_size, H, past_sequence_length, D]; it gives
    ``present.N.key`` and ``.value`` [batch_size, H, total_sequence_length, D] and ``logits``
    [batch_size, num_logits, V].

    Raises:
        ValueError: If the layers' caches differ in shape.
    """
    masks = _Masks(model.graph)
    return base.replace_placeholders(model, lambda node: _attend(model.graph, node, masks))


class _Masks:
    """What is added to the scores, [B, 1, S, T], made once for each size of window."""

    def __init__(self, graph: ir.Graph) -> None:
        """Compute the positions of rows and columns, and which columns are no padding."""
        self._graph = graph
        self._anchor = graph[0]
        mask = base.add_attention_mask(graph)
        ids = next(value for value in graph.inputs if value.name == "input_ids")
        total = base.length_of(self._anchor, mask, 1)
        new = base.length_of(self._anchor, ids, 1)
        past = self._put("Sub", total, new)
        self._columns = base.count_to(graph, self._anchor, total)  # [T]
        rows = self._put("Add", base.count_to(graph, self._anchor, new), past)
        self._rows = self._put("Unsqueeze", rows, g.add_ints(graph, [1]))  # [S, 1]
        real = g.insert_before(
            self._anchor, "Cast", [mask], to=ir.DataType.BOOL, dtype=ir.DataType.BOOL
        )
        self._real = self._put("Unsqueeze", real, g.add_ints(graph, [1, 2]))  # [B, 1, 1, T]
        self._made: dict[int, ir.Value] = {}

    def of(self, window: int) -> ir.Value:
        """The mask of layers that see ``window`` positions, or all if it is 0."""
        if window not in self._made:
            self._made[window] = self._make(window)
        return self._made[window]

    def _make(self, window: int) -> ir.Value:
        seen = self._put("LessOrEqual", self._columns, self._rows, dtype=ir.DataType.BOOL)
        if window:
            oldest = self._put("Sub", self._rows, g.add_ints(self._graph, [window]))
            near = self._put("Greater", self._columns, oldest, dtype=ir.DataType.BOOL)
            seen = self._put("And", seen, near)
        seen = self._put("And", seen, self._real)
        zero, hidden = (g.add_number(self._graph, number) for number in (0.0, HIDDEN))
        return self._put("Where", seen, zero, hidden, dtype=ir.DataType.FLOAT)

    def _put(self, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
        return g.insert_before(self._anchor, op_type, inputs, dtype=dtype)


def _attend(graph: ir.Graph, node: ir.Node, masks: _Masks) -> ir.Value:
    """Attention to the past and the new rows, spelled out.

    Query heads that share a key/value head are laid one below the other, so that the keys and
    values of the past are not repeated for each of them.
    """
    query, key, value = node.inputs
    num_heads, head_size = base.heads(query)
    num_kv_heads, _ = base.heads(key)
    past_key, past_value = base.add_past(graph, node, "past_sequence_length")
    keys = g.insert_before(node, "Concat", [past_key, key], axis=2)
    values = g.insert_before(node, "Concat", [past_value, value], axis=2)
    base.add_present(graph, node, keys, values, "total_sequence_length")

    shared = num_heads != num_kv_heads
    scale = g.add_number(graph, node.attributes["scale"].as_float())
    rows = g.insert_before(node, "Mul", [query, scale])
    if shared:
        grouped = g.add_ints(graph, [0, num_kv_heads, -1, head_size])
        rows = g.insert_before(node, "Reshape", [rows, grouped])
    turned = g.insert_before(node, "Transpose", [keys], perm=[0, 1, 3, 2])
    scores = g.insert_before(node, "MatMul", [rows, turned])
    softcap = node.attributes["softcap"].as_float()
    if softcap:
        scores = g.insert_before(node, "Div", [scores, g.add_number(graph, softcap)])
        scores = g.insert_before(node, "Tanh", [scores])
        scores = g.insert_before(node, "Mul", [scores, g.add_number(graph, softcap)])
    if shared:  # [B, H, Hq/H * S, T] -> [B, Hq, S, T]
        apart = g.add_ints(graph, [0, num_heads, -1, 0])
        # 0 takes the axis in the same place: T stays where it was.
        scores = g.insert_before(node, "Reshape", [scores, apart])
    scores = g.insert_before(node, "Add", [scores, masks.of(node.attributes["window"].as_int())])
    weights = g.insert_before(node, "Softmax", [scores], axis=-1)
    if shared:
        together = g.add_ints(graph, [0, num_kv_heads, -1, 0])
        weights = g.insert_before(node, "Reshape", [weights, together])
    seen = g.insert_before(node, "MatMul", [weights, values])
    if shared:
        seen = g.insert_before(
            node, "Reshape", [seen, g.add_ints(graph, [0, num_heads, -1, head_size])]
        )
    return g.insert_before(
        node, "Transpose", [seen], perm=[0, 2, 1, 3], shape=node.outputs[0].shape
    )
