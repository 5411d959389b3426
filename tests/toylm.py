"""Decoders of a few kilobytes, real ONNX graphs whose every token can be checked by hand.

The toy's next token is an exact function of the whole prefix:

    next[t] = (a * sum(tokens[0..t]) + b * tokens[t] + c) mod V
              + 31 * (position_ids[t] - t) + 37 * (what is wrong with the cache)

Keys hold the token ids and values twice the ids, so a stale, missing, misplaced or half-cropped
entry, a wrong position and a mask of the wrong length all change the text. All arithmetic is of
whole numbers: there are no near-ties, and assisted text must be the plain one to the last token.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True, slots=True)
class Rule:
    """What the toy says next: a, b and c of the formula, or the tokens of a script."""

    a: int = 0
    b: int = 0
    c: int = 0
    script: tuple[int, ...] = ()

    def next(self, tokens: Sequence[int], vocab_size: int) -> int:
        """The token after ``tokens``, without ONNX."""
        if self.script:
            return self.script[len(tokens) % len(self.script)]
        return (self.a * sum(tokens) + self.b * tokens[-1] + self.c) % vocab_size


HASH = Rule(a=5, b=3, c=7)
"""Depends on every token before; hardly ever repeats itself."""
MARKOV = Rule(b=1, c=1)
"""Counts upwards."""


def oracle(
    rule: Rule, prompt: Sequence[int], count: int, vocab_size: int = 64, eos: Collection[int] = ()
) -> list[int]:
    """The ``count`` tokens that follow ``prompt``, fewer if one of ``eos`` comes."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(rule.next(tokens, vocab_size))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


class Graph:
    """Nodes and constants on their way to a model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def const(self, value: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        name = f"const_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, op: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name


def write_toy(
    path: Path,
    rule: Rule,
    vocab_size: int = 64,
    *,
    heads: int = 1,
    rows: int | None = None,
    cache_dtype: str = "float32",
    height: float = 10.0,
    spoilt_after: int | None = None,
    ir_version: int = 8,
) -> Path:
    """Write the toy's graph.

    Args:
        path: The ``.onnx`` file.
        rule: What it says.
        vocab_size: V.
        heads: H; head h holds h + 1 times the ids.
        rows: Tokens of one forward where the graph fixes them.
        cache_dtype: ``"float32"`` or ``"float16"``.
        height: Score of the next token; all others have 0.
        spoilt_after: Logits are NaN once so many tokens are read.
        ir_version: What the file claims to be.
    """
    g = Graph()
    dtype = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[cache_dtype]
    one, rest = g.const(1), g.const([0, 1, -1, 1])
    factors = g.const(np.arange(1, heads + 1).reshape(1, heads, 1, 1))
    ids = g.add("Mul", g.add("Reshape", "input_ids", rest), factors)  # [1, H, N, 1]
    new_keys = _cast(g, ids, dtype)
    new_values = g.add("Add", new_keys, new_keys)
    g.add("Concat", "past_key_values.0.key", new_keys, to="present.0.key", axis=2)
    g.add("Concat", "past_key_values.0.value", new_values, to="present.0.value", axis=2)
    keys = _cast(g, "present.0.key", TensorProto.INT64)
    values = _cast(g, "present.0.value", TensorProto.INT64)
    mask = g.add("Reshape", "attention_mask", rest)  # [1, 1, T, 1]
    keys, values = g.add("Mul", keys, mask), g.add("Mul", values, mask)
    past = g.add("Gather", g.add("Shape", "past_key_values.0.key"), g.const([2]), axis=0)

    def new_rows(running: str, weight: int) -> str:
        """[1, N] sums over the heads, divided by what the heads weigh."""
        new = g.add("Slice", running, past, g.const([2**40]), g.const([2]))
        summed = g.add("ReduceSum", new, g.const([1, 3]), keepdims=0)
        return g.add("Div", summed, g.const(weight))

    axis = g.const(2)
    so_far = new_rows(g.add("CumSum", keys, axis), heads * (heads + 1) // 2)
    wrong = g.add("Abs", g.add("Sub", g.add("Add", keys, keys), values))
    wrong = new_rows(g.add("CumSum", wrong, axis), 1)
    count = new_rows(g.add("CumSum", mask, axis), 1)
    shifted = g.add("Sub", "position_ids", g.add("Sub", count, one))
    if rule.script:
        at = g.add("Mod", count, g.const(len(rule.script)))
        said = g.add("Gather", g.const(rule.script), at, axis=0)
    else:
        said = g.add("Mul", so_far, g.const(rule.a))
        said = g.add("Add", said, g.add("Mul", "input_ids", g.const(rule.b)))
        said = g.add("Add", said, g.const(rule.c))
    said = g.add("Add", said, g.add("Mul", shifted, g.const(31)))
    said = g.add("Add", said, g.add("Mul", wrong, g.const(37)))
    said = g.add("Mod", said, g.const(vocab_size))
    scores = g.add("OneHot", said, g.const(vocab_size), g.const([0.0, height], np.float32), axis=-1)
    if spoilt_after is not None:
        late = g.add("Greater", count, g.const(spoilt_after))  # [1, N]
        late = g.add("Unsqueeze", late, g.const([2]))
        scores = g.add("Where", late, g.const(np.nan, np.float32), scores)
    g.add("Identity", scores, to="logits")
    size = "sequence" if rows is None else rows
    info = helper.make_tensor_value_info
    past_axes: list[int | str | None] = ["batch", heads, "past", 1]
    present_axes: list[int | str | None] = ["batch", heads, "total", 1]
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", size]),
        info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        info("position_ids", TensorProto.INT64, ["batch", size]),
        *(info(f"past_key_values.0.{k}", dtype, past_axes) for k in ("key", "value")),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, ["batch", size, vocab_size]),
        *(info(f"present.0.{k}", dtype, present_axes) for k in ("key", "value")),
    ]
    save(path, g, inputs, outputs, ir_version=ir_version)
    return path


def _cast(g: Graph, value: str, dtype: int) -> str:
    name = f"Cast_{len(g.nodes)}"
    g.nodes.append(helper.make_node("Cast", [value], [name], to=dtype))
    return name


def save(
    path: Path,
    g: Graph,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    *,
    ir_version: int = 8,
    opset: int = 17,
) -> None:
    """Write the graph ``g`` to ``path``."""
    graph = helper.make_graph(g.nodes, "toy", inputs, outputs, g.constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir_version), path)
