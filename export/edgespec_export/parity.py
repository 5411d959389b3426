"""The gate: a written graph must compute what the checkpoint computes, or there is no folder.

Checked are the files themselves, with the cache bound as the runtime binds it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from edgespec.errors import ParityError
from edgespec_export.cache_layouts.base import CacheShape
from edgespec_export.written import Array, Written

CASES = ((0, 12), (1, 11), (7, 5), (11, 1))
"""(P, S): P tokens are read first, then S more in one call."""
GREEDY_TOKENS = 32
PROMPT_TOKENS = 4
RELATIVE_TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the largest logit or to 1 if that is smaller.

Two correct float32 programs differ by the order of their sums. SmolLM2-135M, with logits of
size 30, differs by 8e-5; random weights with logits below 1 by 3e-7.
"""
LONGEST_WINDOW = 1024
"""Attention windows up to this size are outgrown once, longer ones would take too long."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The checkpoint, read in one pass without a cache."""

    model: PreTrainedModel

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[T, V] for T tokens."""
        with torch.no_grad():
            output = self.model(torch.tensor([list(tokens)]), use_cache=False)
        array: NDArray[np.float32] = output.logits[0].float().numpy()
        return array


def check(
    path: Path,
    reference: PreTrainedModel,
    cache: CacheShape,
    *,
    layout: str = "in_place",
    max_length: int,
    windows: Sequence[int] = (),
    truth: Reference | None = None,
    given: Mapping[str, Array] | None = None,
) -> dict[str, Any]:
    """Compare the graph at ``path`` with ``reference`` and give what was measured.

    Args:
        path: ``model.onnx`` as written.
        reference: The checkpoint's own model, in float32.
        cache: Shape of the graph's cache.
        layout: Where the graph keeps it; layouts for batches are checked with two texts as well.
        max_length: Longest text in tokens.
        windows: Sizes of the layers' attention windows, if they have any.
        truth: How ``reference`` is read, if it takes more than tokens.
        given: Further inputs of the graph, the same in every run.

    Returns:
        Largest differences by case, and how many greedy picks were equal.

    Raises:
        ParityError: Naming the first step that differs.
    """
    truth = truth or Reference(reference)
    rng = np.random.default_rng(0)
    head = reference.get_output_embeddings()  # type: ignore[no-untyped-call]
    vocab_size = head.weight.shape[0]
    cases = [
        *CASES,
        *((w + 1, 11) for w in windows if w <= LONGEST_WINDOW and w + 12 <= max_length),
    ]
    longest = max([GREEDY_TOKENS + PROMPT_TOKENS, *(past + new for past, new in cases)])
    positions = min(longest, max_length)
    written = Written(path, cache, positions, layout=layout, given=given)
    tokens = rng.integers(0, vocab_size, longest).tolist()

    differences = {}
    for past, new in cases:
        written.length = 0
        name = f"past {past}, new {new}"
        expected = truth.logits(tokens[: past + new])
        rows = [written.read(tokens[:past])] if past else []
        rows.append(written.read(tokens[past : past + new]))
        differences[name] = _compare(name, np.concatenate(rows), expected)
    differences["rewind"] = _check_rewind(written, truth, tokens, vocab_size)
    _check_kept_rows(written, truth, tokens)
    if layout in BATCH_CHECKS:
        pair = Written(path, cache, positions, layout=layout, texts=2)
        differences["two texts"] = BATCH_CHECKS[layout](pair, truth, tokens)
    equal, count = _check_greedy(written, truth, tokens, max_length)
    return {
        "max_abs_diff": differences,
        "relative_tolerance": RELATIVE_TOLERANCE,
        "greedy_equal": equal,
        "greedy_tokens": count,
    }


def _check_rewind(written: Written, truth: Reference, tokens: list[int], vocab_size: int) -> float:
    """Read twelve, step back to seven, read five others: the stale rows must not matter."""
    written.length = 0
    written.read(tokens[:12])
    written.length = 7
    others = [(token + 1) % vocab_size for token in tokens[7:12]]
    return _compare(
        "rewind to 7, new 5", written.read(others), truth.logits(tokens[:7] + others)[7:], first=7
    )


def _check_kept_rows(written: Written, truth: Reference, tokens: list[int]) -> None:
    """The last two rows alone are the last two rows."""
    written.length = 0
    kept = written.read(tokens[:12], keep=2)
    _compare("num_logits_to_keep 2", kept, truth.logits(tokens[:12])[-2:], first=10)


def _check_padded(pair: Written, truth: Reference, tokens: list[int]) -> float:
    """Twelve tokens, and seven with padding at their left: read as eight columns and four."""
    long, short = tokens[:12], tokens[3:10]
    padding = len(long) - len(short)
    rows = [long, [0] * padding + short]
    mask = np.ones((2, len(long)), np.int64)
    mask[1, :padding] = 0
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    logits = [
        pair.read_batch([row[begin:end] for row in rows], mask[:, :end], positions[:, begin:end])
        for begin, end in ((0, 8), (8, 12))
    ]
    got = np.concatenate(logits, axis=1)
    return max(
        _compare("two texts, the longer", got[0], truth.logits(long)),
        _compare("two texts, the padded", got[1, padding:], truth.logits(short)),
    )


def _check_ragged(pair: Written, truth: Reference, tokens: list[int]) -> float:
    """Pasts of seven and three tokens, four more of each in one call."""
    pasts, new = np.array([7, 3]), 4
    rows = [tokens[:11], tokens[3:10]]
    columns = np.arange(pasts.max() + new)
    # The shorter text's row is filled up with what is overwritten by the next call.
    filled = [row[:past] + [0] * (7 - past) for row, past in zip(rows, pasts, strict=True)]
    first = pair.read_batch(filled, np.ones((2, 7)), np.arange(7)[None].repeat(2, 0))
    second = pair.read_batch(
        [row[past : past + new] for row, past in zip(rows, pasts, strict=True)],
        columns < pasts[:, None] + new,
        pasts[:, None] + np.arange(new),
    )
    got = [np.concatenate([first[i, :past], second[i]]) for i, past in enumerate(pasts)]
    return max(
        _compare(f"two texts, past {past}", logits, truth.logits(row))
        for past, logits, row in zip(pasts, got, rows, strict=True)
    )


BATCH_CHECKS = {"growing": _check_padded, "static": _check_ragged}
"""How two texts of different lengths are read together, in the layouts that can."""


def _check_greedy(
    written: Written, truth: Reference, tokens: list[int], max_length: int
) -> tuple[int, int]:
    """Extend a prompt greedily, one token a call; one pass then judges every pick.

    Each pick is judged on the text that led to it, so picks that are all right are the
    checkpoint's own greedy text.
    """
    count = min(GREEDY_TOKENS, max_length - PROMPT_TOKENS)
    text = tokens[:PROMPT_TOKENS]
    written.length = 0
    rows = [written.read(text, keep=1)]
    for _ in range(count - 1):
        text.append(int(rows[-1][-1].argmax()))
        rows.append(written.read(text[-1:], keep=1))
    expected = truth.logits(text)[PROMPT_TOKENS - 1 :]
    got = np.concatenate(rows)
    _compare(f"greedy, {count} tokens", got, expected, first=PROMPT_TOKENS - 1)
    return int((got.argmax(-1) == expected.argmax(-1)).sum()), count


def _compare(case: str, got: Array, expected: Array, *, first: int = 0) -> float:
    """Largest difference between logits [S, V]; ``first`` is the position of row 0.

    A pick may differ only where the expected scores are closer than the tolerance.
    """
    if got.shape != expected.shape:
        raise ParityError(f"{case}: expected logits {expected.shape}, got {got.shape}")
    limit = RELATIVE_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    for row, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        where = f"{case}: step {row} (position {first + row})"
        if not np.isfinite(ours).all():
            raise ParityError(f"{where} has logits that are not numbers; the graph is not written")
        difference = float(np.abs(ours - theirs).max())
        pick, right = int(ours.argmax()), int(theirs.argmax())
        margin = float(theirs[right] - theirs[pick])
        if difference > limit or margin > limit:
            raise ParityError(
                f"{where} differs from the checkpoint by {difference:.3g}, at most {limit:.3g} is "
                f"rounding, and picks token {pick} where the checkpoint picks {right}"
            )
    return float(np.abs(got - expected).max())
