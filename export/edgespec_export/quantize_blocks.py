"""Weights as small integers with a scale, and perhaps a minimum, for each block of inputs.

A block is ``block_size`` neighbours along the input axis of one output. Its weights are

    w = minimum + scale * code            affine, code in 0 .. 2^bits - 1
    w = scale * (code - 2^(bits - 1))     symmetric

Checkpoints that were quantised once already (a GGUF file, AWQ, GPTQ) lie on such a grid: it is
found and kept, as a second rounding would cost more than the first.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]

ON_GRID = 0.1
"""How far from a grid, in steps, a weight may lie: rounding to bfloat16 moves some that far.

Of 32 weights on no grid, all lie that near to one with a chance of 0.2^30.
"""
SHRINKS = (1.0, 0.9, 0.8)
"""Spans that a search starts from, relative to the block's own: few weights reach the ends."""
REFITS = 3
"""Times that codes and line are fitted to each other in turn."""
SAMPLE = 512
"""Blocks that tell whether a weight lies on a grid."""
CHUNK = 4096
"""Blocks at a time, so that they stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight [N, K] in blocks; B = K / block size.

    Attributes:
        codes: uint8 [N, B, block size], one code a byte.
        scales: [N, B], float16 where that loses nothing, else float32.
        minima: As ``scales``, what code 0 means; None where blocks are symmetric.
        bits: 4 or 8.
        on_grid: The part of the blocks that the source's own grid was found for.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[Any]
    minima: NDArray[Any] | None
    bits: int
    on_grid: float = 0.0

    def weights(self) -> Weights:
        """The weights that the blocks stand for: float32 [N, K]."""
        scales = self.scales.astype(np.float32)[..., None]
        if self.minima is None:
            zero = np.float32(2 ** (self.bits - 1))
            found = (self.codes.astype(np.float32) - zero) * scales
        else:
            found = self.codes * scales + self.minima.astype(np.float32)[..., None]
        return found.reshape(len(found), -1)

    def packed(self) -> NDArray[np.uint8]:
        """Codes as MatMulNBits reads them, [N, B, bytes of a block]: the first in the low half."""
        if self.bits == 8:
            return self.codes
        return self.codes[..., 0::2] | self.codes[..., 1::2] << np.uint8(4)


def symmetric(weights: Weights, bits: int, block_size: int) -> Blocks:
    """Round to the nearest of evenly spaced levels around zero.

    With 8 bits the largest weight of a block becomes 127 steps, which is how a GGUF Q8_0 block
    was made, so its grid is found again. With 4 bits it becomes -8, as in Q4_0.
    """
    blocks = weights.reshape(len(weights), -1, block_size)
    half = 2 ** (bits - 1)
    if bits == 8:
        scales = np.abs(blocks).max(-1) / np.float32(half - 1)
    else:
        largest = np.abs(blocks).argmax(-1)[..., None]
        scales = np.take_along_axis(blocks, largest, -1)[..., 0] / np.float32(-half)
    stored = _in_half_if(scales, always=True)
    steps = blocks / _no_zero(stored)[..., None]
    codes = np.clip(np.rint(steps) + half, 0, 2 * half - 1).astype(np.uint8)
    return Blocks(codes, stored, None, bits)


def affine(weights: Weights, block_size: int) -> Blocks:
    """Sixteen levels a block: the source's own where it has them, else the nearest line.

    The line is fitted by least squares to the codes and the codes to the line, in turn, from
    several starts.
    """
    shape = (len(weights), -1, block_size)
    flat = weights.reshape(-1, block_size)
    lines = _Lines.empty(flat.shape)
    for start in range(0, len(flat), CHUNK):
        part = lines.rows(slice(start, start + CHUNK))
        find_grid(flat[start : start + CHUNK], part)
        rest = np.flatnonzero(~part.found)
        if len(rest):
            fitted = _fit(flat[start + rest])
            part.codes[rest], part.scales[rest], part.minima[rest] = fitted
    centred = lines.centre()
    as_half = lines.take_halves(flat) or not lines.are_exact(flat)
    return Blocks(
        lines.codes.reshape(shape),
        _in_half_if(lines.scales.reshape(shape[:2]), always=as_half),
        None if centred else _in_half_if(lines.minima.reshape(shape[:2]), always=as_half),
        4,
        float(lines.found.mean()),
    )


def part_on_grid(weights: Weights, block_size: int) -> float:
    """The part of the blocks, a sample spread over the weight, that a 16-level grid holds."""
    flat = weights.reshape(-1, block_size)
    sample = flat[:: max(1, len(flat) // SAMPLE)]
    lines = _Lines.empty(sample.shape)
    find_grid(sample, lines)
    return float(lines.found.mean())


@dataclass(frozen=True, slots=True)
class _Lines:
    """What is known of n blocks of b weights; the arrays are filled in place.

    Attributes:
        codes: [n, b].
        scales: [n].
        minima: [n].
        found: [n], whether a block lies on a grid.
    """

    codes: NDArray[np.uint8]
    scales: Weights
    minima: Weights
    found: NDArray[np.bool_]

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> "_Lines":
        return cls(
            np.zeros(shape, np.uint8),
            np.zeros(shape[0], np.float32),
            np.zeros(shape[0], np.float32),
            np.zeros(shape[0], np.bool_),
        )

    def rows(self, part: slice) -> "_Lines":
        """A view of some blocks."""
        return _Lines(self.codes[part], self.scales[part], self.minima[part], self.found[part])

    def centre(self) -> bool:
        """Let code 8 stand for zero, as in a GGUF Q4_0 block, if all blocks can have it so."""
        shift = np.rint(self.minima / _no_zero(self.scales)) + 8
        off = np.abs(self.minima - self.scales * (shift - 8))
        fits = self.found & (off <= np.abs(self.scales) * np.float32(2**-10))
        if not (fits & (shift >= 0) & (shift + self.codes.max(-1) <= 15)).all():
            return False
        self.codes[:] += shift.astype(np.uint8)[:, None]
        self.minima[:] = self.scales * np.float32(-8)
        return True

    def take_halves(self, flat: Weights) -> bool:
        """Round scales and minima to float16 if blocks on a grid keep their weights by it.

        A GGUF block holds them so; a scale computed from the weights is off by a rounding.
        """
        halves = _Lines(self.codes, _rounded(self.scales), _rounded(self.minima), self.found)
        if not halves.are_exact(flat):
            return False
        self.scales[:], self.minima[:] = halves.scales, halves.minima
        return True

    def are_exact(self, flat: Weights) -> bool:
        """Whether blocks on a grid give their weights to float32's rounding."""
        for start in range(0, len(flat), CHUNK):
            some, blocks = self.rows(slice(start, start + CHUNK)), flat[start : start + CHUNK]
            error = np.abs(some.codes * some.scales[:, None] + some.minima[:, None] - blocks)
            bound = np.abs(blocks).max(-1) * np.float32(2**-21)
            if (some.found & (error.max(-1) > bound)).any():
                return False
        return bool(self.found.any())


