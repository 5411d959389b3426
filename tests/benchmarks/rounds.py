"""What a round costs outside ONNX Runtime, what a rewind costs, and what memory is held.

    python tests/benchmarks/rounds.py FOLDER [--context 2000] [--tokens 128]

Prints the median over the rounds of the time that is not spent in the session's run, with and
without lookup at the given context; the time of a rewind over context lengths, and whether the
cache's buffers stayed where they were; and the peak of resident memory against weights and cache.
"""

import argparse
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import EdgeGenerator
from edgespec.cache.in_place import InPlaceCache


class Clock:
    """Adds up the time that a generator's session spends running."""

    def __init__(self, generator: EdgeGenerator) -> None:
        """Put a clock around the session's run."""
        self.seconds = 0.0
        run = generator.session.run

        def timed(*args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            run(*args, **kwargs)
            self.seconds += time.perf_counter() - began

        generator.session.run = timed  # type: ignore[method-assign]


def outside_ms(generator: EdgeGenerator, clock: Clock, prompt: Any, **options: Any) -> list[float]:
    """Milliseconds a round outside the session, the first round left out: it has the prefill."""
    outside: list[float] = []
    stream = generator.stream(prompt, **options)
    next(stream)
    while True:
        inside, began = clock.seconds, time.perf_counter()
        if next(stream, None) is None:
            return outside
        outside.append((time.perf_counter() - began - (clock.seconds - inside)) * 1000)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--context", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()

    generator = EdgeGenerator(options.folder)
    clock = Clock(generator)
    words = np.random.default_rng(0).integers(100, 1100, 400)
    prompt = np.resize(words, options.context)  # repeats itself: lookup has something to find
    for name, lookup in (("plain", False), ("lookup", True)):
        ms = outside_ms(
            generator,
            clock,
            prompt,
            max_new_tokens=options.tokens,
            lookup=lookup,
            eos_token_id=None,
        )
        print(
            f"outside ONNX Runtime, {name}: median {statistics.median(ms):.3f} ms a round, "
            f"90th percentile {np.percentile(ms, 90):.3f} ({len(ms)} rounds)"
        )

    cache = generator.model.cache
    if isinstance(cache, InPlaceCache):
        cache.rewind(0)
        cache.reserve(options.context)
        for length in (100, 500, 1000, options.context):
            generator.model.rewind(0)
            generator.model.prefill(prompt[:length])
            before = [value.data_ptr() for value in cache._values]
            took = []
            for _ in range(200):
                cache._length = length
                began = time.perf_counter()
                generator.model.rewind(length - 10)
                took.append((time.perf_counter() - began) * 1e6)
            generator.model.forward(prompt[:2])
            same = before == [value.data_ptr() for value in cache._values]
            print(
                f"rewind by 10 at {length:5}: {statistics.median(took):.2f} us, "
                f"buffers where they were: {same}"
            )

    weights = sum(p.stat().st_size for p in generator.folder.folder.glob("*.onnx*"))
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    rest = peak - weights - cache.bytes_held
    print(
        f"peak memory {peak / 1e6:.0f} MB = weights {weights / 1e6:.0f} "
        f"+ cache {cache.bytes_held / 1e6:.0f} + {rest / 1e6:.0f}"
    )


if __name__ == "__main__":
    main()
