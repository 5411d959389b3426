"""Weights of a finished graph as integers: MatMulNBits for products, one copy for a tied embedding.

ONNX Runtime's fast kernel wants zero points that are integers or none. A minimum m that is any
number rides beside it: with w = m + s q, and z the middle code,

    x . w = x . [s (q - z)] + sum(x) [m + s z]      for each block,

which is the kernel without zero points and one small product of the activation's block sums,
computed once for all products that read it. Scales and minima lie in the file as float16 where
that is exact; ONNX Runtime folds the casts when it loads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgespec_export import graph as g
from edgespec_export.precision import Precision
from edgespec_export.quantize_blocks import Blocks, affine, part_on_grid, symmetric

MOSTLY = 0.99
"""The part of a weight's blocks on a grid from which the source counts as quantised to it."""
SMALLEST_BLOCK = 16
"""MatMulNBits knows no smaller blocks; a weight that not even these divide stays as it is."""


def quantize(graph: ir.Graph, precision: Precision, num_layers: int) -> None:
    """Replace the constant products and the embedding of a graph that is fused and named.

    Products of one activation are joined, as gate and up are, and split again behind.
    """
    products = list(_products(graph, precision))
    for head in _heads(graph, products):
        head.bits = precision.bits_of_vocabulary
    _choose_bits(products, precision, num_layers)
    writer = _Writer(graph, precision.accuracy_level)
    for group in _siblings(products):
        writer.multiply(group)
    for node in filter(_is_embedding, list(graph)):
        if size := _block_size(node.inputs[0], precision, 1):
            writer.embed(node, precision.bits_of_vocabulary, size)
    g.remove_dead_nodes(graph)


@dataclass(slots=True, eq=False)
class _Product:
    """An activation times a constant weight.

    Attributes:
        node: MatMul, or FusedMatMul that transposes the weight.
        weight: [N, K] if ``by_rows``, else [K, N].
        by_rows: As an embedding lies that is the head too.
        block_size: As the weight's K allows.
        bits: What its weight is to be stored with; 0 before that was chosen.
    """

    node: ir.Node
    weight: ir.Value
    by_rows: bool
    block_size: int
    bits: int = 0

    @property
    def activation(self) -> ir.Value:
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def width(self) -> int:
        """N."""
        shape = self.weight.const_value.shape.numpy()  # type: ignore[union-attr]
        return shape[0 if self.by_rows else 1]

    def array(self) -> NDArray[np.float32]:
        """The weight as float32 [N, K]."""
        return _rows(self.weight, turned=not self.by_rows)


def _rows(weight: ir.Value, *, turned: bool = False) -> NDArray[np.float32]:
    array = g.constant(weight)
    assert array is not None
    return np.ascontiguousarray(array.T if turned else array, np.float32)


def _products(graph: ir.Graph, precision: Precision) -> Iterator[_Product]:
    for node in graph:
        by_rows = node.op_type == "FusedMatMul" and g.attribute(node, "transB") == 1
        if not by_rows and (node.op_type != "MatMul" or node.domain):
            continue
        weight = node.inputs[1]
        turned = g.produced_by(weight, "Transpose")
        if turned is not None and g.attribute(turned, "perm") == (1, 0):
            # A tied head in a layout of standard operators, which have no FusedMatMul.
            weight, by_rows = turned.inputs[0], True
        size = _block_size(weight, precision, int(by_rows))
        if weight is not None and size:
            yield _Product(node, weight, by_rows, size)


def _block_size(weight: ir.Value | None, precision: Precision, axis: int) -> int:
    """The largest block not above the wanted one that divides a constant matrix; 0 for none."""
    if weight is None or weight.const_value is None or weight.dtype != ir.DataType.FLOAT:
        return 0
    shape = weight.const_value.shape.numpy()
    size = precision.block_size
    while len(shape) == 2 and size >= SMALLEST_BLOCK:
        if shape[axis] % size == 0:
            return size
        size //= 2
    return 0


