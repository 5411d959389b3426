"""Candidates that most often followed the last few tokens: here, in past texts, in a corpus."""

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES, Candidates
from edgespec.candidates.remembering import Remembering
from edgespec.ngram_store import MAX_NGRAM, NgramStore, ngram_keys

# For n = 1, 2, 3, 4: how often an n-gram must have been seen, and the percentage of that which the
# likeliest token behind it must have. Past texts are further away, so more is asked of them.
_THIS_TEXT = ((2, 66), (2, 50), (1, 50), (1, 50))
_PAST = ((4, 75), (3, 66), (2, 66), (2, 66))
_CORPUS = ((2, 50), (2, 50), (2, 50), (2, 50))
_KNOWN_TO_CORPUS = 100
"""A token that the corpus knows behind the last two weighs so much more, times its count there."""
_BIGRAM = 1
"""Where the key of the last two tokens stands among the keys."""
_COUNT_SHIFT = 32


class NgramCacheCandidateGenerator(Remembering):
    """Proposes the likeliest next token after the last one to four, and so on from there.

    Costs no model call. Pays where a text uses the same turns of phrase again without repeating
    itself as a whole, and, with a corpus of the same kind of text, from the first token on. Three
    tiers are asked, one after the other, the longest n-gram first:

    *this text*, prompt and accepted output: a token is taken if it has most of what was seen;
    *past texts*, if ``past`` is given: the same, with stricter thresholds;
    *a corpus*, if ``corpus`` is given: the same; and it weighs what this text leaves open.

    Nothing is kept from one request to the next but in a ``past`` that the caller passed.

    Counting takes three to five microseconds a token at any length of text, and 170 bytes, or 340
    where no n-gram comes twice. A drafted token takes three; with stores, up to thirty.

    Source: the thresholds are those of llama.cpp's lookup decoding,
    https://github.com/ggml-org/llama.cpp/tree/master/examples/lookup
    """

    def __init__(
        self,
        num_output_tokens: int = 10,
        *,
        past: NgramStore | None = None,
        corpus: NgramStore | None = None,
    ) -> None:
        """Draft from this text and, where given, from stores.

        Args:
            num_output_tokens: The most candidates of a round.
            past: Counts of past outputs. This text's output is added to it, when it ends
                (:meth:`end`) or the next one begins; share it only among those who may see each
                other's words.
            corpus: Counts of a corpus; only read.

        Raises:
            ValueError: If ``num_output_tokens`` is below 1, or ``past`` and ``corpus`` are one.
        """
        if num_output_tokens < 1:
            raise ValueError(f"num_output_tokens must be at least 1, got {num_output_tokens}")
        if past is not None and past is corpus:
            raise ValueError("past and corpus must be two stores: past is written to, corpus not")
        self.num_output_tokens = num_output_tokens
        self.past, self.corpus = past, corpus
        self._forget()

    @property
    def _known(self) -> list[int]:
        return self._tokens

    def _forget(self) -> None:
        self._tokens: list[int] = []
        self._counts = _TextCounts()

    def _keep(self, start: int) -> None:
        if self.past is not None:
            first = max(0, start - MAX_NGRAM)
            self.past.add(np.array(self._tokens[first:], np.int64), start - first)

    def _take_in(self, tokens: list[int]) -> None:
        """Count what is new in the text."""
        known, add = self._tokens, self._counts.add
        done = len(known)
        known += tokens
        for place in range(max(done, 1), len(known)):
            token = known[place]
            for key in ngram_keys(known[max(0, place - MAX_NGRAM) : place]):
                add(key, token)

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return the likeliest tokens [K], up to the first place where nothing is likely enough."""
        count = min(max_candidates, self.num_output_tokens)
        if count < 1:
            return NO_CANDIDATES
        self._read(input_ids)
        tail, drafted, match_length = self._tokens[-MAX_NGRAM:], list[int](), 0
        while len(drafted) < count:
            token, n = self._next(ngram_keys(tail))
            if not n:
                break
            match_length = match_length or n
            drafted.append(token)
            tail = [*tail, token][-MAX_NGRAM:]
        if not drafted:
            return NO_CANDIDATES
        return Candidates(np.array(drafted, np.int64), match_length=match_length)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Nothing to learn: only text that stands is counted, when it is next read."""

    def _next(self, keys: list[int]) -> tuple[int, int]:
        """The token that the first tier sure enough of one proposes, and n; n is 0 for none."""
        for n in range(len(keys), 0, -1):
            found = self._counts.best(keys[n - 1])
            if self.corpus is not None and len(keys) > _BIGRAM and found and found[1] < found[2]:
                found = self._weighed(keys[n - 1], found, self.corpus.top(keys[_BIGRAM]))
            if found is not None and _is_sure(found, *_THIS_TEXT[n - 1]):
                return found[0], n
        for store, thresholds in ((self.past, _PAST), (self.corpus, _CORPUS)):
            if store is None:
                continue
            for n in range(len(keys), 0, -1):
                found = store.best(keys[n - 1])
                if found is not None and _is_sure(found, *thresholds[n - 1]):
                    return found[0], n
        return 0, 0

    def _weighed(
        self, key: int, found: tuple[int, int, int], known: dict[int, int]
    ) -> tuple[int, int, int]:
        """The token with the largest count here, times a hundred counts in the corpus if known."""
        best, count, total = found
        score = count * known.get(best, 0) * _KNOWN_TO_CORPUS or count
        for token, times in known.items():
            here = self._counts.count(key, token)
            if here * times * _KNOWN_TO_CORPUS > score:
                best, count, score = token, here, here * times * _KNOWN_TO_CORPUS
        return best, count, total


