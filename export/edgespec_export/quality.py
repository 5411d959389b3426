"""The gate for graphs that round on purpose: how near they stay to the checkpoint, in figures.

Two things are asked of such a graph. It must compute one function however a text is cut into
calls: compared with itself, two rows and more a call. And it must say nearly what the checkpoint
in float32 says: judged by the mean Kullback-Leibler divergence of the next token's distribution,
by greedy picks and by perplexity.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from edgespec.errors import ParityError
from edgespec_export.cache_layouts.base import CacheShape
from edgespec_export.parity import Reference
from edgespec_export.written import Written

TEXT = """The lighthouse stood at the end of a narrow spit of land, and for most of the year \
nobody walked out to it. In winter the waves broke over the path, and the keeper had to wait for \
the ebb before he could fetch bread and lamp oil from the village. He kept a diary in which he \
noted the wind, the ships that passed and the colour of the sky at dusk. When the lamp was \
replaced by an electric one, the council asked him to stay for another year, because the old \
machinery still had to be wound by hand. He agreed, on the condition that his daughter could visit \
in the summer. She was studying mathematics in the city and brought books that he did not \
understand, but he liked to listen when she explained them. Light, she said, travels so fast that \
the beam of the lamp reaches the horizon before one can blink. He answered that it had always \
seemed slow to him, since he had spent forty years waiting for somebody to see it."""
"""Ordinary English for divergence and perplexity, written for this."""
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "My favourite way to spend a rainy afternoon is",
)
POSITIONS = 192
GREEDY_TOKENS = 32
CUTS = ((7, 5), (2, 10), (5, 2, 3, 2))
"""Ways to read twelve tokens; none has a single row, whose kernel sums in another order."""
KL_LIMITS = {"fp16": 0.01, "int8": 0.02, "int4": 0.4}
"""Largest mean divergence, in nats, that an export of each precision may have.

