"""How weights lie in the file, apart from how the graph computes."""

import hashlib
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


def write_model(model: ir.Model, path: Path, *, apart: bool = False) -> None:
    """Write ``path``, with its weights in a file beside it where they are large or ``apart``."""
    weights = [v.const_value for v in model.graph.initializers.values() if v.const_value]
    large = sum(tensor.nbytes for tensor in weights) > EXTERNAL_DATA_FROM_BYTES
    ir.save(model, path, external_data=f"{path.name}.data" if large or apart else None)


def write_sharing(model: ir.Model, path: Path, other: Path) -> None:
    """Write ``path``, with the weights of ``other``, a graph beside it, where they are equal.

    Equal are those of the same bytes; the few that are not found lie in ``path`` itself.
    """
    found = {
        _content(tensor): tensor
        for value in ir.load(other).graph.initializers.values()
        if isinstance(tensor := value.const_value, ir.ExternalTensor)
    }
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        shared = found.get(_content(value.const_value))
        if shared is not None:
            value.const_value = ir.ExternalTensor(
                shared.location,
                shared.offset,
                shared.length,
                shared.dtype,
                shape=shared.shape,
                name=str(value.name),
                base_dir=path.parent,
            )
    ir.save(model, path)


def _content(tensor: ir.TensorProtocol) -> tuple[object, ...]:
    """What tensors share that are equal in all but name."""
    shape = tuple(tensor.shape.numpy())
    return tensor.dtype, shape, hashlib.sha256(tensor.tobytes()).digest()
