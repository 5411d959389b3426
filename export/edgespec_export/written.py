"""A graph in a folder, run as the runtime runs it: the cache bound as its layout wants it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import DTypeLike, NDArray

from edgespec.threads import pool_is_shared
from edgespec_export.cache_layouts.base import CacheShape

Array = NDArray[Any]


class Written:
    """A loaded graph and the cache of the texts that it reads.

    Attributes:
        length: How many positions of the cache count; set it lower to rewind.
    """

    def __init__(
        self,
        path: Path,
        cache: CacheShape,
        positions: int,
        *,
        layout: str = "in_place",
        texts: int = 1,
        dtype: DTypeLike = np.float32,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        """Load ``path`` with a cache of ``dtype`` for ``positions`` tokens of each text.

        Inputs ``given`` are the same in every run.
        """
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
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._given = dict(given or {})
        for name, array in self._given.items():
            self._binding.bind_cpu_input(name, array)
        self._grows = layout == "growing"
        self.length = 0
        rows = 0 if self._grows else positions
        # Rows that nothing wrote must not matter, so they hold what would be noticed.
        # Up to onnxruntime 1.24 a binding does not keep its arrays alive: they are kept here.
        shape = (texts, cache.num_kv_heads, rows, cache.head_size)
        self._cache: dict[str, Array] = {
            f"{layer}.{kind}": np.full(shape, 1e3, dtype)
            for layer in range(cache.num_layers)
            for kind in ("key", "value")
        }
        if not self._grows:
            for name, array in self._cache.items():
                buffer = onnxruntime.OrtValue.ortvalue_from_numpy(array)
                self._binding.bind_ortvalue_input(f"past_key_values.{name}", buffer)
                self._binding.bind_ortvalue_output(f"present.{name}", buffer)

    def read(self, tokens: Sequence[int], *, keep: int = 0) -> NDArray[np.float32]:
        """Logits [S, V] of S tokens behind those already read; of the last ``keep`` if not 0."""
        total = self.length + len(tokens)
        positions = np.arange(self.length, total)[None]
        mask = np.ones((1, total), np.int64)
        logits: NDArray[np.float32] = self.read_batch([tokens], mask, positions, keep=keep)[0]
        return logits

    def read_batch(
        self, tokens: Sequence[Sequence[int]], mask: Array, positions: Array, *, keep: int = 0
    ) -> NDArray[np.float32]:
        """Logits [B, S, V] of S tokens of each text; ``mask`` is [B, T], ``positions`` [B, S]."""
        feeds = {
            "input_ids": np.array([list(row) for row in tokens], np.int64),
            "attention_mask": np.ascontiguousarray(mask, np.int64),
            "position_ids": np.ascontiguousarray(positions, np.int64),
            "num_logits_to_keep": np.array(keep, np.int64),
        }
        if self._grows:
            for name, array in self._cache.items():
                past = np.ascontiguousarray(array[:, :, : self.length])
                feeds[f"past_key_values.{name}"] = past
                self._binding.bind_output(f"present.{name}")
        for name, array in feeds.items():
            if name in self._inputs:
                self._binding.bind_cpu_input(name, array)
        # Bound anew each time: an output keeps the buffer, and so the size, of its first run.
        self._binding.bind_output("logits")
        self._session.run_with_iobinding(self._binding)
        outputs = self._binding.get_outputs()
        if self._grows:
            present = [output.numpy() for output in outputs[: len(self._cache)]]
            self._cache = dict(zip(self._cache, present, strict=True))
        self.length = mask.shape[1]
        logits: NDArray[np.float32] = outputs[-1].numpy()
        return logits
