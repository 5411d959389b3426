"""Small helpers to read, edit and run pieces of an onnx-ir graph."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from edgespec.threads import pool_is_shared

MICROSOFT = "com.microsoft"
OPSETS = {"": 20, MICROSOFT: 1}
IR_VERSION = 10
"""What a trace speaks; a cache layout may need an older or a newer one."""


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """The array that ``value`` always holds, or None if it depends on an input."""
    if value is None or value.const_value is None:
        return None
    return value.const_value.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """The one number that ``value`` always holds, or None."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The plain value of an attribute; ``default`` where the node has none of that name."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def produced_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that makes ``value``, if it is an ``op_type``."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def add_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Register ``array`` as an initializer called ``name``, or give the one that has the name."""
    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.tensor(array, name=name)
    return add_tensor(graph, name, tensor)


def add_tensor(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Register ``tensor``, which may be one that is computed later, as a new initializer."""
    value = ir.Value(
        name=name,
        const_value=tensor,
        shape=ir.Shape(tensor.shape),  # type: ignore[arg-type]  # a protocol of the same class
        type=ir.TensorType(tensor.dtype),
    )
    graph.register_initializer(value)
    return value


def add_ints(graph: ir.Graph, numbers: Sequence[int]) -> ir.Value:
    """An int64 [len(numbers)] initializer, one for all places that need the same numbers."""
    name = "ints_" + "_".join(str(n) for n in numbers)
    return add_constant(graph, name, np.array(numbers, np.int64))


def add_number(graph: ir.Graph, number: float) -> ir.Value:
    """A float32 [] initializer, one for all places that need the same number."""
    return add_constant(graph, f"number_{number!r}", np.array(number, np.float32))


def insert_before(
    anchor: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    domain: str = "",
    shape: ir.Shape | None = None,
    dtype: ir.DataType | None = None,
    **attributes: Any,
) -> ir.Value:
    """Put a node with one output before ``anchor`` and give that output.

    ``dtype`` is that of the first input unless it is said.
    """
    node = ir.node(op_type, inputs, attributes, domain=domain)
    output = node.outputs[0]
    output.shape = shape
    set_dtype(output, dtype or (inputs[0].dtype if inputs[0] is not None else None))
    graph = anchor.graph
    assert graph is not None
    graph.insert_before(anchor, node)
    return output


def set_dtype(value: ir.Value, dtype: ir.DataType | None) -> None:
    """Say what a value's elements are, where that is known."""
    if dtype is not None:
        value.dtype = dtype


def replace(old: ir.Value, new: ir.Value) -> None:
    """Let everything that reads ``old`` read ``new``; the old producer becomes dead code."""
    new.shape = new.shape or old.shape
    set_dtype(new, new.dtype or old.dtype)
    if old.is_graph_output():
        old.name, new.name = f"{old.name}_replaced", old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def remove_dead_nodes(graph: ir.Graph) -> None:
    """Remove nodes and initializers that nothing reads, in one pass from the end."""
    for node in reversed(graph):
        if all(not out.uses() and not out.is_graph_output() for out in node.outputs):
            graph.remove(node, safe=True)
    for name in [n for n, value in graph.initializers.items() if not value.uses()]:
        if not graph.initializers[name].is_graph_output():
            del graph.initializers[name]


def run(
    nodes: Iterable[ir.Node], feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
) -> list[NDArray[Any]]:
    """Compute ``outputs`` from ``feeds`` by running ``nodes`` alone in ONNX Runtime.

    Args:
        nodes: In an order in which they can be run.
        feeds: An array for each value that the nodes read and none of them makes.
        outputs: Names of the values that are wanted.
    """
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "part",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = not pool_is_shared()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(list(outputs), dict(feeds))  # type: ignore[no-any-return]
