"""Whether speculation pays with a model on this machine: measured, and said in a sentence."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

import numpy as np

from edgespec.errors import TokenizerError
from edgespec.generator import EdgeGenerator, Result
from edgespec.options import GenerateOptions

_ROWS = (1, 2, 3, 5, 9, 17)

PROMPTS = {
    "copy": "Copy this paragraph word for word, twice.\n\nThe inspection covers the impeller, the "
    "shaft seal, the bearings and the float switch. A worn seal is replaced at once; worn bearings "
    "are noted and replaced at the next inspection unless the vibration is too strong.\n\n",
    "edit": "Print this function again with `total` renamed to `result`.\n\n"
    "def invoice(lines):\n    total = 0\n    for line in lines:\n        total += line.price\n"
    "    if total > 1000:\n        total = total * 0.98\n    return round(total, 2)\n\n",
    "chat": "Explain in a few sentences how a sailing boat can move against the wind.\n\n",
    "json": "Turn this list into a JSON array of objects with the keys name, city and year.\n\n"
    "Ada Krull, Bremen, 1987\nJon Vestergaard, Aarhus, 1992\nMaria Lopes, Porto, 1979\n\n",
}
"""What people ask for, from much to copy to nothing to copy."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, written plain and with lookup in turn.

    Attributes:
        prompt: Its name.
        plain_tokens_per_s: Tokens a second without candidates, the median of the repeats.
        lookup_tokens_per_s: The same with ``lookup=True``.
        acceptance_rate: Share of the candidates that stood; None if there were none.
        tokens_per_round: Tokens that a forward of the target brought with lookup.
        target_calls: Forwards of the target with lookup, after the prefill; plain has one a token.
        same_text: Whether both texts are equal.
    """

    prompt: str
    plain_tokens_per_s: float
    lookup_tokens_per_s: float
    acceptance_rate: float | None
    tokens_per_round: float
    target_calls: int
    same_text: bool

    @property
    def speed_up(self) -> float:
        """Lookup against plain."""
        return self.lookup_tokens_per_s / self.plain_tokens_per_s


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured.

    Attributes:
        comparisons: One for each prompt.
        step_ms: Milliseconds of a forward by its number of rows.
    """

    comparisons: tuple[Comparison, ...]
    step_ms: dict[int, float]

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        gains = {c.prompt: c.speed_up for c in self.comparisons}
        figures = ", ".join(f"{gain:.1f}x on {name}" for name, gain in gains.items())
        pays = [name for name, gain in gains.items() if gain >= 1.1]
        if len(pays) == len(gains):
            return f"lookup pays: {figures}; turn it on"
        if pays:
            return f"lookup pays on {', '.join(pays)} ({figures}); turn it on where text repeats"
        return f"lookup does not pay here ({figures}); leave it off"

    def as_dict(self) -> dict[str, object]:
        """Everything, ready for JSON."""
        return {
            "comparisons": [{**asdict(c), "speed_up": c.speed_up} for c in self.comparisons],
            "step_ms": self.step_ms,
            "advice": self.advice,
        }


def measure(
    generator: EdgeGenerator,
    prompts: Mapping[str, str | Sequence[int]] = PROMPTS,
    *,
    num_assistant_tokens: int | Literal["auto"] = "auto",
    max_new_tokens: int = 96,
    repeats: int = 3,
    told: Callable[[str], None] = lambda step: None,
) -> Report:
    """Write each prompt plain and with lookup in turn, and time forwards of several rows.

    Args:
        generator: The model.
        prompts: Texts or token ids by name.
        num_assistant_tokens: Candidates a round at most, or what pays.
        max_new_tokens: How much to write of each.
        repeats: Runs of each kind that are counted, after one that is not.
        told: Called with what is being measured.

    Raises:
        TokenizerError: If prompts are text and the model has no tokenizer.
    """
    lookup: GenerateOptions = {
        "lookup": True,
        "max_new_tokens": max_new_tokens,
        "num_assistant_tokens": num_assistant_tokens,
    }
    compared = []
    for name, prompt in prompts.items():
        told(f"prompt {name}")
        compared.append(_compare(generator, name, prompt, lookup, repeats))
    told("forwards")
    return Report(tuple(compared), _step_ms(generator))


def _compare(
    generator: EdgeGenerator,
    name: str,
    prompt: str | Sequence[int],
    options: GenerateOptions,
    repeats: int,
) -> Comparison:
    plain_s, lookup_s = [], []
    for repeat in range(repeats + 1):
        plain = _write(generator, prompt, {**options, "lookup": False})
        lookup = _write(generator, prompt, options)
        if repeat:  # the first warms up, and the budget learns what a forward costs
            plain_s.append(plain.stats.tokens_per_s or 0.0)
            lookup_s.append(lookup.stats.tokens_per_s or 0.0)
    return Comparison(
        name,
        median(plain_s),
        median(lookup_s),
        lookup.stats.acceptance_rate,
        lookup.stats.tokens_per_round or 0.0,
        lookup.stats.rounds,
        plain.tokens.tolist() == lookup.tokens.tolist(),
    )


def _write(
    generator: EdgeGenerator, prompt: str | Sequence[int], options: GenerateOptions
) -> Result:
    """Answer a prompt as a chat where the model has a template for it."""
    if isinstance(prompt, str):
        if generator.tokenizer is None:
            raise TokenizerError(
                f"{generator.folder.tokenizer} does not exist, and the prompts are text; "
                "copy it from the checkpoint"
            )
        if generator.has_chat_template:
            return generator.chat([{"role": "user", "content": prompt}], **options)
    return generator.generate(prompt, **options)


def _step_ms(generator: EdgeGenerator, context: int = 128, repeats: int = 7) -> dict[int, float]:
    """Milliseconds of a forward with 1, 2, 3, ... rows behind ``context`` tokens."""
    model = generator.model
    longest = generator.max_length or context + max(_ROWS)
    context = min(context, longest - max(_ROWS))
    with model.lock:
        model.hand_to(_step_ms)
        model.rewind(0)
        model.prefill(np.ones(max(context, 0), np.int64))
        took: dict[int, list[float]] = {}
        for _ in range(repeats):
            for rows in _ROWS if model.cannot_verify is None else (1,):
                began = time.perf_counter()
                model.forward(np.ones(rows, np.int64))
                took.setdefault(rows, []).append((time.perf_counter() - began) * 1000)
                model.rewind(max(context, 0))
    return {rows: median(values) for rows, values in took.items()}
