"""Whisper's special tokens: what starts a text, languages, tasks, times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgespec.errors import ModelFolderError
from edgespec.tokenizer import Tokenizer

TASKS = ("transcribe", "translate")
TICK_S = 0.02
"""Seconds from one time token to the next."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that mean something to the decoder other than text.

    Attributes:
        start: Starts a text.
        end: Ends it.
        before: Precedes the text of before, if that is given.
        no_times: Asks for text without times; None if the model knows none.
        no_speech: Says that nobody speaks, if the model knows it.
        languages: Token of each language, by its short name; empty for an English-only model.
        tasks: Token of each task.
    """

    start: int
    end: int
    before: int | None
    no_times: int
    no_speech: int | None
    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_time(self) -> int:
        """The token of 0.00 seconds; those behind it are ``TICK_S`` apart."""
        return self.no_times + 1

    def opening(self, language: str | None, task: str, *, times: bool) -> list[int]:
        """The tokens that start a text."""
        opening = [self.start]
        if self.languages:
            assert language is not None
            opening += [self.languages[language], self.tasks[task]]
        return opening if times else [*opening, self.no_times]


def read_vocabulary(
    tokenizer: Tokenizer, start: int | None, ends: tuple[int, ...], said: Mapping[str, Any]
) -> Vocabulary:
    """Find the special tokens of a model.

    Args:
        tokenizer: The model's.
        start: What its manifest names as the first token.
        ends: And what as the last.
        said: Its ``generation_config.json``.

    Raises:
        ModelFolderError: If a token that is needed has no id.
    """
    no_times = said.get("no_timestamps_token_id") or tokenizer.id_of("<|notimestamps|>")
    if start is None or no_times is None or not ends:
        raise ModelFolderError(
            f"{tokenizer.path.parent} names no token that starts a text, ends it, or asks for no "
            "times; copy generation_config.json and tokenizer.json from the checkpoint"
        )
    named = said.get("lang_to_id") or {}
    languages = {name.strip("<|>"): token for name, token in named.items()}
    tasks = said.get("task_to_id") or {
        task: token for task in TASKS if (token := tokenizer.id_of(f"<|{task}|>")) is not None
    }
    if not said.get("is_multilingual", bool(languages)) or not set(TASKS) <= set(tasks):
        languages = {}
    before = said.get("prev_sot_token_id") or tokenizer.id_of("<|startofprev|>")
    no_speech = tokenizer.id_of("<|nospeech|>") or tokenizer.id_of("<|nocaptions|>")
    return Vocabulary(start, ends[0], before, no_times, no_speech, languages, tasks)
