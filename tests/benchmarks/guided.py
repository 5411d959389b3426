"""What constrained output costs and saves: microseconds a mask, rounds with forced tokens.

    python tests/benchmarks/guided.py MODEL_FOLDER [--new-tokens 120] [--repeats 5]

Medians over the tokens of a text that follows the schema. The last lines need the folder's model;
with a ``tokenizer.json`` alone they are left out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import CandidateGenerator, EdgeGenerator, PromptLookupCandidateGenerator
from edgespec.candidates.grammar import GrammarCandidateGenerator
from edgespec.guided import Guide
from edgespec.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
        "hobbies": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["name", "age", "city", "hobbies"],
    "additionalProperties": False,
}
TEXT = {"name": "Anna", "age": 31, "city": "Paris", "hobbies": ["tennis", "chess"]}
PROMPTS = (
    "Anna is 31, lives in Paris and likes tennis and chess. As JSON: ",
    "Bob Miller (44) from Berlin paints, sings and cooks. As JSON: ",
)
MAKERS: dict[str, Callable[[Guide], CandidateGenerator | None]] = {
    "plain": lambda guide: None,
    "lookup": lambda guide: PromptLookupCandidateGenerator(),
    "forced": GrammarCandidateGenerator,
    "forced + lookup": lambda guide: GrammarCandidateGenerator(
        guide, PromptLookupCandidateGenerator()
    ),
}


def timed(call: Callable[[], object]) -> float:
    """Seconds that ``call`` takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure_masks(tokenizer: Tokenizer, repeats: int) -> None:
    """Print microseconds for each step of a guide."""

    def make() -> Guide:
        return Guide(tokenizer, prompt_length=0, json_schema=SCHEMA)

    print(
        f"V = {tokenizer.size}; first guide {timed(make) * 1e3:.0f} ms, which reads the vocabulary"
    )
    print(f"a guide after it {statistics.median(timed(make) for _ in range(20)) * 1e6:.0f} us")
    row = tokenizer.encode(json.dumps(TEXT), add_special_tokens=False)
    scores = np.zeros(tokenizer.size, np.float32)
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        guide = make()
        generator = GrammarCandidateGenerator(guide)
        for count in range(len(row)):
            prefix = row[:count]
            steps: dict[str, Callable[[], object]] = {
                "mask, a token on": lambda: guide.allowed(prefix),  # noqa: B023
                "mask again": lambda: guide.allowed(prefix),  # noqa: B023
                "mask and apply it, again": lambda: guide(prefix, scores),  # noqa: B023
                "four tokens back, and on": lambda: guide.count_allowed(prefix[:-4], prefix[-4:]),  # noqa: B023
                "forced tokens": lambda: generator.get_candidates(prefix, 16),  # noqa: B023
            }
            for name, step in steps.items():
                found.setdefault(name, []).append(timed(step) * 1e6)
    for name, values in found.items():
        worst = np.percentile(values, 95)
        print(f"{name:26} median {statistics.median(values):6.0f} us, 95 % below {worst:6.0f} us")


def measure_rounds(model: EdgeGenerator, new_tokens: int) -> None:
    """Print rounds and seconds for each way to propose; the texts must be the same."""
    assert model.tokenizer is not None
    for prompt in PROMPTS:
        texts = set()
        for name, make in MAKERS.items():
            guide = Guide(
                model.tokenizer,
                prompt_length=len(model.tokenizer.encode(prompt)),
                eos_token_ids=model.folder.manifest.eos_token_ids,
                json_schema=SCHEMA,
            )
            began = time.perf_counter()
            result = model.generate(
                prompt,
                max_new_tokens=new_tokens,
                logits_processors=[guide],
                candidate_generator=make(guide),
            )
            seconds = time.perf_counter() - began
            texts.add(result.text)
            print(
                f"{name:16} {len(result.tokens)} tokens, {result.stats.rounds} rounds, "
                f"{seconds:.2f} s, {result.finish_reason}"
            )
        print(*texts, sep="\n")
        assert len(texts) == 1


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--new-tokens", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    is_file = options.folder.is_file()
    path = options.folder if is_file else options.folder / "tokenizer.json"
    measure_masks(Tokenizer(path), options.repeats)
    if not is_file:
        measure_rounds(EdgeGenerator(options.folder), options.new_tokens)


if __name__ == "__main__":
    main()
