"""A causal language model: a session and its cache, read forward and rewound."""

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

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
_KNOWN_INPUTS = {"input_ids", "attention_mask", "position_ids", "num_logits_to_keep"}


@dataclass(slots=True)
class _Bound:
    """What a forward reads and writes: the cache bound once, the rest again if the rows change.

    ``bind_cpu_input`` shares the arrays' memory, so writing to them is all that a repeated forward
    needs. They are kept here: a binding keeps them alive itself only from onnxruntime 1.25 on.
    """

    binding: ort.IOBinding
    rows: int = 0
    input_ids: TokenIds = field(default_factory=lambda: np.empty((1, 0), np.int64))
    position_ids: TokenIds = field(default_factory=lambda: np.empty((1, 0), np.int64))
    num_logits_to_keep: TokenIds = field(default_factory=lambda: np.array(0, np.int64))


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
            if name not in _KNOWN_INPUTS
            and not name.startswith(("past_key_values.", "cross_key_values."))
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
        self._bound: dict[bool, _Bound] = {}  # with logits and, for a prefill, without
        self._generation = self.cache.generation
        self._source: Mapping[str, ort.OrtValue] = {}
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

    def attend_to(self, source: Mapping[str, ort.OrtValue]) -> None:
        """Read what follows on ``source``: an encoder's keys and values, by the graph's inputs."""
        self._source = source
        self._bound.clear()

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions at once rather than step by step."""
        self.cache.reserve(length)

    def forward(self, tokens: TokenIds) -> Logits:
        """Append ``tokens`` [N] to the cache and return their logits.

        Returns:
            [N, V] float32. A view of a buffer that the next forward overwrites.
        """
        count = len(tokens)
        self._run(tokens, logits=True)
        rows = self._logits[: count * self.vocab_size].reshape(count, self.vocab_size)
        return rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def prefill(self, tokens: TokenIds) -> None:
        """Append ``tokens`` [N] to the cache, in pieces, without computing any logits."""
        rows = self.max_rows or PREFILL_ROWS
        for start in range(0, len(tokens), rows):
            self._run(tokens[start : start + rows], logits=False)

    def _run(self, tokens: TokenIds, *, logits: bool) -> None:
        past, count = self.cache.length, len(tokens)
        bound = self._ready(count, logits=logits)
        bound.input_ids[0] = tokens
        if "position_ids" in self.session.inputs:
            bound.position_ids[0] = np.arange(past, past + count)
        if "attention_mask" in self.session.inputs:
            bound.binding.bind_cpu_input("attention_mask", self._ones(past + count))
        self.session.run(bound.binding, fetched_only=not logits)
        self.cache.advance(bound.binding, count)

    def _ready(self, count: int, *, logits: bool) -> _Bound:
        """Bindings for ``count`` rows, the cache with room for them."""
        self.cache.reserve(self.cache.length + count)
        if self._generation != self.cache.generation:
            self._bound.clear()  # they hold what the cache held before
            self._generation = self.cache.generation
        bound = self._bound.get(logits)
        if bound is None:
            bound = self._bound[logits] = _Bound(self.session.new_binding())
            self.cache.bind(bound.binding)
            for name, value in self._source.items():
                bound.binding.bind_ortvalue_input(name, value)
        if bound.rows != count:
            self._bind_rows(bound, count, logits=logits)
        return bound

    def _bind_rows(self, bound: _Bound, count: int, *, logits: bool) -> None:
        """Bind all but the cache anew; logits land in one buffer, as large as was ever needed."""
        bound.rows = count
        bound.input_ids = np.empty((1, count), np.int64)
        bound.binding.bind_cpu_input("input_ids", bound.input_ids)
        if "position_ids" in self.session.inputs:
            bound.position_ids = np.empty((1, count), np.int64)
            bound.binding.bind_cpu_input("position_ids", bound.position_ids)
        if "num_logits_to_keep" in self.session.inputs:
            bound.num_logits_to_keep = np.array(count, np.int64)
            bound.binding.bind_cpu_input("num_logits_to_keep", bound.num_logits_to_keep)
        if logits:
            needed = count * self.vocab_size
            if self._logits.size < needed:
                self._logits = np.empty(needed, self._logits_dtype)
            rows = self._logits[:needed].reshape(1, count, self.vocab_size)
            bound.binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(rows))

    def _ones(self, length: int) -> TokenIds:
        """[1, length] of ones: one text has no padding to hide."""
        if self._mask.shape[1] < length:
            self._mask = np.ones((1, length * 2), np.int64)
        return self._mask[:, :length]