def find_grid(blocks: Weights, lines: _Lines) -> None:
    """Fill ``lines`` for those of ``blocks`` [n, b] that lie on a 16-level grid.

    A block need not use all levels: every number of steps from its least to its greatest weight
    is tried, most first.
    """
    least = lines.minima[:] = blocks.min(-1)
    spans = blocks.max(-1) - least
    lines.found[:] = spans == 0
    lines.scales[lines.found] = -least[lines.found] / np.float32(8)  # one value: code 0
    for steps in range(15, 0, -1):
        rows = np.flatnonzero(~lines.found)
        if not len(rows):
            return
        scale = spans[rows] / np.float32(steps)
        places = (blocks[rows] - least[rows, None]) / scale[:, None]
        nearest = np.rint(places)
        fits = np.abs(places - nearest).max(-1) < ON_GRID
        rows = rows[fits]
        lines.codes[rows], lines.scales[rows] = nearest[fits], scale[fits]
        lines.found[rows] = True


def _fit(blocks: Weights) -> tuple[NDArray[np.uint8], Weights, Weights]:
    """Codes, scale and minimum of least squared error, of those that the starts lead to."""
    least, greatest = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    middle = (least + greatest) / 2
    best = np.full((len(blocks), 1), np.inf, np.float32)
    codes = np.zeros(blocks.shape, np.float32)
    scales, minima = np.zeros_like(least), np.zeros_like(least)
    for shrink in SHRINKS:
        low = middle + (least - middle) * np.float32(shrink)
        scale = (greatest - least) * np.float32(shrink / 15)
        for _ in range(REFITS):
            scale, low = _line(blocks, _nearest(blocks, scale, low), scale)
        scale, low = _rounded(scale), _rounded(low)
        nearest = _nearest(blocks, scale, low)
        error = np.square(nearest * scale + low - blocks).sum(-1, keepdims=True)
        better = error < best
        best = np.where(better, error, best)
        codes = np.where(better, nearest, codes)
        scales, minima = np.where(better, scale, scales), np.where(better, low, minima)
    return codes.astype(np.uint8), scales[:, 0], minima[:, 0]


def _nearest(blocks: Weights, scale: Weights, low: Weights) -> Weights:
    codes: Weights = np.clip(np.rint((blocks - low) / _no_zero(scale)), 0, 15)
    return codes


def _line(blocks: Weights, codes: Weights, scale: Weights) -> tuple[Weights, Weights]:
    """Scale and minimum of least squared error for given codes."""
    mean_code, mean = codes.mean(-1, keepdims=True), blocks.mean(-1, keepdims=True)
    off = codes - mean_code
    spread = np.square(off).sum(-1, keepdims=True)
    slope = (off * (blocks - mean)).sum(-1, keepdims=True) / _no_zero(spread)
    slope = np.where(spread > 0, slope, scale)
    return slope, mean - slope * mean_code


def _in_half_if(numbers: Weights, *, always: bool) -> NDArray[Any]:
    """As float16 where that is exact or ``always``, unless a number is out of float16's range."""
    if np.abs(numbers).max(initial=0) > np.finfo(np.float16).max:
        return numbers
    half = numbers.astype(np.float16)
    return half if always or np.array_equal(half.astype(np.float32), numbers) else numbers


def _rounded(numbers: Weights) -> Weights:
    """To float16 and back, where it holds them."""
    with np.errstate(over="ignore"):
        half = numbers.astype(np.float16).astype(np.float32)
    return np.where(np.isfinite(half), half, numbers)


def _no_zero(numbers: NDArray[Any]) -> Weights:
    """The numbers as float32, to divide by: 1 in place of 0."""
    wide = numbers.astype(np.float32)
    return np.where(wide == 0, np.float32(1), wide)
