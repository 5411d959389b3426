"""What followed which n-gram, counted over many texts and kept in one file."""

import hashlib
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.arrays import TokenIds
from edgespec.errors import NgramFileError
from edgespec.files import write_whole

MAX_NGRAM = 4
"""Tokens of the longest n-gram."""
MAX_ENTRIES = 1_000_000
"""Entries of a store where nothing else is said: 16 MB."""
FORMAT = 1
_MAGIC = b"edgengrm"
_HEADER = struct.Struct("<8sIQQQ32s")
_DIGEST_BYTES = 32
_ROW_BYTES = 16
_RECENT = 65_536
"""Entries that wait before they are sorted into the others: adding a text takes milliseconds."""
_TOP = 16
"""Successors of one n-gram that are looked at; the most frequent come first."""
_MASK = (1 << 60) - 1
_FACTOR = 6364136223846793005


def ngram_keys(tail: Sequence[int]) -> list[int]:
    """A number for each n-gram that ends ``tail``, from its last token to its last four.

    58 bits of a hash with n - 1 below them. That any two of a million n-grams share a key has a
    chance of one in 500,000, and would cost some refused candidates.
    """
    state, keys = 0, []
    for n in range(min(len(tail), MAX_NGRAM)):
        state = (state + tail[-n - 1] + 1) * _FACTOR & _MASK
        keys.append(state & ~3 | n)
    return keys


@dataclass(frozen=True, slots=True)
class _Rows:
    """Entries in the order of their keys, the most frequent successor of a key first.

    Attributes:
        keys: [N] keys of n-grams.
        tokens: [N] a token that followed the n-gram.
        counts: [N] how often it did.
    """

    keys: NDArray[np.int64]
    tokens: NDArray[np.int32]
    counts: NDArray[np.uint32]

    def find(self, key: int) -> slice | None:
        """Where the successors of an n-gram stand."""
        low = int(self.keys.searchsorted(key)) if len(self.keys) else 0
        if low == len(self.keys) or self.keys[low] != key:
            return None
        return slice(low, int(self.keys.searchsorted(key, "right")))

    def count(self, at: slice, token: int) -> int:
        """How often ``token`` is counted among the successors ``at``."""
        return int(self.counts[at][self.tokens[at] == token].sum())


_NO_ROWS = _Rows(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint32))


def _count(tokens: TokenIds, start: int) -> _Rows:
    """An entry of count 1 for each n-gram before each token from ``start`` on, unsorted."""
    before = tokens.astype(np.uint64) + np.uint64(1)
    state = np.zeros(len(tokens), np.uint64)
    keys, following = [], []
    for n in range(1, min(MAX_NGRAM, len(tokens) - 1) + 1):
        state[n:] = (state[n:] + before[:-n]) * np.uint64(_FACTOR)
        counted = slice(max(start, n), None)
        key = (state[counted] & np.uint64(_MASK)).astype(np.int64)
        keys.append(key & ~3 | (n - 1))
        following.append(tokens[counted].astype(np.int32))
    if not keys:
        return _NO_ROWS
    joined = np.concatenate(keys)
    return _Rows(joined, np.concatenate(following), np.ones(len(joined), np.uint32))


def _tally(old: _Rows, new: _Rows, max_entries: int | None = None) -> _Rows:
    """The entries of both, those that are equal added up; at most ``max_entries`` of them.

    The rarest go first, of equally rare ones those that are in ``old`` alone.
    """
    keys = np.concatenate([old.keys, new.keys])
    tokens = np.concatenate([old.tokens, new.tokens])
    counts = np.concatenate([old.counts, new.counts]).astype(np.int64)
    if not len(keys):
        return _NO_ROWS
    is_new = np.arange(len(keys)) >= len(old.keys)
    order = np.lexsort((tokens, keys))
    keys, tokens, counts, is_new = keys[order], tokens[order], counts[order], is_new[order]
    is_first = np.append(True, (keys[1:] != keys[:-1]) | (tokens[1:] != tokens[:-1]))
    first = np.flatnonzero(is_first)
    keys, tokens = keys[first], tokens[first]
    counts, is_new = np.add.reduceat(counts, first), np.logical_or.reduceat(is_new, first)
    counts = np.minimum(counts, np.iinfo(np.uint32).max)
    if max_entries is not None and len(keys) > max_entries:
        kept = np.argsort(-(2 * counts + is_new), kind="stable")[:max_entries]
        keys, tokens, counts = keys[kept], tokens[kept], counts[kept]
    order = np.lexsort((tokens, -counts, keys))
    return _Rows(keys[order], tokens[order], counts[order].astype(np.uint32))


