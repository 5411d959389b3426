"""The toys as other exporters would have written them, and with the faults that those have made.

Each function rewrites the graph of :func:`tests.toylm.write_toy` with one head of size 1, so that
what it says is known: the oracle's tokens, wherever the graph is right.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper

from tests.toylm import Rule, write_toy

Axes = list[int | str | None]
Rewrite: TypeAlias = Callable[["Rewriting"], None]
KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"
NEW_KEY, NEW_VALUE = "present.0.key", "present.0.value"


class Rewriting:
    """A graph on its way from one form to another."""

    def __init__(self, path: Path) -> None:
        self.path, self.model = path, onnx.load(path)
        self.graph = self.model.graph
        self.before: list[onnx.NodeProto] = []
        self.after: list[onnx.NodeProto] = []

    def save(self) -> None:
        nodes = [*self.before, *self.graph.node, *self.after]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        onnx.save(self.model, self.path)

    def const(self, value: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        name = f"constant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def first(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        """A node before all others."""
        self.before.append(helper.make_node(op, inputs, [output], **attributes))

    def last(self, op: str, inputs: list[str], output: str, **attributes: Any) -> None:
        """A node behind all others."""
        self.after.append(helper.make_node(op, inputs, [output], **attributes))

    def free(self, name: str) -> str:
        """Let the nodes call ``name`` otherwise, so that an input or output can have it."""
        inner = f"inner.{name}"
        for node in self.graph.node:
            node.input[:] = [inner if n == name else n for n in node.input]
            node.output[:] = [inner if n == name else n for n in node.output]
        return inner

    def drop(self, name: str) -> onnx.ValueInfoProto:
        """Take an input or output away, and return what it was."""
        for values in (self.graph.input, self.graph.output):
            for value in values:
                if value.name == name:
                    values.remove(value)
                    found: onnx.ValueInfoProto = value
                    return found
        raise KeyError(name)

    def input(self, name: str, kind: int, axes: Axes) -> str:
        self.graph.input.append(helper.make_tensor_value_info(name, kind, axes))
        return name

    def output(self, name: str, kind: int, axes: Axes) -> str:
        self.graph.output.append(helper.make_tensor_value_info(name, kind, axes))
        return name


def cache_tensors(past: str, present: str, order: str = "BHSD") -> Rewrite:
    """Keys and values under other names, ``"past_{}_0"`` and so on, and with other axes."""
    sizes: dict[str, int | str] = {"B": "batch", "H": 1, "S": "past", "D": 1}
    grown = {**sizes, "S": "total"}
    there, back = ["BHSD".index(c) for c in order], [order.index(c) for c in "BHSD"]

    def rewrite(r: Rewriting) -> None:
        for part, (old, new) in {"key": (KEY, NEW_KEY), "value": (VALUE, NEW_VALUE)}.items():
            for name in (old, new):
                r.drop(name)
            inner, made = r.free(old), r.free(new)
            fed = r.input(past.format(part), TensorProto.FLOAT, [sizes[c] for c in order])
            r.first("Transpose", [fed], inner, perm=back)
            said = r.output(present.format(part), TensorProto.FLOAT, [grown[c] for c in order])
            r.last("Transpose", [made], said, perm=there)

    return rewrite


def heads_in_the_batch(r: Rewriting) -> None:
    """Keys [B*H, D, S] and values [B*H, S, D], as optimum wrote bloom until 2024."""
    axes: dict[str, tuple[Axes, list[int], list[int]]] = {
        KEY: (["batch_size x num_heads", 1, "past"], [0, 2, 1], [1, 1, -1]),
        VALUE: (["batch_size x num_heads", "past", 1], [0, 1, 2], [1, -1, 1]),
    }
    for old, new in ((KEY, NEW_KEY), (VALUE, NEW_VALUE)):
        shape, order, flat = axes[old]
        for name in (old, new):
            r.drop(name)
        inner, made = r.free(old), r.free(new)
        r.first("Transpose", [r.input(old, TensorProto.FLOAT, shape)], f"{inner}.t", perm=order)
        r.first("Unsqueeze", [f"{inner}.t", r.const([1])], inner)
        grown: Axes = ["total" if n == "past" else n for n in shape]
        r.last("Reshape", [made, r.const(flat)], r.output(new, TensorProto.FLOAT, grown))


def side_by_side(r: Rewriting) -> None:
    """One tensor [2, B, H, S, D], as onnxruntime's own tools wrote gpt2."""
    _fuse(r, "past_0", "present_0", [2, "batch", 1, "past", 1])
    for i, name in enumerate((KEY, VALUE)):
        r.first("Gather", ["past_0", r.const(i)], f"inner.{name}", axis=0)
    for name in (NEW_KEY, NEW_VALUE):
        r.last("Unsqueeze", [f"inner.{name}", r.const([0])], f"{name}.apart")
    r.last("Concat", [f"{NEW_KEY}.apart", f"{NEW_VALUE}.apart"], "present_0", axis=0)


def one_behind_the_other(r: Rewriting) -> None:
    """One tensor [B, H, S, 2D], as optimum wrote gpt_bigcode."""
    past, present = "past_key_values.0.key_value", "present.0.key_value"
    _fuse(r, past, present, ["batch", 1, "past", 2])
    for i, name in enumerate((KEY, VALUE)):
        r.first("Slice", [past, *(r.const([n]) for n in (i, i + 1, 3))], f"inner.{name}")
    r.last("Concat", [f"inner.{NEW_KEY}", f"inner.{NEW_VALUE}"], present, axis=3)


