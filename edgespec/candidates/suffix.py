"""Candidates that continue the longest suffix seen before, as far as the places seen agree."""

import threading
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES, Candidates
from edgespec.candidates.remembering import Remembering

MAX_PAST_TOKENS = 100_000
"""Tokens of past outputs that are kept where nothing else is said."""
_SIZES = (8, 4, 2, 1)
"""The n-grams by which places are found; a place's whole past is compared then."""
_PLACES = 32
"""Places that are compared in a round, those of longer n-grams and newer ones first."""
_CHAIN = 4 * _PLACES
"""Links followed for an n-gram: also those of other n-grams with the same hash."""
_END = -1
"""Stands between past outputs; no token."""
_FEWEST_BUCKETS = 1024

Draft = tuple[list[int], float, int]
"""Tokens, the sum of their probabilities, and how many tokens before them were matched."""
_Votes = dict[tuple[int, ...], tuple[int, int]]
"""What followed a match -> how often, and the newest place of it."""


class _Places:
    """Finds where the last tokens of a text stood before in a row of tokens.

    For each n of ``_SIZES`` a table from a hash of n tokens to the newest place behind such, and
    from each place to the one before it, as in LZ77 compressors. Tables hold 4-byte numbers and
    no keys, since tokens are compared anyway.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.first = 0  # places up to here are not found any more
        self._clear()

    def _clear(self) -> None:
        buckets = max(_FEWEST_BUCKETS, 1 << len(self.tokens).bit_length())
        # Place 0 follows nothing, so that 0 can stand for none.
        self._newest = {n: array("i", [0]) * buckets for n in _SIZES}
        self._earlier = {n: array("i") for n in _SIZES}
        self._mask = buckets - 1

    def extend(self, tokens: list[int]) -> None:
        """Append ``tokens``, and note each place that has one behind it now."""
        done = len(self.tokens)
        self.tokens += tokens
        if len(self.tokens) > self._mask:
            self._clear()
            done = 0
        self._note(done)

    def drop(self) -> None:
        """Free what lies before ``first``."""
        del self.tokens[: self.first]
        self.first = 0
        self._clear()
        self._note(0)

    def _note(self, start: int) -> None:
        tokens, mask = self.tokens, self._mask
        for n in _SIZES:
            newest, earlier = self._newest[n], self._earlier[n]
            earlier.extend([0] * (len(tokens) - len(earlier)))
            for place in range(max(start, n), len(tokens)):
                bucket = hash(tuple(tokens[place - n : place])) & mask
                earlier[place] = newest[bucket]
                newest[bucket] = place

    def find(self, tail: list[int], n: int, found: dict[int, int]) -> None:
        """Add places behind the last ``n`` tokens of ``tail``, and how much of it precedes each.

        Args:
            tail: The last tokens of a text, as many as are worth comparing.
            n: One of the sizes, at most the length of ``tail``.
            found: Place -> length of the match; up to ``_PLACES`` of them.
        """
        tokens, earlier = self.tokens, self._earlier[n]
        place = self._newest[n][hash(tuple(tail[-n:])) & self._mask]
        for _ in range(_CHAIN):
            if place <= self.first or len(found) >= _PLACES:
                break
            if place not in found:
                length = _common_past(tokens, place, tail)
                if length >= n:
                    found[place] = length
            place = earlier[place]


def _common_past(tokens: list[int], place: int, tail: list[int]) -> int:
    """How many tokens before ``place`` are the last ones of ``tail``."""
    most = min(place, len(tail))
    if tokens[place - most : place] == tail[-most:]:
        return most
    length = 0
    while tokens[place - length - 1] == tail[-length - 1]:
        length += 1
    return length


class PastOutputs:
    """Outputs of past requests, in memory, the oldest forgotten first.

    Takes about 100 bytes a token, for up to twice ``max_tokens`` of them. Several generators and
    threads may share one.

    Attributes:
        max_tokens: Tokens kept; an output that is longer keeps its end.
    """

    def __init__(self, max_tokens: int = MAX_PAST_TOKENS) -> None:
        """Know nothing yet.

        Raises:
            ValueError: If ``max_tokens`` is below 1.
        """
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        self.max_tokens = max_tokens
        self._places = _Places()
        self._outputs: deque[int] = deque()  # their lengths
        self._num_tokens = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Tokens kept."""
        return self._num_tokens

    def add(self, tokens: TokenIds) -> None:
        """Keep an output [N]; forget the oldest ones where there is no room."""
        output = tokens[-self.max_tokens :].tolist()
        if not output:
            return
        with self._lock:
            self._outputs.append(len(output))
            self._num_tokens += len(output)
            self._places.extend([*output, _END])
            while self._num_tokens > self.max_tokens:
                oldest = self._outputs.popleft()
                self._num_tokens -= oldest
                self._places.first += oldest + 1
            if self._places.first > self.max_tokens:
                # Seldom enough that each token is noted twice at most, taken over time.
                self._places.drop()

    def draft(self, tail: list[int], limits: "_Limits") -> Draft:
        """The best continuation of a text that ends with ``tail``."""
        with self._lock:
            return _best_draft(self._places, tail, limits, is_text=False)


