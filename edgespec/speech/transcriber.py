"""EdgeTranscriber: sound in, segments with times out."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.budget import StepCosts
from edgespec.encoder_decoder import EncoderDecoder
from edgespec.model_folder import draft_folder
from edgespec.speech.audio import Audio, Sound, open_audio
from edgespec.speech.features import RATE
from edgespec.speech.options import TranscribeOptions, resolve
from edgespec.speech.segments import cut
from edgespec.speech.vocabulary import read_vocabulary
from edgespec.speech.window import WindowWriter, Written
from edgespec.stats import Stats

_SILENT = 1e-4
"""A window that is nowhere louder than this, 80 dB below the loudest, holds no words."""

Progress = Callable[[float, float], None]
"""Is told the seconds of sound that are done and those there are."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech.

    Attributes:
        start_s: Seconds from the beginning of the sound.
        end_s: The same of its end.
        text: What was said.
        tokens: Its token ids, times among them.
        temperature: At which it was written.
        avg_logprob: Mean log-probability of its window's tokens.
        compression_ratio: Of its window's text; a high one means that it repeats itself.
    """

    start_s: float
    end_s: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float


@dataclass(slots=True)
class Transcription:
    """What was said.

    Attributes:
        segments: In order.
        language: Short name; None for an English-only model, or where there was no sound.
        duration_s: Seconds of sound.
        stats: What happened in each round, and what it brought.
    """

    segments: list[Segment] = field(default_factory=list)
    language: str | None = None
    duration_s: float = 0.0
    stats: Stats = field(default_factory=Stats)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(segment.text for segment in self.segments).strip()

    def __str__(self) -> str:
        """The text."""
        return self.text


class EdgeTranscriber:
    """A Whisper model on ONNX Runtime that writes down what it hears, sooner.

    Threads that share one take turns, a transcription each.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        draft: "EdgeTranscriber | str | PathLike[str] | bool | None" = None,
        provider: str = "auto",
        threads: int | None = None,
        own_threads: bool = False,
    ) -> None:
        """Load a model.

        Args:
            path: A model folder that ``edgespec export`` made of a Whisper checkpoint.
            draft: A draft model that proposes: another Whisper of the same vocabulary, by its
                folder or loaded, or True for the one in this model's folder. One without an
                encoder, or with the same one, works on what this model's encoder has heard.
            provider: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where this ONNX Runtime has it.
            threads: Threads to compute with; None counts the CPUs that the process may use.
            own_threads: Share no threads among the graphs. Sharing is faster, but ONNX Runtime
                then refuses the sessions that other libraries of the process make later.

        Raises:
            ModelFolderError: If there is no such model at ``path``, or it is broken.
            VocabularyMismatchError: If the draft's token ids are not this model's.
        """
        given: dict[str, Any] = {
            "used_by": type(self).__name__,
            "provider": provider,
            "threads": threads,
            "own_threads": own_threads,
        }
        self.model = EncoderDecoder(path, **given)
        manifest = self.model.folder.manifest
        self.vocabulary = read_vocabulary(
            self.model.tokenizer,
            manifest.decoder_start_token_id,
            manifest.eos_token_ids,
            self.model.folder.generation_config,
        )
        self._costs = StepCosts()
        self._turn = threading.RLock()
        self.draft: EncoderDecoder | None = None
        if isinstance(draft, EdgeTranscriber):
            self.draft = draft.model
        elif draft not in (None, False):
            where = draft_folder(self.model.folder) if draft is True else Path(str(draft))
            self.draft = EncoderDecoder(where, **given)
        if self.draft is self.model:
            raise ValueError("draft must be another model than its target: each needs a cache")
        if self.draft is not None:
            self.draft.require_draft_for(self.model)

    @property
    def languages(self) -> tuple[str, ...]:
        """Short names of the languages that it knows; empty for an English-only model."""
        return tuple(sorted(self.vocabulary.languages))

    def transcribe(
        self,
        sound: Sound,
        *,
        sampling_rate: int = RATE,
        progress: Progress | None = None,
        **options: Any,
    ) -> Transcription:
        """Write down what is said in ``sound``.

        Args:
            sound: A file, or samples [N] or [N, channels].
            sampling_rate: Samples a second of an array; files say their own.
            progress: Is told after each window.
            **options: See :class:`edgespec.speech.options.TranscribeOptions`.

        Raises:
            AudioError: If it is no sound.
            ValueError: If an option is unknown or cannot be meant.
        """
        found = Transcription()
        for segment in self.segments(
            sound, sampling_rate=sampling_rate, progress=progress, into=found, **options
        ):
            found.segments.append(segment)
        return found

    def segments(
        self,
        sound: Sound,
        *,
        sampling_rate: int = RATE,
        progress: Progress | None = None,
        into: Transcription | None = None,
        **options: Any,
    ) -> Iterator[Segment]:
        """The segments of ``sound`` as they are written; memory does not grow with its length.

        What is wrong with the arguments is said here, before the first segment.

        Args:
            sound: As for :meth:`transcribe`, as are the others.
            sampling_rate: Samples a second of an array.
            progress: Is told after each window.
            into: Is given language, length and statistics.
            **options: See :class:`edgespec.speech.options.TranscribeOptions`.
        """
        chosen = resolve(options)
        prompt = self._prompt(chosen)
        audio = open_audio(sound, sampling_rate)
        return self._run(audio, chosen, prompt, progress, into or Transcription())

    def _prompt(self, options: TranscribeOptions) -> list[int]:
        """The text given as what came before.

        Raises:
            ValueError: If the model has no such language or token ids.
        """
        known = self.vocabulary.languages
        if options.language is not None and options.language not in (known or ("en",)):
            names = ", ".join(self.languages) if known else "en alone: the model is English-only"
            raise ValueError(f"language {options.language!r} is not one of the model's: {names}")
        if options.task == "translate" and not known:
            raise ValueError(
                "task='translate' needs a multilingual model, this one is English-only"
            )
        if options.prompt is not None:
            text = " " + options.prompt.strip()
            tokens: list[int] = self.model.tokenizer.encode(text, add_special_tokens=False).tolist()
            return tokens
        prompt = [int(token) for token in options.prompt_ids]
        wrong = [t for t in prompt if not 0 <= t < self.vocabulary.first_time]
        if wrong:
            raise ValueError(
                f"prompt_ids must be token ids of text, below {self.vocabulary.first_time}, "
                f"got {wrong[0]}"
            )
        return prompt

    def _run(
        self,
        audio: Audio,
        options: TranscribeOptions,
        prompt: list[int],
        progress: Progress | None,
        into: Transcription,
    ) -> Iterator[Segment]:
        writer = WindowWriter(self.model, self.draft, self.vocabulary, options, self._costs)
        into.duration_s, into.stats = audio.duration_s, writer.stats
        into.language = options.language
        before, recent = prompt, list[int]()
        first = 0  # sample of the window's beginning
        with audio:
            while True:
                samples = audio.samples(first, writer.window_samples)
                if not len(samples):
                    break
                length_s = advance_s = len(samples) / RATE
                start_s = first / RATE
                if np.abs(samples).max() > _SILENT:
                    with self._turn:
                        window = writer.listen(samples)
                        if into.language is None and self.vocabulary.languages:
                            into.language = writer.language(window)
                        written = writer.write(
                            window,
                            self._opening(into.language, options),
                            self._given(before),
                            recent,
                        )
                    if not written.is_silence:
                        pieces, advance_s = cut(
                            written.tokens, self.vocabulary.first_time, length_s
                        )
                        for piece in pieces:
                            segment = _segment(
                                start_s,
                                piece.start_s,
                                piece.end_s,
                                piece.tokens,
                                writer.text_of(piece.tokens),
                                written,
                            )
                            if segment.text.strip():
                                recent = [*recent, *piece.tokens][-self.model.max_length :]
                                yield segment
                        before = self._carried(prompt, recent, written, options)
                first += round(advance_s * RATE)
                if progress is not None:
                    progress(min(first / RATE, audio.duration_s), audio.duration_s)

    def _opening(self, language: str | None, options: TranscribeOptions) -> list[int]:
        return self.vocabulary.opening(language, options.task, times=options.timestamps)

    def _given(self, before: list[int]) -> list[int]:
        """The text before as a window's prompt has it: half of the longest text at most."""
        room = self.model.max_length // 2 - 1
        if not before or self.vocabulary.before is None:
            return []
        return [self.vocabulary.before, *before[-room:]]

    def _carried(
        self, prompt: list[int], recent: list[int], written: Written, options: TranscribeOptions
    ) -> list[int]:
        """What the next window is given; a text of chance is no example to follow."""
        if not options.condition_on_prev_tokens:
            return prompt
        return [*prompt, *recent] if written.temperature <= 0.5 else []


def _segment(
    start_s: float, begin_s: float, end_s: float, tokens: list[int], text: str, written: Written
) -> Segment:
    return Segment(
        round(start_s + begin_s, 3),
        round(start_s + end_s, 3),
        text,
        tuple(tokens),
        written.temperature,
        written.avg_logprob,
        written.compression_ratio,
    )
