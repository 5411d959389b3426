"""What each precision of one checkpoint costs and keeps.

    python tests/benchmarks/precision.py CHECKPOINT FOLDER [--precisions fp32 int8 int4]
        [--peers FOLDER ...] [--rounds 60]

Exports the checkpoint to FOLDER/PRECISION where that does not exist, with the gate's checks left
out. Then prints a row for each and for each peer's folder: bytes of the model files, seconds of
the export, mean KL against the checkpoint in float32, perplexity and equal greedy picks on the
gate's own text and prompts, and milliseconds of a plain one-token step, all in turn.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import edgespec_export
import numpy as np
from edgespec_export import families, quality
from edgespec_export.parity import Reference
from edgespec_export.quiet import quiet

from edgespec import EdgeGenerator

PAST = 64


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--precisions", nargs="*", default=["fp32", "int8", "int4"])
    parser.add_argument("--peers", nargs="*", type=Path, default=[])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()

    folders, took = dict.fromkeys(options.peers), {}
    for precision in options.precisions:
        out = options.folder / precision
        began = time.perf_counter()
        if not out.exists():
            edgespec_export.export(options.checkpoint, out, precision=precision, check=False)
            took[out] = time.perf_counter() - began
        folders[out] = None
    from edgespec_export import checkpoint

    with quiet():
        model_type = families.check_architecture(families.read_config(str(options.checkpoint)))
        loaded = checkpoint.load(str(options.checkpoint), model_type, None)
    tokens, prompts = quality.texts(loaded.encode, 4096)
    truth = Reference(loaded.model)
    expected = truth.logits(tokens)

    generators = {folder: EdgeGenerator(folder, provider="cpu") for folder in folders}
    steps: dict[Path, list[float]] = {folder: [] for folder in folders}
    for _ in range(options.rounds):
        for folder, generator in generators.items():
            steps[folder].append(step_ms(generator, tokens))
    print("| folder | MB | export s | KL | perplexity | greedy equal | step ms |")
    print("|---|---|---|---|---|---|---|")
    for folder, generator in generators.items():
        size = sum(p.stat().st_size for p in folder.glob("*.onnx*")) / 1e6
        generator.model.rewind(0)
        got = generator.model.forward(np.array(tokens)).copy()
        equal = sum(picks_equal(generator, truth, prompt) for prompt in prompts)
        print(
            f"| {folder.name} | {size:.1f} | {took.get(folder, float('nan')):.0f} "
            f"| {quality.divergence(expected, got):.4f} | {quality.perplexity(got, tokens):.2f} "
            f"| {equal} of {len(prompts) * quality.GREEDY_TOKENS} "
            f"| {statistics.median(steps[folder]):.1f} |"
        )
    print(f"perplexity of the checkpoint in float32: {quality.perplexity(expected, tokens):.2f}")


def step_ms(generator: EdgeGenerator, tokens: list[int]) -> float:
    """Milliseconds of one token behind ``PAST`` others."""
    model = generator.model
    if model.length < PAST:
        model.rewind(0)
        model.prefill(np.array(tokens[:PAST]))
        model.forward(np.array(tokens[:1]))
    model.rewind(PAST)
    began = time.perf_counter()
    model.forward(np.array(tokens[:1]))
    return (time.perf_counter() - began) * 1000


def picks_equal(generator: EdgeGenerator, truth: Any, prompt: list[int]) -> int:
    """How many tokens of the graph's own greedy text the checkpoint would pick too."""
    text = generator.generate(
        prompt, max_new_tokens=quality.GREEDY_TOKENS, eos_token_id=None, do_sample=False
    ).tokens
    right = truth.logits([*prompt, *text[:-1]])[len(prompt) - 1 :].argmax(-1)
    return int((np.asarray(text) == right).sum())


if __name__ == "__main__":
    main()
