"""Passes that make a graph as fast as one written by hand for ONNX Runtime.

Each looks for one thing that a trace spells out in many operators and that ONNX Runtime has a
single kernel for. None changes what the graph computes beyond rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgespec_export import graph as g
from edgespec_export.rotary import fuse_rotary
from edgespec_export.tidy import straighten


def fuse(graph: ir.Graph, max_length: int) -> None:
    """Run all passes on a graph whose cache is in place; ``max_length`` is in tokens."""
    _fuse_rms_norms(graph)
    straighten(graph)
    fuse_rotary(graph, max_length)
    straighten(graph)
    _fuse_skips(graph)
    _pack_query_key_value(graph)
    lay_out_weights(graph)
    g.remove_dead_nodes(graph)


@dataclass(frozen=True, slots=True)
class _RmsNorm:
    """x / sqrt(mean(x^2) + epsilon) * scale, as found in a graph."""

    source: ir.Value
    scale: ir.Value
    epsilon: float
    last: ir.Node


def _fuse_rms_norms(graph: ir.Graph) -> None:
    for node in list(graph):
        found = _match_rms_norm(graph, node) if node.op_type == "ReduceMean" else None
        if found is None:
            continue
        # Heads are normed before they are turned, so that the turn meets its inverse.
        turn = g.produced_by(found.source, "Transpose")
        perm = g.attribute(turn, "perm") if turn is not None else None
        swap = perm is not None and perm[-1] == len(perm) - 1
        source = turn.inputs[0] if swap and turn is not None else found.source
        assert source is not None
        normed = g.insert_before(
            found.last,
            "SimplifiedLayerNormalization",
            [source, found.scale],
            shape=source.shape,
            axis=-1,
            epsilon=found.epsilon,
            stash_type=1,
        )
        if swap:
            normed = g.insert_before(
                found.last, "Transpose", [normed], perm=perm, shape=found.source.shape
            )
        g.replace(found.last.outputs[0], normed)
    g.remove_dead_nodes(graph)


def _match_rms_norm(graph: ir.Graph, mean: ir.Node) -> _RmsNorm | None:
    """Follow a mean of squares over the last axis to the product that ends the norm."""
    square = g.produced_by(mean.inputs[0], "Pow") or g.produced_by(mean.inputs[0], "Mul")
    source = square.inputs[0] if square is not None else None
    axes = g.constant(mean.inputs[1]) if len(mean.inputs) > 1 else None
    if square is None or source is None or source.shape is None or axes is None:
        return None
    if square.op_type == "Pow" and g.scalar(square.inputs[1]) != 2.0:
        return None
    if square.op_type == "Mul" and square.inputs[1] is not source:
        return None
    if axes.tolist() not in ([-1], [len(source.shape) - 1]):
        return None
    shifted = _only_reader(mean, "Add")
    epsilon = None if shifted is None else g.scalar(shifted.inputs[1])
    root = _only_reader(shifted, "Sqrt", "Pow")
    if shifted is None or epsilon is None or root is None:
        return None
    if root.op_type == "Pow":
        inverse = root if g.scalar(root.inputs[1]) == -0.5 else None
    else:
        inverse = _only_reader(root, "Reciprocal")
    normed = _only_reader(inverse, "Mul")
    if normed is None or source not in normed.inputs:
        return None
    return _with_scale(graph, source, epsilon, normed)


def _with_scale(graph: ir.Graph, source: ir.Value, epsilon: float, normed: ir.Node) -> _RmsNorm:
    """Take the product with a weight along, where there is one; else the weight is all ones."""
    assert source.shape is not None
    width = int(source.shape[-1])  # type: ignore[arg-type]
    scaled = _only_reader(normed, "Mul")
    if scaled is not None:
        scale = next(v for v in scaled.inputs if v is not normed.outputs[0])
        if g.constant(scale) is not None and scale is not None and scale.shape == [width]:
            return _RmsNorm(source, scale, epsilon, scaled)
    ones = g.add_constant(graph, f"ones_{width}", np.ones(width, np.float32))
    return _RmsNorm(source, ones, epsilon, normed)


def _only_reader(node: ir.Node | None, *op_types: str) -> ir.Node | None:
    """The single node that reads a node's output, if it is one of ``op_types``."""
    if node is None:
        return None
    readers = node.outputs[0].consumers()
    return readers[0] if len(readers) == 1 and readers[0].op_type in op_types else None