int4's refuses what is broken, not what is poor, which the printed figures show: tiny random
weights, with nothing to spare, lose 0.2 and SmolLM2-135M 0.003, while the planted faults of
tests/export/test_quality.py, a wrong zero point and a wrong scale, cost more than 2.
"""
SELF_TOLERANCE = 1e-4
"""Largest difference of a logit between two ways to read a text, relative to the largest logit."""

Encode = Callable[[str], list[int]]
Array = NDArray[Any]


def texts(encode: Encode, max_length: int) -> tuple[list[int], list[list[int]]]:
    """Tokens of the text, and of the prompts with room for what follows them."""
    room = max(1, max_length - GREEDY_TOKENS)
    return encode(TEXT)[: min(POSITIONS + 1, max_length)], [encode(p)[:room] for p in PROMPTS]


def check(
    path: Path,
    reference: PreTrainedModel,
    cache: CacheShape,
    *,
    layout: str = "in_place",
    precision: str,
    encode: Encode,
    max_length: int,
    truth: Reference | None = None,
    given: Mapping[str, Array] | None = None,
) -> dict[str, Any]:
    """Judge the graph at ``path`` by ``reference`` in float32 and give what was measured.

    Args:
        path: ``model.onnx`` as written.
        reference: The checkpoint's own model.
        cache: Shape of the graph's cache.
        layout: The layout of that cache.
        precision: One of ``KL_LIMITS``.
        encode: Text to token ids.
        max_length: Longest text in tokens.
        truth: How ``reference`` is read, if it takes more than tokens.
        given: Further inputs of the graph, the same in every run.

    Returns:
        ``kl``, ``kl_limit``, ``perplexity`` and ``perplexity_fp32``, ``positions``,
        ``greedy_equal`` of ``greedy_tokens``, and ``max_abs_diff`` between ways of reading.

    Raises:
        ParityError: If the graph is not one function, or too far from the checkpoint.
    """
    truth = truth or Reference(reference)
    tokens, prompts = texts(encode, max_length)
    dtype = np.float16 if precision == "fp16" else np.float32
    positions = min(max_length, 512)
    written = Written(path, cache, positions, layout=layout, dtype=dtype, given=given)
    differences = _check_cuts(written, tokens[:12], precision)
    written.length = 0
    got, expected = written.read(tokens), truth.logits(tokens)
    kl = divergence(expected, got)
    equal, count = 0, 0
    for prompt in prompts:
        picks, right = _greedy(written, truth, prompt, max_length)
        equal, count = equal + int((picks == right).sum()), count + len(picks)
    if not kl <= KL_LIMITS[precision]:
        raise ParityError(
            f"the {precision} graph's mean divergence from the checkpoint is {kl:.3g} nats over "
            f"{len(tokens)} positions, at most {KL_LIMITS[precision]:g} is allowed "
            f"({equal} of {count} greedy picks are equal); choose a finer precision, or keep the "
            "result all the same with --no-check"
        )
    return {
        "kl": kl,
        "kl_limit": KL_LIMITS[precision],
        "positions": len(tokens),
        "perplexity": perplexity(got, tokens),
        "perplexity_fp32": perplexity(expected, tokens),
        "greedy_equal": equal,
        "greedy_tokens": count,
        "max_abs_diff": differences,
    }


def divergence(expected: Array, got: Array) -> float:
    """Mean over positions of KL(expected || got), in nats, of logits [S, V]; NaN if either has."""
    p, q = _log_softmax(expected), _log_softmax(got)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def perplexity(logits: Array, tokens: Sequence[int]) -> float:
    """Of ``tokens`` [T] under logits [T, V], the first token left out."""
    chosen = _log_softmax(logits)[np.arange(len(tokens) - 1), np.asarray(tokens[1:])]
    return math.exp(min(700.0, -float(chosen.mean())))


def _log_softmax(logits: Array) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    found: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return found


def _check_cuts(written: Written, tokens: list[int], precision: str) -> dict[str, float]:
    """Read tokens at once, in pieces, and again after others were read and rewound."""
    written.length = 0
    whole = written.read(tokens)
    if not np.isfinite(whole).all():
        raise ParityError(
            f"the {precision} graph gives logits that are not numbers; export it with fp32"
        )
    differences = {}
    for cut in CUTS:
        if sum(cut) != len(tokens):
            continue
        written.length = 0
        rows = [written.read(tokens[written.length : written.length + size]) for size in cut]
        name = "+".join(map(str, cut))
        differences[name] = _same(name, np.concatenate(rows), whole)
    written.length = 0
    written.read([*tokens[:2], *tokens[:10]][: len(tokens)])
    written.length = 2
    differences["rewind"] = _same("rewind to 2", written.read(tokens[2:]), whole[2:])
    written.length = 0
    kept = written.read(tokens, keep=2)
    differences["keep 2"] = _same("num_logits_to_keep 2", kept, whole[-2:])
    return differences


def _same(case: str, got: Array, expected: Array) -> float:
    if got.shape != expected.shape:
        raise ParityError(f"{case}: expected logits {expected.shape}, got {got.shape}")
    limit = SELF_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(got - expected).max())
    if not difference <= limit:
        raise ParityError(
            f"{case}: read in pieces, the graph's logits differ by {difference:.3g} from those of "
            f"the same tokens read at once, at most {limit:.3g} is rounding"
        )
    return difference


def _greedy(
    written: Written, truth: Reference, prompt: list[int], max_length: int
) -> tuple[Array, Array]:
    """The graph's own greedy text, and what the checkpoint picks at each place of it."""
    text = list(prompt)
    written.length = 0
    picks = [int(written.read(text, keep=1)[-1].argmax())]
    for _ in range(min(GREEDY_TOKENS, max_length - len(prompt)) - 1):
        text.append(picks[-1])
        picks.append(int(written.read(text[-1:], keep=1)[-1].argmax()))
    right = truth.logits(text)[len(prompt) - 1 :].argmax(-1)
    return np.array(picks), right
