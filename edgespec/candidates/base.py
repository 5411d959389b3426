"""The one question that every candidate generator answers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgespec.arrays import Probs, TokenIds
from edgespec.errors import CandidateError


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens proposed to follow the tokens known so far.

    Attributes:
        tokens: [K] proposed ids; K may be 0, and then the round is a plain decoding step.
        draft_probs: [K, V] the distribution q that each token was drawn from, by chance that
            nobody else uses, or None where the proposal is certain (looked up, or argmax). Nothing
            may be dropped from a drawn proposal in view of what was drawn.
        match_length: How many tokens before the proposal are the same at the place it was copied
            from, where the generator knows; the budget learns how far such a proposal holds.
        source: Who proposed, where it is not the generator that was asked.
    """

    tokens: TokenIds
    draft_probs: Probs | None = None
    match_length: int | None = None
    source: str | None = None


NO_CANDIDATES = Candidates(np.empty(0, np.int64))


class CandidateGenerator(Protocol):
    """Guesses what the target model will say next.

    A generator may also have ``begin(input_ids)``: a new request starts with these tokens [T],
    and what was learned from the last one must go; and ``end(input_ids)``: the request is over,
    with these tokens.
    """

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return at most ``max_candidates`` tokens to follow ``input_ids`` [T], or none.

        ``input_ids`` is the prompt and all accepted output; it cannot be written to.
        """

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Learn the outcome: ``input_ids`` [T] now stand, ``num_matches`` of them were proposed."""


def begin(generator: CandidateGenerator, input_ids: TokenIds) -> None:
    """Tell ``generator`` that a new request starts, if it wants to know."""
    told = getattr(generator, "begin", None)
    if told is not None:
        told(input_ids)


def end(generator: CandidateGenerator, input_ids: TokenIds) -> None:
    """Tell ``generator`` that the request is over, if it wants to know."""
    told = getattr(generator, "end", None)
    if told is not None:
        told(input_ids)


def checked(
    generator: CandidateGenerator, candidates: Candidates, max_candidates: int, vocab_size: int
) -> TokenIds:
    """The candidates' tokens [K], if the generator kept its promise.

    Raises:
        CandidateError: If they are not a row of whole numbers, too many, or no token ids; or if
            they cannot have been drawn from their ``draft_probs``.
    """
    name = type(generator).__name__
    if not isinstance(candidates, Candidates):
        raise CandidateError(f"{name} must return Candidates, got {type(candidates).__name__}")
    tokens = np.asarray(candidates.tokens)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise CandidateError(
            f"{name} must return token ids [K] as whole numbers, "
            f"got {tokens.dtype} of shape {list(tokens.shape)}"
        )
    if len(tokens) > max_candidates:
        raise CandidateError(
            f"{name} must return at most {max_candidates} candidates, got {len(tokens)}"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        wrong = tokens[(tokens < 0) | (tokens >= vocab_size)][0]
        raise CandidateError(f"{name} must return token ids below {vocab_size}, got {wrong}")
    if candidates.draft_probs is not None:
        _check_drawn(name, tokens, np.asarray(candidates.draft_probs))
    return tokens.astype(np.int64, copy=False)


def _check_drawn(name: str, tokens: TokenIds, draft_probs: Probs) -> None:
    """Raises CandidateError if ``tokens`` [K] cannot have been drawn from ``draft_probs``."""
    if draft_probs.ndim != 2 or len(draft_probs) != len(tokens):
        raise CandidateError(
            f"{name} must return draft_probs [K, V] with a row for each of its {len(tokens)} "
            f"candidates, got the shape {list(draft_probs.shape)}"
        )
    for token, q in zip(tokens.tolist(), draft_probs, strict=True):
        prob = float(q[token]) if token < len(q) else 0.0
        if not 0 < prob < 1.001:  # written so that NaN fails; rounding may leave a little over 1
            raise CandidateError(
                f"{name} must draw its candidates from draft_probs, but the probability of token "
                f"{token} there is {prob}"
            )
