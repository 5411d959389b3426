"""Candidates from a small model of the same vocabulary."""

import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.arrays import Logits, Probs, TokenIds
from edgespec.candidates.base import NO_CANDIDATES, Candidates
from edgespec.verify import Pick, Sampler, pick_greedy

LABELS = 512
"""Judged candidates that the confidence threshold is learned from: the last ones."""
_ENOUGH = 6
"""Judged candidates before the threshold is moved at all, as in transformers."""
IN_VAIN = 500
"""Candidates of one text after which a draft of which none stood is warned of."""


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

    def rewind_to_shared(self, tokens: TokenIds) -> int:
        """Keep what was read of ``tokens`` [T] already; how many positions that is."""

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if the cache still holds what ``reader`` read."""


class DraftReader:
    """A draft model reading a text that changes at its end.

    The model knows which tokens it has read: whatever was refused, accepted, written without a
    draft or spelt in other tokens since, and whatever text it read before, only what is new is
    read.
    """

    def __init__(self, draft: DraftModel, *, reuse_prefix: bool = True) -> None:
        """Read with ``draft`` and its cache.

        Args:
            draft: The draft model.
            reuse_prefix: Go on from what was read before this reader's first text.
        """
        self.draft, self.reuse_prefix = draft, reuse_prefix

    def row_after(self, tokens: TokenIds) -> Logits:
        """What the draft says of the token after ``tokens`` [T]: a row [V].

        Afterwards its cache holds ``tokens``, and nothing else.
        """
        if not self.draft.hand_to(self) and not self.reuse_prefix:
            self.draft.rewind(0)
        # The last token is read again even where the cache has it: its row of logits is gone.
        unread = tokens[self.draft.rewind_to_shared(tokens[:-1]) :]
        self.draft.prefill(unread[:-1])
        row: Logits = self.draft.forward(unread[-1:])[-1]
        return row


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a draft said in one go.

    Attributes:
        tokens: [K] token ids.
        sure: [K] how likely each was to the draft; 1 where nobody asked.
        probs: [K, V] what each was drawn from, or None where each was the likeliest.
    """

    tokens: TokenIds
    sure: list[float]
    probs: Probs | None

    def candidates(self) -> Candidates:
        """The same as a proposal."""
        return Candidates(self.tokens, self.probs) if len(self.tokens) else NO_CANDIDATES


SILENCE = Spoken(NO_CANDIDATES.tokens, [], None)


def speak(
    row_after: Callable[[TokenIds], Logits],
    text: TokenIds,
    max_tokens: int,
    *,
    pick: Pick,
    threshold: float = 0.0,
    ends: Collection[int] = (),
) -> Spoken:
    """Let a model continue ``text`` [T], a token at a time.

    A token less likely than ``threshold`` is the last, and stays: dropping what was drawn because
    it was unlikely would change the distribution of the text.

    Args:
        row_after: The model's scores [V] for the token after some tokens.
        text: [T] the tokens to continue.
        max_tokens: The most to say.
        pick: How a token is chosen; a :class:`Sampler` leaves what it drew from in ``probs``.
        threshold: 0 for no such rule.
        ends: Tokens after which nothing is said.
    """
    known = np.append(text, np.zeros(max_tokens, np.int64))
    count = len(text)
    sure: list[float] = []
    probs: Probs | None = None
    while count < len(known):
        before = known[:count]
        row = row_after(before)
        try:
            if isinstance(pick, Sampler):
                q = pick.distribution(row, before)
                token = q.draw(pick.rng.random())
                if probs is None:
                    # Zeros that nobody touches take no memory, so a row costs what q can draw.
                    probs = np.zeros((max_tokens, len(row)))
                probs[len(sure), q.ids] = q.probs
                likely = q.prob(token)
            else:
                token = pick(row, before)
                likely = _likelihood(row, token) if threshold > 0 else 1.0
        except ValueError:
            # The rules leave no token here. The target says so, if the text ever gets here.
            break
        known[count] = token
        count += 1
        sure.append(likely)
        if token in ends or likely < threshold:
            break
    return Spoken(known[len(text) : count], sure, None if probs is None else probs[: len(sure)])


