"""What a step of a mixture of experts costs: by the experts chosen, or by all there are?

python tests/benchmarks/experts.py
"""

import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HIDDEN, INNER, CHOSEN = 1024, 512, 4
COUNTS = (4, 32)
ROWS = (1, 5, 64)
REPEATS = 9


def layer(experts: int) -> onnxruntime.InferenceSession:
    """One layer of ``experts`` with random weights, of which each row chooses four."""
    rng = np.random.default_rng(0)
    shapes = {"gate_up": (experts, 2 * INNER, HIDDEN), "down": (experts, HIDDEN, INNER)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * 0.02, name)
        for name, shape in shapes.items()
    ]
    node = helper.make_node(
        "MoE",
        ["hidden", "scores", "gate_up", "", "down", ""],
        ["mixed"],
        domain="com.microsoft",
        k=CHOSEN,
        activation_type="swiglu",
        swiglu_fusion=1,
        activation_alpha=1.0,
        activation_beta=0.0,
        normalize_routing_weights=1,
    )
    values = {"hidden": HIDDEN, "scores": experts, "mixed": HIDDEN}
    hidden, scores, mixed = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in values.items()
    )
    graph = helper.make_graph([node], "experts", [hidden, scores], [mixed], weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def main() -> None:
    """Print medians of CPU milliseconds, the counts of experts in turn."""
    sessions = {experts: layer(experts) for experts in COUNTS}
    rng = np.random.default_rng(0)
    for rows in ROWS:
        taken: dict[int, list[float]] = {experts: [] for experts in COUNTS}
        for _ in range(REPEATS):
            for experts, session in sessions.items():
                feeds = {
                    "hidden": rng.standard_normal((rows, HIDDEN)).astype(np.float32),
                    "scores": rng.standard_normal((rows, experts)).astype(np.float32),
                }
                began = time.process_time()
                session.run(None, feeds)
                taken[experts].append(time.process_time() - began)
        shown = [f"{CHOSEN} of {n}: {1e3 * np.median(times):.2f} ms" for n, times in taken.items()]
        print(f"{rows} rows  " + "   ".join(shown))


if __name__ == "__main__":
    main()
