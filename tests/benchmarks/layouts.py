"""What each cache layout costs: bytes, the export, and a step.

    python tests/benchmarks/layouts.py CHECKPOINT OUT [--past 64 1500] [--repeats 15]

Exports CHECKPOINT to OUT/in_place, OUT/static and OUT/growing, unless they are there, and prints
their sizes and the CPU seconds that each export took. Then every layout reads one token behind so
many others, in turn, so that a busy machine disturbs all alike; printed are medians and their
ratios to in_place.
"""

import argparse
import statistics
import time
from pathlib import Path

import edgespec_export
import numpy as np

from edgespec import EdgeGenerator
from edgespec.model import CausalLM


def make(checkpoint: Path, folder: Path, cache: str) -> None:
    """Export one layout where it is not there, and print its size and what it took."""
    took = ""
    if not folder.exists():
        began, wall = time.process_time(), time.perf_counter()
        edgespec_export.export(checkpoint, folder, cache=cache)
        spent, waited = time.process_time() - began, time.perf_counter() - wall
        took = f", exported in {spent:.0f} s of CPU ({waited:.0f} s)"
    size = sum(path.stat().st_size for path in folder.glob("model.onnx*"))
    print(f"{cache:9} {size / 1e6:8.1f} MB{took}")


def step_ms(model: CausalLM, past: int) -> float:
    """Milliseconds to read one token behind ``past`` others."""
    model.rewind(past)
    began = time.perf_counter()
    model.forward(np.array([100]))
    return (time.perf_counter() - began) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--past", type=int, nargs="+", default=[64, 1500])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()

    for cache in edgespec_export.CACHES:
        make(options.checkpoint, options.out / cache, cache)
    models = {c: EdgeGenerator(options.out / c).model for c in edgespec_export.CACHES}
    text = np.random.default_rng(0).integers(100, 1100, max(options.past))
    for past in options.past:
        for model in models.values():
            model.rewind(0)
            model.prefill(text[:past])
            model.forward(text[:1])
        took: dict[str, list[float]] = {cache: [] for cache in models}
        for _ in range(options.repeats):
            for cache, model in models.items():
                took[cache].append(step_ms(model, past))
        medians = {cache: statistics.median(ms) for cache, ms in took.items()}
        for cache, ms in medians.items():
            print(
                f"{cache:9} at {past:5} past tokens: {1000 / ms:6.1f} tokens/s, "
                f"{ms / medians['in_place']:.2f} times in_place's step"
            )


if __name__ == "__main__":
    main()
