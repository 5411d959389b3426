"""How a graph's cache lies: what its tensors are called and in which order their axes come.

edgespec's exporter and optimum write ``past_key_values.N.key`` [B, H, S, D]. Others name them
otherwise, put the positions first or last, or keep keys and values in one tensor.
"""

import re
from collections.abc import Mapping

from edgespec.cache.base import CacheShape, CacheTensor
from edgespec.errors import GraphMismatchError
from edgespec.session import Slot

_NAME = re.compile(
    r"^(?P<side>past|present)(?:_key_values?)?(?:[._]self)?(?:[._](?P<before>key|value))?"
    r"[._](?P<layer>\d+)(?:[._](?P<behind>key_value|key|value))?$"
)
_PARTS = ("key", "value", "key_value")
_FUSED = _PARTS.index("key_value")


def cache_shape(
    path: object,
    inputs: Mapping[str, Slot],
    outputs: Mapping[str, Slot],
    head_size: int | None = None,
    num_heads: int | None = None,
) -> CacheShape:
    """Read the cache off a graph's inputs and outputs.

    Args:
        path: The graph's file, for messages.
        inputs: The graph's inputs by name.
        outputs: The graph's outputs by name.
        head_size: D where the graph leaves it open and a configuration file says it.
        num_heads: H likewise.

    Raises:
        GraphMismatchError: If there is no cache, or it is not one that this package can hold.
    """
    pasts, presents = _sorted(inputs, "past"), _sorted(outputs, "present")
    if not pasts:
        raise GraphMismatchError(
            f"{path} has no input 'past_key_values.0.key' [1, H, S, D]; "
            "export it with a cache: edgespec export MODEL"
        )
    tensors = []
    for key, past in pasts.items():
        if key not in presents:
            wanted = past.name.replace("past_key_values", "present").replace("past", "present")
            raise GraphMismatchError(f"{path} has no output {wanted!r}; export the model again")
        order = _order(past, presents[key], fused=key[1] == _FUSED)
        sizes = {"B": 1, "S": 0, "H": num_heads, "B*H": num_heads, "D": head_size, "2": 2}
        axes = [
            sizes.get(letter) if letter in "BS" or not isinstance(size, int) else size
            for letter, size in zip(order, past.shape, strict=False)
        ]
        known = tuple(size for size in axes if size is not None)
        if not order or len(known) < len(order):
            raise GraphMismatchError(
                f"{path} has the input {past.name!r} of shape {list(past.shape)}, "
                "expected [batch, H, S, D] with H and D fixed; export the model again"
            )
        tensors.append(CacheTensor(past.name, presents[key].name, order, known))
    first = tensors[0]
    size_of = dict(zip(first.order, first.axes, strict=True))
    width = size_of["D"] if "D" in size_of else size_of["2D"] // 2
    heads = size_of.get("H") or size_of.get("B*H") or 1
    return CacheShape(tuple(tensors), heads, width, inputs[first.past].dtype)


def _sorted(slots: Mapping[str, Slot], side: str) -> dict[tuple[int, int], Slot]:
    """What holds the past, or the present, by layer and part and in this order."""
    found = {}
    for name, slot in slots.items():
        match = _NAME.match(name)
        if match and match["side"] == side:
            part = match["before"] or match["behind"] or "key_value"
            found[int(match["layer"]), _PARTS.index(part)] = slot
    return dict(sorted(found.items()))


def _order(past: Slot, present: Slot, *, fused: bool) -> tuple[str, ...]:
    """The letters of a tensor's axes, as in ``("B", "H", "S", "D")``; none if they are unclear.

    A graph says which axes are open and gives them names that each exporter chooses. So the
    positions are those that the present has more of; where that leaves a doubt, names decide.
    """
    shape, rank = past.shape, len(past.shape)
    left = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    grown = [i for i in left if len(present.shape) == rank and present.shape[i] != shape[i]]
    named = [i for i in left if re.search("past|seq|len", str(shape[i]))]
    usual = [2] if rank == 4 and 2 in left else []
    positions = next((found[0] for found in (grown, named, usual) if len(found) == 1), None)
    if positions is None or not 3 <= rank <= 5:
        return ()
    letters = {positions: "S"}
    others = [axis for axis in range(rank) if axis != positions]
    batch = next((i for i in others if shape[i] == 1 or (i in left and i < rank - 1)), None)
    if batch is not None and "head" not in str(shape[batch]):
        letters[batch] = "B"
        others.remove(batch)
    elif batch == 0 and "batch" in str(shape[0]):
        letters[0] = "B*H"  # as optimum wrote bloom: one axis for both
        others.remove(0)
    names = {3: ("2", "H", "D"), 2: ("H", "D"), 1: ("D",)}.get(len(others), ())
    if fused and "2" not in names:
        names = (*names[:-1], "2D")
    letters.update(zip(others, names, strict=False))
    return tuple(letters[axis] for axis in range(rank)) if len(letters) == rank else ()
