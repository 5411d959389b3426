"""A quantised graph computes what its weights stand for, and holds a tied embedding once."""

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from edgespec_export import graph as g
from edgespec_export.precision import choose
from edgespec_export.quantize import quantize
from numpy.typing import NDArray

from edgespec.threads import pool_is_shared
from tests.export.test_quantize_blocks import half

pytestmark = pytest.mark.export

V, K, N = 96, 64, 160
TOKENS = np.array([[5, 9, 77, 3, 41]])


def on_grid(rows: int, columns: int, bits: int) -> NDArray[np.float32]:
    """Random weights [rows, columns] as a GGUF Q4_1 or Q8_0 tensor gives them back."""
    rng = np.random.default_rng(rows + columns)
    blocks = (rows, columns // 32, 32)
    scale = half(rng.uniform(0.01, 0.02, (*blocks[:2], 1)))
    if bits == 8:
        codes = rng.integers(-127, 127, blocks).astype(np.float32)
        codes[..., 0] = 127
        return (codes * scale / np.float32(8)).reshape(rows, columns)
    codes = rng.integers(0, 16, blocks).astype(np.float32)
    codes[..., :2] = 0, 15
    return (codes * scale + half(rng.uniform(-0.2, 0, scale.shape))).reshape(rows, columns)


def tiny_model(*, tied: bool = True, turned: bool = True) -> ir.Model:
    """Embedding, a gated layer with a residual sum, and a head, as an export leaves them."""
    ids = ir.Value(
        name="input_ids", shape=ir.Shape(["b", "s"]), type=ir.TensorType(ir.DataType.INT64)
    )
    graph = ir.Graph([ids], [], nodes=[], opset_imports=dict(g.OPSETS), name="tiny")

    def weight(name: str, array: NDArray[np.float32]) -> ir.Value:
        return g.add_constant(graph, name, array)

    def add(op: str, inputs: list[ir.Value], width: int, **attributes: Any) -> ir.Value:
        domain = g.MICROSOFT if op == "FusedMatMul" else ""
        node = ir.node(op, inputs, attributes, domain=domain)
        graph.append(node)
        output = node.outputs[0]
        output.shape, output.dtype = ir.Shape(["b", "s", width]), ir.DataType.FLOAT
        return output

    table = weight("lm_head.weight", on_grid(V, K, 8))
    hidden = add("Gather", [table, ids], K)
    shapes = {"gate": (N, K), "up": (N, K), "down": (K, N)}
    arrays = {
        f"layers.0.mlp.{name}_proj.weight.T": on_grid(*shape, 4).T.copy()
        for name, shape in shapes.items()
    }
    gate, up, down = (weight(name, array) for name, array in arrays.items())
    gated = add("Mul", [add("MatMul", [hidden, gate], N), add("MatMul", [hidden, up], N)], N)
    hidden = add("Add", [hidden, add("MatMul", [gated, down], K)], K)
    if tied:
        logits = add("FusedMatMul", [hidden, table], V, transB=1)
    else:
        logits = add("MatMul", [hidden, weight("head.weight.T", on_grid(V, K, 8).T.copy())], V)
    logits.name = "logits"
    graph.outputs.append(logits)
    return ir.Model(graph, ir_version=g.IR_VERSION)


def run(model: ir.Model, tokens: Any = TOKENS) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = not pool_is_shared()
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    found: NDArray[np.float32] = session.run(["logits"], {"input_ids": np.asarray(tokens)})[0]
    return found


def quantised(name: str, *, tied: bool = True, **settings: Any) -> ir.Model:
    model = tiny_model(tied=tied)
    quantize(model.graph, choose(name, **settings), num_layers=1)
    return model


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_weights_on_a_grid_compute_as_before(tied: bool) -> None:
    expected = run(tiny_model(tied=tied))
    got = run(quantised("int4", tied=tied, accuracy_level=0))
    assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_all_block_sizes_stay_near(name: str, block_size: int) -> None:
    """160 inputs are five blocks of 32: larger ones do not divide them and are not used there."""
    expected = run(tiny_model())
    got = run(quantised(name, block_size=block_size))
    off = np.abs(got - expected).max() / np.abs(expected).max()
    assert off < (0.02 if name == "int8" or block_size <= 32 else 0.2)


@pytest.mark.parametrize("int8_layers", ["auto", "none"])
def test_a_tied_embedding_is_stored_once(int8_layers: str) -> None:
    graph = quantised("int4", int8_layers=int8_layers).graph
    big = [v for v in graph.initializers.values() if v.const_value and v.const_value.nbytes >= 3072]
    tables = [v for v in big if str(v.name).startswith("lm_head")]
    assert [v.name for v in tables] == ["lm_head.qweight"]
    readers = Counter(node.op_type for node in tables[0].consumers())
    assert readers == {"GatherBlockQuantized": 1, "MatMulNBits": 1}
    bits = 8 if int8_layers == "auto" else 4
    assert [n.attributes["bits"].as_int() for n in tables[0].consumers()] == [bits, bits]


def test_the_embedding_of_four_bits_is_the_heads_own_weight() -> None:
    """Looked up and multiplied with the same integers: equal to a float graph of these weights."""
    model = tiny_model()
    table = model.graph.initializers["lm_head.weight"]
    from edgespec_export.quantize_blocks import affine

    array = g.constant(table)
    assert array is not None
    rounded = affine(array, 32).weights()
    assert np.abs(rounded - array).max() > 1e-3
    table.const_value = ir.tensor(rounded, name="lm_head.weight")
    got = run(quantised("int4", int8_layers="none", accuracy_level=0))
    assert np.abs(got - run(model)).max() < 1e-5 * np.abs(got).max()


def test_products_of_one_activation_are_joined_and_share_its_block_sums() -> None:
    counts = Counter(node.op_type for node in quantised("int4").graph)
    assert counts["MatMulNBits"] == 3  # gate and up, down, head
    assert (counts["Split"], counts["ReduceSum"]) == (1, 2)
    assert counts["FusedMatMul"] == 0


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_row_does_not_depend_on_the_others(name: str) -> None:
    model = quantised(name)
    whole = run(model)
    np.testing.assert_array_equal(run(model, TOKENS[:, :2]), whole[:, :2])
    np.testing.assert_array_equal(run(model, TOKENS[:, 2:]), whole[:, 2:])


def test_what_a_source_of_four_bits_holds_finer_keeps_eight() -> None:
    model = tiny_model()
    down = model.graph.initializers["layers.0.mlp.down_proj.weight.T"]
    array = np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)
    down.const_value = ir.tensor(array, name=down.name)
    quantize(model.graph, choose("int4"), num_layers=1)
    bits = {
        str(n.inputs[1].name): n.attributes["bits"].as_int()  # type: ignore[union-attr]
        for n in model.graph
        if n.op_type == "MatMulNBits"
    }
    assert list(bits.values()) == [4, 8, 8]


