"""Candidates copied from an earlier place in the same text."""

from typing import Literal, get_args

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES, Candidates

MatchPolicy = Literal["first", "latest", "longest"]
_CHAIN = 16
"""Earlier places compared by ``longest``: bounds its time where a text repeats itself a lot."""
_PAST = 32
"""Tokens compared before a place: two places that agree in so many are as good as each other."""


class PromptLookupCandidateGenerator:
    """Continues as the text did where its last n-gram was seen before.

    Costs no model call, so it pays wherever the answer repeats the prompt (summaries, edits,
    code), and costs little where it does not. Prompt and accepted output are searched alike, the
    longest n-gram first. Where it was seen more than once, the policy decides:

    ``"first"`` continues from the oldest place, as transformers does;
    ``"latest"`` from the newest;
    ``"longest"`` from the place with the longest common past, of equals the newest.

    A text that repeats a short pattern is continued round and round by the last two; transformers,
    and so ``"first"``, proposes no more than what stands in the text.

    An index of the text's n-grams grows with the text: about a microsecond a token and n.

    Source: Saxena, Prompt Lookup Decoding, 2023,
    https://github.com/apoorvumang/prompt-lookup-decoding
    """

    def __init__(
        self,
        num_output_tokens: int = 10,
        max_matching_ngram_size: int = 3,
        min_matching_ngram_size: int = 1,
        policy: MatchPolicy = "longest",
    ) -> None:
        """Set what counts as a match.

        Args:
            num_output_tokens: The most candidates of a round.
            max_matching_ngram_size: Longest n-gram to look for; longer ones are surer.
            min_matching_ngram_size: Shortest n-gram to look for.
            policy: Which of several places is continued.

        Raises:
            ValueError: If a size is below 1, the smallest above the largest, or the policy unknown.
        """
        for name, size in (
            ("prompt_lookup_num_tokens", num_output_tokens),
            ("max_matching_ngram_size", max_matching_ngram_size),
            ("min_matching_ngram_size", min_matching_ngram_size),
        ):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if min_matching_ngram_size > max_matching_ngram_size:
            raise ValueError(
                f"min_matching_ngram_size must be at most max_matching_ngram_size "
                f"({max_matching_ngram_size}), got {min_matching_ngram_size}"
            )
        if policy not in get_args(MatchPolicy):
            raise ValueError(
                f"policy must be one of {', '.join(get_args(MatchPolicy))}, got {policy!r}"
            )
        self.num_output_tokens = num_output_tokens
        self.sizes = range(max_matching_ngram_size, min_matching_ngram_size - 1, -1)
        self.policy = policy
        self._forget()

    def _forget(self) -> None:
        self._known: list[int] = []
        # For each n: n-gram -> the place behind it, the oldest or newest by policy.
        self._places: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in self.sizes}
        # For each n: a place -> the place before it that follows the same n-gram.
        self._earlier: dict[int, dict[int, int]] = {n: {} for n in self.sizes}

    def begin(self, input_ids: TokenIds) -> None:
        """A new request: nothing of the last text is proposed again."""
        self._forget()

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the tokens [K] that followed the best earlier match, or none."""
        count = min(max_candidates, self.num_output_tokens)
        if count < 1 or len(input_ids) < 2:
            return NO_CANDIDATES
        self._read(input_ids)
        place, match_length = self._find()
        if not match_length:
            return NO_CANDIDATES
        follows = input_ids[place : place + count]
        if self.policy != "first" and len(follows) < count:
            # The place is so near that its continuation runs into the proposal itself: go round.
            follows = np.resize(follows, count)
        return Candidates(follows, match_length=match_length)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Nothing to learn: the text itself is the only state."""

    def _read(self, input_ids: TokenIds) -> None:
        """Index what is new: each n-gram once a token stands behind it."""
        known = self._known
        done = len(known)
        if done > len(input_ids) or (done and known[-1] != input_ids[done - 1]):
            self._forget()  # another text, without begin()
            known, done = self._known, 0
        known += input_ids[done:].tolist()
        keep_first, chain = self.policy == "first", self.policy == "longest"
        for n in self.sizes:
            places, earlier = self._places[n], self._earlier[n]
            for place in range(max(done, n), len(known)):
                gram = tuple(known[place - n : place])
                if keep_first:
                    places.setdefault(gram, place)
                    continue
                if chain and gram in places:
                    earlier[place] = places[gram]
                places[gram] = place

    def _find(self) -> tuple[int, int]:
        """The place to continue from, and how many tokens before it are the text's last ones."""
        known = self._known
        for n in self.sizes:
            if n >= len(known):
                continue
            place = self._places[n].get(tuple(known[-n:]))
            if place is not None:
                if self.policy == "longest":
                    return self._longest(place, n)
                return place, self._common_past(place, n)
        return 0, 0

    def _longest(self, place: int, n: int) -> tuple[int, int]:
        """Of the newest places behind the last ``n`` tokens, the one with the longest past."""
        earlier = self._earlier[n]
        best, best_length = place, self._common_past(place, n)
        for _ in range(_CHAIN):
            if place not in earlier or best_length >= _PAST:
                break
            place = earlier[place]
            length = self._common_past(place, n)
            if length > best_length:
                best, best_length = place, length
        return best, best_length

    def _common_past(self, place: int, length: int) -> int:
        """How many tokens before ``place`` equal the text's last ones; ``length`` are known to."""
        known = self._known
        while length < min(place, _PAST) and known[place - length - 1] == known[-length - 1]:
            length += 1
        return length
