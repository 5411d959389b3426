"""Texts for generators that keep an index: random, of few tokens, and read in pieces."""

from collections.abc import Iterator

import numpy as np


def grown(rng: np.random.Generator, alphabet: int, length: int = 40) -> Iterator[list[int]]:
    """Longer and longer beginnings of a random text of ``length`` tokens below ``alphabet``."""
    text = rng.integers(0, alphabet, length).tolist()
    end = int(rng.integers(1, 10))
    while end <= length:
        yield text[:end]
        end += int(rng.integers(1, 5))