def _heads(graph: ir.Graph, products: list[_Product]) -> list[_Product]:
    """The product that makes the logits."""
    by_node = {product.node: product for product in products}
    todo = [value for value in graph.outputs if value.name == "logits"]
    while todo:
        node = todo.pop().producer()
        if node in by_node:
            return [by_node[node]]
        if node is not None:
            todo += [value for value in node.inputs if value is not None]
    return []


def _is_embedding(node: ir.Node) -> bool:
    """Whether a node looks tokens up in a constant table."""
    return (
        node.op_type == "Gather"
        and node.inputs[1] is not None
        and node.inputs[1].name == "input_ids"
        and g.attribute(node, "axis", 0) == 0
    )


def _choose_bits(products: list[_Product], precision: Precision, num_layers: int) -> None:
    open_ones = [product for product in products if not product.bits]
    for product in open_ones:
        product.bits = precision.bits_of(str(product.weight.name), num_layers)
    if precision.name != "int4" or precision.int8_layers != "auto":
        return
    kept = [part_on_grid(p.array(), p.block_size) >= MOSTLY for p in open_ones]
    if any(kept):
        # The source was quantised to 4 bits, and what it holds finer is so for a reason.
        for product, on_grid in zip(open_ones, kept, strict=True):
            product.bits = 4 if on_grid else 8


def _siblings(products: list[_Product]) -> list[list[_Product]]:
    """Products that can be one: of the same activation, in blocks of the same kind."""
    groups: dict[tuple[ir.Value, int, int], list[_Product]] = {}
    for product in products:
        key = (product.activation, product.block_size, product.bits)
        groups.setdefault(key, []).append(product)
    return list(groups.values())


