"""The arrays that flow through edgespec, and the letters used for their axes.

T  tokens known so far       K  candidate tokens in one round     V  vocabulary
L  layers                    H  key/value heads                   D  head size
S  positions held in a cache

A shape in a docstring is always written with these letters: ``[K+1, V]``.
Batch size is one throughout; ONNX's leading batch axis lives only in ``session.py`` and ``cache/``.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

TokenIds: TypeAlias = NDArray[np.int64]
"""[T] token ids; int64 because that is what an exported ``input_ids`` takes."""

Logits: TypeAlias = NDArray[np.float32]
"""[..., V] unnormalised scores, as the graph returns them."""

Probs: TypeAlias = NDArray[np.float64]
"""[..., V] probabilities that sum to one over V; float64 so that p/q keeps its digits."""

CacheRows: TypeAlias = NDArray[Any]
"""[S, N] all keys and values of each cached position, layer by layer, in the graph's dtype."""