def _is_sure(found: tuple[int, int, int], least: int, percent: int) -> bool:
    """Whether an n-gram was seen often enough, and mostly before this token."""
    _, count, total = found
    return total >= least and 100 * count >= percent * total


class _Several:
    """An n-gram's successors, where there are several; of equally frequent ones the latest."""

    __slots__ = ("best", "counts", "total")

    def __init__(self, token: int, count: int) -> None:
        self.counts, self.best, self.total = {token: count}, token, count

    def add(self, token: int) -> None:
        """Count ``token`` once more."""
        count = self.counts.get(token, 0) + 1
        self.counts[token] = count
        self.total += 1
        if count >= self.counts[self.best]:
            self.best = token


class _TextCounts:
    """What followed each n-gram of one text.

    Most n-grams have one successor. Such a one is a single number, the token with its count less
    one above it: what was seen once takes no object of its own.
    """

    def __init__(self) -> None:
        self._followers: dict[int, int | _Several] = {}

    def add(self, key: int, token: int) -> None:
        """Count ``token`` once more behind an n-gram."""
        found = self._followers.get(key)
        if found is None:
            self._followers[key] = token
        elif isinstance(found, _Several):
            found.add(token)
        elif found & ((1 << _COUNT_SHIFT) - 1) == token:
            self._followers[key] = found + (1 << _COUNT_SHIFT)
        else:
            only, count, _ = _only(found)
            several = self._followers[key] = _Several(only, count)
            several.add(token)

    def best(self, key: int) -> tuple[int, int, int] | None:
        """The likeliest successor, its count, and the count of all; None if unknown."""
        found = self._followers.get(key)
        if found is None:
            return None
        if isinstance(found, _Several):
            return found.best, found.counts[found.best], found.total
        return _only(found)

    def count(self, key: int, token: int) -> int:
        """How often ``token`` followed an n-gram."""
        found = self._followers.get(key)
        if isinstance(found, _Several):
            return found.counts.get(token, 0)
        if found is None:
            return 0
        only, count, _ = _only(found)
        return count if only == token else 0


def _only(packed: int) -> tuple[int, int, int]:
    """A lone successor, its count, and the count of all."""
    count = (packed >> _COUNT_SHIFT) + 1
    return packed & ((1 << _COUNT_SHIFT) - 1), count, count
