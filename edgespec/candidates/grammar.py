"""Candidates that the grammar of a constrained text forces."""

from dataclasses import replace

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.candidates.base import (
    NO_CANDIDATES,
    CandidateGenerator,
    Candidates,
    begin,
    checked,
    end,
)
from edgespec.candidates.universal import ids_behind, whole_characters
from edgespec.guided import Guide

_CERTAIN = 33
"""As a match of so many tokens: the text is certain, only its cut into tokens is not."""
_LOOK_BEHIND = 32
"""Tokens before the forced text that its cut into tokens may depend on."""


class GrammarCandidateGenerator:
    """Proposes what a grammar forces, and elsewhere what another generator proposes.

    Costs no model call. Pays wherever the output has parts that are fixed: the names, quotes and
    brackets of a JSON object are most of it. The forced text is certain, and so are its tokens as
    far as the model spells it as its tokenizer does; where it does not, they are refused.

    Proposals of the other generator are cut at the first token that the grammar forbids and go on
    with what is forced there. Those that were drawn by chance pass as they are: dropping some in
    view of what was drawn would change the distribution of the text.
    """

    def __init__(self, guide: Guide, inner: CandidateGenerator | None = None) -> None:
        """Propose along ``guide``.

        Args:
            guide: The grammar; may be the one that masks the target's scores.
            inner: Asked where nothing is forced.
        """
        self.guide, self.inner = guide, inner
        self._from_inner = 0

    def end(self, input_ids: TokenIds) -> None:
        """Pass it on."""
        if self.inner is not None:
            end(self.inner, input_ids)

    def begin(self, input_ids: TokenIds) -> None:
        """A new request; the other generator may want to know."""
        if self.inner is not None:
            begin(self.inner, input_ids)

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the forced tokens [K], or what the other generator proposes."""
        self._from_inner = 0
        forced = self._forced(input_ids, max_candidates)
        if len(forced):
            return Candidates(forced, match_length=_CERTAIN, source=type(self).__name__)
        if self.inner is None or max_candidates < 1:
            return NO_CANDIDATES
        proposed = self.inner.get_candidates(input_ids, max_candidates)
        tokens = checked(self.inner, proposed, max_candidates, self.guide.size)
        source = proposed.source or type(self.inner).__name__
        if proposed.draft_probs is None:
            tokens = tokens[: self.guide.count_allowed(input_ids, tokens)]
        self._from_inner = len(tokens)
        if proposed.draft_probs is None and len(tokens):
            behind = np.append(input_ids, tokens)
            tokens = np.append(tokens, self._forced(behind, max_candidates - len(tokens)))
        return replace(proposed, tokens=tokens, source=source)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Tell the other generator how many of its own candidates stood."""
        if self.inner is not None and self._from_inner:
            matches = min(num_matches, self._from_inner)
            self.inner.update_candidate_strategy(input_ids, matches)

    def _forced(self, input_ids: TokenIds, count: int) -> TokenIds:
        """At most ``count`` tokens that must follow ``input_ids`` [T], the end token among them."""
        if count < 1:
            return NO_CANDIDATES.tokens
        forced = self.guide.forced_bytes(input_ids)
        forced = forced[: whole_characters(forced)]
        tokens = self._spelt(input_ids, forced)[:count]
        ends = self.guide.eos_token_ids[:1]
        if len(tokens) < count and len(ends):
            behind = np.append(input_ids, tokens)
            if self.guide.is_complete(behind) and self.guide.count_allowed(behind, ends):
                return np.append(tokens, ends)
        return tokens

    def _spelt(self, input_ids: TokenIds, text: bytes) -> TokenIds:
        """The tokens [K] of ``text`` where it stands behind ``input_ids`` [T]."""
        if not text:
            return NO_CANDIDATES.tokens
        spelling = self.guide.tokenizer.spelling
        before = b"".join(spelling[t] for t in input_ids[-_LOOK_BEHIND:] if t < len(spelling))
        tokens = np.array(ids_behind(self.guide.tokenizer, before, text), np.int64)
        return tokens[: self.guide.count_allowed(input_ids, tokens)]
