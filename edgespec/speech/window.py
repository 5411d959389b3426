"""One window of sound to tokens: heard once, written at one temperature after another."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edgespec.arrays import Logits, TokenIds
from edgespec.budget import MOST_CANDIDATES, AutoBudget, Budget, ConstantBudget, StepCosts
from edgespec.candidates.assisted import AssistedCandidateGenerator
from edgespec.candidates.base import CandidateGenerator
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.decode import Decoding
from edgespec.encoder import OnSource
from edgespec.encoder_decoder import EncoderDecoder
from edgespec.errors import GraphMismatchError
from edgespec.logits import Processing, make_draft_pick, make_processing
from edgespec.manifest import ENCODER
from edgespec.options import Options
from edgespec.sampling import distribute
from edgespec.speech.features import HOP, Samples, log_mel
from edgespec.speech.options import TranscribeOptions
from edgespec.speech.rules import TimeRules
from edgespec.speech.vocabulary import TICK_S, Vocabulary
from edgespec.stats import Stats
from edgespec.stopping import Stopping, StopText


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of a window.

    Attributes:
        tokens: Text and times, without the end token.
        text: The text alone.
        temperature: At which it was written.
        avg_logprob: Mean log-probability of the tokens, the end token among them.
        compression_ratio: How many times smaller zlib makes the text.
        is_silence: Nobody spoke, so the text is not to be believed.
    """

    tokens: list[int]
    text: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    is_silence: bool


@dataclass(slots=True)
class Scored:
    """Picks tokens and keeps count of how likely they were."""

    process: Processing
    temperature: float
    rng: np.random.Generator
    logprobs: list[float] = field(default_factory=list)

    def __call__(self, row: Logits, prefix: TokenIds) -> int:
        """The token after ``prefix`` [T], by ``row`` [V]; called once a token."""
        scores = self.process(row, prefix)
        if self.temperature > 0:
            found = distribute(
                scores, temperature=self.temperature, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0
            )
            token = found.draw(self.rng.random())
        else:
            token = int(scores.argmax())
        highest = float(scores.max())
        total = highest + float(np.log(np.exp(scores - highest).sum()))
        self.logprobs.append(float(scores[token]) - total)
        return token


