"""Candidates from a small model with another tokenizer, by way of the text's bytes."""

from collections.abc import Iterable
from itertools import accumulate
from weakref import WeakKeyDictionary

import numpy as np

from edgespec.arrays import Logits, TokenIds
from edgespec.candidates.assisted import SILENCE, DraftModel, DraftReader, Spoken, speak
from edgespec.candidates.base import NO_CANDIDATES, Candidates
from edgespec.tokenizer import Tokenizer
from edgespec.verify import Pick, Sampler, pick_greedy

_LOOK_BEHIND = 24
"""Tokens at the end of a text that are encoded again when the text has grown."""
_SETTLED = 8
"""Of them, those at the start whose encoding still shows where it was begun."""
_WINDOW = 64
"""Bytes of text before a proposal that are encoded with it, so that words are joined as usual."""


class UniversalAssistedCandidateGenerator:
    """Lets a draft model speak that spells text in other tokens than its target.

    Pays as a draft of the same tokenizer does, where there is none: any small model will do. The
    draft reads the text in its own tokens; at every round only the end is encoded again.

    *Greedy*: what the draft says is encoded with the target's tokenizer and proposed as certain. A
    character that the draft leaves unfinished is held back.

    *Sampled*: the draft draws only tokens that both vocabularies spell alike, after the target's
    own rules, and q goes with the candidates. Nothing is proposed while the text ends within a
    character: the draft could not read it.

    Special tokens are no text: the draft sees none but those that start its own texts.

    Source: the greedy way does what transformers' universal assisted generation is for, without
    its alignment of windows: https://huggingface.co/blog/universal_assisted_generation; the
    sampled way is token-level intersection of Timor et al., Accelerating LLM Inference with
    Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies, 2025,
    https://arxiv.org/abs/2502.05202.
    """

    def __init__(
        self,
        draft: DraftModel,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        width: int | None = None,
        pick: Pick = pick_greedy,
        eos_token_ids: Iterable[int] = (),
        target_eos_token_ids: Iterable[int] = (),
        max_length: int | None = None,
        assistant_confidence_threshold: float = 0.4,
        reuse_prefix: bool = True,
    ) -> None:
        """Draft with ``draft`` and its cache.

        Args:
            draft: The draft model; it may serve several generators, which take turns.
            tokenizer: The draft's.
            target_tokenizer: The target's.
            width: V of the target's rows, which ``pick`` may expect; None for as many as its
                tokenizer has ids.
            pick: How the target chooses, with chance of the draft's own. Unless it is a
                :class:`Sampler` the draft says its likeliest tokens.
            eos_token_ids: Tokens of the draft after which nothing is drafted.
            target_eos_token_ids: What an end token of the draft becomes: the first of them.
            max_length: The longest text that the draft can read, in its own tokens.
            assistant_confidence_threshold: A token less likely than this to the draft is the last
                of a round; 0 for no such rule.
            reuse_prefix: Let the draft go on from what it read before this text.
        """
        self.draft = draft
        self.reuse_prefix = reuse_prefix
        self.tokenizer, self.target_tokenizer = tokenizer, target_tokenizer
        self.width = target_tokenizer.size if width is None else width
        self.pick = pick
        self.eos_token_ids = frozenset(eos_token_ids)
        self.target_eos = next(iter(target_eos_token_ids), None)
        self.max_length = max_length
        self.threshold = assistant_confidence_threshold
        self._start_anew()

    def _start_anew(self) -> None:
        self._reader = DraftReader(self.draft, reuse_prefix=self.reuse_prefix)
        self._bytes, self._known, self._last = b"", 0, -1
        self._respelt = Respelt(self.tokenizer)

    def begin(self, input_ids: TokenIds) -> None:
        """A new request: what was read belongs to another text."""
        self._start_anew()

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        """Return what the draft would say next, in tokens of the target [K]."""
        self._read(input_ids)
        whole = self._bytes[: whole_characters(self._bytes)]
        self._respelt.grow(whole)
        read = np.append(self.tokenizer.opening, np.array(self._respelt.ids, np.int64))
        count = max_candidates
        if not isinstance(self.pick, Sampler):
            # As many as it takes for that much text, by how both spell it so far.
            count = max(1, round(max_candidates * len(read) / len(input_ids)))
        if self.max_length is not None:
            count = min(count, self.max_length - len(read))
        if min(count, max_candidates, len(read)) < 1:
            return NO_CANDIDATES
        with self.draft.lock:
            if isinstance(self.pick, Sampler):
                if len(whole) < len(self._bytes):
                    return NO_CANDIDATES
                return self._drawn(read, input_ids, count).candidates()
            spoken = speak(
                lambda tokens: self._reader.row_after(tokens)[: self.tokenizer.size],
                read,
                count,
                pick=pick_greedy,
                threshold=self.threshold,
                ends=self.eos_token_ids,
            )
        return Candidates(self._in_targets_tokens(spoken.tokens, whole)[:max_candidates])

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        """Nothing to learn: the next call compares the text with what was read."""

    def _read(self, input_ids: TokenIds) -> None:
        """Take in the bytes of what is new in the target's text."""
        known = self._known
        if known > len(input_ids) or (known and input_ids[known - 1] != self._last):
            self._start_anew()  # another text, without begin()
        spelling = self.target_tokenizer.spelling
        new = input_ids[self._known :].tolist()
        self._bytes += b"".join(spelling[token] for token in new if token < len(spelling))
        if not self._known and self._bytes.startswith(b" ") and adds_space(self.target_tokenizer):
            self._bytes = self._bytes[1:]
        self._known, self._last = len(input_ids), int(input_ids[-1])

    def _in_targets_tokens(self, drafted: TokenIds, whole: bytes) -> TokenIds:
        """The target's tokens [K] for what the draft said after the bytes ``whole``."""
        said = b"".join(self.tokenizer.spelling[token] for token in drafted.tolist())
        said = said[: whole_characters(said)]
        begun = self._bytes[len(whole) :]  # of a character that the target has not finished yet
        tokens: list[int] = []
        if said.startswith(begun):
            tokens = ids_behind(self.target_tokenizer, self._bytes, said[len(begun) :])
            ended = len(drafted) > 0 and int(drafted[-1]) in self.eos_token_ids
            if ended and self.target_eos is not None:
                tokens.append(self.target_eos)
        return np.array(tokens, np.int64)

    def _drawn(self, read: TokenIds, input_ids: TokenIds, count: int) -> Spoken:
        """Tokens of the target drawn by the draft after it has read ``read`` [T]."""
        ours, theirs = shared_ids(self.tokenizer, self.target_tokenizer)
        if not len(ours):
            return SILENCE
        if self.target_eos is not None and self.eos_token_ids:
            ours = np.append(ours, min(self.eos_token_ids))
            theirs = np.append(theirs, self.target_eos)
        own_id = np.zeros(self.width, np.int64)
        own_id[theirs] = ours

        def row_after(tokens: TokenIds) -> Logits:
            said = own_id[tokens[len(input_ids) :]]
            row = self._reader.row_after(np.append(read, said))
            known = ours < len(row)
            shown = np.full(self.width, -np.inf, np.float32)
            shown[theirs[known]] = row[ours[known]]
            return shown

        return speak(
            row_after,
            input_ids,
            count,
            pick=self.pick,
            threshold=self.threshold,
            ends=() if self.target_eos is None else (self.target_eos,),
        )


