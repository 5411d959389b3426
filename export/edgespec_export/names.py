"""Names in a graph that a reader knows from the checkpoint and from other exporters."""

import onnx_ir as ir

INPUT_ORDER = ("input_ids", "attention_mask", "position_ids", "num_logits_to_keep")
TRACED_PREFIX = "model."
"""The name under which the traced wrapper holds the model."""


def name_plainly(graph: ir.Graph) -> None:
    """Give weights the checkpoint's names, axes their meaning, and inputs their usual order."""
    axes = {}
    for value in graph.inputs:
        if value.name == "input_ids" and value.shape is not None:
            axes = {str(value.shape[0]): "batch_size", str(value.shape[1]): "sequence_length"}
    outputs = [value for node in graph for value in node.outputs]
    for value in [*graph.inputs, *outputs]:
        if value.shape is not None:
            dims = [d if isinstance(d, int) else axes.get(str(d), str(d)) for d in value.shape]
            value.shape = ir.Shape(dims)
    for value in list(graph.initializers.values()):
        if str(value.name).startswith(TRACED_PREFIX):
            del graph.initializers[str(value.name)]
            value.name = str(value.name).removeprefix(TRACED_PREFIX)
            if value.const_value is not None:
                value.const_value.name = value.name
            graph.register_initializer(value)
    _forget_the_trace(graph)
    past = [value for value in graph.inputs if value.name not in INPUT_ORDER]
    first = sorted(
        (v for v in graph.inputs if v.name in INPUT_ORDER),
        key=lambda v: INPUT_ORDER.index(str(v.name)),
    )
    graph.inputs[:] = [*first, *past]


def _forget_the_trace(graph: ir.Graph) -> None:
    """Drop the exporter's notes: stack traces with the paths of the machine that exported."""
    outputs = [value for node in graph for value in node.outputs]
    noted = [graph, *graph, *graph.inputs, *outputs, *graph.initializers.values()]
    for item in noted:
        item.metadata_props.clear()
        item.doc_string = None
