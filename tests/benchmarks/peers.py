"""Plain decoding and lookup against onnxruntime-genai on one model folder, run in turn.

    python tests/benchmarks/peers.py FOLDER [--peer-python PYTHON] [--repeats 4] [--tokens 128]

FOLDER is one that onnxruntime-genai's model builder made, so that both run the same file. The peer
lives in a virtual environment of its own, with onnxruntime-genai in it; PYTHON is its interpreter.
Each engine is one process that waits while the other works; a figure is the median over the
repeats of tokens a second without the prefill. The peer's thread count is set, as its default is
slower, and its adaptive n-gram speculation has one setting for all prompts.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ADAPTIVE = {
    "ngram_size": 4,
    "max_draft_tokens": 8,
    "ngram_chained_lookup": True,
    "min_adaptive_k": 2,
    "cooldown": True,
}
Run = Callable[[str, int, bool], dict[str, Any]]


def edgespec_engine(folder: Path, threads: int) -> Run:
    """Ours: with the shared chat template, plain or with ``lookup=True`` and nothing else set."""
    from edgespec import EdgeGenerator

    generator = EdgeGenerator(folder, threads=threads)

    def run(message: str, tokens: int, lookup: bool) -> dict[str, Any]:
        prompt = generator.chat_prompt([{"role": "user", "content": message}])
        result = generator.generate(
            prompt, add_special_tokens=False, max_new_tokens=tokens, lookup=lookup
        )
        # The first token belongs to the prefill, as for the peer.
        return {
            "tokens": result.tokens.tolist(),
            "tokens_per_s": result.stats.tokens_per_s,
            "prefill_s": result.stats.prefill_s,
        }

    return run


def genai_engine(folder: Path, threads: int) -> Run:
    """The peer, in a copy of the folder whose configuration sets the threads."""
    import onnxruntime_genai as og

    copy = Path(tempfile.mkdtemp()) / "model"
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != "genai_config.json":
            (copy / path.name).symlink_to(path.resolve())
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    (copy / "genai_config.json").write_text(json.dumps(config))
    model = og.Model(str(copy))
    tokenizer = og.Tokenizer(model)

    def run(message: str, tokens: int, lookup: bool) -> dict[str, Any]:
        text = tokenizer.apply_chat_template(
            json.dumps([{"role": "user", "content": message}]), add_generation_prompt=True
        )
        ids = tokenizer.encode(text)
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=len(ids) + tokens, do_sample=False)
        if lookup:
            params.set_speculative_options(**ADAPTIVE)
        generator = og.Generator(model, params)
        began = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        first = time.perf_counter()
        told = [int(generator.get_next_tokens()[0])]
        while not generator.is_done():
            generator.generate_next_token()
            told.append(int(generator.get_next_tokens()[0]))
        took = time.perf_counter() - first
        return {
            "tokens": told,
            "tokens_per_s": (len(told) - 1) / took,
            "prefill_s": first - began,
        }

    return run


def serve(engine: str, folder: Path, threads: int) -> None:
    """Answer requests, a JSON line each, until standard input ends."""
    run = {"edgespec": edgespec_engine, "genai": genai_engine}[engine](folder, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        message, tokens, lookup = json.loads(line)
        print(json.dumps(run(message, tokens, lookup)), flush=True)


class Engine:
    """A process that serves one engine."""

    def __init__(self, python: str, name: str, folder: Path, threads: int) -> None:
        """Start it and wait until its model is loaded."""
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [python, __file__, str(folder), "--serve", name, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        while self.process.stdout.readline().strip() != "ready":
            if self.process.poll() is not None:
                raise SystemExit(f"{name} did not start under {python}")

    def run(self, message: str, tokens: int, lookup: bool) -> dict[str, Any]:
        """Generate once."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([message, tokens, lookup]) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def compare(options: argparse.Namespace) -> None:
    """Run both in turn and print a table of medians."""
    engines = {"edgespec": Engine(sys.executable, "edgespec", options.folder, options.threads)}
    if options.peer_python:
        engines["genai"] = Engine(options.peer_python, "genai", options.folder, options.threads)
    prompts = json.loads((HERE / "prompts.json").read_text(encoding="utf-8"))[:3]
    seen: dict[tuple[str, str, bool], list[float]] = {}
    told: dict[tuple[str, str, bool], list[int]] = {}
    for repeat in range(options.repeats + 1):
        for prompt in prompts:
            for lookup in (False, True):
                # Who comes first after a pause is slower by some per cent: take turns.
                order = list(engines.items())[:: 1 if repeat % 2 else -1]
                for name, engine in order:
                    answer = engine.run(prompt["prompt"], options.tokens, lookup)
                    key = (name, prompt["name"], lookup)
                    told[key] = answer["tokens"]
                    if repeat:  # the first round warms up
                        seen.setdefault(key, []).append(answer["tokens_per_s"])
    print(f"{options.folder.name}, {platform.machine()}, {options.threads} threads,", end=" ")
    print(f"{options.tokens} new tokens, median of {options.repeats}, tokens/s")
    names = [prompt["name"] for prompt in prompts]
    print(f"{'':24}" + "".join(f"{name:>10}" for name in names))
    medians = {key: statistics.median(values) for key, values in seen.items()}
    for lookup in (False, True):
        for engine_name in engines:
            kind = "lookup" if lookup else "plain"
            row = [medians[engine_name, name, lookup] for name in names]
            print(f"{engine_name + ' ' + kind:24}" + "".join(f"{value:10.1f}" for value in row))
        if "genai" in engines:
            ratios = [
                medians["edgespec", name, lookup] / medians["genai", name, lookup] for name in names
            ]
            print(f"{'  ratio':24}" + "".join(f"{value:10.2f}" for value in ratios))
    gains = [medians["edgespec", name, True] / medians["edgespec", name, False] for name in names]
    print(f"{'lookup / plain':24}" + "".join(f"{value:10.2f}" for value in gains))
    same = [told["edgespec", n, True] == told["edgespec", n, False] for n in names]
    print(f"{'same text':24}" + "".join(f"{value!s:>10}" for value in same))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--serve", choices=["edgespec", "genai"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder, options.threads)
    else:
        compare(options)


if __name__ == "__main__":
    main()
