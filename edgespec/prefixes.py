"""Starts of texts that are kept: a system prompt, a file under discussion, examples."""

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Protocol

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.chat_template import Message
from edgespec.drafting import LoadedModel
from edgespec.exact import InPairs
from edgespec.machine import processor
from edgespec.prefix import Prefix, load_prefix, save_prefix
from edgespec.prompt import Prompt


class Owner(LoadedModel, Protocol):
    """The generator whose prefixes are kept."""

    def encode(self, prompt: Prompt, *, add_special_tokens: bool) -> TokenIds:
        """The prompt's token ids [T]."""

    def chat_prompt(self, messages: Sequence[Message], **variables: object) -> str:
        """The prompt that a conversation makes."""


class Prefixes:
    """The kept prefixes of a generator, by name.

    A call whose prompt begins with one, or with a part of it, copies what the cache held of it and
    reads the rest. Which one is found by its tokens: a call names none. The last call's text needs
    no keeping: the cache still holds it.

    A prefix of T tokens takes T times ``cache_bytes_per_token`` (``edgespec info``) of memory until
    it is dropped.

    Attributes:
        by_name: The prefixes.
    """

    def __init__(self, generator: Owner) -> None:
        """Keep nothing yet."""
        self.by_name: dict[str, Prefix] = {}
        self._generator = generator
        self._sha256: str | None = None

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self.by_name)

    def __len__(self) -> int:
        """How many are kept."""
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        """Whether one of this name is kept."""
        return name in self.by_name

    @property
    def bytes_held(self) -> int:
        """Bytes that the kept prefixes take."""
        return sum(prefix.rows.nbytes for prefix in self.by_name.values())

    def keep(self, name: str, prefix: Prompt | Sequence[Message]) -> int:
        """Read the start of later prompts now, and keep it.

        Args:
            name: What to call it; one of that name is replaced.
            prefix: A text, its token ids [T], or messages as for ``chat``.

        Returns:
            T, how many tokens it has.

        Raises:
            ValueError: If it has no tokens, or more than the longest text.
        """
        tokens, model = self._tokens(prefix), self._generator.model
        longest = self._generator.max_length
        if longest is not None and len(tokens) >= longest:
            raise ValueError(
                f"the prefix has {len(tokens)} tokens and the longest text {longest}, which leaves "
                "no room behind it; shorten the prefix or raise max_length"
            )
        # In pairs wherever that can be, so that calls with exact=True can use it too.
        reader = InPairs(model) if model.max_rows is None else model
        with model.lock:
            reader.hand_to(self)
            held = reader.rewind_to_shared(tokens)
            reader.reserve(len(tokens))
            reader.prefill(tokens[held:])
            self.by_name[name] = model.prefix(len(tokens))
        return len(tokens)

    def drop(self, name: str) -> None:
        """Forget a prefix, and free its memory."""
        self._named(name)
        with self._generator.model.lock:
            del self.by_name[name]

    def save(self, name: str, path: str | PathLike[str]) -> None:
        """Write a kept prefix to a file.

        Raises:
            ValueError: If none of this name is kept.
            PrefixFileError: If the file cannot be written.
        """
        save_prefix(path, name, self._named(name), self._identity())

    def load(self, path: str | PathLike[str]) -> str:
        """Keep a prefix from a file that :meth:`save` wrote with the same model.

        Returns:
            Its name; one of that name is replaced.

        Raises:
            PrefixFileError: If the file cannot be read, is damaged, or was made by another model.
        """
        name, prefix = load_prefix(path, self._identity())
        with self._generator.model.lock:
            self.by_name[name] = prefix
        return name

    def _named(self, name: str) -> Prefix:
        if name not in self.by_name:
            kept = ", ".join(map(repr, self.by_name)) or "none"
            raise ValueError(f"no prefix {name!r} is kept; kept are {kept}")
        return self.by_name[name]

    def _tokens(self, prefix: Prompt | Sequence[Message]) -> TokenIds:
        """The token ids [T] of a text, of messages, or as they are."""
        generator = self._generator
        if not isinstance(prefix, str | np.ndarray) and isinstance(next(iter(prefix), 0), dict):
            text = generator.chat_prompt(prefix, add_generation_prompt=False)  # type: ignore[arg-type]
            return generator.encode(text, add_special_tokens=False)
        return generator.encode(prefix, add_special_tokens=True)  # type: ignore[arg-type]

    def _identity(self) -> dict[str, str]:
        """What must be the same where a prefix is saved and loaded, and the machine."""
        generator = self._generator
        session, shape = generator.session, generator.model.cache.shape
        if self._sha256 is None:
            self._sha256 = generator.folder.sha256()
        tokenizer = generator.tokenizer
        return {
            "graph": self._sha256,
            "tokenizer": "none" if tokenizer is None else tokenizer.sha256(),
            "cache": f"{len(shape.pairs)} x {shape.num_heads} x {shape.head_size} {shape.dtype}",
            "machine": f"{session.runtime} {session.provider} on {processor()}",
        }
