"""A weight's own grid is found bit for bit; off a grid, the nearest line is."""

from typing import Any

import numpy as np
import pytest
from edgespec_export.quantize_blocks import Blocks, affine, part_on_grid, symmetric
from numpy.typing import NDArray

ROWS, BLOCKS, SIZE = 48, 6, 32


def half(numbers: Any) -> NDArray[np.float32]:
    return np.asarray(numbers).astype(np.float16).astype(np.float32)


def planted(kind: str) -> NDArray[np.float32]:
    """Weights [N, K] as a file of that kind gives them back."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (ROWS, BLOCKS, SIZE)).astype(np.float32)
    scale = half(rng.uniform(0.01, 0.02, (ROWS, BLOCKS, 1)))
    if kind == "Q4_0":
        codes[..., 0] = 0  # the largest weight is -8 steps
        found = (codes - 8) * scale
    elif kind == "Q4_1":
        codes[..., :2] = 0, 15
        found = codes * scale + half(rng.uniform(-0.2, 0.0, scale.shape))
    elif kind == "Q4_K":
        parts = rng.integers(1, 64, (2, *scale.shape)).astype(np.float32)
        found = codes * (scale * parts[0]) - scale * parts[1]
    else:
        found = (rng.integers(-127, 127, codes.shape) * scale).astype(np.float32)
        found[..., 5] = 127 * scale[..., 0]
    return found.reshape(ROWS, -1).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "scales", "minima"),
    [("Q4_0", "float16", None), ("Q4_1", "float16", "float16"), ("Q4_K", "float32", "float32")],
)
def test_a_sixteen_level_grid_is_found(kind: str, scales: str, minima: str | None) -> None:
    weights = planted(kind)
    blocks = affine(weights, SIZE)
    assert blocks.on_grid == part_on_grid(weights, SIZE) == 1.0
    assert blocks.scales.dtype == scales
    assert (blocks.minima is None) == (minima is None)
    assert blocks.minima is None or blocks.minima.dtype == minima
    tolerance = 0 if scales == "float16" else np.abs(weights).max() * 2**-21
    assert np.abs(blocks.weights() - weights).max() <= tolerance


def test_a_grid_of_eight_bits_is_found() -> None:
    weights = planted("Q8_0")
    np.testing.assert_array_equal(symmetric(weights, 8, SIZE).weights(), weights)


def test_a_grid_rounded_to_bfloat16_is_still_found() -> None:
    weights = planted("Q4_1")
    rounded = ((weights.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    assert part_on_grid(rounded, SIZE) > 0.95


def test_weights_on_no_grid_are_not_taken_for_it() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 320)).astype(np.float32)
    assert part_on_grid(weights, SIZE) == affine(weights, SIZE).on_grid == 0.0


def test_a_fitted_line_is_nearer_than_rounding() -> None:
    weights = np.random.default_rng(0).standard_normal((256, 320)).astype(np.float32)
    least = weights.reshape(-1, SIZE).min(-1, keepdims=True)
    step = (weights.reshape(-1, SIZE).max(-1, keepdims=True) - least) / 15
    rounded = np.rint((weights.reshape(-1, SIZE) - least) / step) * step + least
    ours, theirs = (
        np.square(found.reshape(weights.shape) - weights).mean()
        for found in (affine(weights, SIZE).weights(), rounded)
    )
    assert ours < 0.9 * theirs


@pytest.mark.parametrize("value", [0.0, 0.25, -0.25])
def test_a_block_of_one_value_stays_it(value: float) -> None:
    weights = np.full((2, 64), value, np.float32)
    np.testing.assert_array_equal(affine(weights, SIZE).weights(), weights)
    assert np.abs(symmetric(weights, 8, SIZE).weights() - weights).max() < 1e-3


def test_a_scale_above_what_float16_holds_stays_float32() -> None:
    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32) * 1e8
    for blocks in (affine(weights, SIZE), symmetric(weights, 8, SIZE)):
        assert np.isfinite(blocks.weights()).all()
        assert blocks.scales.dtype == np.float32


def test_codes_are_packed_low_half_first() -> None:
    codes = np.arange(16, dtype=np.uint8).reshape(1, 1, 16)
    packed = Blocks(codes, np.ones((1, 1)), None, 4).packed()
    assert packed.tolist() == [[[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]]
