"""A causal language model: a session and its cache, read forward and rewound."""

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from edgespec.arrays import Logits, TokenIds
from edgespec.cache.base import Cache, cache_shape
from edgespec.cache.growing import GrowingCache
from edgespec.cache.in_place import InPlaceCache
from edgespec.errors import GraphMismatchError, ModelFolderError
from edgespec.manifest import Manifest
from edgespec.session import Session

PREFILL_ROWS = 128
"""Tokens read in one forward of a prefill: bounds the memory of a long prompt.

Not above 128, the block of ONNX Runtime's kernels: of 129 rows the last is computed by the kernel
for a single one, which rounds otherwise (1.32, tried); see ``exact.py``.
"""
_KEPT_STEPS = 40
_KNOWN_INPUTS = {"input_ids", "attention_mask", "position_ids", "num_logits_to_keep"}


@dataclass(slots=True)
class _Step:
    """Bindings for forwards of one row count, filled anew each time.

    ``bind_cpu_input`` shares the arrays' memory, so writing to them is all that a repeated forward
    needs. They are kept here: a binding keeps them alive itself only from onnxruntime 1.25 on.
    """

    binding: ort.IOBinding
    input_ids: TokenIds
    position_ids: TokenIds
    num_logits_to_keep: TokenIds


class CausalLM:
    """Scores what follows a text, token by token or many at once.

    The cache keeps what was read. ``length`` counts it; :meth:`rewind` forgets from a position on.

    Attributes:
        vocab_size: V, the width of a row of logits.
        max_rows: The most tokens that one forward may read; None without a limit. 1 means that
            the graph was exported for plain decoding only, with that number fixed.
        lock: Held for a round by whoever decodes, where threads share a model.
    """

    def __init__(self, session: Session, manifest: Manifest, max_length: int | None = None) -> None:
        """Put a cache behind ``session``.

        Args:
            session: The loaded graph.
            manifest: What is known of it.
            max_length: The most positions that will be used; None leaves it open.

        Raises:
            GraphMismatchError: If the graph's inputs and outputs are not those of a decoder with
                a key/value cache.
        """
        self.session = session
        self.lock: AbstractContextManager[bool] = threading.RLock()
        unknown = [
            name
            for name in session.inputs
            if name not in _KNOWN_INPUTS and not name.startswith("past_key_values.")
        ]
        if unknown:
            raise GraphMismatchError(
                f"{session.path} has the input {unknown[0]!r}, which is not one of a decoder with "
                "a cache; export it again: edgespec export MODEL"
            )
        for needed, slots in (("input_ids", session.inputs), ("logits", session.outputs)):
            if needed not in slots:
                kind = "input" if slots is session.inputs else "output"
                raise GraphMismatchError(
                    f"{session.path} has no {kind} {needed!r}; it is not a causal language model"
                )
        shape = cache_shape(session.path, session.inputs, session.outputs, manifest.head_size)
        self.cache: Cache
        if manifest.cache_layout == "in_place":
            self.cache = InPlaceCache(shape, session.device, max_length)
        elif manifest.cache_layout == "growing":
            self.cache = GrowingCache(shape, session.device)
        else:
            raise ModelFolderError(
                f"{session.path} has the cache layout {manifest.cache_layout!r}, which this "
                "edgespec cannot run; export it again with in_place"
            )
        rows = session.inputs["input_ids"].shape[1]
        if isinstance(rows, int) and rows > 1:
            raise GraphMismatchError(
                f"{session.path} takes exactly {rows} tokens at a time in its input 'input_ids', "
                "expected any number; export it again: edgespec export MODEL"
            )
        self.max_rows = rows if isinstance(rows, int) else None
        self.vocab_size = self._width(manifest)
        self._logits_dtype = session.outputs["logits"].dtype
        self._logits = np.empty(0, self._logits_dtype)
        self._mask = np.ones((1, 0), np.int64)
        self._steps: dict[int, _Step] = {}
        self._bound = self.cache.generation
        self._reader: object = None

    def _width(self, manifest: Manifest) -> int:
        """V, from the graph where it says so."""
        width = self.session.outputs["logits"].shape[-1]
        return width if isinstance(width, int) else manifest.vocab_size

    @property
    def length(self) -> int:
        """Positions held in the cache."""
        return self.cache.length

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` cached positions.

        Raises:
            CacheRewindError: If ``length`` is negative or more than the cache holds.
        """
        self.cache.rewind(length)

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if it was ``reader`` who read last and the cache is theirs."""
        same = self._reader is reader
        self._reader = reader
        return same

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions at once rather than step by step."""
        self.cache.reserve(length)

    def forward(self, tokens: TokenIds) -> Logits:
        """Append ``tokens`` [N] to the cache and return their logits.

        Returns:
            [N, V] float32. A view of a buffer that the next forward overwrites.
        """
        count = len(tokens)
        self._make_room(count)
        step = self._steps.get(count) or self._kept_step(count)
        self._run(step, tokens)
        rows = self._logits[: count * self.vocab_size].reshape(count, self.vocab_size)
        return rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def prefill(self, tokens: TokenIds) -> None:
        """Append ``tokens`` [N] to the cache, in pieces, without computing any logits."""
        rows = self.max_rows or PREFILL_ROWS
        for start in range(0, len(tokens), rows):
            piece = tokens[start : start + rows]
            self._make_room(len(piece))
            self._run(self._step(len(piece), logits=False), piece, fetched_only=True)

    def _make_room(self, count: int) -> None:
        """Let the cache grow if it must; bindings to what it held before are dropped."""
        self.cache.reserve(self.cache.length + count)
        if self._bound != self.cache.generation:
            self._steps.clear()
            self._bound = self.cache.generation

    def _kept_step(self, count: int) -> _Step:
        """Bind a forward of ``count`` rows whose logits land in the one buffer for logits."""
        if len(self._steps) >= _KEPT_STEPS:
            self._steps.clear()
        needed = count * self.vocab_size
        if self._logits.size < needed:
            self._steps.clear()  # they are bound to the smaller buffer
            self._logits = np.empty(needed, self._logits_dtype)
        self._steps[count] = self._step(count, logits=True)
        return self._steps[count]

    def _step(self, count: int, *, logits: bool) -> _Step:
        binding = self.session.new_binding()
        ids, positions = np.empty((1, count), np.int64), np.empty((1, count), np.int64)
        step = _Step(binding, ids, positions, np.array(count, np.int64))
        self.cache.bind(binding)
        binding.bind_cpu_input("input_ids", step.input_ids)
        if "position_ids" in self.session.inputs:
            binding.bind_cpu_input("position_ids", step.position_ids)
        if "num_logits_to_keep" in self.session.inputs:
            binding.bind_cpu_input("num_logits_to_keep", step.num_logits_to_keep)
        if logits:
            rows = self._logits[: count * self.vocab_size].reshape(1, count, self.vocab_size)
            binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(rows))
        return step

    def _run(self, step: _Step, tokens: TokenIds, *, fetched_only: bool = False) -> None:
        past, count = self.cache.length, len(tokens)
        step.input_ids[0] = tokens
        if "position_ids" in self.session.inputs:
            step.position_ids[0] = np.arange(past, past + count)
        if "attention_mask" in self.session.inputs:
            step.binding.bind_cpu_input("attention_mask", self._ones(past + count))
        self.session.run(step.binding, fetched_only=fetched_only)
        self.cache.advance(step.binding, count)

    def _ones(self, length: int) -> TokenIds:
        """[1, length] of ones: one text has no padding to hide."""
        if self._mask.shape[1] < length:
            self._mask = np.ones((1, length * 2), np.int64)
        return self._mask[:, :length]
