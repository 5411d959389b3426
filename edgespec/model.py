"""A causal language model: a session and its cache, read forward and rewound."""

import threading
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
import onnxruntime as ort

from edgespec.arrays import Logits, TokenIds
from edgespec.cache.base import Cache
from edgespec.cache.form import cache_shape
from edgespec.cache.growing import GrowingCache
from edgespec.cache.in_place import InPlaceCache
from edgespec.cache.static import StaticCache
from edgespec.errors import GraphMismatchError
from edgespec.inputs import Inputs, check_inputs
from edgespec.manifest import Manifest
from edgespec.prefix import Prefix, common_start
from edgespec.session import Session

PREFILL_ROWS = 128
"""Tokens read in one forward of a prefill: bounds the memory of a long prompt.

Not above 128, the block of ONNX Runtime's kernels: of 129 rows the last is computed by the kernel
for a single one, which rounds otherwise (1.32, tried); see ``exact.py``.
"""


BLOCK_ROWS = 16
"""Rows of the smallest block of a kernel that was seen to leave a row over; see ``exact.py``."""
_HALF = ("fp16", "unknown")
"""Precisions by which a cache in float16 means that all else is computed in it too."""
_STAY = "stay"
"""Where logits go that are not wanted on the CPU."""


class CausalLM:
    """Scores what follows a text, token by token or many at once.

    The cache keeps what was read. ``length`` counts it; :meth:`rewind` forgets from a position on.

    Attributes:
        vocab_size: V, the width of a row of logits.
        max_rows: The most tokens that one forward may read: 1, or None without a limit.
        cannot_verify: Why no candidates can be verified, or None where they can.
        lock: Held for a round by whoever decodes, where threads share a model.
        kept: Prefixes by name that a text may begin with, whatever was read in between.
    """

    def __init__(
        self,
        session: Session,
        manifest: Manifest,
        max_length: int | None = None,
        kept: Mapping[str, Prefix] | None = None,
    ) -> None:
        """Put a cache behind ``session``.

        Args:
            session: The loaded graph.
            manifest: What is known of it.
            max_length: The most positions that will be used; None leaves it open.
            kept: Prefixes by name; whoever adds one holds ``lock``.

        Raises:
            GraphMismatchError: If the graph's inputs and outputs are not those of a decoder with
                a key/value cache.
        """
        self.session = session
        self.kept = {} if kept is None else kept
        self.lock: AbstractContextManager[bool] = threading.RLock()
        for needed, slots in (("input_ids", session.inputs), ("logits", session.outputs)):
            if needed not in slots:
                kind = "input" if slots is session.inputs else "output"
                raise GraphMismatchError(
                    f"{session.path} has no {kind} {needed!r}; it is not a causal language model"
                )
        sizes = manifest.head_size, manifest.num_kv_heads
        shape = cache_shape(session.path, session.inputs, session.outputs, *sizes)
        crosses = [name for name in session.inputs if name.startswith("cross_key_values.")]
        given = frozenset([*crosses, *(past for past, _ in shape.pairs)])
        check_inputs(session.path, session.inputs, given)
        if (session.device, shape.dtype.name) == ("cpu", "float16") and manifest.precision in _HALF:
            warnings.warn(
                f"{session.path} is made for float16, which ONNX Runtime casts to float32 and back "
                "around most operations of a CPU; an export in float32 is likely faster here",
                RuntimeWarning,
                stacklevel=4,
            )
        self.cache: Cache
        if manifest.cache_layout == "in_place":
            if not shape.is_uniform:
                raise GraphMismatchError(
                    f"{session.path} has the cache layout in_place and axes {shape.in_words}, "
                    "expected [B, H, S, D] and the same H and D in every layer; "
                    "export it again: edgespec export MODEL"
                )
            self.cache = InPlaceCache(shape, session.device, max_length)
        elif manifest.cache_layout == "static":
            self.cache = StaticCache(shape, session.device, max_length)
        else:
            self.cache = GrowingCache(shape, session.device)
        rows = session.inputs["input_ids"].shape[1]
        if isinstance(rows, int) and rows > 1:
            raise GraphMismatchError(
                f"{session.path} takes exactly {rows} tokens at a time in its input 'input_ids', "
                "expected any number; export it again: edgespec export MODEL"
            )
        self.max_rows: int | None = None
        self.cannot_verify: str | None = None
        if rows == 1:
            self.restrict("its input 'input_ids' takes 1 token at a time", max_rows=1)
        elif session.outputs["logits"].shape[1] == 1:
            self.restrict("its output 'logits' scores only the last token that it reads")
        self.vocab_size = self._width(manifest)
        self._logits_dtype = session.outputs["logits"].dtype
        self._logits = np.empty(0, self._logits_dtype)
        self._on_device: ort.OrtValue = None
        self._bound: dict[bool | str, Inputs] = {}  # by where the logits go, if anywhere
        self._generation = self.cache.generation
        self._source: Mapping[str, ort.OrtValue] = {}
        self._reader: object = None
        self._read = np.empty(0, np.int64)
        self._exact_length = 0

    def _width(self, manifest: Manifest) -> int:
        """V, from the graph where it says so."""
        width = self.session.outputs["logits"].shape[-1]
        return width if isinstance(width, int) else manifest.vocab_size

    def restrict(self, reason: str, *, max_rows: int | None = None) -> None:
        """Verify no candidates from now on, and read at most ``max_rows`` tokens at a time."""
        self.cannot_verify, self.max_rows = reason, max_rows

    def require_verification(self) -> None:
        """Refuse to go on where no candidates can be verified.

        Raises:
            GraphMismatchError: With the reason.
        """
        if self.cannot_verify is not None:
            raise GraphMismatchError(
                f"{self.session.path} cannot verify candidates: {self.cannot_verify}; export it "
                "again (edgespec export MODEL), or leave lookup, ngram, suffix, draft and "
                "candidate_generator out"
            )

    @property
    def length(self) -> int:
        """Positions held in the cache."""
        return self.cache.length

    @property
    def tokens(self) -> TokenIds:
        """[S] what the cached positions were read from."""
        return self._read[: self.cache.length]

    @property
    def exact_length(self) -> int:
        """Positions from the start on that no kernel for a single row had a part in."""
        return min(self._exact_length, self.cache.length)

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` cached positions.

        Raises:
            CacheRewindError: If ``length`` is negative or more than the cache holds.
        """
        self.cache.rewind(length)

    def rewind_to_shared(self, tokens: TokenIds, *, exact: bool = False) -> int:
        """Keep what was read of ``tokens`` [T]: the start that the cache, or a kept prefix, shares.

        Args:
            tokens: What is to be read.
            exact: Keep only what was read in forwards of two rows and more; see ``exact.py``.

        Returns:
            The positions that the cache holds now, T at most.
        """
        held = self.tokens[: self.exact_length] if exact else self.tokens
        shared, longest = common_start(held, tokens), None
        for prefix in self.kept.values():
            if len(prefix.tokens) > shared and (prefix.is_exact or not exact):
                in_prefix = common_start(prefix.tokens, tokens)
                if in_prefix > shared:
                    shared, longest = in_prefix, prefix
        if longest is None:
            self.cache.rewind(shared)
        else:
            self._exact_length = 0  # until all is there
            self.cache.write(longest.rows[:shared])
            self._note(0, longest.tokens[:shared])
            self._exact_length = shared if longest.is_exact else 0
        return shared

    def prefix(self, length: int) -> Prefix:
        """A copy of the first ``length`` positions."""
        is_exact = self.exact_length >= length
        return Prefix(self.tokens[:length].copy(), self.cache.read(length), is_exact)

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if it was ``reader`` who read last and the cache is theirs."""
        same = self._reader is reader
        self._reader = reader
        return same

    def attend_to(self, source: Mapping[str, ort.OrtValue]) -> None:
        """Read what follows on ``source``: an encoder's keys and values, by the graph's inputs.

        What was read on another source says nothing on this one, so it is forgotten.
        """
        if source is not self._source:
            self.rewind(0)
            self._source = source
            self._bound.clear()

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions at once, where that is better than step by step."""
        self.cache.expect(length)

    def forward(self, tokens: TokenIds) -> Logits:
        """Append ``tokens`` [N] to the cache and return their logits.

        Returns:
            [N, V] float32. A view of a buffer that the next forward overwrites.
        """
        count = len(tokens)
        self._run(tokens, logits=True)
        rows = self._logits[: count * self.vocab_size].reshape(count, self.vocab_size)
        return rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def forward_on_device(self, tokens: TokenIds) -> ort.OrtValue:
        """As :meth:`forward`, but the logits [1, N, V] stay on the device, in the graph's type."""
        self._run(tokens, logits=True, stay=True)
        return self._on_device

    def prefill(self, tokens: TokenIds) -> None:
        """Append ``tokens`` [N] to the cache, in pieces, without computing any logits."""
        rows = self.max_rows or PREFILL_ROWS
        for start in range(0, len(tokens), rows):
            self._run(tokens[start : start + rows], logits=False)

    def _run(self, tokens: TokenIds, *, logits: bool, stay: bool = False) -> None:
        past, count = self.cache.length, len(tokens)
        exact_length = self.exact_length
        if exact_length == past and count % BLOCK_ROWS != 1:
            exact_length += count
        self._exact_length = min(self._exact_length, past)
        self._note(past, tokens)
        inputs = self._ready(count, _STAY if stay else logits)
        inputs.write(tokens, past)
        self.session.run(inputs.binding, fetched_only=not logits)
        self.cache.advance(inputs.binding, count)
        self._exact_length = exact_length

    def _note(self, past: int, tokens: TokenIds) -> None:
        """Remember which ``tokens`` stand from position ``past`` on; they count once cached."""
        needed = past + len(tokens)
        if needed > len(self._read):
            grown = np.empty(2 * needed, np.int64)
            grown[:past] = self._read[:past]
            self._read = grown
        self._read[past:needed] = tokens

    def _ready(self, count: int, logits: bool | str) -> Inputs:
        """What ``count`` rows are written to, bound beside a cache with room for them."""
        self.cache.reserve(self.cache.length + count)
        if self._generation != self.cache.generation:
            self._bound.clear()  # they hold what the cache held before
            self._generation = self.cache.generation
        bound = self._bound.get(logits)
        if bound is None or bound.rows != count:
            bound = self._bound[logits] = self._bind(bound, count, logits)
        return bound

    def _bind(self, bound: Inputs | None, count: int, logits: bool | str) -> Inputs:
        """Bind the cache, once, and for ``count`` rows all else.

        The logits land in one buffer, as large as was ever needed, or stay on the device.
        """
        binding = self.session.new_binding() if bound is None else bound.binding
        if bound is None:
            self.cache.bind(binding)
            for name, value in self._source.items():
                binding.bind_ortvalue_input(name, value)
        if logits == _STAY:
            shape = [1, count, self.vocab_size]
            self._on_device = ort.OrtValue.ortvalue_from_shape_and_type(
                shape, self._logits_dtype, self.session.device, 0
            )
            binding.bind_ortvalue_output("logits", self._on_device)
        elif logits:
            needed = count * self.vocab_size
            if self._logits.size < needed:
                self._logits = np.empty(needed, self._logits_dtype)
            rows = self._logits[:needed].reshape(1, count, self.vocab_size)
            binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(rows))
        return Inputs(self.session, binding, count)
