"""The loop: propose, verify, accept, rewind."""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edgespec.arrays import Logits, TokenIds
from edgespec.budget import Budget
from edgespec.candidates.base import (
    NO_CANDIDATES,
    CandidateGenerator,
    Candidates,
    begin,
    checked,
    end,
)
from edgespec.logit_rules import Ban, count_allowed
from edgespec.stopping import FinishReason, Stopping
from edgespec.verify import Pick, verify

_ROOM = 512
"""Positions that the cache gets beyond the prompt at first, if the text may be so long."""


class TargetModel(Protocol):
    """What the loop asks of a model: scores for new tokens, and to forget some."""

    @property
    def length(self) -> int:
        """Positions held in the cache."""

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions at once rather than step by step."""

    def prefill(self, tokens: TokenIds) -> None:
        """Append ``tokens`` [N] to the cache."""

    def forward(self, tokens: TokenIds) -> Logits:
        """Append ``tokens`` [N] to the cache and return their logits [N, V]."""

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` cached positions and forget the rest."""

    def rewind_to_shared(self, tokens: TokenIds) -> int:
        """Keep what was read of ``tokens`` [T] already; how many positions that is."""

    def hand_to(self, reader: object) -> bool:
        """Note who reads now; True if the cache still holds what ``reader`` read."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one pass through the loop did.

    Attributes:
        tokens: [N] emitted, the accepted candidates first.
        num_accepted: How many of ``tokens`` were candidates.
        num_proposed: Candidates that the generator returned.
        num_verified: Candidates that the target read: what the budget left of them.
        source: Name of the generator that proposed, None where nothing was proposed.
        draft_s: Seconds in which candidates were found.
        verify_s: Seconds in the target's forward and the judging of its rows.
        rewind_s: Seconds in which refused candidates were forgotten.
        finish_reason: Why the text ends here, or None.
    """

    tokens: TokenIds
    num_accepted: int
    num_proposed: int
    num_verified: int
    source: str | None
    draft_s: float
    verify_s: float
    rewind_s: float
    finish_reason: FinishReason | None


