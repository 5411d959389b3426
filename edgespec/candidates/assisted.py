"""Candidates from a small model of the same vocabulary."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from edgespec.arrays import Logits, TokenIds
from edgespec.candidates.base import NO_CANDIDATES, Candidates


class DraftModel(Protocol):
    """The part of a causal language model that drafting needs.

    Attributes:
        lock: Held while drafting, where threads share a draft.
    """

    lock: AbstractContextManager[bool]

    @property
    def length(self) -> int:
        """Positions held in the cache."""

    def prefill(self, tokens: TokenIds) -> None:
        """Append ``tokens`` [N] to the cache."""

    def forward(self, tokens: TokenIds) -> Logits:
        """Append ``tokens`` [N] to the cache and return their logits [N, V]."""

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` cached positions."""

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if the cache still holds what ``reader`` read."""


class AssistedCandidateGenerator:
    """Lets a draft model speak, one likeliest token at a time.

    Pays where the draft is several times faster than its target and says the same most of the
    time: its steps come on top, so a round with nothing accepted is slower than a plain one.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023,
    https://arxiv.org/abs/2211.17192; the confidence rule is that of Mamou et al., Dynamic
    Speculation Lookahead, 2024, https://arxiv.org/abs/2405.04304, with a fixed threshold.
    """

    def __init__(
        self,
        draft: DraftModel,
        *,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        max_length: int | None = None,
        assistant_confidence_threshold: float = 0.4,
    ) -> None:
        """Draft with ``draft`` and its cache.

        Args:
            draft: The draft model; it may serve several generators, which take turns.
            vocab_size: Ids below it are proposed: what draft and target both have.
            eos_token_ids: Tokens after which nothing is drafted.
            max_length: The longest text in tokens that the draft can read. Beyond it nothing is
                proposed, and the target goes on alone.
            assistant_confidence_threshold: A token less likely than this is the last of a round;
                0 for no such rule.
        """
        self.draft = draft
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_length = max_length
        self.threshold = assistant_confidence_threshold
        self._before = 0  # tokens of the text when it last drafted
        self._drafted: list[int] = []

    def begin(self, input_ids: TokenIds) -> None:
        """A new request: what the draft has read belongs to another text."""
        self._before, self._drafted = 0, []

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the draft's own continuation [K], cut at its first doubtful or end token."""
        if self.max_length is not None:
            max_candidates = min(max_candidates, self.max_length - len(input_ids))
        if max_candidates < 1:
            return NO_CANDIDATES
        with self.draft.lock:
            self._drafted = self._draft(input_ids, max_candidates)
        self._before = len(input_ids)
        return Candidates(np.array(self._drafted, dtype=np.int64))

    def _draft(self, input_ids: TokenIds, max_candidates: int) -> list[int]:
        """The draft's likeliest tokens, one after the other."""
        unread = self._catch_up(input_ids)
        self.draft.prefill(unread[:-1])
        unread = unread[-1:]
        drafted: list[int] = []
        while len(drafted) < max_candidates:
            row = self.draft.forward(unread)[-1, : self.vocab_size]
            token = int(row.argmax())
            drafted.append(token)
            if token in self.eos_token_ids or self._doubts(row, token):
                break
            unread = np.array([token])
        return drafted

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Nothing to learn: the next call compares the text with what was drafted."""

    def _catch_up(self, input_ids: TokenIds) -> TokenIds:
        """Forget what did not become text; return what the draft has not read of it.

        At least the last token is always unread, and two tokens after a round in which all were
        accepted: the draft never read its own last one.
        """
        if not self.draft.hand_to(self):
            self.draft.rewind(0)
        stood = self._before
        for token in self._drafted:
            if stood >= len(input_ids) or input_ids[stood] != token:
                break
            stood += 1
        self.draft.rewind(min(self.draft.length, stood, len(input_ids) - 1))
        return input_ids[self.draft.length :]

    def _doubts(self, row: Logits, token: int) -> bool:
        """Whether the draft gives ``token``, its likeliest, less than the threshold."""
        if self.threshold <= 0:
            return False
        return bool(1.0 / np.exp(row - row[token]).sum() < self.threshold)