class Respelt:
    """A growing text in the tokens of a tokenizer.

    Attributes:
        ids: [T] they spell the text byte for byte, where the tokenizer can; special tokens left
            out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with an empty text."""
        self._tokenizer = tokenizer
        self._text = b""
        self.ids: list[int] = []
        self._ends: list[int] = []  # [T] bytes of text up to the end of each token, or none

    def grow(self, text: bytes) -> None:
        """Take in ``text``, the one so far with more behind it, in whole characters.

        Only its end is encoded again, from where it agrees with what was there. A text that the
        tokenizer does not spell byte for byte, lower case for capitals say, is encoded as a whole.
        """
        if text == self._text:
            return
        start = len(self._ends) - _LOOK_BEHIND  # none where the tokens do not spell the text
        while start > 0 and is_within_character(text, self._ends[start - 1]):
            start -= 1
        self._text = text
        if start > 0:
            begin = self._ends[start - 1]
            ids, ends = spelt(self._tokenizer, text[begin:])
            ends = [begin + end for end in ends]
            places = {end: i for i, end in enumerate(ends)}
            if ends and ends[-1] == len(text):
                for i in range(start + _SETTLED, len(self.ids)):
                    at = places.get(self._ends[i])
                    if at is not None:
                        self.ids[i + 1 :] = ids[at + 1 :]
                        self._ends[i + 1 :] = ends[at + 1 :]
                        return
        self.ids, self._ends = spelt(self._tokenizer, text)


