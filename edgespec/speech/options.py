"""What a transcription can be asked for: names, meanings, defaults and bounds."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgespec.candidates.base import CandidateGenerator

Task = Literal["transcribe", "translate"]
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """The settings of one call.

    Attributes:
        language: Short name such as "en"; None listens to the first 30 seconds for it.
        task: "transcribe", or "translate" into English.
        timestamps: Write times: long sound is then cut where a sentence ends, else every 30 s.
        prompt: A text that could have come before: names and words to expect, spelt as wished.
        prompt_ids: The same as token ids.
        condition_on_prev_tokens: Give each window the text of the one before.
        temperature: One, or several: each is tried until one gives a text that is not refused by
            the two thresholds that follow. 0 takes the likeliest token.
        compression_ratio_threshold: A text that zlib makes smaller than this many times repeats
            itself; None refuses none.
        logprob_threshold: A text whose tokens have a lower mean log-probability is refused; None
            refuses none.
        no_speech_threshold: A window with that probability of no speech, and a text below
            ``logprob_threshold``, is silence; None for no such rule.
        suppress_tokens: Token ids never written; None for the model's own.
        begin_suppress_tokens: Token ids not written first; None for the model's own.
        max_initial_timestamp_s: The latest time at which a window's text may start.
        max_new_tokens: The most tokens of a window.
        seed: Repeats what was drawn at a temperature above 0.
        lookup: Propose candidates from the text itself and the segments before.
        draft: False leaves the transcriber's draft model out.
        candidate_generator: The caller's own generator.
        num_assistant_tokens: Candidates a round verifies at most, or "auto": what pays here.
        assistant_confidence_threshold: A draft stops at a token less likely than this, at first.
    """

    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = True
    prompt: str | None = None
    prompt_ids: Sequence[int] = ()
    condition_on_prev_tokens: bool = True
    temperature: float | Sequence[float] = TEMPERATURES
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = None
    max_initial_timestamp_s: float = 1.0
    max_new_tokens: int | None = None
    seed: int | None = None
    lookup: bool = False
    draft: bool = True
    candidate_generator: CandidateGenerator | None = None
    num_assistant_tokens: int | Literal["auto"] = "auto"
    assistant_confidence_threshold: float = 0.4

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: Naming the option, what it may be and what it was.
        """
        if self.task not in ("transcribe", "translate"):
            raise ValueError(f"task must be 'transcribe' or 'translate', got {self.task!r}")
        if not self.temperatures or not all(0 <= t <= 2 for t in self.temperatures):
            raise ValueError(
                f"temperature must be from 0 to 2, or several of such, got {self.temperature!r}"
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        count = self.num_assistant_tokens
        if count != "auto" and not (isinstance(count, int) and count >= 0):
            raise ValueError(
                f"num_assistant_tokens must be 'auto' or a whole number, 0 or more, got {count!r}"
            )
        if self.prompt is not None and len(self.prompt_ids):
            raise ValueError("prompt and prompt_ids exclude each other: both come before the text")
        if self.candidate_generator is not None and self.lookup:
            raise ValueError("lookup and candidate_generator exclude each other")
        if not self.max_initial_timestamp_s >= 0:
            raise ValueError(
                f"max_initial_timestamp_s must be 0 or more, got {self.max_initial_timestamp_s}"
            )

    @property
    def temperatures(self) -> tuple[float, ...]:
        """To be tried, in order."""
        given = self.temperature
        return (float(given),) if isinstance(given, int | float) else tuple(map(float, given))


NAMES = tuple(f.name for f in dataclasses.fields(TranscribeOptions))


def resolve(given: Mapping[str, Any]) -> TranscribeOptions:
    """The options of a call.

    Raises:
        ValueError: If a name is unknown or a value cannot be meant.
    """
    for name in given:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(NAMES)}"
            raise ValueError(f"{name!r} is not an option of transcribe; {hint}")
    return TranscribeOptions(**given)
