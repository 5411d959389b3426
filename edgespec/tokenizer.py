"""Text to tokens and back; a stream that never emits half a character."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from edgespec.arrays import TokenIds
from edgespec.errors import TokenizerError, VocabularyMismatchError

_LEAD = 6
"""Tokens decoded before the new ones: some decoders drop the space at the start of a text."""
_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character."""


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
        self.size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        while self._tokenizer.id_to_token(self.size) is not None:
            self.size += 1  # ids with a gap before them are not counted by get_vocab_size

    def ids(self) -> dict[str, int]:
        """All tokens and their ids."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return found

    def sha256(self) -> str:
        """Digest of the file: equal digests mean the same token ids."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Return the token ids [T] of ``text``.

        A beginning-of-text token that the text already spells out is not added a second time.
        """
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if add_special_tokens and len(ids) > 1 and ids[0] == ids[1]:
            bare = self._tokenizer.encode(text, add_special_tokens=False).ids
            if bare[: len(ids) - 1] == ids[1 : 1 + len(bare)]:
                ids = ids[1:]
        return np.array(ids, dtype=np.int64)

    def decode(self, tokens: Sequence[int] | TokenIds, *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``tokens`` [T]."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens)

    def id_of(self, token: str) -> int | None:
        """The id of a token's own string, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def stream(self, prompt: TokenIds) -> "TextStream":
        """A stream for the text that follows ``prompt`` [T]."""
        return TextStream(self, prompt)


class TextStream:
    """Text of a row of tokens, given out as soon as it is certain.

    Bytes of an unfinished character are held back; the pieces joined are the whole text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: TokenIds) -> None:
        """Continue after ``prompt`` [T], so that a leading space of the answer is kept."""
        self._tokenizer = tokenizer
        self._tokens = prompt[-_LEAD:].tolist()
        self._told = tokenizer.decode(self._tokens)
        if self._told.endswith(_UNFINISHED):
            self._told = self._told.rstrip(_UNFINISHED)  # the prompt ends within a character

    def push(self, token: int) -> str:
        """Take the next token and return the text that is certain by now."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        certain = len(text)
        # A character that lacks bytes decodes to marks at the end; more marks than a character has
        # bytes are no character that could still be finished.
        while certain and text[certain - 1] == _UNFINISHED and len(text) - certain < 3:
            certain -= 1
        return self._tell(text, certain)

    def flush(self) -> str:
        """The rest, when no token will follow."""
        text = self._tokenizer.decode(self._tokens)
        return self._tell(text, len(text))

    def _tell(self, text: str, certain: int) -> str:
        if certain < len(self._told) or not text.startswith(self._told):
            # Later bytes have spoilt a character that was given out; it cannot be taken back.
            new = ""
        else:
            new = text[len(self._told) : certain]
            self._told = text[:certain]
        if certain == len(text) and len(self._tokens) > 4 * _LEAD:
            self._tokens = self._tokens[-_LEAD:]
            self._told = self._tokenizer.decode(self._tokens)
        return new


def require_same_token_ids(draft: "Tokenizer | None", target: "Tokenizer | None") -> None:
    """Refuse a draft whose ids mean other strings than the target's; padding beyond does not count.

    Raises:
        VocabularyMismatchError: Naming both and the first id that differs.
    """
    if draft is None or target is None or draft.sha256() == target.sha256():
        return
    theirs, ours = draft.ids(), target.ids()
    differ = [t for t in theirs.keys() | ours.keys() if theirs.get(t) != ours.get(t)]
    if differ:
        example = min(differ, key=lambda t: (ours.get(t, len(ours)), t))
        raise VocabularyMismatchError(
            f"{draft.path} and {target.path} are different: the tokenizer of a draft must be its "
            f"target's, and {example!r} has the id {theirs.get(example)} in the one and "
            f"{ours.get(example)} in the other"
        )
