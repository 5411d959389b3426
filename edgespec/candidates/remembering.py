"""What generators share that read a text as it grows, and may remember it for later ones."""

from abc import ABC, abstractmethod

from edgespec.arrays import TokenIds

_PROOF = 32
"""Tokens compared to see whether a text is still the one that was read."""


class Remembering(ABC):
    """Reads a text token by token, and keeps its output when it ends or the next one begins."""

    _prompt_length: int | None = None

    @property
    @abstractmethod
    def _known(self) -> list[int]:
        """The tokens that were read."""

    @abstractmethod
    def _take_in(self, tokens: list[int]) -> None:
        """Read on."""

    @abstractmethod
    def _keep(self, start: int) -> None:
        """Remember what was read from ``start`` on, if that was asked for."""

    @abstractmethod
    def _forget(self) -> None:
        """Know nothing of a text."""

    def begin(self, input_ids: TokenIds) -> None:
        """A new request: nothing of the last text is proposed again, unless it was to be kept."""
        self._remember()
        self._prompt_length = len(input_ids)

    def end(self, input_ids: TokenIds) -> None:
        """The text is complete: ``input_ids`` [T]; its output is kept, if that was asked for."""
        self._read(input_ids)
        self._remember()

    def _remember(self) -> None:
        """Keep the output, and forget the text."""
        start, self._prompt_length = self._prompt_length, None
        if start is not None and len(self._known) > start:
            self._keep(start)
        self._forget()

    def _read(self, input_ids: TokenIds) -> None:
        """Take in what is new in the text [T]."""
        done = len(self._known)
        if self._known[-_PROOF:] != input_ids[max(0, done - _PROOF) : done].tolist():
            self._remember()  # another text, without begin()
            done = 0
        if self._prompt_length is None:
            self._prompt_length = len(input_ids)
        self._take_in(input_ids[done:].tolist())
