"""Removes what a trace leaves behind: constants computed at run time, detours in shape."""

import hashlib

import numpy as np
import onnx_ir as ir

from edgespec_export import graph as g

FOLD_LIMIT = 65_536
"""Constants with more elements than this are weights: never computed with, never copied."""


def tidy(graph: ir.Graph) -> None:
    """Fold constants and straighten shapes; the graph computes the same afterwards."""
    _lift_constants(graph)
    _remove_idle_casts(graph)
    _fold_constants(graph)
    _split_without_sequences(graph)
    _products_in_three_axes(graph)
    _make_shapes_static(graph)
    g.remove_dead_nodes(graph)
    straighten(graph)


def straighten(graph: ir.Graph) -> None:
    """Remove slices, transposes and reshapes that undo each other or do nothing."""
    for node in graph:
        if node.op_type == "Slice":
            _skip_whole_slice(node)
        elif node.op_type == "Transpose":
            _skip_inverse_transpose(node)
        elif node.op_type == "Reshape":
            _skip_reshape(graph, node)
    g.remove_dead_nodes(graph)


def _lift_constants(graph: ir.Graph) -> None:
    """Turn Constant nodes into initializers, one for equal values."""
    for node in list(graph):
        if node.op_type != "Constant" or node.domain:
            continue
        array = _constant_of(node)
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        name = f"const_{array.dtype}_{'x'.join(map(str, array.shape))}_{digest}"
        g.replace(node.outputs[0], g.add_constant(graph, name, array))
        graph.remove(node, safe=True)


def _constant_of(node: ir.Node) -> np.ndarray:
    ((kind, held),) = node.attributes.items()
    if kind == "value":
        return held.as_tensor().numpy()
    dtype = np.int64 if kind in ("value_int", "value_ints") else np.float32
    return np.array(held.value, dtype)


def _remove_idle_casts(graph: ir.Graph) -> None:
    """Remove casts to the type that a value already has: transformers upcasts by habit."""
    for node in graph:
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.op_type == "Cast":
            idle = source.dtype == ir.DataType(g.attribute(node, "to"))
        elif node.op_type == "CastLike":
            model = node.inputs[1]
            idle = source.dtype is not None and model is not None and source.dtype == model.dtype
        else:
            idle = node.op_type == "Identity"
        if idle and not node.outputs[0].is_graph_output():
            g.replace(node.outputs[0], source)
    g.remove_dead_nodes(graph)


def _split_without_sequences(graph: ir.Graph) -> None:
    """Turn a split into a sequence, read by constant index, into a plain Split."""
    for node in list(graph):
        if node.op_type != "SplitToSequence":
            continue
        readers = node.outputs[0].consumers()
        places = [g.scalar(reader.inputs[1]) for reader in readers if len(reader.inputs) > 1]
        sizes, source = _split_sizes(node), node.inputs[0]
        only_read = all(reader.op_type == "SequenceAt" for reader in readers)
        if sizes is None or source is None or not only_read or None in places:
            continue
        split = ir.node(
            "Split",
            [source, g.add_ints(graph, sizes)],
            {"axis": g.attribute(node, "axis", 0)},
            num_outputs=len(sizes),
        )
        graph.insert_before(node, split)
        for reader, place in zip(readers, places, strict=True):
            g.replace(reader.outputs[0], split.outputs[int(place or 0)])
        for output in split.outputs:
            g.set_dtype(output, source.dtype)