class Decoding:
    """One text being written: iterate over it for its rounds."""

    def __init__(
        self,
        target: TargetModel,
        generator: CandidateGenerator | None,
        prompt: TokenIds,
        *,
        pick: Pick,
        budget: Budget,
        stopping: Stopping,
        vocab_size: int,
        reuse_prefix: bool = True,
        bans: Sequence[Ban] = (),
    ) -> None:
        """Set out to continue ``prompt`` [T].

        Args:
            target: Whose text it is.
            generator: Who proposes candidates; None for plain decoding.
            prompt: At least one token.
            pick: How the target chooses a token.
            budget: How many candidates a round may take.
            stopping: Where the text ends; ``stopping.max_length`` bounds the tokens in all.
            vocab_size: Ids that may be proposed are below it.
            reuse_prefix: Begin with what the cache holds of the text already.
            bans: The rules by which ``pick`` forbids tokens, so that none of these is verified.
        """
        self.target, self.generator, self.pick = target, generator, pick
        self.budget, self.stopping, self.vocab_size = budget, stopping, vocab_size
        self.bans, self.reuse_prefix = tuple(bans), reuse_prefix
        self.prefill_s = 0.0
        self.reused_tokens: int | None = None  # of the prompt, once it is read
        self._tokens = prompt.copy()
        self._count = len(prompt)

    @property
    def tokens(self) -> TokenIds:
        """[T] prompt and output so far; a view that cannot be written to."""
        view = self._tokens[: self._count]
        view.flags.writeable = False
        return view

    def __iter__(self) -> Generator[Round, None, None]:
        """Yield a round at a time until the text ends."""
        if self.generator is None:
            yield from self._rounds()
            return
        begin(self.generator, self.tokens)
        try:
            yield from self._rounds()
        finally:
            end(self.generator, self.tokens)

    def _rounds(self) -> Iterator[Round]:
        done = self._round()
        yield done
        while done.finish_reason is None:
            done = self._round()
            yield done

    def _round(self) -> Round:
        """After it the cache holds every token but the last, whatever was refused."""
        self._catch_up()
        began = time.perf_counter()
        candidates, chosen = self._propose()
        drafted = time.perf_counter()
        self._catch_up()  # a generator may have asked the target itself
        before, known = self._count, self._with(chosen)
        logits = self.target.forward(known[before - 1 :])  # [K+1, V]
        verdict = verify(known, chosen, candidates.draft_probs, logits, self.pick)
        verified = time.perf_counter()
        reason = self._accept(verdict.tokens)
        emitted = self._tokens[before : self._count].copy()
        self._catch_up()  # and so may a criterion
        accepted = time.perf_counter()
        self.target.rewind(self._count - 1)  # the last token is not cached yet
        rewound = time.perf_counter()
        num_accepted = min(verdict.num_accepted, len(emitted))
        self.budget.learn(
            candidates, len(chosen), verdict.num_accepted, drafted - began, verified - drafted
        )
        if self.generator is not None and len(chosen):
            self.generator.update_candidate_strategy(self.tokens, num_accepted)
        return Round(
            emitted,
            num_accepted,
            len(candidates.tokens),
            len(chosen),
            self._source(candidates),
            drafted - began,
            verified - drafted,
            rewound - accepted,
            reason,
        )

    def _source(self, candidates: Candidates) -> str | None:
        """Who proposed, if anyone did."""
        if not len(candidates.tokens):
            return None
        return candidates.source or type(self.generator).__name__

    def _with(self, candidates: TokenIds) -> TokenIds:
        """[T + K] the text with ``candidates`` [K] behind it, and room for one more token.

        Views of the text that others keep stay as they are.
        """
        count = self._count + len(candidates)
        if count + 1 > len(self._tokens):
            grown = np.empty(max(count + 1, 2 * len(self._tokens), _ROOM), np.int64)
            grown[: self._count] = self._tokens[: self._count]
            self._tokens = grown
        self._tokens[self._count : count] = candidates
        return self._tokens[:count]

    def _catch_up(self) -> None:
        """Read what the cache lacks: of the prompt, or of all if someone else used the model."""
        if self.target.hand_to(self):
            return
        began = time.perf_counter()
        wanted = self._tokens[: self._count - 1]  # the last token is read with the candidates
        held = self.target.rewind_to_shared(wanted) if self.reuse_prefix else 0
        self.target.rewind(held)
        if self.reused_tokens is None:
            self.reused_tokens = held
        self.target.reserve(min(self.stopping.max_length, self._count + _ROOM))
        self.target.prefill(wanted[held:])
        self.prefill_s += time.perf_counter() - began

    def _propose(self) -> tuple[Candidates, TokenIds]:
        """What the generator proposes, and what of it is worth verifying."""
        # The last token of the text needs no candidate: it comes with the last verification.
        room = self.stopping.max_length - self._count - 1
        limit = 0 if self.generator is None else min(room, self.budget.limit())
        if self.generator is None or limit < 1:
            return NO_CANDIDATES, NO_CANDIDATES.tokens
        candidates = self.generator.get_candidates(self.tokens, limit)
        proposed = checked(self.generator, candidates, limit, self.vocab_size)
        if self.bans and candidates.draft_probs is None:
            # Drawn candidates stay: to leave one out for what it is, forbidden or not, would change
            # the distribution. Verified, p is 0 there, and the next token is drawn as it must be.
            proposed = proposed[: count_allowed(self.bans, self._with(proposed), len(proposed))]
        cut = len(proposed) < len(candidates.tokens)
        choice = self.budget.choose(replace(candidates, tokens=proposed) if cut else candidates)
        return candidates, self._up_to_the_end(proposed[:choice])

    def _up_to_the_end(self, tokens: TokenIds) -> TokenIds:
        """Nothing can follow an end token."""
        listed, ends = tokens.tolist(), self.stopping.eos_token_ids
        if ends.isdisjoint(listed):
            return tokens
        return tokens[: 1 + next(i for i, token in enumerate(listed) if token in ends)]

    def _accept(self, tokens: TokenIds) -> FinishReason | None:
        """Append what stands, cut where the text ends."""
        for token in tokens.tolist():
            self._tokens[self._count] = token
            self._count += 1
            reason = self.stopping.judge(self.tokens)
            if reason is not None:
                return reason
        return None
