"""Candidates copied from an earlier place in the same text, or from a reference beside it."""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES, Candidates

MatchPolicy = Literal["first", "latest", "longest"]
_CHAIN = 16
"""Earlier places compared by ``longest``: bounds its time where a text repeats itself a lot."""
_PAST = 32
"""Tokens compared before a place: two places that agree in so many are as good as each other."""


class _Index:
    """Where the n-grams of one text stand; it grows with the text."""

    def __init__(self, sizes: Iterable[int], policy: MatchPolicy) -> None:
        """Index the n-grams of ``sizes``; the policy says which of several places is kept."""
        self.known: list[int] = []
        self._keep_first = policy == "first"
        self._chained = policy == "longest"
        # For each n: n-gram -> the place behind it, the oldest or newest by policy.
        self._places: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in sizes}
        # For each n: a place -> the place before it that follows the same n-gram.
        self._earlier: dict[int, dict[int, int]] = {n: {} for n in sizes}

    def extend(self, tokens: Sequence[int]) -> None:
        """Read on: each n-gram is known once a token stands behind it."""
        done = len(self.known)
        self.known += tokens
        for n, places in self._places.items():
            earlier = self._earlier[n]
            for place in range(max(done, n), len(self.known)):
                gram = tuple(self.known[place - n : place])
                if self._keep_first:
                    places.setdefault(gram, place)
                    continue
                if self._chained and gram in places:
                    earlier[place] = places[gram]
                places[gram] = place

    def find(self, text: list[int], n: int) -> tuple[int, int]:
        """The place behind the last ``n`` tokens of ``text``, and how long their common past is.

        Returns:
            Place and length; length 0 where the n-gram does not stand in this text.
        """
        place = self._places[n].get(tuple(text[-n:]))
        if place is None:
            return 0, 0
        best, best_length = place, self._common_past(text, place, n)
        earlier = self._earlier[n]
        for _ in range(_CHAIN):
            if place not in earlier or best_length >= _PAST:
                break
            place = earlier[place]
            length = self._common_past(text, place, n)
            if length > best_length:
                best, best_length = place, length
        return best, best_length

    def _common_past(self, text: list[int], place: int, length: int) -> int:
        """How many tokens before ``place`` are the last of ``text``; ``length`` are known to be."""
        most = min(place, len(text), _PAST)
        while length < most and self.known[place - length - 1] == text[-length - 1]:
            length += 1
        return length


class PromptLookupCandidateGenerator:
    """Continues as the text did where its last n-gram was seen before.

    Costs no model call, so it pays wherever the answer repeats the prompt (summaries, edits,
    code), and costs little where it does not. Prompt and accepted output are searched alike, the
    longest n-gram first. Where it was seen more than once, the policy decides:

    ``"first"`` continues from the oldest place, as transformers does;
    ``"latest"`` from the newest;
    ``"longest"`` from the place with the longest common past, of equals the newest.

    References are documents that are not in the prompt: the file being edited, a retrieved passage,
    the last answer. Where text and references know an n-gram, ``"longest"`` compares them all and
    the other policies prefer the text.

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
        references: Iterable[Sequence[int] | TokenIds] = (),
    ) -> None:
        """Set what counts as a match.

        Args:
            num_output_tokens: The most candidates of a round.
            max_matching_ngram_size: Longest n-gram to look for; longer ones are surer.
            min_matching_ngram_size: Shortest n-gram to look for.
            policy: Which of several places is continued.
            references: Token ids of further texts to copy from; indexed once, here.

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
        self._references = [self._index_of(np.asarray(r).tolist()) for r in references]
        self._text = self._index_of([])

    def _index_of(self, tokens: list[int]) -> _Index:
        index = _Index(self.sizes, self.policy)
        index.extend(tokens)
        return index

    def begin(self, input_ids: TokenIds) -> None:
        """A new request: nothing of the last text is proposed again."""
        self._text = self._index_of([])

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the tokens [K] that followed the best earlier match, or none."""
        count = min(max_candidates, self.num_output_tokens)
        if count < 1 or not len(input_ids):
            return NO_CANDIDATES
        self._read(input_ids)
        source, place, match_length = self._find()
        if not match_length:
            return NO_CANDIDATES
        follows = source.known[place : place + count]
        if source is self._text and self.policy != "first" and len(follows) < count:
            # The place is so near that its continuation runs into the proposal itself: go round.
            follows = (follows * -(-count // len(follows)))[:count]
        return Candidates(np.array(follows, np.int64), match_length=match_length)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Nothing to learn: the text itself is the only state."""

    def _read(self, input_ids: TokenIds) -> None:
        """Index what is new."""
        known = self._text.known
        if len(known) >= len(input_ids) or (known and known[-1] != input_ids[len(known) - 1]):
            self.begin(input_ids)  # another text, and nobody told
        self._text.extend(input_ids[len(self._text.known) :].tolist())

    def _find(self) -> tuple[_Index, int, int]:
        """Where to continue from: behind the longest n-gram that was seen before."""
        text = self._text.known
        best = (self._text, 0, 0)
        for n in self.sizes:
            if n > len(text):
                continue
            for index in (self._text, *self._references):
                place, length = index.find(text, n)
                if (length and not best[2]) or (length > best[2] and self.policy == "longest"):
                    best = (index, place, length)
            if best[2]:
                break
        return best
