"""How often the first layers of a model pick the token that the whole model picks.

    python tests/benchmarks/early_exit.py CHECKPOINT FOLDER [LAYERS ...]

CHECKPOINT is a transformers folder and FOLDER what `edgespec export` made of it. The model writes
128 greedy tokens for each of the first three prompts; one pass of the checkpoint over that text
then gives, for each number of layers, the pick of the head behind it. What agrees would stand as a
candidate.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from edgespec import EdgeGenerator

PROMPTS = Path(__file__).parent / "prompts.json"
NEW_TOKENS = 128


def main() -> None:
    """Print a row for each number of layers."""
    checkpoint, folder, *said = sys.argv[1:]
    counts = [int(number) for number in said] or [8, 16, 24]
    texts = {}
    generator = EdgeGenerator(folder)
    for said_of in json.loads(PROMPTS.read_text(encoding="utf-8"))[:3]:
        name = said_of["name"]
        prompt = generator.chat_prompt([{"role": "user", "content": said_of["prompt"]}])
        result = generator.generate(
            prompt, max_new_tokens=NEW_TOKENS, lookup=True, add_special_tokens=False
        )
        assert generator.tokenizer is not None
        tokens = generator.tokenizer.encode(prompt, add_special_tokens=False).tolist()
        texts[name] = tokens, result.tokens.tolist()
    del generator
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    print("layers", *texts, sep="\t")
    rows = {name: agreement(model, *text, counts) for name, text in texts.items()}
    for count in counts:
        print(count, *(f"{rows[name][count]:.0%}" for name in texts), sep="\t")


def agreement(
    model: Any, prompt: list[int], written: list[int], counts: list[int]
) -> dict[int, float]:
    """The share of ``written`` that each of ``counts`` layers picks too."""
    with torch.no_grad():
        out = model(torch.tensor([prompt + written]), output_hidden_states=True, use_cache=False)
        rows = slice(len(prompt) - 1, -1)
        right = torch.tensor(written)
        found = {}
        for count in counts:
            hidden = model.model.norm(out.hidden_states[count][0, rows])
            picks = model.get_output_embeddings()(hidden).argmax(-1)
            found[count] = float((picks == right).float().mean())
    return found


if __name__ == "__main__":
    main()
