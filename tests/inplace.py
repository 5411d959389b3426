"""A decoder with random weights whose cache is one buffer a tensor, and the same in NumPy.

In the layout ``in_place`` around ``GroupQueryAttention``, as edgespec's exporter and
onnxruntime-genai's builder write it, or ``static`` around ``TensorScatter`` and ``Attention``.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.toylm import Graph, save

V, WIDTH, HEADS, KV_HEADS, D, LAYERS, POSITIONS = 64, 16, 4, 2, 8, 2, 600
"""Vocabulary, hidden size, query and key/value heads, head size, layers, longest text."""

Weights = dict[str, NDArray[np.float32]]


def weights(seed: int = 0) -> Weights:
    """The same random numbers for the graph and for NumPy."""
    rng = np.random.default_rng(seed)
    shapes = {"tokens": (V, WIDTH), "positions": (POSITIONS, WIDTH), "head": (WIDTH, V)}
    for layer in range(LAYERS):
        shapes |= {
            f"q{layer}": (WIDTH, HEADS * D),
            f"k{layer}": (WIDTH, KV_HEADS * D),
            f"v{layer}": (WIDTH, KV_HEADS * D),
            f"o{layer}": (HEADS * D, WIDTH),
        }
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def reference(tokens: list[int], w: Weights) -> NDArray[np.float64]:
    """[T, V] logits of one full pass, without a cache."""
    count = len(tokens)
    hidden = (w["tokens"][tokens] + w["positions"][:count]).astype(np.float64)  # [T, WIDTH]
    later = np.triu(np.ones((count, count), bool), 1)
    for layer in range(LAYERS):
        q = (hidden @ w[f"q{layer}"]).reshape(count, HEADS, D)
        k, v = (
            np.repeat((hidden @ w[f"{n}{layer}"]).reshape(count, KV_HEADS, D), HEADS // KV_HEADS, 1)
            for n in "kv"
        )
        scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(D)
        scores[:, later] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hst,thd->shd", shares, v).reshape(count, HEADS * D)
        hidden = hidden + mixed @ w[f"o{layer}"]
    logits: NDArray[np.float64] = hidden @ w["head"]
    return logits


def write_in_place(path: Path, w: Weights, *, int4: bool = False, layout: str = "in_place") -> Path:
    """Write the graph, its matrices in four bits if asked."""
    attend = {"in_place": _group_query_attention, "static": _static_attention}[layout]
    g = Graph()
    held = {name: g.const(value, np.float32) for name, value in w.items()}

    def product(rows: str, name: str) -> str:
        return _int4_product(g, rows, w[name]) if int4 else g.add("MatMul", rows, held[name])

    hidden = g.add(
        "Add",
        g.add("Gather", held["tokens"], "input_ids", axis=0),
        g.add("Gather", held["positions"], "position_ids", axis=0),
    )
    caches = []
    for layer in range(LAYERS):
        rows = [product(hidden, f"{n}{layer}") for n in "qkv"]
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        caches += [past, present]
        mixed = attend(g, rows, past, present)
        hidden = g.add("Add", hidden, product(mixed, f"o{layer}"))
    g.add("Identity", product(hidden, "head"), to="logits")
    info = helper.make_tensor_value_info
    buffer: list[int | str | None] = ["batch", KV_HEADS, "max_sequence", D]
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        info("position_ids", TensorProto.INT64, ["batch", "sequence"]),
        *(info(name, TensorProto.FLOAT, buffer) for names in caches[::2] for name in names),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, ["batch", "sequence", V]),
        *(info(name, TensorProto.FLOAT, buffer) for names in caches[1::2] for name in names),
    ]
    opset, ir_version = (24, 11) if layout == "static" else (17, 8)
    save(path, g, inputs, outputs, opset=opset, ir_version=ir_version)
    return path


def _group_query_attention(g: Graph, rows: list[str], past: list[str], present: list[str]) -> str:
    one = g.const([1])
    mask_sum = g.add("ReduceSum", "attention_mask", one, keepdims=0)
    seqlens = _int32(g, g.add("Sub", mask_sum, one))
    total = _int32(g, g.add("Gather", g.add("Shape", "attention_mask"), g.const(1), axis=0))
    mixed = f"mixed_{len(g.nodes)}"
    g.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [*rows, *past, seqlens, total],
            [mixed, *present],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
        )
    )
    return mixed


def _static_attention(g: Graph, rows: list[str], past: list[str], present: list[str]) -> str:
    after = g.add("ReduceSum", "attention_mask", g.const([1]), keepdims=0)
    new = g.add("Gather", g.add("Shape", "input_ids"), g.const([1]), axis=0)
    before = g.add("Sub", after, new)
    heads = [
        g.add("Transpose", g.add("Reshape", r, g.const([0, 0, -1, D])), perm=[0, 2, 1, 3])
        for r in rows
    ]
    for fresh, old, held in zip(heads[1:], past, present, strict=True):
        g.add("TensorScatter", old, fresh, before, to=held, axis=2, mode="linear")
    mixed = g.add("Attention", heads[0], *present, "", "", "", after, is_causal=1)
    turned = g.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return g.add("Reshape", turned, g.const([0, 0, -1]))


_BLOCK = 16
"""Numbers of a column that share a scale."""


def _int4_product(g: Graph, rows: str, weight: NDArray[np.float32]) -> str:
    """``rows`` times ``weight`` [K, N], held in four bits."""
    size, columns = weight.shape
    blocks = weight.T.reshape(columns, size // _BLOCK, _BLOCK)
    scales = np.abs(blocks).max(axis=2) / 7
    levels = (np.round(blocks / scales[:, :, None]) + 8).astype(np.uint8)
    packed = levels[:, :, ::2] | levels[:, :, 1::2] << 4
    name = f"MatMulNBits_{len(g.nodes)}"
    held = [g.const(packed, np.uint8), g.const(scales, np.float32)]
    shape = {"K": size, "N": columns, "bits": 4, "block_size": _BLOCK, "accuracy_level": 4}
    g.nodes.append(
        helper.make_node("MatMulNBits", [rows, *held], [name], domain="com.microsoft", **shape)
    )
    return name


def _int32(g: Graph, value: str) -> str:
    name = f"Cast_{len(g.nodes)}"
    g.nodes.append(helper.make_node("Cast", [value], [name], to=TensorProto.INT32))
    return name
