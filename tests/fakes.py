"""Models small enough to read, for tests of everything above the session."""

import threading
from contextlib import AbstractContextManager

import numpy as np

from edgespec.arrays import Logits, TokenIds


class CountingModel:
    """Says that each token is followed by the next number, modulo the vocabulary.

    ``lies_at`` makes it wrong after some tokens: a draft that is right only sometimes.

    Attributes:
        cached: What it has read and not forgotten.
        forwards: How many tokens each forward read.
        lock: For whoever shares it between threads.
    """

    def __init__(self, vocab_size: int = 64, lies_at: frozenset[int] = frozenset()) -> None:
        self.vocab_size = vocab_size
        self.lies_at = lies_at
        self.cached: list[int] = []
        self.forwards: list[int] = []
        self.lock: AbstractContextManager[bool] = threading.RLock()
        self._reader: object = None

    @property
    def length(self) -> int:
        return len(self.cached)

    def reserve(self, length: int) -> None:
        assert length >= len(self.cached)

    def prefill(self, tokens: TokenIds) -> None:
        self.cached += tokens.tolist()

    def forward(self, tokens: TokenIds) -> Logits:
        assert len(tokens) > 0
        self.cached += tokens.tolist()
        self.forwards.append(len(tokens))
        following = [
            (token + (3 if token in self.lies_at else 1)) % self.vocab_size
            for token in tokens.tolist()
        ]
        return np.eye(self.vocab_size, dtype=np.float32)[following]

    def rewind(self, length: int) -> None:
        assert 0 <= length <= len(self.cached), (length, self.cached)
        del self.cached[length:]

    def rewind_to_shared(self, tokens: TokenIds) -> int:
        shared = 0
        for held, wanted in zip(self.cached, tokens.tolist(), strict=False):
            if held != wanted:
                break
            shared += 1
        self.rewind(shared)
        return shared

    def hand_to(self, reader: object) -> bool:
        same = self._reader is reader
        self._reader = reader
        return same
