"""Finds rotary position embeddings by what they compute, and lets the attention do them.

Families write rotary embeddings in many ways: halves or pairs, part of a head or all of it, with
frequencies scaled for long texts. So nothing is matched by its form. The piece of graph between
the attention's query and the value that it was made from is run on probes, once for each kind;
the probes give the cosines and sines, and a random input tells whether they say it all. What
isn't such a rotation, or depends on how long the text is, stays as it was traced.
"""

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgespec_export import graph as g

# Operators that move or combine numbers: what a rotary embedding may consist of.
LINEAR = frozenset(
    (
        *("Add", "Sub", "Mul", "Neg", "Where", "Cast", "Identity", "Concat", "Split", "Slice"),
        *("Gather", "ScatterElements", "ScatterND", "Tile", "Expand"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
    )
)
POSITIONS_A_PROBE = 1024
TOLERANCE = 1e-5
ROTATED_UNIT = 16
"""GroupQueryAttention rotates this many numbers of a head, or a multiple of it."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin [max_length, R/2] by which the first R numbers of a head are turned."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]
    interleaved: bool

    def same(self, other: "Rotation") -> bool:
        """Whether both turn alike."""
        return (
            self.interleaved == other.interleaved
            and np.array_equal(self.cos, other.cos)
            and np.array_equal(self.sin, other.sin)
        )


@dataclass(frozen=True, slots=True)
class _Region:
    """The nodes between ``source`` and ``output`` and all that they need from positions."""

    source: ir.Value
    output: ir.Value
    nodes: tuple[ir.Node, ...]


def fuse_rotary(graph: ir.Graph, max_length: int) -> None:
    """Let GroupQueryAttention rotate queries and keys, wherever that is what the graph does."""
    positions = next((value for value in graph.inputs if value.name == "position_ids"), None)
    if positions is None:
        return
    order = {node: index for index, node in enumerate(graph)}
    from_positions = _computed_from_positions(graph)
    seen: dict[str, Rotation | None] = {}
    constant_names: dict[ir.Value, str] = {}
    for node in list(graph):
        if node.op_type != "GroupQueryAttention":
            continue
        regions = [_find_region(v, order, from_positions) for v in _heads_before(node)]
        rotations = []
        for region in regions:
            if region is None:
                break
            key = _signature(region, constant_names)
            if key not in seen:
                seen[key] = _probe(graph, region, max_length)
            rotations.append(seen[key])
        query, key_rotation = (*rotations, None, None)[:2]
        if query is None or key_rotation is None or not query.same(key_rotation):
            continue
        _rotate_inside(graph, node, [r for r in regions if r is not None], query, positions)
    g.remove_dead_nodes(graph)


def _heads_before(attention: ir.Node) -> list[ir.Value]:
    """Query and key [B, H, S, D] before the layout turned them into rows."""
    heads = []
    for value in attention.inputs[:2]:
        rows = g.produced_by(value, "Reshape")
        turned = g.produced_by(rows.inputs[0], "Transpose") if rows else None
        if turned is not None and turned.inputs[0] is not None:
            heads.append(turned.inputs[0])
    return heads if len(heads) == 2 else []


def _computed_from_positions(graph: ir.Graph) -> set[ir.Value]:
    """Values that depend on positions, sizes and constants alone, never on the text."""
    known = {value for value in graph.inputs if value.name == "position_ids"}
    for node in graph:
        inputs = [v for v in node.inputs if v is not None and v.const_value is None]
        from_sizes = node.op_type == "Shape" and all(v.is_graph_input() for v in inputs)
        if from_sizes or all(value in known for value in inputs):
            known.update(node.outputs)
    return known


def _find_region(
    output: ir.Value, order: dict[ir.Node, int], from_positions: set[ir.Value]
) -> _Region | None:
    """Walk back from ``output`` to the nearest single value it is made of with positions."""
    frontier: list[tuple[int, int, ir.Value]] = []
    waiting: set[ir.Value] = set()
    nodes: set[ir.Node] = set()
    uses_positions = False
    value = output
    while True:
        producer = value.producer()
        if uses_positions and not frontier:
            return _Region(value, output, _with_tables(nodes, order, value))
        if producer is None or producer.op_type not in LINEAR or producer not in order:
            return None
        nodes.add(producer)
        for source in producer.inputs:
            if source is None or source.const_value is not None:
                continue
            if source in from_positions:
                uses_positions = True
            elif source not in waiting:
                above = source.producer()
                if above is None or above not in order:
                    return None
                waiting.add(source)
                # Latest first; two outputs of one node are told apart by when they were found.
                heapq.heappush(frontier, (-order[above], len(waiting), source))
        if not frontier:
            return None
        value = heapq.heappop(frontier)[2]


def _with_tables(
    nodes: set[ir.Node], order: dict[ir.Node, int], source: ir.Value
) -> tuple[ir.Node, ...]:
    """Add the nodes that make cosines and sines from positions, in running order."""
    needed = set(nodes)
    stack = list(nodes)
    while stack:
        for value in stack.pop().inputs:
            producer = value.producer() if value is not None and value is not source else None
            if producer is not None and producer not in needed:
                needed.add(producer)
                stack.append(producer)
    return tuple(sorted(needed, key=order.__getitem__))


def _signature(region: _Region, known: dict[ir.Value, str]) -> str:
    """A name that regions share which compute the same thing in different layers.

    ``known`` keeps the names of values that no region's source leads to, across regions.
    """
    source = region.source
    names = {source: f"source {source.shape}"}
    inside = {out for node in region.nodes for out in node.outputs}
    for node in region.nodes:
        for value in node.inputs:
            if value is not None and value not in inside and value not in names:
                names[value] = known.setdefault(value, _constant_name(value))
        inputs = ",".join("" if v is None else names[v] for v in node.inputs)
        held = sorted((key, str(a.value)) for key, a in node.attributes.items())
        text = f"{node.op_type}({inputs}){held}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        names.update({out: f"{digest}.{index}" for index, out in enumerate(node.outputs)})
    return names[region.output]


def _constant_name(value: ir.Value) -> str:
    array = g.constant(value)
    if array is None:
        return str(value.name)
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"


def _probe(graph: ir.Graph, region: _Region, max_length: int) -> Rotation | None:
    """Run a region on probes; give the rotation that it is, or None."""
    shape = region.source.shape
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        return None
    size = shape[3]
    rng = np.random.default_rng(0)
    sizes = _sizes(region, size, rng)
    for interleaved in (False, True):
        for rotated in sizes:
            parts = [
                _probe_positions(region, positions, rotated, interleaved, rng)
                for positions in _chunks(max_length)
            ]
            if any(part is None for part in parts):
                continue
            found = [part for part in parts if part is not None]
            cos, sin = (np.concatenate([p[i] for p in found]) for i in (0, 1))
            if _depends_on_length(region, cos, rotated, interleaved, rng):
                return None
            return Rotation(cos, sin, interleaved)
    return None


def _sizes(region: _Region, size: int, rng: np.random.Generator) -> list[int]:
    """The whole head, and the part of it that positions change."""
    x = rng.standard_normal((1, size)).astype(np.float32)
    before, after = _apply(region, x, np.arange(8, 40, dtype=np.int64))
    changed = np.flatnonzero((before[:, None] != after).any(axis=(0, 1, 2)))
    part = int(changed[-1]) + 1 if changed.size else 0
    return [n for n in dict.fromkeys((part, size)) if n and n % ROTATED_UNIT == 0]


def _probe_positions(
    region: _Region,
    positions: NDArray[np.int64],
    rotated: int,
    interleaved: bool,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Cos and sin at ``positions``, if turning by them is all that the region does."""
    size = int(region.source.shape[3])  # type: ignore[index, arg-type]
    half = rotated // 2
    first = np.arange(0, rotated, 2) if interleaved else np.arange(half)
    second = first + (1 if interleaved else half)
    probe = np.zeros(size, np.float32)
    probe[first] = 1.0
    x = np.stack([probe, rng.standard_normal(size).astype(np.float32)])
    before, after = _apply(region, x, positions)
    cos, sin = after[0, 0][:, first], after[0, 0][:, second]
    expected = before[1].copy()
    a, b = before[1][:, first], before[1][:, second]
    expected[:, first] = a * cos - b * sin
    expected[:, second] = b * cos + a * sin
    if not np.abs(expected - after[1]).max() < TOLERANCE:
        return None
    return np.ascontiguousarray(cos), np.ascontiguousarray(sin)


def _apply(
    region: _Region, x: NDArray[np.float32], positions: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Give each head vectors ``x`` [N, D] at ``positions`` [S]; [N, S, D] in, [N, H, S, D] out."""
    shape = region.source.shape
    assert shape is not None
    axis = 1 if isinstance(shape[1], int) else 2
    heads = shape[axis]
    assert isinstance(heads, int)
    count, size = x.shape
    before = np.broadcast_to(x[:, None], (count, len(positions), size)).astype(np.float32)
    source = np.repeat(np.expand_dims(before, axis), heads, axis=axis)
    ids = np.repeat(positions[None], count, axis=0)
    feeds: dict[str, NDArray[Any]] = {str(region.source.name): np.ascontiguousarray(source)}
    made = {out for node in region.nodes for out in node.outputs}
    for node in region.nodes:
        for value in node.inputs:
            if value is None or value in made or value is region.source:
                continue
            array = g.constant(value)
            # What is no constant here is position_ids, or input_ids read for its size.
            feeds[str(value.name)] = ids if array is None else array
    (after,) = g.run(region.nodes, feeds, [str(region.output.name)])
    return before, after


def _chunks(max_length: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, max_length, POSITIONS_A_PROBE):
        yield np.arange(start, min(start + POSITIONS_A_PROBE, max_length), dtype=np.int64)


def _depends_on_length(
    region: _Region,
    cos: NDArray[np.float32],
    rotated: int,
    interleaved: bool,
    rng: np.random.Generator,
) -> bool:
    """Whether a position turns otherwise when read alone: its frequencies follow the length."""
    for position in (0, len(cos) // 2, len(cos) - 1):
        alone = _probe_positions(region, np.array([position]), rotated, interleaved, rng)
        if alone is None or not np.allclose(alone[0][0], cos[position], atol=TOLERANCE):
            return True
    return False


def _rotate_inside(
    graph: ir.Graph,
    node: ir.Node,
    regions: list[_Region],
    rotation: Rotation,
    positions: ir.Value,
) -> None:
    for index, region in enumerate(regions):
        source = region.source
        assert source.shape is not None
        if not isinstance(source.shape[1], int):
            source = g.insert_before(
                node, "Transpose", [source], perm=[0, 2, 1, 3], shape=region.output.shape
            )
        rows = g.produced_by(node.inputs[index], "Reshape")
        turned = g.produced_by(rows.inputs[0], "Transpose") if rows else None
        assert turned is not None
        turned.replace_input_with(0, source)
    digest = hashlib.sha256(rotation.cos.tobytes() + rotation.sin.tobytes()).hexdigest()[:8]
    tables = [
        g.add_constant(graph, f"{name}_cache_{digest}", table)
        for name, table in (("cos", rotation.cos), ("sin", rotation.sin))
    ]
    node.resize_inputs(max(10, len(node.inputs)))
    for index, value in zip((7, 8, 9), (*tables, positions), strict=True):
        node.replace_input_with(index, value)
    node.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
    node.attributes["rotary_interleaved"] = ir.AttrInt64(
        "rotary_interleaved", int(rotation.interleaved)
    )