def _fuse(r: Rewriting, past: str, present: str, axes: Axes) -> None:
    """One cache input and output instead of two."""
    for name in (KEY, VALUE, NEW_KEY, NEW_VALUE):
        r.drop(name)
        r.free(name)
    r.input(past, TensorProto.FLOAT, axes)
    r.output(present, TensorProto.FLOAT, ["total" if n == "past" else n for n in axes])


def narrow_ids(r: Rewriting) -> None:
    """Ids, positions and mask of 32 bits."""
    for name in ("input_ids", "position_ids", "attention_mask"):
        axis = r.drop(name).type.tensor_type.shape.dim[1].dim_param
        inner = r.free(name)
        r.first("Cast", [r.input(name, TensorProto.INT32, ["batch", axis])], inner, to=7)


def without_positions(r: Rewriting) -> None:
    """Positions counted by the graph, as in optimum's exports of before 2024."""
    r.drop("position_ids")
    zero, one = r.const(0), r.const(1)
    r.first("Shape", [KEY], "past_shape")
    r.first("Gather", ["past_shape", r.const(2)], "past_length", axis=0)
    r.first("Shape", ["attention_mask"], "mask_shape")
    r.first("Gather", ["mask_shape", one], "total_length", axis=0)
    r.first("Range", ["past_length", "total_length", one], "counted")
    r.first("Unsqueeze", ["counted", zero], r.free("position_ids"))


def chooses_rows(r: Rewriting) -> None:
    """``num_logits_to_keep``, as in transformers.js' newer models; the graph obeys it."""
    r.input("num_logits_to_keep", TensorProto.INT64, [])
    r.last("Neg", ["num_logits_to_keep"], "kept")
    r.last("Unsqueeze", ["kept", r.const([0])], "first")
    ends = [r.const([2**40]), r.const([1])]
    r.last("Slice", [r.free("logits"), "first", *ends], "logits")


def merged(r: Rewriting) -> None:
    """One graph with and without a past; the one with a past says nothing right without one."""
    branches = {}
    for branch, past_ends in (("else_branch", "none"), ("then_branch", "never")):
        b = Rewriting(r.path)
        for name in (KEY, VALUE):
            b.first("Slice", [name, "none", past_ends, "axis"], b.free(name))
        b.first("Shape", [KEY], "held", start=2, end=3)
        b.first("Min", ["held", "once"], "has_past")
        b.first("Cast", ["once" if past_ends == "none" else "has_past"], "factor", to=1)
        b.last("Mul", [b.free("logits"), "factor"], "logits")
        body = [*b.before, *b.graph.node, *b.after]
        branches[branch] = helper.make_graph(body, branch, [], list(b.graph.output))
    for name, number in (("none", 0), ("never", 2**40), ("axis", 2), ("once", 1)):
        r.graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    del r.graph.node[:]
    r.input("use_cache_branch", TensorProto.BOOL, [1])
    names = [value.name for value in r.graph.output]
    r.last("If", ["use_cache_branch"], names[0], **branches)
    r.after[0].output[:] = names


def hides_nothing(r: Rewriting) -> None:
    """FAULT: a token sees those behind it; right for one token at a time."""
    keys = next(node for node in r.graph.node if node.op_type == "CumSum")
    total = helper.make_node("ReduceSum", [keys.input[0], r.const([2])], ["sum_of_all"])
    spread = helper.make_node("Expand", ["sum_of_all", "shape_of_keys"], [keys.output[0]])
    shape = helper.make_node("Shape", [keys.input[0]], ["shape_of_keys"])
    at = list(r.graph.node).index(keys)
    r.graph.node.remove(keys)
    for i, node in enumerate((shape, total, spread)):
        r.graph.node.insert(at + i, node)


def one_position_for_all(r: Rewriting) -> None:
    """FAULT: all new tokens stand where the first does."""
    r.first("ReduceMin", ["position_ids"], r.free("position_ids"), axes=[1], keepdims=1)


def last_row_only(r: Rewriting) -> None:
    """FAULT: scores of the last token alone, whatever the shape says."""
    ends = [r.const([n]) for n in (-1, 2**40, 1)]
    r.last("Slice", [r.free("logits"), *ends], "logits")


def last_row_declared(r: Rewriting) -> None:
    """FAULT: scores of the last token alone, and the shape says so."""
    last_row_only(r)
    logits = next(value for value in r.graph.output if value.name == "logits")
    logits.type.tensor_type.shape.dim[1].dim_value = 1


def rows_mix(r: Rewriting) -> None:
    """FAULT: a little of all rows in each, as where they share a scale."""
    inner = r.free("logits")
    r.last("ReduceMean", [inner], "mean_row", axes=[1])
    r.last("Mul", ["mean_row", r.const(0.05, np.float32)], "some_of_it")
    r.last("Add", [inner, "some_of_it"], "logits")


def takes_one_token(r: Rewriting) -> None:
    """FAULT: breaks on two tokens, though its shapes allow any number."""
    r.first("Reshape", ["input_ids", r.const([1, 1])], r.free("input_ids"))


def write_as(path: Path, rule: Rule, *rewrites: Rewrite) -> Path:
    """The toy of ``rule``, rewritten."""
    write_toy(path, rule)
    for rewrite in rewrites:
        r = Rewriting(path)
        rewrite(r)
        r.save()
    return path
