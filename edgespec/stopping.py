"""Where the text ends: asked for every emitted token, in order, before it is told to anyone."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgespec.arrays import TokenIds
from edgespec.tokenizer import TextStream

FinishReason = Literal["eos", "stop", "length", "time", "cancelled"]
StoppingCriterion = Callable[[TokenIds], bool]
"""The user's own: given all tokens so far [T], True ends the text with the last of them."""


class StopText:
    """Text on its way out, cut at the first stop string or behind it.

    What could be the beginning of a stop string is held back until it is known not to be one, so
    no part of a stop string is given out unless it is to be included.
    """

    def __init__(
        self, stop: Sequence[str], stream: TextStream | None, *, include_stop: bool = False
    ) -> None:
        """Watch for any of ``stop`` in what ``stream`` decodes; without a stream there is no text.

        Args:
            stop: The strings; the text ends where the first of them is complete.
            stream: What decodes the tokens.
            include_stop: Whether the stop string is the last part of the text.

        Raises:
            ValueError: If a stop string is empty, or there are some but no text to find them in.
        """
        if any(not s for s in stop):
            raise ValueError("stop strings must not be empty, got ''")
        if stop and stream is None:
            raise ValueError(
                "stop strings need the model's tokenizer, and its folder has no tokenizer.json; "
                "copy it there, or stop by eos_token_id"
            )
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._stream = stream
        self._held = ""
        self._ready: list[str] = []
        self._waiting: list[int] = []

    def push(self, token: int) -> bool:
        """Take the next token; True if a stop string is complete with it.

        Without stop strings the token waits until its text is asked for: a round has better
        things to do.
        """
        if not self._stop or self._stream is None:
            self._waiting.append(token)
            return False
        self._held += self._stream.push(token)
        found = [(at + len(s), at) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            # The first that is complete, of several the longest: so the text is the same however
            # it is cut into tokens.
            end, start = min(found)
            self._ready.append(self._held[: end if self._include_stop else start])
            self._held, self._stream = "", None  # what follows is not part of the text
            return True
        certain = len(self._held) - self._possible_beginning()
        self._ready.append(self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _possible_beginning(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = max((len(s) - 1 for s in self._stop), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(s.startswith(tail) for s in self._stop):
                return size
        return 0

    def drain(self, *, last: bool = False) -> list[str]:
        """The text that may be given out by now, a piece for each token since the last time.

        Args:
            last: No more tokens come: one more piece follows, with what was held back.
        """
        stream, waiting = self._stream, self._waiting
        ready = self._ready + [stream.push(t) if stream is not None else "" for t in waiting]
        self._ready, self._waiting = [], []
        if last:
            ready.append(self._held + (stream.flush() if stream is not None else ""))
            self._held, self._stream = "", None
        return ready


@dataclass(slots=True)
class Stopping:
    """All reasons for a text to end.

    Attributes:
        max_length: Tokens in all, prompt included, at which the text ends.
        eos_token_ids: Tokens that end it.
        text: The text, and the strings that end it.
        deadline: ``time.monotonic()`` at which it ends, if any.
        criteria: The user's own reasons.
        cancelled: Set from any thread to end it.
    """

    max_length: int
    eos_token_ids: frozenset[int]
    text: StopText
    deadline: float | None = None
    criteria: Sequence[StoppingCriterion] = ()
    cancelled: threading.Event = field(default_factory=threading.Event)

    def judge(self, tokens: TokenIds) -> FinishReason | None:
        """Whether the text ends with the last of ``tokens`` [T], and why."""
        token = int(tokens[-1])
        if token in self.eos_token_ids:
            return "eos"
        if self.text.push(token):
            return "stop"
        if any(criterion(tokens) for criterion in self.criteria):
            return "stop"
        if len(tokens) >= self.max_length:
            return "length"
        if self.cancelled.is_set():
            return "cancelled"
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return "time"
        return None