def _fuse_skips(graph: ir.Graph) -> None:
    """Join a residual sum with the norm that reads it; the sum is the kernel's last output."""
    names = {
        "SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
        "LayerNormalization": "SkipLayerNormalization",
    }
    for node in list(graph):
        if node.op_type not in names or g.attribute(node, "axis", -1) not in (-1, 2):
            continue
        total = g.produced_by(node.inputs[0], "Add")
        if total is None or any(
            v is None or v.shape != total.outputs[0].shape for v in total.inputs
        ):
            continue
        weights = [value for value in node.inputs[1:] if value is not None]
        joined = ir.node(
            names[node.op_type],
            [*total.inputs, *weights],
            {"epsilon": g.attribute(node, "epsilon", 1e-5)},
            domain=g.MICROSOFT,
            # Its mean and deviation are for training; an output without a name isn't made.
            outputs=[ir.Value(), ir.Value(name=""), ir.Value(name=""), ir.Value()],
        )
        # Right behind the sum, since others read the sum before the norm's place.
        graph.insert_after(total, joined)
        normed, *_, new_total = joined.outputs
        new_total.shape = total.outputs[0].shape
        g.set_dtype(new_total, total.outputs[0].dtype)
        g.replace(node.outputs[0], normed)
        g.replace(total.outputs[0], new_total)
    g.remove_dead_nodes(graph)


def _pack_query_key_value(graph: ir.Graph) -> None:
    """Make one product of three where queries, keys and values go straight to the attention."""
    for node in list(graph):
        if node.op_type != "GroupQueryAttention":
            continue
        products = [g.produced_by(value, "MatMul") for value in node.inputs[:3]]
        turned = [g.produced_by(p.inputs[1], "Transpose") if p else None for p in products]
        found = [t.inputs[0] for t in turned if t is not None]
        weights = [w for w in found if w is not None and w.const_value is not None]
        if len(weights) < 3 or len({p.inputs[0] for p in products if p}) != 1:
            continue
        if any(p is None or len(p.outputs[0].uses()) != 1 for p in products):
            continue
        first = products[0]
        assert first is not None
        name = str(node.outputs[1].name).replace(".key", ".qkv_proj.weight")
        packed = g.add_tensor(graph, name, _joined_rows(name, weights))
        weight = g.insert_before(node, "Transpose", [packed], perm=[1, 0])
        rows = g.insert_before(node, "MatMul", [first.inputs[0], weight])
        node.replace_input_with(0, rows)
        node.replace_input_with(1, None)
        node.replace_input_with(2, None)


def _joined_rows(name: str, weights: list[ir.Value]) -> ir.LazyTensor:
    """The weights one below the other, copied only when the file is written."""
    tensors = [weight.const_value for weight in weights if weight.const_value is not None]
    shapes = [tensor.shape.numpy() for tensor in tensors]
    return _computed_later(
        name,
        lambda: np.concatenate([tensor.numpy() for tensor in tensors]),
        tensors[0].dtype,
        (sum(rows for rows, _ in shapes), shapes[0][1]),
    )


def lay_out_weights(graph: ir.Graph, *, fused: bool = True) -> None:
    """Store each linear weight as MatMul reads it; one that others read too stays as it is.

    A tied head shares its weight with the embedding, which reads rows: there the product
    transposes while it multiplies, and the weight is stored once. Without ``fused`` that is left
    to the runtime that loads the graph.
    """
    for node in list(graph):
        if node.op_type != "Transpose":
            continue
        weight, output = node.inputs[0], node.outputs[0]
        if weight is None or weight.const_value is None or g.attribute(node, "perm") != (1, 0):
            continue
        if len(weight.uses()) == 1 and not weight.is_graph_output():
            g.replace(output, _turned(graph, weight))
        elif fused and all(
            user.op_type == "MatMul" and user.inputs[1] is output for user in output.consumers()
        ):
            for user in output.consumers():
                product = g.insert_before(
                    user,
                    "FusedMatMul",
                    [user.inputs[0], weight],
                    domain=g.MICROSOFT,
                    transB=1,
                )
                g.replace(user.outputs[0], product)


def _turned(graph: ir.Graph, weight: ir.Value) -> ir.Value:
    tensor = weight.const_value
    assert tensor is not None
    name = f"{weight.name}.T"
    rows, columns = tensor.shape.numpy()
    later = _computed_later(
        name, lambda: np.ascontiguousarray(tensor.numpy().T), tensor.dtype, (columns, rows)
    )
    return g.add_tensor(graph, name, later)


def _computed_later(
    name: str, compute: Callable[[], NDArray[Any]], dtype: ir.DataType, shape: tuple[int, ...]
) -> ir.LazyTensor:
    """A tensor whose array exists only while it is written: a model is not held twice."""
    return ir.LazyTensor(
        lambda: ir.tensor(compute(), name=name), dtype=dtype, shape=ir.Shape(shape), name=name
    )
