"""What finding candidates costs: time a token, and memory, without any model.

    python tests/benchmarks/candidates.py [--repeats 5]

For each generator that keeps an index, over lengths of text and two kinds of it: microseconds to
take in a token (the text read in one go), microseconds of a round on top (32 candidates asked for
after one new token), and the memory that the index holds at the longest text. Medians of the
repeats; the numbers of rounds are medians over 200 rounds each. Time is the thread's own: what else
runs on the machine disturbs less.

"varied" text draws words of one to six tokens from 2,000, the frequent ones far more often, as in
language; "repetitive" text says the same 300 tokens again and again, one in fifty replaced.
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.candidates.base import CandidateGenerator
from edgespec.candidates.ngram_cache import NgramCacheCandidateGenerator
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.candidates.suffix import PastOutputs, SuffixCandidateGenerator
from edgespec.ngram_store import NgramStore

LENGTHS = (512, 8_192, 100_000)
ROUNDS = 200
VOCABULARY = 32_000
ASKED = 32


def varied(length: int) -> TokenIds:
    """Words of a made-up language [T], by Zipf's law."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, VOCABULARY, rng.integers(1, 7)) for _ in range(2_000)]
    shares = 1 / np.arange(1, len(words) + 1)
    chosen = rng.choice(len(words), length, p=shares / shares.sum())
    return np.concatenate([words[i] for i in chosen])[:length]


def repetitive(length: int) -> TokenIds:
    """The same passage over and over [T], a token in fifty another one each time."""
    rng = np.random.default_rng(0)
    text = np.resize(rng.integers(0, VOCABULARY, 300), length)
    changed = rng.random(length) < 0.02
    text[changed] = rng.integers(0, VOCABULARY, int(changed.sum()))
    return text


def with_past() -> CandidateGenerator:
    """Suffixes of this text and of 100,000 tokens of past outputs."""
    past = PastOutputs()
    for output in np.split(varied(100_000), 100):
        past.add(output)
    return SuffixCandidateGenerator(past=past)


def with_stores() -> CandidateGenerator:
    """N-grams of this text, and of 100,000 tokens each of past outputs and of a corpus."""
    stores = [NgramStore(), NgramStore()]
    for store in stores:
        store.add(varied(100_000))
        store.entries()
    return NgramCacheCandidateGenerator(ASKED, past=stores[0], corpus=stores[1])


GENERATORS: dict[str, Callable[[], CandidateGenerator]] = {
    "prompt lookup": lambda: PromptLookupCandidateGenerator(ASKED),
    "n-gram cache": lambda: NgramCacheCandidateGenerator(ASKED),
    "n-gram cache, past and corpus": with_stores,
    "suffix": lambda: SuffixCandidateGenerator(ASKED),
    "suffix, past": with_past,
}


def append_us(generator: CandidateGenerator, text: TokenIds) -> float:
    """Microseconds to take in a token of ``text`` [T]."""
    began = time.thread_time()
    generator.get_candidates(text, 1)
    return (time.thread_time() - began) * 1e6 / len(text)


def round_us(generator: CandidateGenerator, text: TokenIds) -> float:
    """Microseconds of a round that one new token comes before, over the end of ``text`` [T]."""
    rounds = min(ROUNDS, len(text) // 2)
    generator.get_candidates(text[:-rounds], 1)
    took = []
    for end in range(len(text) - rounds + 1, len(text) + 1):
        began = time.thread_time()
        generator.get_candidates(text[:end], ASKED)
        took.append((time.thread_time() - began) * 1e6)
    return statistics.median(took)


def held_mb(make: Callable[[], CandidateGenerator], text: TokenIds) -> float:
    """Megabytes that a generator holds once it has read ``text`` [T], stores left out."""
    generator = make()
    tracemalloc.start()
    generator.get_candidates(text, 1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    columns = [f"{length:,}" for length in LENGTHS]
    print(f"| generator | text | {' | '.join(columns)}: append / round (us) | held (MB) |")
    print(f"|---|---|{'---|' * (len(LENGTHS) + 1)}")
    for name, make in GENERATORS.items():
        for text_of in (varied, repetitive):
            cells = []
            for length in LENGTHS:
                text = text_of(length)
                appends = [append_us(make(), text) for _ in range(repeats)]
                rounds = [round_us(make(), text) for _ in range(repeats)]
                cells.append(f"{statistics.median(appends):.1f} / {statistics.median(rounds):.1f}")
            held = held_mb(make, text_of(LENGTHS[-1]))
            print(f"| {name} | {text_of.__name__} | {' | '.join(cells)} | {held:.1f} |", flush=True)


if __name__ == "__main__":
    main()
