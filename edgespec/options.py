"""What a call can ask for: names, meanings, defaults and bounds, in one place.

Names and meanings are transformers' own wherever it has them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np

from edgespec.candidates.base import CandidateGenerator
from edgespec.candidates.prompt_lookup import MatchPolicy
from edgespec.candidates.suffix import PastOutputs
from edgespec.logit_rules import LogitsProcessor
from edgespec.ngram_store import NgramStore
from edgespec.stopping import StoppingCriterion

if TYPE_CHECKING:
    from edgespec.generator import Draft


Schedule = Literal["constant", "heuristic", "heuristic_transient"]
"""How the number of candidates changes from round to round, by transformers' names."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of ``generate``, ``stream`` and ``chat``; see :class:`Options`."""

    lookup: bool | None
    lookup_references: Sequence[str | Sequence[int]]
    ngram: bool | None
    ngram_corpus: str | PathLike[str] | NgramStore | None
    ngram_past: NgramStore | None
    suffix: bool | None
    suffix_past: PastOutputs | None
    suffix_max_match_length: int
    suffix_max_spec_factor: float
    suffix_min_token_prob: float
    draft: "Draft | Sequence[Draft] | None"
    candidate_generator: CandidateGenerator | None
    max_new_tokens: int | None
    max_length: int | None
    max_time_s: float | None
    min_new_tokens: int
    stop: str | Sequence[str]
    include_stop: bool
    eos_token_id: int | Sequence[int] | None
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    bad_words_ids: Sequence[Sequence[int]]
    suppress_tokens: Sequence[int]
    begin_suppress_tokens: Sequence[int]
    forced_bos_token_id: int | None
    logit_bias: Mapping[int, float]
    seed: int | None
    json_schema: Mapping[str, Any] | str | None
    regex: str | None
    grammar: str | None
    logits_processors: Sequence[LogitsProcessor]
    stopping_criteria: Sequence[StoppingCriterion]
    num_assistant_tokens: int | Literal["auto"]
    num_assistant_tokens_schedule: Schedule | None
    universal_draft: bool
    assistant_confidence_threshold: float
    prompt_lookup_num_tokens: int | None
    max_matching_ngram_size: int
    min_matching_ngram_size: int
    prompt_lookup_policy: MatchPolicy
    add_special_tokens: bool
    exact: bool
    reuse_prefix: bool
    lossy_typical_acceptance: float | None


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one call.

    Attributes:
        lookup: True proposes candidates by prompt lookup; False switches it off. Where several
            are to propose, each round takes the one that promises most.
        lookup_references: Further texts, or their token ids, that lookup may copy from: the file
            being edited, a retrieved passage, the last answer. They switch lookup on.
        ngram: True proposes what most often followed the last few tokens; False does not.
        ngram_corpus: A file of ``edgespec ngrams build`` to propose from too; switches ngram on.
        ngram_past: A store of past outputs to propose from too, and to which this one is added:
            share it only among those who may see each other's words. Switches ngram on.
        suffix: True continues the longest suffixes of the text seen before; False does not.
        suffix_past: Past outputs to copy from too, as for ``ngram_past``; switches suffix on.
        suffix_max_match_length: Tokens of the longest suffix that is compared.
        suffix_max_spec_factor: Candidates for each token of a match.
        suffix_min_token_prob: A token less likely than this ends what a suffix proposes.
        draft: A draft model that proposes, or several: an EdgeGenerator, a model folder, True for
            the one in the target's folder, or False for none.
        candidate_generator: The caller's own generator.
        max_new_tokens: The most tokens to add; None for as many as ``max_length`` leaves.
        max_length: The most tokens in all, prompt included; None for the model's own limit.
        max_time_s: Seconds after which the text ends with the token in work.
        min_new_tokens: No end token before so many tokens.
        stop: Strings that end the text, where the first of them is complete. They add to the end
            tokens.
        include_stop: Cut the text after the stop string instead of before it.
        eos_token_id: Tokens that end the text; None or an empty list for none.
        do_sample: Draw tokens by chance instead of taking the likeliest.
        temperature: Divides the logits; above 0.
        top_k: Keep the k likeliest tokens; 0 keeps all.
        top_p: Keep the likeliest tokens that together reach this probability.
        min_p: Keep tokens of at least this share of the likeliest one's probability.
        typical_p: Keep the tokens nearest the expected information that reach this probability.
        repetition_penalty: Divides the score of tokens seen before (multiplies it if negative).
        presence_penalty: Taken from the score of every token already written.
        frequency_penalty: Taken as often as the token was already written.
        no_repeat_ngram_size: No n-gram of this size twice; 0 for no such rule.
        bad_words_ids: Rows of token ids that must not appear.
        suppress_tokens: Token ids never written.
        begin_suppress_tokens: Token ids not written first, or after the forced first token.
        forced_bos_token_id: The first new token; transformers forces it after a prompt of one
            token only.
        logit_bias: Added to the scores of these token ids.
        seed: Repeats a sampled text, with and without candidates; None draws one.
        json_schema: A JSON schema, as a mapping or text, that the text will follow.
        regex: A regular expression that the whole text will match.
        grammar: A grammar in llguidance's Lark form that the text will follow.
        logits_processors: The caller's own, called as ``processor(input_ids [T], scores [V])``.
        stopping_criteria: The caller's own, called as ``criterion(input_ids [T])`` a token.
        num_assistant_tokens: Candidates a round verifies at most, or "auto": what pays here.
        num_assistant_tokens_schedule: How that number changes: ``"constant"`` not at all,
            ``"heuristic"`` by two more after a round in which all candidates stood and one less
            after any other, kept from call to call, ``"heuristic_transient"`` the same anew in each
            call. With ``num_assistant_tokens="auto"`` they begin at 5. None is ``"constant"`` for a
            number, and for "auto" what pays.
        universal_draft: Let a draft with another tokenizer propose, by way of the text.
        assistant_confidence_threshold: A draft model stops at a token less likely than this, at
            first; the number moves with what stood. 0 for no such rule.
        prompt_lookup_num_tokens: As in transformers: lookup with so many candidates a round.
        max_matching_ngram_size: Longest n-gram that lookup matches.
        min_matching_ngram_size: Shortest n-gram that lookup matches.
        prompt_lookup_policy: Which of several matches is continued.
        add_special_tokens: Let the tokenizer add what starts a text of this model.
        exact: Read at least two rows in every forward, so that the text is the same bit for bit
            with any candidates or none, in int4 too; a plain step then costs what two rows do.
        reuse_prefix: Read only what the cache does not hold of the prompt: the last call's text, or
            a kept prefix. False reads every prompt from its first token.
        lossy_typical_acceptance: CHANGES THE TEXT'S DISTRIBUTION. Candidates stand that are likely
            enough, so that more of them do: those of a probability above this number or, where the
            target is unsure, above its square root times exp(-entropy). Medusa takes 0.09.
    """

    lookup: bool | None = None
    lookup_references: tuple[str | Sequence[int], ...] = ()
    ngram: bool | None = None
    ngram_corpus: str | PathLike[str] | NgramStore | None = None
    ngram_past: NgramStore | None = None
    suffix: bool | None = None
    suffix_past: PastOutputs | None = None
    suffix_max_match_length: int = 24
    suffix_max_spec_factor: float = 1.0
    suffix_min_token_prob: float = 0.1
    draft: "Draft | tuple[Draft, ...] | None" = None
    candidate_generator: CandidateGenerator | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None
    max_time_s: float | None = None
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    eos_token_id: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    stopping_criteria: tuple[StoppingCriterion, ...] = ()
    num_assistant_tokens: int | Literal["auto"] = "auto"
    num_assistant_tokens_schedule: Schedule | None = None
    universal_draft: bool = False
    assistant_confidence_threshold: float = 0.4
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int = 3
    min_matching_ngram_size: int = 1
    prompt_lookup_policy: MatchPolicy = "longest"
    add_special_tokens: bool = True
    exact: bool = False
    reuse_prefix: bool = True
    lossy_typical_acceptance: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError: Naming the option, what it may be and what it was.
        """
        for name in ("max_new_tokens", "max_length", "prompt_lookup_num_tokens"):
            _check(name, getattr(self, name), "at least 1", _is_count_or_none)
        for name in ("top_k", "min_new_tokens", "no_repeat_ngram_size"):
            _check(name, getattr(self, name), "a whole number, 0 or more", _is_natural)
        _check("max_time_s", self.max_time_s, "above 0", lambda v: v is None or _above_zero(v))
        _check("temperature", self.temperature, "above 0 (do_sample=False is greedy)", _above_zero)
        _check("repetition_penalty", self.repetition_penalty, "above 0", _above_zero)
        for name in ("top_p", "typical_p"):
            _check(name, getattr(self, name), "above 0 and at most 1", lambda v: 0 < v <= 1)
        for name in ("min_p", "suffix_min_token_prob", "assistant_confidence_threshold"):
            _check(name, getattr(self, name), "from 0 to 1", lambda v: 0 <= v <= 1)
        _check(
            "seed", self.seed, "a whole number, 0 or more", lambda v: v is None or _is_natural(v)
        )
        _check(
            "num_assistant_tokens",
            self.num_assistant_tokens,
            "'auto' or a whole number, 0 or more",
            lambda v: v == "auto" or _is_natural(v),
        )
        _check(
            "num_assistant_tokens_schedule",
            self.num_assistant_tokens_schedule,
            f"one of {', '.join(get_args(Schedule))}, or None",
            lambda v: v is None or v in get_args(Schedule),
        )
        _check(
            "suffix_max_match_length",
            self.suffix_max_match_length,
            "at least 1",
            lambda v: _is_natural(v) and v >= 1,
        )
        _check("suffix_max_spec_factor", self.suffix_max_spec_factor, "above 0", _above_zero)
        for name in ("presence_penalty", "frequency_penalty"):
            _check(name, getattr(self, name), "a number", math.isfinite)
        _check("logit_bias", self.logit_bias, "numbers by token id", _is_bias)
        _check(
            "candidate_generator",
            self.candidate_generator,
            "an object with get_candidates and update_candidate_strategy",
            _is_generator_or_none,
        )
        for name, kind in (("ngram_past", NgramStore), ("suffix_past", PastOutputs)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name} must be a {kind.__name__}, got {value!r}")
        for switch, names in SWITCHED_ON_BY.items():
            for name in names:
                if getattr(self, switch) is False and getattr(self, name) not in (None, ()):
                    raise ValueError(f"{name} and {switch}=False exclude each other")
        _check(
            "lossy_typical_acceptance",
            self.lossy_typical_acceptance,
            "above 0 and below 1, or None",
            lambda v: v is None or 0 < v < 1,
        )
        if self.exact and self.lossy_typical_acceptance is not None:
            raise ValueError(
                "exact and lossy_typical_acceptance exclude each other: the text cannot be the "
                "same with any candidates and depend on them"
            )
        if self.include_stop and not self.stop:
            raise ValueError("include_stop has no effect without stop=...; name a stop string")
        constraints = [n for n in CONSTRAINTS if getattr(self, n) is not None]
        if len(constraints) > 1:
            raise ValueError(
                f"{constraints[0]} and {constraints[1]} exclude each other: a text follows one"
            )
        for name in PROPOSERS:
            if self.wants(name) and self.candidate_generator is not None:
                raise ValueError(
                    f"{name} and candidate_generator exclude each other; to let several propose, "
                    "pass a MixedCandidateGenerator of them"
                )
        if self.universal_draft and not self.wants("draft"):
            raise ValueError(
                "universal_draft has no effect without draft=...; name the draft model"
            )

    @property
    def refuses_candidates(self) -> bool:
        """Whether plain decoding is asked for, unless another option names who proposes."""
        return any(getattr(self, name) is False for name in PROPOSERS)

    @property
    def drafts(self) -> "tuple[Draft, ...]":
        """The draft models that propose."""
        named = self.draft if isinstance(self.draft, tuple) else (self.draft,)
        return tuple(draft for draft in named if draft is not None and draft is not False)

    def wants(self, name: str) -> bool:
        """Whether one of ``PROPOSERS`` proposes: by its own option, or one that switches it on."""
        switches = (name, *SWITCHED_ON_BY.get(name, ()))
        return any(getattr(self, option) not in (None, False, ()) for option in switches)


