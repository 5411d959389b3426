"""The gate: a written graph must compute what the checkpoint computes, or there is no folder.

Checked are the files themselves, with past and present bound to the same memory as the runtime
binds them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from edgespec.errors import ParityError
from edgespec.threads import pool_is_shared
from edgespec_export.cache_layouts.in_place import CacheShape

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

Array = NDArray[Any]


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


class Written:
    """The graph in a folder, run as the runtime runs it: one buffer for past and present.

    Attributes:
        length: How many positions of the cache count; set it lower to rewind.
    """

    def __init__(
        self,
        path: Path,
        cache: CacheShape,
        positions: int,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        """Load ``path`` with a cache for ``positions`` tokens, and inputs ``given`` for good."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # Threads that spin between runs take the CPUs from PyTorch, whose turn it is then.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Where a model was loaded before in this process, as in a notebook, its threads serve here.
        options.use_per_session_threads = not pool_is_shared()
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._binding = self._session.io_binding()
        self.length = 0
        # Up to onnxruntime 1.24 a binding does not keep its arrays alive.
        self._kept: list[Array] = []
        for layer in range(cache.num_layers):
            for kind in ("key", "value"):
                # Rows that nothing wrote must not matter, so they hold what would be noticed.
                rows = np.full((1, cache.num_kv_heads, positions, cache.head_size), 1e3, np.float32)
                self._kept.append(rows)
                buffer = onnxruntime.OrtValue.ortvalue_from_numpy(rows)
                self._binding.bind_ortvalue_input(f"past_key_values.{layer}.{kind}", buffer)
                self._binding.bind_ortvalue_output(f"present.{layer}.{kind}", buffer)
        for name, array in (given or {}).items():
            self._kept.append(array)
            self._binding.bind_cpu_input(name, array)
        self._names = {node.name for node in self._session.get_inputs()}

    def read(self, tokens: Sequence[int], *, keep: int = 0) -> NDArray[np.float32]:
        """Logits [S, V] of S tokens behind those already read; of the last ``keep`` if not 0."""
        total = self.length + len(tokens)
        feeds = {
            "input_ids": np.array([list(tokens)], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self.length, total, dtype=np.int64)[None],
            "num_logits_to_keep": np.array(keep, np.int64),
        }
        for name, array in feeds.items():
            if name not in self._names:
                continue
            self._binding.bind_cpu_input(name, array)
        # Bound anew each time: an output keeps the buffer, and so the size, of its first run.
        self._binding.bind_output("logits")
        self._session.run_with_iobinding(self._binding)
        self.length = total
        logits: NDArray[np.float32] = self._binding.get_outputs()[-1].numpy()[0]
        return logits


def check(
    path: Path,
    reference: PreTrainedModel,
    cache: CacheShape,
    *,
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
    written = Written(path, cache, min(longest, max_length), given)
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
