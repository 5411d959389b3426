"""What can be continued: a text, its token ids, or several texts."""

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from edgespec.arrays import TokenIds

Prompt = str | Sequence[int] | TokenIds
"""A text, or its token ids [T]."""

Batch = list[str] | tuple[str, ...]
"""Several texts."""


def as_row(prompt: Sequence[int] | TokenIds) -> TokenIds:
    """A prompt of token ids as an array [T].

    Raises:
        ValueError: If it is not one row of whole numbers.
    """
    try:
        tokens = np.asarray(prompt)
        got = f"an array of {tokens.dtype} with shape {list(tokens.shape)}"
    except ValueError:
        tokens, got = np.empty((0, 0)), "rows of different lengths"
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise ValueError(f"prompt must be a text or one row of whole numbers, got {got}")
    return tokens.astype(np.int64)


def require_ids(tokens: TokenIds, vocab_size: int) -> TokenIds:
    """``tokens`` [T], if there are any and all are ids of a model.

    Raises:
        ValueError: If not.
    """
    if not len(tokens):
        raise ValueError("prompt must hold at least one token, got an empty one")
    wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if wrong.size:
        raise ValueError(
            f"prompt holds the token id {wrong[0]}, but the model's ids are below {vocab_size}"
        )
    return tokens


def is_batch(prompt: Prompt | Batch) -> TypeGuard[Batch]:
    """Whether a prompt is several texts."""
    return (
        isinstance(prompt, list | tuple)
        and len(prompt) > 0
        and all(isinstance(one, str) for one in prompt)
    )