def test_a_wrong_zero_point_shows() -> None:
    expected = run(tiny_model())
    model = quantised("int4")
    for name, value in model.graph.initializers.items():
        if name.endswith("down_proj.minima"):
            shifted = np.asarray(g.constant(value)) + np.float16(0.015)
            value.const_value = ir.tensor(shifted.astype(np.float16), name=name)
    off = np.abs(run(model) - expected).max() / np.abs(expected).max()
    assert off > 0.05


def test_a_weight_that_no_block_divides_is_left_alone() -> None:
    model = tiny_model()
    odd = model.graph.initializers["layers.0.mlp.down_proj.weight.T"]
    assert odd.const_value is not None
    up = [n for n in model.graph if n.op_type == "MatMul"][-1]
    narrow = g.add_constant(model.graph, "odd.weight.T", np.ones((K - 7, K), np.float32))
    activation = g.insert_before(
        up,
        "Slice",
        [up.inputs[0], *(g.add_ints(model.graph, [i]) for i in (0, K - 7, 2))],
        shape=ir.Shape(["b", "s", K - 7]),
    )
    up.replace_input_with(0, activation)
    up.replace_input_with(1, narrow)
    quantize(model.graph, choose("int4"), num_layers=1)
    assert [n.inputs[1].name for n in model.graph if n.op_type == "MatMul"].count(narrow.name) == 1  # type: ignore[union-attr]
    assert np.isfinite(run(model)).all()