@dataclass(frozen=True, slots=True)
class _Limits:
    """How long a draft may be."""

    count: int
    factor: float
    min_prob: float

    def tokens(self, match_length: int) -> int:
        """The most tokens after a match."""
        return int(min(self.count, self.factor * match_length))


def _best_draft(places: _Places, tail: list[int], limits: _Limits, *, is_text: bool) -> Draft:
    """The draft with the largest sum of probabilities over all lengths of the match.

    Args:
        places: Where to look.
        tail: The text's last tokens.
        limits: How long the draft may be.
        is_text: Whether ``places`` hold the text itself: a copy then runs on into the draft.
    """
    best: Draft = ([], 0.0, 0)
    found: dict[int, int] = {}
    votes: _Votes = {}
    below = len(tail)
    for n in _SIZES:
        if n > len(tail):
            continue
        # A match that is found by n tokens only is shorter than those found before.
        most = limits.tokens(below)
        if most <= best[1]:
            break
        known = len(found)
        places.find(tail, n, found)
        new = sorted(list(found.items())[known:], key=itemgetter(1), reverse=True)
        for length, matching in groupby(new, key=itemgetter(1)):
            match_length = min(length, below)
            for place, _ in matching:
                follows = _follows(places.tokens, place, most, is_text)
                times, newest = votes.get(follows, (0, 0))
                votes[follows] = times + 1, max(newest, place)
            count = limits.tokens(match_length)
            if count <= best[1]:
                continue  # it cannot be better, but has a vote on shorter matches
            drafted, score = _walk(votes, count, limits.min_prob)
            if score > best[1]:
                best = drafted, score, match_length
        below = n - 1
    return best