NAMES = tuple(f.name for f in dataclasses.fields(Options))
"""All options by name."""

PROPOSERS = ("lookup", "ngram", "suffix", "draft")
"""Options that name who proposes candidates."""

SWITCHED_ON_BY = {
    "lookup": ("prompt_lookup_num_tokens", "lookup_references"),
    "ngram": ("ngram_corpus", "ngram_past"),
    "suffix": ("suffix_past",),
}
"""Options that mean nothing without one of ``PROPOSERS``, and so ask for it."""

CONSTRAINTS = ("json_schema", "regex", "grammar")
"""Options that bind the whole output to a form."""


def _check(name: str, value: Any, expected: str, holds: Any) -> None:
    try:
        fine = bool(holds(value))
    except (TypeError, ValueError, AttributeError):
        fine = False
    if not fine:
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_natural(value: Any) -> bool:
    return _is_whole(value) and int(value) >= 0


def _is_count_or_none(value: Any) -> bool:
    return value is None or (_is_natural(value) and value >= 1)


def _is_bias(value: Any) -> bool:
    return value is None or all(_is_whole(i) and float(b) == b for i, b in value.items())


def _is_generator_or_none(value: Any) -> bool:
    asked = ("get_candidates", "update_candidate_strategy")
    is_one = not isinstance(value, type) and all(hasattr(value, name) for name in asked)
    return value is None or is_one


def _above_zero(value: Any) -> bool:
    return bool(value > 0)
