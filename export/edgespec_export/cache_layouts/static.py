"""The layout ``static``: one buffer for past and present, in standard operators of opset 24.

``TensorScatter`` writes each text's new keys and values behind its old ones, in place where past
and present are bound to the same memory; ``Attention`` counts for each text how many of the
buffer's positions are its own. So texts of a batch may differ in length, and each is rewound by
a shorter mask. The price: the work grows with the buffer, filled or not, so it is made in steps.
"""

import onnx_ir as ir

from edgespec_export import graph as g
from edgespec_export.cache_layouts import base

OPSETS = {"": 24, g.MICROSOFT: 1}
IR_VERSION = 11
MIN_ONNXRUNTIME = "1.28"
"""The oldest ONNX Runtime that is right. 1.25 to 1.27 run such graphs and are silently wrong where
several tokens are read behind a past; 1.24 has no TensorScatter on the CPU (tried)."""

POSITIONS = "max_sequence_length"


def apply(model: ir.Model) -> base.CacheShape:
    """Replace the placeholders and add the inputs and outputs that a cache needs.

    Afterwards the graph reads ``attention_mask`` [batch_size, total_sequence_length], whose rows
    hold as many ones as a text has positions, the new ones included, and zeros behind them;
    ``num_logits_to_keep`` []; and, for each layer N, ``past_key_values.N.key`` and ``.value``
    [batch_size, H, max_sequence_length, D]. It gives ``present.N.key`` and ``.value`` of the
    same shape, and ``logits`` [batch_size, num_logits, V].

    Raises:
        ValueError: If the layers' caches differ in shape.
    """
    lengths = _Lengths(model.graph)
    return base.replace_placeholders(model, lambda node: _attend(model.graph, node, lengths))


class _Lengths:
    """How long each text is, before and after the new tokens, and who is in whose window."""

    def __init__(self, graph: ir.Graph) -> None:
        """Compute lengths from ``attention_mask``."""
        self._graph = graph
        self._anchor = graph[0]
        mask = base.add_attention_mask(graph)
        ids = next(value for value in graph.inputs if value.name == "input_ids")
        one = g.add_ints(graph, [1])
        self.after = g.insert_before(self._anchor, "ReduceSum", [mask, one], keepdims=0)
        self._new = base.length_of(self._anchor, ids, 1)
        self.before = self._put("Sub", self.after, self._new)
        self._windows: dict[int, ir.Value] = {}

    def window(self, size: int, buffer: ir.Value) -> ir.Value:
        """Whether a row may see a position, [B, 1, S, max_sequence_length]; made once a size."""
        if size not in self._windows:
            self._windows[size] = self._make(size, buffer)
        return self._windows[size]

    def _make(self, size: int, buffer: ir.Value) -> ir.Value:
        capacity = base.length_of(self._anchor, buffer, 2)
        columns = base.count_to(self._graph, self._anchor, capacity)
        new = base.count_to(self._graph, self._anchor, self._new)
        new = self._put("Unsqueeze", new, g.add_ints(self._graph, [1]))  # [S, 1]
        before = self._put("Unsqueeze", self.before, g.add_ints(self._graph, [1, 2, 3]))
        rows = self._put("Add", before, new)  # [B, 1, S, 1]
        oldest = self._put("Sub", rows, g.add_ints(self._graph, [size]))
        return self._put("Greater", columns, oldest, dtype=ir.DataType.BOOL)

    def _put(self, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
        return g.insert_before(self._anchor, op_type, inputs, dtype=dtype)


def _attend(graph: ir.Graph, node: ir.Node, lengths: _Lengths) -> ir.Value:
    """TensorScatter and Attention for a placeholder."""
    query, key, value = node.inputs
    past = base.add_past(graph, node, POSITIONS)
    keys, values = (
        g.insert_before(node, "TensorScatter", [old, new, lengths.before], axis=2, mode="linear")
        for old, new in zip(past, (key, value), strict=True)
    )
    base.add_present(graph, node, keys, values, POSITIONS)
    window = node.attributes["window"].as_int()
    mask = lengths.window(window, past[0]) if window else None
    assert query is not None
    seen = g.insert_before(
        node,
        "Attention",
        [query, keys, values, mask, None, None, lengths.after],
        is_causal=1,
        scale=node.attributes["scale"].as_float(),
        softcap=node.attributes["softcap"].as_float(),
        shape=query.shape,
    )
    return g.insert_before(
        node, "Transpose", [seen], perm=[0, 2, 1, 3], shape=node.outputs[0].shape
    )
