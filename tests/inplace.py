"""A decoder with random weights around ``GroupQueryAttention``, and the same in NumPy.

Its graph reads and writes one buffer a tensor, as those of edgespec's exporter and of
onnxruntime-genai's builder do.
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


def write_in_place(path: Path, w: Weights, *, int4: bool = False) -> Path:
    """Write the graph, its matrices in four bits if asked."""
    g = Graph()
    held = {name: g.const(value, np.float32) for name, value in w.items()}

    def product(rows: str, name: str) -> str:
        return _int4_product(g, rows, w[name]) if int4 else g.add("MatMul", rows, held[name])

    one = g.const([1])
    mask_sum = g.add("ReduceSum", "attention_mask", one, keepdims=0)
    seqlens = _int32(g, g.add("Sub", mask_sum, one))
    total = g.add("Gather", g.add("Shape", "attention_mask"), g.const(1), axis=0)
    total = _int32(g, total)
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
        g.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*rows, *past, seqlens, total],
                [f"mixed{layer}", *present],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
            )
        )
        hidden = g.add("Add", hidden, product(f"mixed{layer}", f"o{layer}"))
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
    save(path, g, inputs, outputs)
    return path


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
