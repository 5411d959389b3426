"""What each candidate generator achieves on thirteen prompts: acceptance and tokens a round.

    python tests/benchmarks/acceptance.py FOLDER [--draft FOLDER] [--tokens 128] [--prompts N]

Greedy, ten candidates a round at most, so that the generators are compared and not the budget.
Prints a Markdown table: for each prompt and generator, tokens a round and the share accepted.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from edgespec import (
    CandidateGenerator,
    EdgeGenerator,
    PromptLookupCandidateGenerator,
    Stats,
)
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.ngram_cache import NgramCacheCandidateGenerator
from edgespec.candidates.suffix import SuffixCandidateGenerator
from edgespec.options import GenerateOptions

PROMPTS = Path(__file__).parent / "prompts.json"
GENERATORS: dict[str, Callable[[], CandidateGenerator]] = {
    "lookup, first": lambda: PromptLookupCandidateGenerator(policy="first"),
    "lookup, latest": lambda: PromptLookupCandidateGenerator(policy="latest"),
    "lookup, longest": lambda: PromptLookupCandidateGenerator(),
    "n-gram cache": lambda: NgramCacheCandidateGenerator(),
    "suffix": lambda: SuffixCandidateGenerator(),
    "mixed": lambda: MixedCandidateGenerator(
        [PromptLookupCandidateGenerator(), SuffixCandidateGenerator()]
    ),
}


def in_short(stats: Stats) -> str:
    """Tokens a round, and the share of the candidates that stood."""
    rate = stats.acceptance_rate
    return f"{stats.tokens_per_round:.2f} ({'-' if rate is None else f'{rate:.0%}'})"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=99)
    options = parser.parse_args()
    generator = EdgeGenerator(options.folder)
    names = [*GENERATORS, *(["draft"] if options.draft else [])]
    print(f"| prompt | {' | '.join(names)} |")
    print("|---|" + "---|" * len(names))
    for prompt in json.loads(PROMPTS.read_text(encoding="utf-8"))[: options.prompts]:
        cells = []
        for name in names:
            call: GenerateOptions = {"max_new_tokens": options.tokens, "num_assistant_tokens": 10}
            if name == "draft":
                call["draft"] = options.draft
            else:
                call["candidate_generator"] = GENERATORS[name]()
            cells.append(in_short(write(generator, prompt["prompt"], call)))
        print(f"| {prompt['name']} | {' | '.join(cells)} |", flush=True)


def write(generator: EdgeGenerator, message: str, call: GenerateOptions) -> Stats:
    """Answer a message, or continue it where the model has no chat template."""
    if (generator.folder.folder / "chat_template.jinja").is_file():
        return generator.chat([{"role": "user", "content": message}], **call).stats
    return generator.generate(message, **call).stats


if __name__ == "__main__":
    main()
