"""A call's options: what it says, then the model's own defaults, then ours."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from edgespec.options import CONSTRAINTS, NAMES, PROPOSERS, SWITCHED_ON_BY, Options

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
"""Options that change only sampled text."""

SHAPING = {
    "lookup": ("max_matching_ngram_size", "min_matching_ngram_size", "prompt_lookup_policy"),
    "suffix": ("suffix_max_match_length", "suffix_max_spec_factor", "suffix_min_token_prob"),
}
"""Options that change only what one proposes who is named by another."""

COUNTING = ("num_assistant_tokens", "num_assistant_tokens_schedule")
"""Options that change only how many candidates are asked for."""

_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Options)}
_WHO = ("candidate_generator", *PROPOSERS, *(n for names in SWITCHED_ON_BY.values() for n in names))


def resolve(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    proposes: Literal["draft", "generator"] | None = None,
) -> Options:
    """The options of a call: what it says, then the model's own defaults, then ours.

    Args:
        given: The call's keyword arguments.
        defaults: What the model folder's ``generation_config.json`` says, in its names.
        proposes: Who does in calls that name nobody: a draft model, another generator, or none.

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
    # Nobody gets another distribution than the model's without asking for it.
    said.pop("lossy_typical_acceptance", None)
    named = [n for n in _WHO if given.get(n) not in (None, False, ())]
    if named or given.get("lookup") is False:
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
    _require_effect(given, options, proposes)
    return options


def _require_effect(given: Mapping[str, Any], options: Options, proposes: str | None) -> None:
    """Refuse an option of a call that changes nothing there."""
    is_named = options.candidate_generator is not None or any(map(options.wants, PROPOSERS))
    if is_named or options.refuses_candidates:
        proposes = None
    has_draft = proposes == "draft" or options.wants("draft")
    for switch, is_on, names in (
        ("do_sample", options.do_sample, (*SAMPLING, "lossy_typical_acceptance")),
        *((name, options.wants(name), shaped) for name, shaped in SHAPING.items()),
        ("draft", has_draft, ("assistant_confidence_threshold",)),
    ):
        idle = [n for n in names if n in given and given[n] != _DEFAULTS[n]]
        if idle and not is_on:
            raise ValueError(
                f"{idle[0]} has no effect without {switch}=True; add that, or leave it out"
            )
    # Beside what refuses candidates it may stand: one setting for all calls of a program.
    is_constrained = any(getattr(options, name) is not None for name in CONSTRAINTS)
    if not (is_named or proposes or is_constrained or options.refuses_candidates):
        for name in COUNTING:
            if given.get(name, _DEFAULTS[name]) not in (_DEFAULTS[name], 0):
                raise ValueError(
                    f"{name} has no effect where nobody proposes candidates; add lookup=True or "
                    "draft=..., or leave it out"
                )


_ROWS = (
    *("eos_token_id", "stop", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
    *("logits_processors", "stopping_criteria", "lookup_references"),
)


_HOLDS = {
    "stop": "strings",
    "lookup_references": "texts or token ids",
    "logits_processors": "functions",
    "stopping_criteria": "functions",
}
"""What rows hold that are not of whole numbers."""


def _as_stored(name: str, value: Any) -> Any:
    """One id or string becomes a row of one; rows become tuples, None an empty one.

    Raises:
        ValueError: If a row does not hold what it should.
    """
    try:
        return _as_row(name, value)
    except (TypeError, ValueError):
        expected = _HOLDS.get(name, "whole numbers")
        raise ValueError(f"{name} must hold {expected}, got {value!r}") from None


def _as_row(name: str, value: Any) -> Any:
    if value is None and name in _ROWS:
        return ()
    if name == "eos_token_id":
        return (int(value),) if isinstance(value, int | np.integer) else tuple(map(int, value))
    if name == "stop":
        return (value,) if isinstance(value, str) else _all(lambda s: isinstance(s, str), value)
    if name == "bad_words_ids":
        return tuple(tuple(map(int, row)) for row in value)
    if name in ("suppress_tokens", "begin_suppress_tokens"):
        return tuple(map(int, value))
    if name == "lookup_references" and isinstance(value, str):
        return (value,)
    if name == "draft" and isinstance(value, list | tuple):
        return tuple(value)
    if name in ("logits_processors", "stopping_criteria"):
        return _all(callable, value)
    return tuple(value) if name == "lookup_references" else value


def _all(is_right: Callable[[Any], bool], row: Iterable[Any]) -> tuple[Any, ...]:
    """The row, if every one in it is right."""
    found = tuple(row)
    if not all(map(is_right, found)):
        raise TypeError
    return found