def _split_sizes(node: ir.Node) -> list[int] | None:
    """The lengths that a SplitToSequence cuts: listed, or one length that repeats."""
    sizes = g.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    source = node.inputs[0]
    if sizes is None or source is None or source.shape is None:
        return None
    if sizes.ndim == 1:
        return [int(size) for size in sizes]
    whole, size = source.shape[g.attribute(node, "axis", 0)], int(sizes)
    return [size] * (whole // size) if isinstance(whole, int) and whole % size == 0 else None


def _products_in_three_axes(graph: ir.Graph) -> None:
    """Undo the flattening of [B, S, N] to rows around a Gemm; MatMul takes three axes.

    The rows' number would be computed at run time, twice for each product.
    """
    for node in list(graph):
        flat = g.produced_by(node.inputs[0], "Reshape") if node.op_type == "Gemm" else None
        source = flat.inputs[0] if flat is not None else None
        if source is None or source.shape is None or len(source.shape) != 3:
            continue
        plain = all(g.attribute(node, key, 1.0) == 1.0 for key in ("alpha", "beta"))
        readers = node.outputs[0].consumers()
        back = [r.outputs[0].shape for r in readers if r.op_type == "Reshape"]
        if not plain or g.attribute(node, "transA", 0) or len(back) < len(readers):
            continue
        if not all(shape and len(shape) == 3 and shape[:2] == source.shape[:2] for shape in back):
            continue
        weight = node.inputs[1]
        if g.attribute(node, "transB", 0):
            weight = g.insert_before(node, "Transpose", [weight], perm=[1, 0])
        product = g.insert_before(node, "MatMul", [source, weight], shape=back[0])
        if len(node.inputs) > 2:
            product = g.insert_before(node, "Add", [product, node.inputs[2]], shape=back[0])
        for reader in readers:
            g.replace(reader.outputs[0], product)


def _fold_constants(graph: ir.Graph) -> None:
    """Compute what depends on small constants alone, all of it in one run."""
    foldable: list[ir.Node] = []
    known: set[ir.Value] = set()
    for node in graph:
        inputs = [value for value in node.inputs if value is not None]
        # A turned weight is laid out when the file is written, not here.
        if (
            node.op_type != "Transpose"
            and inputs
            and all(value in known or _is_small(value) for value in inputs)
        ):
            foldable.append(node)
            known.update(node.outputs)
    members = set(foldable)
    wanted = [
        value
        for node in foldable
        for value in node.outputs
        if value.is_graph_output() or any(user not in members for user in value.consumers())
    ]
    if not wanted:
        return
    feeds = {
        str(value.name): array
        for node in foldable
        for value in node.inputs
        if (array := g.constant(value)) is not None and value is not None
    }
    arrays = g.run(foldable, feeds, [str(value.name) for value in wanted])
    for value, array in zip(wanted, arrays, strict=True):
        g.replace(value, g.add_constant(graph, f"{value.name}_folded", array))


def _is_small(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.size <= FOLD_LIMIT


def _make_shapes_static(graph: ir.Graph) -> None:
    """Give each Reshape a constant target, so that no shape is computed at run time."""
    for node in graph:
        if node.op_type == "Reshape" and g.constant(node.inputs[1]) is None:
            target = reshape_target(node.inputs[0], node.outputs[0].shape)
            if target is not None:
                _retarget(graph, node, target)


def reshape_target(source: ir.Value | None, shape: ir.Shape | None) -> list[int] | None:
    """Constant target of a Reshape: 0 copies a dimension, one -1 takes what is left."""
    if source is None or source.shape is None or shape is None:
        return None
    target = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, int):
            target.append(dim)
        elif axis < len(source.shape) and source.shape[axis] == dim:
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) <= 1 else None


def _retarget(graph: ir.Graph, node: ir.Node, target: list[int]) -> None:
    node.replace_input_with(1, g.add_ints(graph, target))
    node.attributes.pop("allowzero", None)


def _skip_whole_slice(node: ir.Node) -> None:
    source, output = node.inputs[0], node.outputs[0]
    steps = g.constant(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    forwards = steps is not None and (steps == 1).all()
    if forwards and source is not None and source.shape and source.shape == output.shape:
        g.replace(output, source)


def _skip_inverse_transpose(node: ir.Node) -> None:
    first = g.produced_by(node.inputs[0], "Transpose")
    if first is None:
        return
    inner, outer = g.attribute(first, "perm"), g.attribute(node, "perm")
    if inner and outer and [inner[axis] for axis in outer] == sorted(outer):
        source = first.inputs[0]
        assert source is not None
        g.replace(node.outputs[0], source)


def _skip_reshape(graph: ir.Graph, node: ir.Node) -> None:
    output = node.outputs[0]
    source = node.inputs[0]
    while (first := g.produced_by(source, "Reshape")) is not None:
        source = first.inputs[0]
    if source is None or source.shape is None or output.shape is None:
        return
    if source.shape == output.shape:
        g.replace(output, source)
        return
    if source is not node.inputs[0]:
        target = reshape_target(source, output.shape)
        if target is not None:
            node.replace_input_with(0, source)
            _retarget(graph, node, target)
