"""What a call can ask for: names, meanings, defaults and bounds, in one place.

Names and meanings are transformers' own wherever it has them.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np

from edgespec.candidates.base import CandidateGenerator
from edgespec.candidates.prompt_lookup import MatchPolicy
from edgespec.logits import LogitsProcessor
from edgespec.stopping import StoppingCriterion

if TYPE_CHECKING:
    from edgespec.generator import Draft


Schedule = Literal["constant", "heuristic", "heuristic_transient"]
"""How the number of candidates changes from round to round, by transformers' names."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of ``generate``, ``stream`` and ``chat``; see :class:`Options`."""

    lookup: bool | None
    lookup_references: Sequence[str | Sequence[int]]
    draft: "Draft | None"
    candidate_generator: CandidateGenerator | None
    max_new_tokens: int | None
    max_length: int | None
    max_time_s: float | None
    min_new_tokens: int
    stop: str | Sequence[str]
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


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one call.

    Attributes:
        lookup: True proposes candidates by prompt lookup, with ``draft`` by whichever of the two
            promises more; False switches it off.
        lookup_references: Further texts, or their token ids, that lookup may copy from: the file
            being edited, a retrieved passage, the last answer. They switch lookup on.
        draft: A draft model that proposes: an EdgeGenerator, a model folder, True for the one in
            the target's folder, or False for none.
        candidate_generator: The caller's own generator.
        max_new_tokens: The most tokens to add; None for as many as ``max_length`` leaves.
        max_length: The most tokens in all, prompt included; None for the model's own limit.
        max_time_s: Seconds after which the text ends with the token in work.
        min_new_tokens: No end token before so many tokens.
        stop: Strings that end the text; they are not part of it. They add to the end tokens.
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
        begin_suppress_tokens: Token ids not written first.
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
    """

    lookup: bool | None = None
    lookup_references: tuple[str | Sequence[int], ...] = ()
    draft: "Draft | None" = None
    candidate_generator: CandidateGenerator | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None
    max_time_s: float | None = None
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
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
        _check("min_p", self.min_p, "from 0 to 1", lambda v: 0 <= v <= 1)
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
        for name in ("prompt_lookup_num_tokens", "lookup_references"):
            if self.lookup is False and getattr(self, name):
                raise ValueError(f"{name} and lookup=False exclude each other")
        _check(
            "assistant_confidence_threshold",
            self.assistant_confidence_threshold,
            "from 0 to 1",
            lambda v: 0 <= v <= 1,
        )
        constraints = [n for n in CONSTRAINTS if getattr(self, n) is not None]
        if len(constraints) > 1:
            raise ValueError(
                f"{constraints[0]} and {constraints[1]} exclude each other: a text follows one"
            )
        asked = {
            "lookup": self.wants_lookup,
            "draft": self.draft not in (None, False),
        }
        for name, wanted in asked.items():
            if wanted and self.candidate_generator is not None:
                raise ValueError(
                    f"{name} and candidate_generator exclude each other; to let several propose, "
                    "pass a MixedCandidateGenerator of them"
                )
        if self.universal_draft and not asked["draft"]:
            raise ValueError(
                "universal_draft has no effect without draft=...; name the draft model"
            )

    @property
    def wants_lookup(self) -> bool:
        """Whether prompt lookup proposes."""
        named = self.prompt_lookup_num_tokens is not None or bool(self.lookup_references)
        return bool(self.lookup) or named


NAMES = tuple(f.name for f in dataclasses.fields(Options))
"""All options by name."""

_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Options)}

CONSTRAINTS = ("json_schema", "regex", "grammar")
"""Options that bind the whole output to a form."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
"""Options that change only sampled text."""


def resolve(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Options:
    """The options of a call: what it says, then the model's own defaults, then ours.

    Args:
        given: The call's keyword arguments.
        defaults: What the model folder's ``generation_config.json`` says, in its names.

    Raises:
        ValueError: If a name is unknown or a value cannot be meant.
    """
    for name in given:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(NAMES)}"
            raise ValueError(f"{name!r} is not an option of generate{hint}")
    said = {n: v for n, v in defaults.items() if n in NAMES and v is not None}
    # A checkpoint's max_length is transformers' 20 more often than a limit of the model.
    said.pop("max_length", None)
    if given.get("lookup") is False or given.get("draft") or given.get("candidate_generator"):
        said.pop("prompt_lookup_num_tokens", None)
    sampled = bool(given.get("do_sample", said.get("do_sample", False)))
    if not sampled:
        said = {n: v for n, v in said.items() if n not in SAMPLING}
    try:
        Options(**{name: _as_stored(name, value) for name, value in said.items()})
    except ValueError as error:
        raise ValueError(f"the model's generation_config.json: {error}") from None
    said |= given
    options = Options(**{name: _as_stored(name, value) for name, value in said.items()})
    idle = [n for n in SAMPLING if n in given and given[n] != _DEFAULTS[n]]
    if idle and not sampled:
        raise ValueError(
            f"{idle[0]} has no effect without do_sample=True; add that, or leave it out"
        )
    return options


_ROWS = (
    *("eos_token_id", "stop", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
    *("logits_processors", "stopping_criteria", "lookup_references"),
)


def _as_stored(name: str, value: Any) -> Any:
    """One id or string becomes a row of one; rows become tuples, None an empty one.

    Raises:
        ValueError: If a row does not hold what it should.
    """
    try:
        return _as_row(name, value)
    except (TypeError, ValueError):
        expected = "strings" if name == "stop" else "whole numbers"
        raise ValueError(f"{name} must hold {expected}, got {value!r}") from None


def _as_row(name: str, value: Any) -> Any:
    if value is None and name in _ROWS:
        return ()
    if name == "eos_token_id":
        return (int(value),) if isinstance(value, int | np.integer) else tuple(map(int, value))
    if name == "stop":
        return (value,) if isinstance(value, str) else tuple(value)
    if name == "bad_words_ids":
        return tuple(tuple(map(int, row)) for row in value)
    if name in ("suppress_tokens", "begin_suppress_tokens"):
        return tuple(map(int, value))
    if name == "lookup_references" and isinstance(value, str):
        return (value,)
    if name in ("logits_processors", "stopping_criteria", "lookup_references"):
        return tuple(value)
    return value


def _check(name: str, value: Any, expected: str, holds: Any) -> None:
    try:
        fine = bool(holds(value))
    except TypeError:
        fine = False
    if not fine:
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def _is_natural(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and int(value) >= 0


def _is_count_or_none(value: Any) -> bool:
    return value is None or (_is_natural(value) and value >= 1)


def _above_zero(value: Any) -> bool:
    return bool(value > 0)