class _Writer:
    """Puts quantised nodes into a graph; what several of them need is made once."""

    def __init__(self, graph: ir.Graph, accuracy_level: int) -> None:
        self._graph = graph
        self._accuracy_level = accuracy_level
        # What is computed from weights alone stands here, in the order in which it is made.
        self._first = graph[0]
        self._tables: dict[ir.Value, _Table] = {}
        self._sums: dict[tuple[ir.Value, int], ir.Value] = {}

    def multiply(self, group: list[_Product]) -> None:
        """Put one product in the place of ``group``, whose members read one activation."""
        first = group[0]
        table = self._table(group)
        product = self._product(first.node, first.activation, table)
        parts = [product]
        if len(group) > 1:
            widths = g.add_ints(self._graph, [p.width for p in group])
            split = ir.node("Split", [product, widths], {"axis": -1}, num_outputs=len(group))
            self._graph.insert_before(first.node, split)
            parts = list(split.outputs)
        for member, part in zip(group, parts, strict=True):
            g.replace(member.node.outputs[0], part)

    def embed(self, node: ir.Node, bits: int, block_size: int) -> None:
        """Look tokens up in the very integers that a tied head multiplies with."""
        weight, ids, old = node.inputs[0], node.inputs[1], node.outputs[0]
        assert weight is not None
        assert old.shape is not None
        if weight not in self._tables:
            self._tables[weight] = self._stored(_plain(weight), _rows(weight), bits, block_size)
        table = self._tables[weight]
        *batch, width = old.shape
        shape = ir.Shape([*batch, int(width) // block_size, block_size])  # type: ignore[arg-type]
        last = g.add_ints(self._graph, [-1])
        scales = g.insert_before(self._first, "Unsqueeze", [table.scales, last])
        rows = g.insert_before(
            node,
            "GatherBlockQuantized",
            [table.codes, ids, scales],
            domain=g.MICROSOFT,
            dtype=ir.DataType.FLOAT,
            shape=shape,
            bits=table.blocks.bits,
            block_size=block_size,
            gather_axis=0,
            quantize_axis=2,
        )
        if table.offsets is not None:
            found = g.insert_before(node, "Gather", [table.offsets, ids], axis=0)
            found = g.insert_before(node, "Unsqueeze", [found, last])
            rows = g.insert_before(node, "Add", [rows, found], shape=shape)
        target = g.add_ints(self._graph, [0, 0, int(width)])  # type: ignore[arg-type]
        g.replace(old, g.insert_before(node, "Reshape", [rows, target], shape=old.shape))

    def _table(self, group: list[_Product]) -> "_Table":
        first = group[0]
        if len(group) == 1 and first.weight in self._tables:
            return self._tables[first.weight]
        rows = np.concatenate([p.array() for p in group]) if len(group) > 1 else first.array()
        name = "+".join(_plain(p.weight) for p in group)
        table = self._stored(name, rows, first.bits, first.block_size)
        if len(group) == 1:
            self._tables[first.weight] = table
        return table

    def _stored(self, name: str, rows: NDArray[np.float32], bits: int, block_size: int) -> "_Table":
        blocks = affine(rows, block_size) if bits == 4 else symmetric(rows, bits, block_size)
        codes = g.add_constant(self._graph, f"{name}.qweight", blocks.packed())
        scales = self._wide(g.add_constant(self._graph, f"{name}.scales", blocks.scales))
        if blocks.minima is None:
            return _Table(blocks, codes, scales, None)
        minima = self._wide(g.add_constant(self._graph, f"{name}.minima", blocks.minima))
        middle = g.add_constant(
            self._graph, f"middle_{bits}", np.array(2 ** (bits - 1), np.float32)
        )
        centre = g.insert_before(self._first, "Mul", [scales, middle])
        return _Table(blocks, codes, scales, g.insert_before(self._first, "Add", [minima, centre]))

    def _wide(self, numbers: ir.Value) -> ir.Value:
        if numbers.dtype == ir.DataType.FLOAT:
            return numbers
        return g.insert_before(self._first, "Cast", [numbers], to=1, dtype=ir.DataType.FLOAT)

    def _product(self, anchor: ir.Node, activation: ir.Value, table: "_Table") -> ir.Value:
        rows, count, size = table.blocks.codes.shape
        product = g.insert_before(
            anchor,
            "MatMulNBits",
            [activation, table.codes, table.scales],
            domain=g.MICROSOFT,
            K=count * size,
            N=rows,
            bits=table.blocks.bits,
            block_size=size,
            accuracy_level=self._accuracy_level,
        )
        if table.offsets is None:
            return product
        sums = self._block_sums(anchor, activation, count, size)
        offsets = g.insert_before(self._first, "Transpose", [table.offsets], perm=[1, 0])
        rest = g.insert_before(anchor, "MatMul", [sums, offsets])
        return g.insert_before(anchor, "Add", [product, rest])

    def _block_sums(self, anchor: ir.Node, activation: ir.Value, count: int, size: int) -> ir.Value:
        """[B, S, count] sums of the activation's blocks; the first reader makes them for all."""
        if (activation, size) not in self._sums:
            target = g.add_ints(self._graph, [0, 0, count, size])
            blocks = g.insert_before(anchor, "Reshape", [activation, target])
            last = g.add_ints(self._graph, [-1])
            self._sums[activation, size] = g.insert_before(
                anchor, "ReduceSum", [blocks, last], keepdims=0
            )
        return self._sums[activation, size]


@dataclass(frozen=True, slots=True)
class _Table:
    """A quantised weight as values of the graph.

    Attributes:
        blocks: What it holds.
        codes: [N, B, bytes of a block].
        scales: float32 [N, B].
        offsets: float32 [N, B], what the middle code means; None where that is 0.
    """

    blocks: Blocks
    codes: ir.Value
    scales: ir.Value
    offsets: ir.Value | None


def _plain(weight: ir.Value) -> str:
    """A weight's name as the checkpoint has it."""
    return str(weight.name).removesuffix(".T").removesuffix(".weight")
