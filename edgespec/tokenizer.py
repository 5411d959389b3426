"""Text to tokens and back; a stream that never emits half a character."""

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from edgespec.arrays import TokenIds
from edgespec.errors import TokenizerError, VocabularyMismatchError

_LEAD = 6
"""Tokens decoded before the new ones: some decoders drop the space at the start of a text."""
_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character."""
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A byte in a vocabulary of pieces, for characters that have no piece."""


class Tokenizer:
    """The tokenizer of a model folder.

    Attributes:
        size: One more than the highest token id that stands for something.
    """

    def __init__(self, path: Path) -> None:
        """Read ``path``, a ``tokenizer.json``.

        Raises:
            TokenizerError: If there is no such file, or it is no tokenizer.
        """
        if not path.is_file():
            raise TokenizerError(
                f"{path} does not exist; copy tokenizer.json from the checkpoint, or export again"
            )
        try:
            self._tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception (0.23, tried)
            raise TokenizerError(
                f"{path} cannot be read as a tokenizer: {' '.join(str(error).split())[:200]}; "
                "copy tokenizer.json from the checkpoint again"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.path = path
        self._sha256: str | None = None
        # get_vocab_size counts ids, and there may be gaps between them.
        self.size = max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def ids(self) -> dict[str, int]:
        """All tokens and their ids."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return found

    def sha256(self) -> str:
        """Digest of the file, read once: equal digests mean the same token ids."""
        if self._sha256 is None:
            self._sha256 = sha256_of(self.path)
        return self._sha256

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Return the token ids [T] of ``text``.

        A beginning-of-text token that the text already spells out is not added a second time.

        Raises:
            ValueError: If the text holds half a character.
        """
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:  # of a text that is no UTF-8 (0.23, tried)
            half = next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)
            if half is None:
                raise
            raise ValueError(
                f"the text holds {half!r}, which is half a character; read it as UTF-8 with "
                "errors='replace'"
            ) from None
        if add_special_tokens and len(ids) > 1 and ids[0] == ids[1]:
            bare = self._tokenizer.encode(text, add_special_tokens=False).ids
            if bare == ids[1 : 1 + len(bare)]:
                ids = ids[1:]
        return np.array(ids, dtype=np.int64)

    def decode(self, tokens: Sequence[int] | TokenIds, *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``tokens`` [T]."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens)

    @cached_property
    def opening(self) -> TokenIds:
        """[N] the special tokens that start every text."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        ids = self._tokenizer.encode("a").ids
        at = next((i for i in range(len(ids)) if ids[i : i + len(bare)] == bare), 0)
        return np.array(ids[:at], np.int64)

    @cached_property
    def spelling(self) -> tuple[bytes, ...]:
        """[size] the bytes of text that each id stands for; none for special tokens and gaps.

        Joined they are the text, but for a space at its start that some tokenizers add.
        """
        in_letters = b'"ByteLevel"' in _said_of(self._tokenizer.decoder)
        special = {i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special}
        spelling = [b""] * self.size
        for token, token_id in self._tokenizer.get_vocab().items():
            if token_id not in special:
                spelling[token_id] = _spelt(token, in_letters=in_letters)
        return tuple(spelling)

    def id_of(self, token: str) -> int | None:
        """The id of a token's own string, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def token_of(self, token_id: int) -> str | None:
        """The string that an id stands for, or None."""
        found: str | None = self._tokenizer.id_to_token(token_id)
        return found

    def stream(self, prompt: TokenIds) -> "TextStream":
        """A stream for the text that follows ``prompt`` [T]."""
        return TextStream(self, prompt)


def _said_of(decoder: Any) -> bytes:
    """A decoder's settings as JSON, which is how it is pickled (tokenizers 0.23, tried)."""
    return b"" if decoder is None else bytes(decoder.__getstate__())


def _spelt(token: str, *, in_letters: bool) -> bytes:
    """The bytes of a token, by its string in the vocabulary."""
    if in_letters and all(letter in _BYTE_OF for letter in token):
        return bytes(_BYTE_OF[letter] for letter in token)
    if not in_letters and (byte := _BYTE.fullmatch(token)):
        return bytes.fromhex(byte[1])
    return (token if in_letters else token.replace("\u2581", " ")).encode()


def _byte_of() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones are themselves, the others U+0100 and on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_of()


class TextStream:
    """Text of a row of tokens, given out as soon as it is certain.

    Bytes of an unfinished character are held back; the pieces joined are the whole text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: TokenIds) -> None:
        """Continue after ``prompt`` [T], so that a leading space of the answer is kept."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._told = ""
        # The bytes of a character that the prompt leaves unfinished are still to be given out.
        for unfinished in range(_LONGEST_CHARACTER):
            before = prompt[: len(prompt) - unfinished].tolist()
            text = tokenizer.decode(before)
            if not text.endswith(_UNFINISHED):
                break
        self._keep_lead(before, text)
        self._tokens += prompt[len(before) :].tolist()

    def push(self, token: int) -> str:
        """Take the next token and return the text that is certain by now."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        waiting = len(self._tokens) - self._settled
        if not text.startswith(self._told) and (
            waiting >= _LONGEST_CHARACTER or not text.endswith(_UNFINISHED)
        ):
            text = self._start_again()
        certain = len(text)
        # A character that lacks bytes decodes to marks at the end; more marks than a character has
        # bytes are no character that could still be finished.
        while certain and text[certain - 1] == _UNFINISHED and len(text) - certain < 3:
            certain -= 1
        return self._tell(text, certain)

    def flush(self) -> str:
        """The rest, when no token will follow."""
        text = self._tokenizer.decode(self._tokens)
        if not text.startswith(self._told):
            text = self._start_again()
        return self._tell(text, len(text))

    def _tell(self, text: str, certain: int) -> str:
        if certain < len(self._told) or not text.startswith(self._told):
            return ""  # an unfinished character hides those before it: they show again with its end
        new = text[len(self._told) : certain]
        self._told = text[:certain]
        if certain == len(text):
            self._settled = len(self._tokens)
            if self._settled > 4 * _LEAD:
                self._keep_lead(self._tokens, text)
        return new

    def _start_again(self) -> str:
        """Decode only what waits, where a byte that fits nothing spoils the text before it.

        Byte fallback decodes a row of bytes as one: all become marks if one of them is wrong,
        those too that were given out long ago.
        """
        self._tokens = self._tokens[self._settled :]
        self._told, self._settled = "", 0
        return self._tokenizer.decode(self._tokens)

    def _keep_lead(self, tokens: list[int], text: str) -> None:
        """Keep the last few of ``tokens``, from the beginning of a character of ``text`` on."""
        for size in range(_LEAD, _LEAD + _LONGEST_CHARACTER):
            self._tokens = tokens[-size:]
            self._told = self._tokenizer.decode(self._tokens)
            if text.endswith(self._told):
                break
        self._settled = len(self._tokens)


def sha256_of(path: Path) -> str:
    """Digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def require_same_token_ids(draft: Tokenizer | None, target: Tokenizer | None) -> None:
    """Refuse a draft whose token ids mean other tokens than its target's.

    Rows of logits may be of different widths: only the tokenizers count. A model without one
    takes token ids as they are, and whoever passes them answers for them.

    Raises:
        VocabularyMismatchError: If an id stands for different tokens, or for one of them only.
    """
    if draft is None or target is None or draft.sha256() == target.sha256():
        return
    for token in range(max(draft.size, target.size)):
        ours, theirs = target.token_of(token), draft.token_of(token)
        if ours != theirs:
            raise VocabularyMismatchError(
                f"the tokenizer {draft.path} has {theirs!r} for the token id {token}, "
                f"{target.path} has {ours!r}; a draft must be exported with its target's "
                "tokenizer, or be asked for with universal_draft=True"
            )


def same_token_ids(draft: Tokenizer | None, target: Tokenizer | None) -> bool:
    """Whether :func:`require_same_token_ids` lets the two pass."""
    try:
        require_same_token_ids(draft, target)
    except VocabularyMismatchError:
        return False
    return True