def _follows(tokens: list[int], place: int, count: int, is_text: bool) -> tuple[int, ...]:
    """What stands behind ``place``: ``count`` tokens, or fewer and the mark of an output's end."""
    follows = tokens[place : place + count]
    if not is_text and _END in follows:
        del follows[follows.index(_END) + 1 :]
    elif len(follows) < count:
        # So near the end that the draft itself is what follows: round and round.
        follows = (follows * (count // len(follows) + 1))[:count]
    return tuple(follows)


def _walk(votes: _Votes, count: int, min_prob: float) -> tuple[list[int], float]:
    """Follow the majority, and from then on only those that agreed so far.

    Args:
        votes: Each has ``count`` tokens or more, or ends with the mark of an output's end.
        count: The most tokens.
        min_prob: Of the last token.

    Returns:
        The tokens and the sum of their probabilities.
    """
    drafted: list[int] = []
    prob, score = 1.0, 0.0
    total = sum(times for times, _ in votes.values())
    while True:
        agreed = _common_start(min(votes), max(votes), len(drafted), count)
        if _END in agreed:
            agreed = agreed[: agreed.index(_END)]
            count = len(drafted) + len(agreed)
        drafted += agreed
        score += prob * len(agreed)
        if len(drafted) == count:
            break
        shares: dict[int, tuple[int, int]] = {}
        for follows, (times, newest) in votes.items():
            others, newer = shares.get(follows[len(drafted)], (0, 0))
            shares[follows[len(drafted)]] = others + times, max(newest, newer)
        token = max(shares, key=shares.__getitem__)
        votes = {follows: vote for follows, vote in votes.items() if follows[len(drafted)] == token}
        prob, total = prob * shares[token][0] / total, shares[token][0]
        if prob < min_prob:
            break
    # Equal but for the order in which it was added up is equal.
    return drafted, round(score, 9)


def _common_start(
    first: tuple[int, ...], last: tuple[int, ...], start: int, stop: int
) -> tuple[int, ...]:
    """From ``start`` on, what the first and the last in order share, and so all between them."""
    if first[start:stop] == last[start:stop]:
        return first[start:stop]
    end = start
    while first[end] == last[end]:
        end += 1
    return first[start:end]


class SuffixCandidateGenerator(Remembering):
    """Continues the longest suffixes of the text that were seen before, as far as is certain.

    Costs no model call. Pays most where long passages come again: agents that repeat their steps,
    edits, structured output; and, with ``past``, where requests resemble each other. A short match
    gives a short draft and a long one a long draft, and the draft ends where the places that it is
    copied from part too often, so little is wasted where nothing repeats.

    For every length m of the match, the draft follows the most frequent next token of the places
    with that match, of equally frequent ones the newest place's. The probability of a token is the
    product of the shares up to it; the m with the largest sum of probabilities is proposed, up to
    ``max_spec_factor`` times m tokens.

    Where its source counts in a suffix tree, this finds up to 32 places by hash chains and counts
    among them: the same proposals where the suffix was seen up to 32 times, else those of its
    newest places. Measured against a trie in dicts (depth 24, varied text): 80 bytes a token
    instead of 2,500, so 8 MB at 100,000 tokens; to take in a token 2 us instead of 13 to 28; but a
    round takes 30 to 400 us, some five times as long as there. Unlike there the end of the text is
    no place of its own (it says nothing of what follows), and what runs into the end goes on with
    the draft.

    Source: Oliaro et al., SuffixDecoding: Extreme Speculative Decoding for Emerging AI
    Applications, 2024, https://arxiv.org/abs/2411.04975
    """

    def __init__(
        self,
        num_output_tokens: int = 32,
        *,
        max_match_length: int = 24,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
        past: PastOutputs | None = None,
    ) -> None:
        """Set how far a match is followed.

        Args:
            num_output_tokens: The most candidates of a round.
            max_match_length: Tokens of the longest suffix that is compared.
            max_spec_factor: Candidates for each token of the match.
            min_token_prob: A token less likely than this ends the draft and is not proposed.
            past: Outputs of other requests to copy from too. This text's output is added when it
                ends (:meth:`end`) or the next one begins; share it only among those who may see
                each other's words. Without it nothing outlives a request.

        Raises:
            ValueError: If a number is below 1, the factor not above 0, or the probability not
                within 0 and 1.
        """
        for name, number in (
            ("num_output_tokens", num_output_tokens),
            ("max_match_length", max_match_length),
        ):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if not max_spec_factor > 0:
            raise ValueError(f"max_spec_factor must be above 0, got {max_spec_factor}")
        if not 0 <= min_token_prob <= 1:
            raise ValueError(f"min_token_prob must be from 0 to 1, got {min_token_prob}")
        self.num_output_tokens = num_output_tokens
        self.max_match_length = max_match_length
        self.max_spec_factor, self.min_token_prob = max_spec_factor, min_token_prob
        self.past = past
        self._forget()

    @property
    def _known(self) -> list[int]:
        return self._places.tokens

    def _forget(self) -> None:
        self._places = _Places()

    def _keep(self, start: int) -> None:
        if self.past is not None:
            self.past.add(np.array(self._places.tokens[start:], np.int64))

    def _take_in(self, tokens: list[int]) -> None:
        self._places.extend(tokens)

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the likeliest continuation [K] of the best match, or none."""
        count = min(max_candidates, self.num_output_tokens)
        if count < 1 or not len(input_ids):
            return NO_CANDIDATES
        self._read(input_ids)
        tail = self._places.tokens[-self.max_match_length :]
        limits = _Limits(count, self.max_spec_factor, self.min_token_prob)
        drafted, score, match_length = _best_draft(self._places, tail, limits, is_text=True)
        if self.past is not None:
            other = self.past.draft(tail, limits)
            if other[1] > score:
                drafted, score, match_length = other
        if not drafted:
            return NO_CANDIDATES
        return Candidates(np.array(drafted, np.int64), match_length=match_length)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Nothing to learn: the text itself is the only state."""