class NgramStore:
    """How often which token followed an n-gram of one to four tokens, over many texts.

    Bounded: an entry, one n-gram with one successor, takes 16 bytes, and of more than
    ``max_entries`` the rarest are forgotten (65,536 more may wait to be sorted in). Several
    generators and threads may share a store.

    Attributes:
        tokenizer_sha256: Digest of the ``tokenizer.json`` that made the tokens, None where unknown.
        max_entries: Most entries that are kept.
        num_tokens: Tokens that were counted, forgotten ones included.
    """

    def __init__(self, tokenizer_sha256: str | None = None, max_entries: int = MAX_ENTRIES) -> None:
        """Know nothing yet.

        Raises:
            ValueError: If ``max_entries`` is below 1.
        """
        if max_entries < 1:
            raise ValueError(f"max_entries must be at least 1, got {max_entries}")
        self.tokenizer_sha256 = tokenizer_sha256
        self.max_entries = max_entries
        self.num_tokens = 0
        # Replaced as a whole and never changed in place: reading needs no lock.
        self._tables = (_NO_ROWS, _NO_ROWS)  # sorted in, waiting
        self._lock = threading.Lock()

    def add(self, tokens: TokenIds, start: int = 0) -> None:
        """Count what ``tokens`` [T] from ``start`` on follow; those before it are context alone."""
        counted = _count(tokens, start)
        with self._lock:
            rows, recent = self._tables
            self._tables = rows, _tally(recent, counted)
            self.num_tokens += max(0, len(tokens) - start)
            if len(self._tables[1].keys) > _RECENT:
                self._sort_in()

    def merge(self, other: "NgramStore") -> None:
        """Add all that ``other`` counted.

        Raises:
            NgramFileError: If the two were counted with different tokenizers.
        """
        if self.tokenizer_sha256 != other.tokenizer_sha256:
            raise NgramFileError(
                f"n-grams of the tokenizers {_short(self.tokenizer_sha256)} and "
                f"{_short(other.tokenizer_sha256)} cannot be merged: their token ids differ"
            )
        theirs = other.entries()
        with self._lock:
            self._sort_in()
            self._tables = (_tally(self._tables[0], theirs, self.max_entries), _NO_ROWS)
            self.num_tokens += other.num_tokens

    def entries(self) -> _Rows:
        """All entries, sorted in."""
        with self._lock:
            self._sort_in()
            return self._tables[0]

    def num_entries(self) -> dict[int, int]:
        """How many entries there are for each n."""
        by_n = np.bincount(self.entries().keys & 3, minlength=MAX_NGRAM)
        return {n + 1: int(count) for n, count in enumerate(by_n)}

    def best(self, key: int) -> tuple[int, int, int] | None:
        """The likeliest successor of an n-gram, its count, and the count of all; None if unknown.

        Of two that have half of all each, that with the lower id. Where none has half, the one
        returned may not be the most frequent; whoever asks for certainty does not want it.
        """
        found = [(rows, at) for rows in self._tables if (at := rows.find(key))]
        if not found:
            return None
        total = sum(int(rows.counts[at].sum()) for rows, at in found)
        firsts = sorted({int(rows.tokens[at.start]) for rows, at in found})
        counts = [sum(rows.count(at, token) for rows, at in found) for token in firsts]
        most = max(counts)
        return firsts[counts.index(most)], most, total

    def top(self, key: int) -> dict[int, int]:
        """The most frequent successors of an n-gram and their counts."""
        counted: dict[int, int] = {}
        for rows in self._tables:
            if at := rows.find(key):
                at = slice(at.start, min(at.stop, at.start + _TOP))
                for token, count in zip(
                    rows.tokens[at].tolist(), rows.counts[at].tolist(), strict=True
                ):
                    counted[token] = counted.get(token, 0) + count
        return counted

    def require_tokenizer(self, sha256: str | None, name: str = "the n-gram store") -> None:
        """Refuse a model whose tokenizer did not make these tokens; None is not known.

        Raises:
            NgramFileError: If both are known and differ.
        """
        if None not in (sha256, self.tokenizer_sha256) and sha256 != self.tokenizer_sha256:
            raise NgramFileError(
                f"{name} was counted with the tokenizer {_short(self.tokenizer_sha256)}, the "
                f"model has {_short(sha256)}; build it again: edgespec ngrams build"
            )

    def save(self, path: str | PathLike[str]) -> None:
        """Write ``path``; whoever reads it meanwhile sees the old file or the new one, whole.

        Raises:
            NgramFileError: If it cannot be written.
        """
        rows, path = self.entries(), Path(path)
        digest = bytes.fromhex(self.tokenizer_sha256 or "") or bytes(_DIGEST_BYTES)
        content = b"".join(
            (
                _HEADER.pack(
                    _MAGIC, FORMAT, self.max_entries, self.num_tokens, len(rows.keys), digest
                ),
                rows.keys.astype("<i8").tobytes(),
                rows.tokens.astype("<i4").tobytes(),
                rows.counts.astype("<u4").tobytes(),
            )
        )
        content += hashlib.sha256(content).digest()
        try:
            write_whole(path, lambda file: file.write(content))
        except OSError as error:
            raise NgramFileError(f"{path} cannot be written: {error.strerror or error}") from None

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, tokenizer_sha256: str | None = None
    ) -> "NgramStore":
        """Read ``path``.

        Args:
            path: A file that :meth:`save` or ``edgespec ngrams build`` wrote.
            tokenizer_sha256: Digest of the ``tokenizer.json`` that it is to be used with; None to
                use it with any.

        Raises:
            NgramFileError: If it cannot be read, is no such file, is cut or damaged, is of a newer
                format, or belongs to another tokenizer.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise NgramFileError(f"{path} cannot be read: {error.strerror or error}") from None
        if not content.startswith(_MAGIC):
            raise NgramFileError(f"{path} is no file of n-grams; edgespec ngrams build writes one")
        again = "build it again: edgespec ngrams build"
        # The version comes before all that another version may have changed.
        said = int.from_bytes(content[len(_MAGIC) : len(_MAGIC) + 4], "little")
        if len(content) >= _HEADER.size and said != FORMAT:
            raise NgramFileError(
                f"{path} has format {said}, this edgespec reads {FORMAT}; "
                f"update edgespec, or {again}"
            )
        num_rows = _HEADER.unpack_from(content)[4] if len(content) >= _HEADER.size else 0
        expected = _HEADER.size + num_rows * _ROW_BYTES + _DIGEST_BYTES
        if len(content) != expected:
            raise NgramFileError(
                f"{path} should have {expected} bytes, it has {len(content)}; {again}"
            )
        if hashlib.sha256(content[:-_DIGEST_BYTES]).digest() != content[-_DIGEST_BYTES:]:
            raise NgramFileError(f"{path} is damaged: its checksum does not fit; {again}")
        _, _, max_entries, num_tokens, _, digest = _HEADER.unpack_from(content)
        store = cls(digest.hex() if any(digest) else None, max_entries)
        store.num_tokens = num_tokens
        keys = np.frombuffer(content, "<i8", num_rows, _HEADER.size)
        tokens = np.frombuffer(content, "<i4", num_rows, _HEADER.size + 8 * num_rows)
        counts = np.frombuffer(content, "<u4", num_rows, _HEADER.size + 12 * num_rows)
        if num_rows and ((keys[1:] < keys[:-1]).any() or tokens.min() < 0):
            raise NgramFileError(f"{path} holds entries out of order; {again}")
        # Copied: the entries lie aligned then, and in this machine's byte order.
        store._tables = (
            _Rows(keys.astype(np.int64), tokens.astype(np.int32), counts.astype(np.uint32)),
            _NO_ROWS,
        )
        store.require_tokenizer(tokenizer_sha256, str(path))
        return store

    def _sort_in(self) -> None:
        """Sort in what waits; to be called with the lock."""
        rows, recent = self._tables
        if len(recent.keys):
            self._tables = (_tally(rows, recent, self.max_entries), _NO_ROWS)


def _short(sha256: str | None) -> str:
    """Enough of a digest to tell it from others."""
    return f"{sha256[:12]}..." if sha256 else "(unknown)"
