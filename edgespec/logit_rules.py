"""The rules that a call's options stand for, each by itself.

All are pure functions of the tokens so far, so that a refused candidate leaves nothing to undo.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edgespec.arrays import Logits, TokenIds

LogitsProcessor = Callable[[TokenIds, NDArray[np.float32]], NDArray[np.float32]]
"""Changes scores [V] in view of the tokens before them [T]; a pure function of the two.

The scores are the processor's own: it may write to them and return them. The tokens are not.
"""


_NONE: TokenIds = np.empty(0, np.int64)


class Ban(ABC):
    """A rule that forbids tokens and leaves the scores of all others alone."""

    __slots__ = ()

    @abstractmethod
    def banned(self, input_ids: TokenIds) -> TokenIds:
        """[N] the ids that may not follow ``input_ids`` [T]."""

    def forbids(self, input_ids: TokenIds, token: int) -> bool:
        """Whether ``token`` may not follow ``input_ids`` [T]."""
        return token in self.banned(input_ids)

    def __call__(self, input_ids: TokenIds, scores: Logits) -> Logits:
        """Forbid the tokens in ``scores`` [V]."""
        banned = self.banned(input_ids)
        scores[banned[banned < len(scores)]] = -np.inf
        return scores


def count_allowed(bans: Iterable[Ban], known: TokenIds, count: int) -> int:
    """How many of the last ``count`` tokens of ``known`` [T] precede the first forbidden one."""
    before = len(known) - count
    for i, token in enumerate(known[before:].tolist()):
        if any(ban.forbids(known[: before + i], token) for ban in bans):
            return i
    return count


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Adds to the scores of single tokens; transformers' ``sequence_bias`` of length one.

    Attributes:
        tokens: [N] token ids, each once.
        biases: [N] what is added.
    """

    tokens: TokenIds
    biases: NDArray[np.float32]

    def __call__(self, input_ids: TokenIds, scores: Logits) -> Logits:
        """Add the biases to ``scores`` [V]."""
        scores[self.tokens] += self.biases
        return scores


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Makes every token of the prompt and the output less likely, however often it was there.

    Source: Keskar et al., CTRL: A Conditional Transformer Language Model for Controllable
    Generation, 2019, https://arxiv.org/abs/1909.05858, section 4.1; scores below zero are
    multiplied, as in transformers, or the penalty would reward them.
    """

    penalty: float

    def __call__(self, input_ids: TokenIds, scores: Logits) -> Logits:
        """Penalise the tokens of ``input_ids`` [T] in ``scores`` [V]."""
        seen = input_ids[input_ids < len(scores)]
        # All are read before any is written, so a token that is there twice is penalised once.
        found = scores[seen]
        scores[seen] = np.where(found < 0, found * self.penalty, found / self.penalty)
        return scores


@dataclass(frozen=True, slots=True)
class CountPenalty:
    """Makes tokens of the output less likely, the prompt's left alone.

    Source: OpenAI's API reference, ``presence_penalty`` and ``frequency_penalty``:
    score -= presence * (count > 0) + frequency * count, where count is over the text so far
    that the model wrote.
    """

    presence: float
    frequency: float
    prompt_length: int

    def __call__(self, input_ids: TokenIds, scores: Logits) -> Logits:
        """Penalise ``input_ids[prompt_length:]`` in ``scores`` [V]."""
        written, counts = np.unique(input_ids[self.prompt_length :], return_counts=True)
        scores[written] -= (self.presence + self.frequency * counts).astype(np.float32)
        return scores


@dataclass(frozen=True, slots=True)
class NoRepeatNgram(Ban):
    """Forbids the token that would complete an n-gram for the second time.

    Source: Paulus et al., A Deep Reinforced Model for Abstractive Summarization, 2017,
    https://arxiv.org/abs/1705.04304, section 2.5, for any n; the prompt counts, as in transformers.
    """

    size: int

    def banned(self, input_ids: TokenIds) -> TokenIds:
        """What followed the last size-1 tokens of ``input_ids`` [T] before."""
        if len(input_ids) < self.size:
            return _NONE
        windows = sliding_window_view(input_ids, self.size)  # [T-size+1, size]
        start = input_ids[len(input_ids) - self.size + 1 :]  # [size-1]
        found: TokenIds = windows[(windows[:, :-1] == start).all(axis=1), -1]
        return found

    def forbids(self, input_ids: TokenIds, token: int) -> bool:
        """Whether ``token`` completes one: only the places where it stands are compared."""
        size = self.size
        start = input_ids[max(0, len(input_ids) - size + 1) :]
        places = np.flatnonzero(input_ids[size - 1 :] == token)
        return any(np.array_equal(input_ids[at : at + size - 1], start) for at in places.tolist())


@dataclass(frozen=True, slots=True)
class BadWords(Ban):
    """Forbids the last token of a row of tokens where the others stand before it."""

    words: tuple[tuple[int, ...], ...]

    def banned(self, input_ids: TokenIds) -> TokenIds:
        """What would complete one of the words after ``input_ids`` [T]."""
        longest = max(map(len, self.words))
        # One more than a start needs, for [-0:] is everything and [-1:] is not.
        tail = tuple(input_ids[-longest:].tolist())
        ends = [w[-1] for w in self.words if tail[len(tail) - len(w) + 1 :] == w[:-1]]
        return np.array(ends, np.int64)


@dataclass(frozen=True, slots=True)
class SuppressTokens(Ban):
    """Forbids tokens while the text has at least ``begin`` tokens and fewer than ``end``."""

    tokens: TokenIds
    begin: int = 0
    end: int | None = None

    def banned(self, input_ids: TokenIds) -> TokenIds:
        """The tokens, if ``input_ids`` [T] is so long."""
        within = self.begin <= len(input_ids) and (self.end is None or len(input_ids) < self.end)
        return self.tokens if within else _NONE


@dataclass(frozen=True, slots=True)
class ForcedToken(Ban):
    """Lets nothing but ``token`` follow a text of ``length`` tokens, whatever rules before it say.

    Attributes:
        token: What must follow.
        length: Tokens of the text that it follows.
        vocab_limit: Ids at and above it are forbidden anyway.
    """

    token: int
    length: int
    vocab_limit: int

    def banned(self, input_ids: TokenIds) -> TokenIds:
        """All other ids, if ``input_ids`` [T] is of that length."""
        if len(input_ids) != self.length:
            return _NONE
        return np.delete(np.arange(self.vocab_limit), self.token)

    def __call__(self, input_ids: TokenIds, scores: Logits) -> Logits:
        """Forbid all others in ``scores`` [V], and allow the token."""
        # Not zero-argument super(): a dataclass with slots is another class than its methods see.
        Ban.__call__(self, input_ids, scores)
        if len(input_ids) == self.length:
            scores[self.token] = 0.0
        return scores