class WindowWriter:
    """Writes down window after window of one sound.

    Attributes:
        stats: What happened in all of them.
    """

    def __init__(
        self,
        target: EncoderDecoder,
        draft: EncoderDecoder | None,
        vocabulary: Vocabulary,
        options: TranscribeOptions,
        costs: StepCosts,
    ) -> None:
        """Write with ``target``, by the settings of a call."""
        self._target, self._draft = target, draft if options.draft else None
        self._vocabulary, self._options = vocabulary, options
        self._budget = _budget(options, costs)
        self._rng = np.random.default_rng(options.seed)
        self.stats = Stats()

    @property
    def window_samples(self) -> int:
        """Samples that the encoder reads at once: 30 s of them in all published models."""
        return _features_shape(self._target)[1] * HOP

    def listen(self, samples: Samples) -> "Window":
        """Read a window of sound [N], once for all that is asked of it."""
        heard = self._target.encode(features(self._target, samples))
        draft = self._draft
        drafted: OnSource | None = None
        if draft is not None and draft.shares_encoder(self._target):
            drafted = draft.on(heard)
        elif draft is not None:
            drafted = draft.on(draft.encode(features(draft, samples)))
        return Window(self._target.on(heard), drafted, len(samples))

    def language(self, window: "Window") -> str:
        """The likeliest language of a window."""
        row = self._row_after(window, [self._vocabulary.start])
        return max(self._vocabulary.languages.items(), key=lambda item: float(row[item[1]]))[0]

    def write(
        self, window: "Window", opening: Sequence[int], before: Sequence[int], recent: Sequence[int]
    ) -> Written:
        """Write a window down, at the first temperature that gives a text to be believed.

        Args:
            window: From :meth:`listen`.
            opening: The tokens that start its text.
            before: What is given as the text before, perhaps nothing.
            recent: What lookup may copy from besides.
        """
        prompt = [*before, *opening]
        for temperature in self._options.temperatures:
            written = self._attempt(window, prompt, len(before), recent, temperature)
            if written.is_silence or not self._is_refused(written):
                break
        return written

    def _is_refused(self, written: Written) -> bool:
        most, least = self._options.compression_ratio_threshold, self._options.logprob_threshold
        repeats = most is not None and written.compression_ratio > most
        return repeats or (least is not None and written.avg_logprob < least)

    def _attempt(
        self,
        window: "Window",
        prompt: list[int],
        num_before: int,
        recent: Sequence[int],
        temperature: float,
    ) -> Written:
        options = self._rules(len(prompt))
        # Tokens of time are no part of some tokenizers, so the model's own count is right.
        limit = self._target.model.vocab_size
        pick = Scored(
            make_processing(options, prompt_length=len(prompt), vocab_limit=limit),
            temperature,
            self._rng,
        )
        assert options.max_length is not None
        decoding = Decoding(
            window.target,
            self._generator(window, options, len(prompt), recent),
            np.array(prompt, np.int64),
            pick=pick,
            budget=self._budget,
            stopping=Stopping(
                max_length=options.max_length,
                eos_token_ids=frozenset(options.eos_token_id),
                text=StopText((), None),
            ),
            vocab_size=limit,
        )
        for done in decoding:
            self.stats.add(done)
            self.stats.decode_s += done.draft_s + done.verify_s + done.rewind_s
        self.stats.prefill_s += decoding.prefill_s
        self.stats.prompt_tokens += len(prompt)
        tokens = decoding.tokens[len(prompt) :].tolist()
        if tokens[-1] == self._vocabulary.end:
            tokens.pop()
        text = self.text_of(tokens)
        avg_logprob = sum(pick.logprobs) / len(pick.logprobs)
        return Written(
            tokens,
            text,
            temperature,
            avg_logprob,
            compression_ratio(text),
            self._is_silence(window, prompt[: num_before + 1], avg_logprob),
        )

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``, times left out."""
        first_time = self._vocabulary.first_time
        return self._target.tokenizer.decode([t for t in tokens if t < first_time])

    def _is_silence(self, window: "Window", until_start: list[int], avg_logprob: float) -> bool:
        """Whether nobody speaks: asked only where the text is doubtful."""
        threshold, token = self._options.no_speech_threshold, self._vocabulary.no_speech
        least = self._options.logprob_threshold
        if threshold is None or token is None or (least is not None and avg_logprob >= least):
            return False
        row = self._row_after(window, until_start).astype(np.float64)
        probs = np.exp(row - row.max())
        return bool(probs[token] / probs.sum() > threshold)

    def _row_after(self, window: "Window", tokens: list[int]) -> Logits:
        """The target's scores [V] for the token after ``tokens``."""
        with window.target.lock:
            window.target.hand_to(object())
            window.target.rewind(0)
            window.target.prefill(np.array(tokens[:-1], np.int64))
            row: Logits = window.target.forward(np.array(tokens[-1:], np.int64))[0].copy()
            return row

    def _rules(self, prompt_length: int) -> Options:
        """What may be written in a window, and how much."""
        asked, known = self._options, self._vocabulary
        said = self._target.folder.generation_config
        longest = prompt_length + (asked.max_new_tokens or self._target.max_length // 2)
        suppressed, at_first = (
            tuple((said.get(name) or ()) if given is None else given)
            for name, given in (
                ("suppress_tokens", asked.suppress_tokens),
                ("begin_suppress_tokens", asked.begin_suppress_tokens),
            )
        )
        if not asked.timestamps:
            suppressed += tuple(range(known.first_time, self._target.model.vocab_size))
        rules = TimeRules(
            prompt_length,
            known.first_time,
            known.no_times,
            known.end,
            round(asked.max_initial_timestamp_s / TICK_S),
        )
        return Options(
            max_length=min(longest, self._target.max_length),
            eos_token_id=(known.end,),
            suppress_tokens=suppressed,
            begin_suppress_tokens=at_first,
            logits_processors=(rules,) if asked.timestamps else (),
        )

    def _generator(
        self, window: "Window", options: Options, prompt_length: int, recent: Sequence[int]
    ) -> CandidateGenerator | None:
        """Who proposes candidates; by the rules of the target where it is a draft."""
        asked: list[CandidateGenerator] = []
        if self._options.candidate_generator is not None:
            asked.append(self._options.candidate_generator)
        if self._options.lookup:
            asked.append(PromptLookupCandidateGenerator(MOST_CANDIDATES, references=[recent]))
        if window.draft is not None and self._draft is not None:
            shared = min(self._draft.model.vocab_size, self._target.model.vocab_size)
            asked.append(
                AssistedCandidateGenerator(
                    window.draft,
                    vocab_size=shared,
                    width=self._target.model.vocab_size,
                    # The likeliest tokens at any temperature: a seed then gives the same text
                    # with a draft and without.
                    pick=make_draft_pick(options, prompt_length=prompt_length, vocab_limit=shared),
                    eos_token_ids=options.eos_token_id,
                    max_length=self._draft.max_length,
                    assistant_confidence_threshold=self._options.assistant_confidence_threshold,
                )
            )
        return MixedCandidateGenerator(asked) if len(asked) > 1 else next(iter(asked), None)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of sound that was heard.

    Attributes:
        target: The decoder, attending to it.
        draft: The draft's, if there is one.
        num_samples: Its length at 16 kHz.
    """

    target: OnSource
    draft: OnSource | None
    num_samples: int


def features(model: EncoderDecoder, samples: Samples) -> Logits:
    """Sound [N] as ``model``'s encoder takes it: [M, F]."""
    return log_mel(samples, *_features_shape(model))


def _features_shape(model: EncoderDecoder) -> tuple[int, int]:
    """[M, F] of what ``model``'s encoder takes.

    Raises:
        GraphMismatchError: If the graph leaves it open.
    """
    shape = model.source_shape
    if len(shape) != 3 or not isinstance(shape[1], int) or not isinstance(shape[2], int):
        raise GraphMismatchError(
            f"{model.folder.folder / ENCODER} takes a source of the shape {list(shape)}, "
            "expected [1, M, F] with M and F fixed; export the model again"
        )
    return shape[1], shape[2]


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes ``text``: a text that repeats itself becomes very small."""
    raw = text.encode("utf-8")
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0


def _budget(options: TranscribeOptions, costs: StepCosts) -> Budget:
    count = options.num_assistant_tokens
    return AutoBudget(costs) if count == "auto" else ConstantBudget(count)
