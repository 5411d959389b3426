"""Every engine writes every prompt in each of its ways, in turn; medians of the repeats."""

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import numpy as np

from edgespec.bench.engines import Engine, Written
from edgespec.bench.prompts import BenchPrompt
from edgespec.bench.report import Figure
from edgespec.generator import EdgeGenerator

_ROWS = (1, 2, 3, 5, 9, 17, 33)


def figures(
    engines: Sequence[Engine],
    prompts: Iterable[BenchPrompt],
    *,
    max_new_tokens: int = 96,
    repeats: int = 3,
    told: Callable[[str], None] = lambda step: None,
) -> list[Figure]:
    """Measure, a prompt at a time.

    Args:
        engines: Who writes.
        prompts: What.
        max_new_tokens: How much of each.
        repeats: Runs of each kind that are counted, after one that is not: it warms up, and the
            budget learns what a forward costs.
        told: Called with what is being measured.

    Returns:
        One for each prompt, engine and method, in order.

    Raises:
        TokenizerError: If prompts are text and the model has no tokenizer.
    """
    found = []
    for prompt in prompts:
        runs: dict[tuple[str, str], list[Written]] = {}
        ways = [(engine, method) for engine in engines for method in engine.methods]
        for repeat in range(repeats + 1):
            # Who comes first after a pause is some per cent slower, so the order alternates.
            for engine, method in ways[:: 1 if repeat % 2 else -1]:
                told(f"{prompt.name}: {engine.name}, {method}, {repeat}/{repeats}")
                written = engine.write(method, prompt.prompt, max_new_tokens)
                runs.setdefault((engine.name, method), []).append(written)
        for engine, method in ways:
            plain = runs[engine.name, engine.methods[0]][-1]
            counted = runs[engine.name, method][1:]
            found.append(_figure(prompt, engine.name, method, counted, plain.text))
    return found


def _figure(
    prompt: BenchPrompt, engine: str, method: str, runs: Sequence[Written], plain_text: str
) -> Figure:
    last = runs[-1]
    return Figure(
        prompt.name,
        prompt.kind,
        engine,
        method,
        tokens_per_s=median(run.tokens_per_s for run in runs),
        prefill_s=median(run.prefill_s for run in runs),
        same_text=last.text == plain_text,
        tokens_per_round=last.tokens_per_round,
        acceptance_rate=last.acceptance_rate,
        evaluated_by_position=last.evaluated_by_position,
        accepted_by_position=last.accepted_by_position,
    )


def step_ms(generator: EdgeGenerator, context: int = 128, repeats: int = 7) -> dict[int, float]:
    """Milliseconds of a forward with 1, 2, 3, ... rows behind ``context`` tokens: t(k)."""
    model = generator.model
    longest = generator.max_length or context + max(_ROWS)
    context = max(0, min(context, longest - max(_ROWS)))
    with model.lock:
        model.hand_to(step_ms)
        model.rewind(0)
        model.prefill(np.ones(context, np.int64))
        took: dict[int, list[float]] = {}
        for _ in range(repeats):
            for rows in _ROWS if model.cannot_verify is None else (1,):
                began = time.perf_counter()
                model.forward(np.ones(rows, np.int64))
                took.setdefault(rows, []).append((time.perf_counter() - began) * 1000)
                model.rewind(context)
    return {rows: median(values) for rows, values in took.items()}