def spelt(tokenizer: Tokenizer, text: bytes) -> tuple[list[int], list[int]]:
    """The ids [T] of ``text`` without special tokens, and how many of its bytes each ends at.

    The ends are empty where the tokens do not spell the text.
    """
    ids = tokenizer.encode(text.decode(errors="replace"), add_special_tokens=False).tolist()
    pieces = [tokenizer.spelling[token] for token in ids]
    joined = b"".join(pieces)
    added = len(joined) - len(text)  # a space before the text, which some tokenizers add
    if added not in (0, 1) or joined != b" " * added + text:
        return ids, []
    return ids, [end - added for end in accumulate(map(len, pieces))]


def ids_behind(tokenizer: Tokenizer, before: bytes, text: bytes) -> list[int]:
    """The ids of ``text`` where it stands behind ``before``, which is encoded already.

    A word that both share is usually one token, and that it cannot be any more: then the text is
    encoded behind a new line instead.
    """
    start = max(0, len(before) - _WINDOW)
    while start and is_within_character(before, start):
        start -= 1
    for behind in (before[start:], b"\n", b""):
        if whole_characters(behind + text) < len(behind + text):
            continue
        ids, ends = spelt(tokenizer, behind + text)
        if not behind and ends:
            return ids
        if len(behind) in ends:
            # Of several ends here, tokens without bytes, the last.
            return ids[len(ends) - ends[::-1].index(len(behind)) :]
    return []


def shared_ids(draft: Tokenizer, target: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """The ids [N] of the tokens that both spell alike: the draft's, and the target's for each."""
    known = _SHARED.setdefault(draft, WeakKeyDictionary())
    if target not in known:
        # Of several ids for the same bytes the last: the first ones are single bytes, for want of
        # a better.
        ours = {piece: token for token, piece in enumerate(draft.spelling) if piece}
        theirs = {piece: token for token, piece in enumerate(target.spelling) if piece}
        pairs = [(token, theirs[piece]) for piece, token in ours.items() if piece in theirs]
        shared = np.array(pairs, np.int64).reshape(-1, 2)
        known[target] = shared[:, 0], shared[:, 1]
    return known[target]


_SHARED: WeakKeyDictionary[Tokenizer, WeakKeyDictionary[Tokenizer, tuple[TokenIds, TokenIds]]] = (
    WeakKeyDictionary()
)


def adds_space(tokenizer: Tokenizer) -> bool:
    """Whether a text gets a space at its start that is not its own."""
    first = tokenizer.encode("a", add_special_tokens=False)[:1].tolist()
    return any(tokenizer.spelling[token].startswith(b" ") for token in first)


def is_within_character(text: bytes, at: int) -> bool:
    """Whether the byte ``at`` continues a character of UTF-8."""
    return at < len(text) and text[at] & 0xC0 == 0x80


def whole_characters(text: bytes) -> int:
    """How many bytes of ``text`` are left without a character that lacks bytes at its end."""
    for size in range(1, min(3, len(text)) + 1):
        byte = text[-size]
        if byte & 0xC0 != 0x80:
            length = 2 if 0xC0 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4
            return len(text) - size if byte >= 0xC0 and length > size else len(text)
    return len(text)
