"""On a machine with a GPU: the cuda tests, then what speculation brings there. Under four minutes.

    python tests/benchmarks/cuda.py [MODEL]

Prints one JSON object: the versions, whether the tests passed, milliseconds of a forward by its
rows on each provider, with all scores brought back and with the best alone, and tokens a second
plain and with lookup. MODEL is a model folder; the embedded model if left out.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort

from edgespec import EdgeGenerator
from edgespec.decode import TargetModel
from edgespec.shortlist import Shortlisted

ROWS = (1, 2, 4, 8, 16)
CONTEXT = 256
PROMPT = "def area(width, height):\n    return width * height\n\n\ndef perimeter(width, height):\n"


def step_ms(target: TargetModel, repeats: int = 15) -> dict[int, float]:
    """Milliseconds of a forward behind ``CONTEXT`` tokens, in turn over the row counts."""
    target.rewind(0)
    target.prefill(np.ones(CONTEXT, np.int64))
    took: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for repeat in range(repeats + 3):
        for rows in ROWS:
            began = time.perf_counter()
            target.forward(np.ones(rows, np.int64))
            if repeat >= 3:
                took[rows].append((time.perf_counter() - began) * 1000)
            target.rewind(CONTEXT)
    return {rows: round(median(values), 3) for rows, values in took.items()}


def measure(path: str | None, provider: str) -> dict[str, Any]:
    """Forwards and texts on one provider."""
    generator = EdgeGenerator(path, provider=provider)
    best = Shortlisted(generator.model, 1, generator.known_ids)
    facts: dict[str, Any] = {
        "provider": generator.session.provider,
        "step_ms": step_ms(generator.model),
        "step_ms_best_alone": step_ms(best),
    }
    texts = []
    for name, lookup in (("plain", False), ("lookup", True)) * 3:
        result = generator.generate(
            PROMPT, max_new_tokens=96, lookup=lookup, eos_token_id=None, do_sample=False
        )
        texts.append(result.text)
        facts.setdefault(f"{name}_tokens_per_s", []).append(
            round(result.stats.tokens_per_s or 0.0, 1)
        )
    facts["lookup_changed_no_text"] = len(set(texts)) == 1
    return facts


def main() -> None:
    """Test, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    path = parser.parse_args().model
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests/cuda"]
    tests = subprocess.run(command, capture_output=True, text=True, timeout=150)
    said = {
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
        "tests": "passed" if tests.returncode == 0 else tests.stdout[-2000:],
        "measured": [measure(path, provider) for provider in ("cuda", "cpu")],
    }
    print(json.dumps(said, indent=2))


if __name__ == "__main__":
    main()
