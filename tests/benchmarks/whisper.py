"""Word error rate, and what a draft and lookup bring, on speech that espeak-ng makes.

python tests/benchmarks/whisper.py whisper-base --draft whisper-base/draft [--checkpoint DIR]

Each way transcribes each text in turn; medians over the rounds. Times are of the decoder alone,
and of all with features and encoder. Needs espeak-ng on the path.
"""

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgespec import EdgeTranscriber
from edgespec.speech.audio import open_audio
from edgespec.speech.features import RATE

TEXTS = (
    "The harbour was quiet in the early morning. Two fishing boats came in from the open sea, and "
    "their crews carried boxes of fish up the stone steps. An old man on the wall counted the "
    "boxes aloud, and a boy wrote the numbers into a small book. When the last box was on the "
    "cart, the man said that it had been a good night, better than any since the spring.",
    "To change the wheel, stop on firm ground and switch off the engine. Loosen the nuts before "
    "you lift the car. Put the jack under the marked point and turn the handle until the wheel is "
    "free. Take off the nuts, change the wheel, and put the nuts back by hand. Lower the car and "
    "tighten the nuts again, one after the other, until none of them moves.",
    "The meeting starts at ten in the large room on the second floor. We will first hear about "
    "the new bridge and then about the money that is left for it. After lunch there is time for "
    "questions. The meeting ends at four, and the bus to the station leaves at half past four.",
)

END = 50_257
"""Token ids from it on are no text."""


def speak(text: str, folder: Path) -> Path:
    """A WAV file of ``text``."""
    path = folder / f"{abs(hash(text))}.wav"
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "150", "-w", str(path), text], check=True)
    return path


def words(text: str) -> list[str]:
    """Lower-case words without signs."""
    return re.findall(r"[a-z']+", text.lower().replace("harbor", "harbour"))


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Words to insert, delete or change, and words said."""
    a, b = words(said), words(heard)
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            cost = min(row[j] + 1, row[j - 1] + 1, before + (word != other))
            before, row[j] = row[j], cost
    return row[-1], len(a)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--checkpoint", help="the same model for transformers, on PyTorch")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    transcriber = EdgeTranscriber(given.model, draft=given.draft)
    ways: dict[str, Any] = {"plain": {"draft": False}, "lookup": {"draft": False, "lookup": True}}
    if given.draft:
        ways["draft"] = {}
    if given.checkpoint:
        ways["transformers"] = None
        reference = _transformers(given.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        sounds = [speak(text, Path(folder)) for text in TEXTS]
        results: dict[str, list[Any]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for text, sound in zip(TEXTS, sounds, strict=True):
                for way, options in ways.items():
                    began = time.perf_counter()
                    if options is None:
                        heard, stats = reference(sound), None
                    else:
                        found = transcriber.transcribe(
                            sound, language="en", temperature=0.0, **options
                        )
                        heard, stats = found.text, found.stats
                    results[way].append((text, heard, time.perf_counter() - began, stats))
    plain = results["plain"]
    for way, rows in results.items():
        errors = [word_errors(text, heard) for text, heard, *_ in rows]
        rate = sum(wrong for wrong, _ in errors) / sum(count for _, count in errors)
        whole = median(p[2] / r[2] for p, r in zip(plain, rows, strict=True))
        line = f"{way:13} word errors {rate:.1%}, all {whole:.2f} x plain"
        if rows[0][3] is not None:
            pairs = list(zip(plain, rows, strict=True))
            decoder = median(p[3].decode_s / r[3].decode_s for p, r in pairs)
            counts = ("emitted", "rounds", "accepted", "evaluated")
            tokens, rounds, accepted, tried = (sum(getattr(r[3], n) for r in rows) for n in counts)
            same = all(p[1] == r[1] for p, r in pairs)
            line += (
                f", decoder {decoder:.2f} x; {tokens / rounds:.2f} tokens a round, "
                f"{accepted} of {tried} candidates stood; same text: {same}"
            )
        print(line, flush=True)


def _transformers(checkpoint: str) -> Any:
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.models.auto import AutoTokenizer

    model: Any = WhisperForConditionalGeneration.from_pretrained(checkpoint)
    model.eval()
    extract: Any = WhisperFeatureExtractor.from_pretrained(checkpoint)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)

    def transcribe(path: Path) -> str:
        with open_audio(path) as audio:
            sound = audio.samples(0, 30 * RATE)
        features = extract(sound, sampling_rate=RATE, return_tensors="pt").input_features
        with torch.no_grad():
            ids = model.generate(
                features, language="en", task="transcribe", return_timestamps=True, do_sample=False
            )[0]
        text: str = tokenizer.decode(
            [int(i) for i in np.asarray(ids) if int(i) < END], skip_special_tokens=True
        )
        return text

    return transcribe


if __name__ == "__main__":
    main()
