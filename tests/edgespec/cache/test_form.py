from pathlib import Path

import numpy as np
import pytest

from edgespec.cache.form import cache_shape
from edgespec.errors import GraphMismatchError
from edgespec.session import Slot


def slots(*named: tuple[str, tuple[int | str | None, ...]]) -> dict[str, Slot]:
    return {name: Slot(name, shape, np.dtype(np.float16)) for name, shape in named}


NAMES = [f"{layer}.{part}" for layer in range(11) for part in ("key", "value")]
PASTS = [(f"past_key_values.{name}", (1, 2, "past", 8)) for name in NAMES]
PRESENTS = [(f"present.{name}", (1, 2, "all", 8)) for name in NAMES]


def test_layers_come_in_the_order_of_their_numbers() -> None:
    shape = cache_shape("m.onnx", slots(*PASTS), slots(*PRESENTS))
    assert shape.pairs[:2] == (
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.0.value", "present.0.value"),
    )
    assert shape.pairs[-1] == ("past_key_values.10.value", "present.10.value")
    assert (shape.num_heads, shape.head_size, shape.dtype.name) == (2, 8, "float16")


def test_a_position_takes_the_bytes_of_all_layers() -> None:
    assert (
        cache_shape("m.onnx", slots(*PASTS), slots(*PRESENTS)).bytes_per_position == 22 * 2 * 8 * 2
    )


def test_a_head_size_that_the_graph_leaves_open_comes_from_elsewhere() -> None:
    past = ("past_key_values.0.key", (1, 2, "past", "size"))
    present = ("present.0.key", (1, 2, "all", "size"))
    assert cache_shape("m.onnx", slots(past), slots(present), 64).head_size == 64


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        (
            [("input_ids", (1, 1))],
            [],
            "m.onnx has no input 'past_key_values.0.key' [1, H, S, D]; "
            "export it with a cache: edgespec export MODEL",
        ),
        (
            PASTS,
            PRESENTS[1:],
            "m.onnx has no output 'present.0.key'; export the model again",
        ),
        (
            [("past_key_values.0.key", (1, "heads", "past", 8))],
            PRESENTS,
            "m.onnx has the input 'past_key_values.0.key' of shape [1, 'heads', 'past', 8], "
            "expected [batch, H, S, D] with H and D fixed; export the model again",
        ),
        (
            [("past_key_values.0.key", (2, 1, 8))],
            PRESENTS,
            "m.onnx has the input 'past_key_values.0.key' of shape [2, 1, 8], "
            "expected [batch, H, S, D] with H and D fixed; export the model again",
        ),
    ],
    ids=["no past", "no present", "heads left open", "three axes"],
)
def test_a_graph_whose_past_cannot_be_held_is_refused(
    inputs: list[tuple[str, tuple[int | str | None, ...]]],
    outputs: list[tuple[str, tuple[int | str | None, ...]]],
    said: str,
) -> None:
    with pytest.raises(GraphMismatchError) as raised:
        cache_shape(Path("m.onnx"), slots(*inputs), slots(*outputs))
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("past", "present", "order"),
    [
        (("batch", "past", "n", 8), ("batch", "total", "n", 8), "[B, S, H, D]"),
        (("batch", "n", "past_length", 8), ("a", "b", "c", 8), "[B, H, S, D]"),
        (("batch", "n", "?", 8), ("a", "b", "c", 8), "[B, H, S, D]"),
        (("batch", "n", 8, "past"), ("batch", "n", 8, "total"), "[B, H, D, S]"),
        (("batch", "past", 16), ("batch", "total", 16), "[B, S, 2D]"),
        ((2, "batch", "n", "past", 8), (2, "batch", "n", "total", 8), "[2, B, H, S, D]"),
    ],
    ids=["what grows", "what is named so", "the usual place", "the last", "one head", "both"],
)
def test_positions_are_what_grows_and_then_what_is_named_so(
    past: tuple[int | str | None, ...], present: tuple[int | str | None, ...], order: str
) -> None:
    part = "key_value" if "2" in order else "key"
    inputs, outputs = slots((f"past_0_{part}", past)), slots((f"present_0_{part}", present))
    shape = cache_shape("m.onnx", inputs, outputs, 8, 3)
    assert shape.in_words == order
    assert (shape.num_heads, shape.head_size) == (1 if order == "[B, S, 2D]" else 3, 8)
