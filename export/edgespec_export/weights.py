"""How weights lie in the file, apart from how the graph computes."""

from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgespec_export import graph as g

EXTERNAL_DATA_FROM_BYTES = 100 * 2**20
"""Graphs with more bytes of weights than this keep them in a file beside, to be mapped to memory.

protobuf refuses files of 2 GiB, and a single file is read to memory as a whole.
"""
SMALLEST = 256
"""Constants with fewer elements are left as they are; a Cast would cost more than it saves."""


def store_in_half(graph: ir.Graph) -> None:
    """Store as float16 each float32 weight that float16 holds exactly, with a Cast behind it.

    ONNX Runtime folds the Cast when it loads the graph, so the file is half as large and the
    computation stays float32. Tables that were computed, such as cosines, are not exact in
    float16 and stay as they are.
    """
    for value in list(graph.initializers.values()):
        if value.dtype != ir.DataType.FLOAT or value.const_value is None:
            continue
        if value.const_value.size < SMALLEST:
            continue
        array = value.const_value.numpy()
        half = array.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), array):
            continue
        stored = g.add_constant(graph, f"{value.name}.fp16", half)
        wide = g.insert_before(
            graph[0], "Cast", [stored], to=1, shape=value.shape, dtype=ir.DataType.FLOAT
        )
        ir.convenience.replace_all_uses_with(value, wide)
    g.remove_dead_nodes(graph)


def write_model(model: ir.Model, path: Path) -> None:
    """Write ``path``, with its weights in a file beside it where they are large."""
    weights = [v.const_value for v in model.graph.initializers.values() if v.const_value]
    large = sum(tensor.nbytes for tensor in weights) > EXTERNAL_DATA_FROM_BYTES
    ir.save(model, path, external_data=f"{path.name}.data" if large else None)
