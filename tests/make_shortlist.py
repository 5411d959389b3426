"""Writes ``edgespec/shortlist/*.onnx``, the graphs that pick the best scores of a row.

    python tests/make_shortlist.py

They are a few hundred bytes each and lie in the repository, as the runtime does without onnx.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from edgespec.shortlist import GRAPHS

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def shortlist(kind: int) -> onnx.ModelProto:
    """The ``k`` [1] best of the first ``limit`` [1] scores of each row of ``logits`` [1, N, V]."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Slice", ["logits", "start", "limit", "axis"], ["known"]),
        helper.make_node("Cast", ["known"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("TopK", ["floats", "k"], ["scores", "ids"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shortlist",
        [
            info("logits", kind, [1, "rows", "vocabulary"]),
            info("limit", TensorProto.INT64, [1]),
            info("k", TensorProto.INT64, [1]),
        ],
        [
            info("scores", TensorProto.FLOAT, [1, "rows", "kept"]),
            info("ids", TensorProto.INT64, [1, "rows", "kept"]),
        ],
        [
            helper.make_tensor("start", TensorProto.INT64, [1], [0]),
            helper.make_tensor("axis", TensorProto.INT64, [1], [2]),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="edgespec")


if __name__ == "__main__":
    for name, kind in KINDS.items():
        path = Path(GRAPHS) / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        onnx.save(shortlist(kind), path)