class AssistedCandidateGenerator:
    """Lets a draft model speak, as its target would: likeliest tokens, or drawn ones.

    Pays where the draft is several times faster than its target and says the same most of the
    time: its steps come on top, so a round with nothing accepted is slower than a plain one.

    Where the call samples, the draft draws from its own distribution q after the same rules as
    the target, and q goes with the candidates: more of them stand than of the likeliest ones.

    A token of which the draft is not sure is the last of a round. How sure is learned: every round
    tells which tokens stood, and the threshold moves to where it tells best.

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023,
    https://arxiv.org/abs/2211.17192; the confidence rule is that of Mamou et al., Dynamic
    Speculation Lookahead, 2024, https://arxiv.org/abs/2405.04304, moved as in transformers.
    """

    def __init__(
        self,
        draft: DraftModel,
        *,
        vocab_size: int,
        width: int | None = None,
        pick: Pick = pick_greedy,
        eos_token_ids: Iterable[int] = (),
        max_length: int | None = None,
        assistant_confidence_threshold: float = 0.4,
        reuse_prefix: bool = True,
    ) -> None:
        """Draft with ``draft`` and its cache.

        Args:
            draft: The draft model; it may serve several generators, which take turns.
            vocab_size: Ids below it are proposed: what draft and target both have.
            width: V of the target's rows, which ``pick`` may expect; None for ``vocab_size``.
            pick: How the draft chooses, by the target's rules. If it is a :class:`Sampler`, its
                chance must be another than the target's.
            eos_token_ids: Tokens after which nothing is drafted.
            max_length: The longest text in tokens that the draft can read. Beyond it nothing is
                proposed, and the target goes on alone.
            assistant_confidence_threshold: At first, a token less likely than this is the last of
                a round; 0 for no such rule.
            reuse_prefix: Let the draft go on from what it read before this text.
        """
        self.draft = draft
        self.reuse_prefix = reuse_prefix
        self.vocab_size = vocab_size
        self.width = vocab_size if width is None else width
        self.pick = pick
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_length = max_length
        self._first_threshold = assistant_confidence_threshold
        self._start_anew()

    def _start_anew(self) -> None:
        self.threshold = self._first_threshold
        self._judged: deque[tuple[float, bool]] = deque(maxlen=LABELS)
        self._before, self._spoken = 0, SILENCE
        self._in_vain: int | None = 0  # candidates so far while none has stood
        self._reader = DraftReader(self.draft, reuse_prefix=self.reuse_prefix)

    def begin(self, input_ids: TokenIds) -> None:
        """A new request: what was read and learned belongs to another text."""
        self._start_anew()

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the draft's own continuation [K], up to its first doubtful or end token."""
        if self.max_length is not None:
            max_candidates = min(max_candidates, self.max_length - len(input_ids))
        if max_candidates < 1:
            return NO_CANDIDATES
        with self.draft.lock:
            self._spoken = speak(
                lambda tokens: fitted(self._reader.row_after(tokens), self.vocab_size, self.width),
                input_ids,
                max_candidates,
                pick=self.pick,
                threshold=self.threshold,
                ends=self.eos_token_ids,
            )
        self._before = len(input_ids)
        return self._spoken.candidates()

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Learn how sure the draft was of what stood, and of the first that did not.

        Those behind it, behind the end of the text or never verified say nothing.
        """
        self._warn_if_in_vain(num_matches)
        stands = input_ids[self._before :].tolist()
        drafted = self._spoken.tokens.tolist()
        for token, sure, said in zip(drafted, self._spoken.sure, stands, strict=False):
            self._judged.append((sure, token == said))
            if token != said:
                break
        self._spoken = SILENCE
        if self._first_threshold > 0 and len(self._judged) >= _ENOUGH:
            sure_of, stood = np.array(self._judged).T
            if 0 < stood.sum() < len(stood):
                self.threshold = best_threshold(sure_of, stood > 0)

    def _warn_if_in_vain(self, num_matches: int) -> None:
        if self._in_vain is None:
            return
        self._in_vain += len(self._spoken.tokens)
        if num_matches or self._in_vain >= IN_VAIN:
            drafted, self._in_vain = self._in_vain, None
            if not num_matches:
                warnings.warn(
                    f"none of the draft's {drafted} candidates stood, which makes the text slower; "
                    "use a draft that was made for this target, or none",
                    stacklevel=2,
                )


def best_threshold(sure: Probs, stood: NDArray[np.bool_]) -> float:
    """The likelihood that best parts the candidates that stood from the others.

    Of all [N] likelihoods t the one with the least fpr + 3 (1 - tpr), the highest of equals, where
    fpr is the share of the refused with at least t and tpr that of those that stood. Stopping
    before a good candidate is thus three times as bad as drafting a wrong one.

    Args:
        sure: [N] how likely each candidate was to the draft.
        stood: [N] which of them were accepted; some, and not all.

    Source: transformers 5.24, ``AssistedCandidateGenerator.update_candidate_strategy``, by its
    behaviour.
    """
    order = np.argsort(-sure, kind="stable")
    sure, stood = sure[order], stood[order]
    at = np.flatnonzero(np.append(sure[1:] < sure[:-1], True))  # the last of each value
    tpr = np.cumsum(stood)[at] / stood.sum()
    fpr = np.cumsum(~stood)[at] / (~stood).sum()
    return float(sure[at][np.argmin(fpr + 3 * (1 - tpr))])


def fitted(row: Logits, vocab_size: int, width: int) -> Logits:
    """``row`` as wide as the target's, with nothing for ids that one of the two lacks."""
    known = row[:vocab_size]
    if len(known) == width:
        return known
    wide = np.full(width, -np.inf, np.float32)
    wide[: len(known)] = known
    return wide


def _likelihood(row: Logits, token: int) -> float:
    """The draft's own probability of ``token``, before any rule."""
    if row[token] == -np.inf:
        return 0.0  # only rules of the caller's can want it
    with np.errstate(over="ignore"):
        return float(1.0 / np.exp(row - row[token]).sum())
