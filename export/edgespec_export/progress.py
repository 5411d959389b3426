"""How an export says what it is doing: named steps, shown by whoever asked for them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Progress(Protocol):
    """Something that can show a step from its beginning to its end."""

    def step(self, name: str) -> AbstractContextManager[object]:
        """A context that lasts as long as the step called ``name``."""
        ...


class Silent:
    """Shows nothing."""

    def step(self, name: str) -> AbstractContextManager[object]:
        """A context that does nothing."""
        return nullcontext()
