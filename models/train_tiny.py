#!/usr/bin/env python3
"""Train the embedded models, tiny-code and its draft, on the Python standard library's source.

    python models/train_tiny.py OUT_DIR [--minutes 55] [--draft-minutes 12] [--threads 2]

Needs torch, transformers and tokenizers (the extra ``export``). The text is read from the running
interpreter's own ``Lib`` folder, so no download is needed; it is covered by the Python Software
Foundation License. Writes two Hugging Face folders, ``OUT_DIR/tiny-code`` and
``OUT_DIR/tiny-code-draft``, and ``OUT_DIR/training.json`` with the held-out losses.

The budget is time and not steps: learning rates fall to zero as the minutes run out, so the same
script gives a usable model on a slow machine too, but not the same one.
"""

import argparse
import hashlib
import json
import math
import platform
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 1024
VOCABULARY = 4096
END = "<|endoftext|>"
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "__pycache__", "lib2to3", "encodings"}
HELD_OUT_PERCENT = 4


def library_files() -> list[Path]:
    """The standard library's own modules, without tests and generated code tables."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (p for p in root.rglob("*.py") if not LEFT_OUT & set(p.relative_to(root).parts))
    return sorted(p for p in files if "pydoc_data" not in p.parts)


def is_held_out(path: Path) -> bool:
    """Whether a file is kept from training: by its name, so the split is the same everywhere."""
    name = path.relative_to(sysconfig.get_path("stdlib")).as_posix()
    return hashlib.sha256(name.encode()).digest()[0] * 100 // 256 < HELD_OUT_PERCENT


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE, so that any text can be read and no unknown token exists."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def as_one_stream(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """All texts, each behind an end token, as one row of ids."""
    end = tokenizer.token_to_id(END)
    ids = [np.array([end, *e.ids], dtype=np.int64) for e in tokenizer.encode_batch(texts)]
    return torch.from_numpy(np.concatenate(ids))


def target_config() -> LlamaConfig:
    """5.5 million parameters."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


def draft_config() -> LlamaConfig:
    """0.7 million parameters, most of them the embedding."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


def batches(stream: torch.Tensor, rows: int, seed: int) -> Iterator[torch.Tensor]:
    """Windows [rows, CONTEXT + 1] from all over the stream, each epoch in another order."""
    chance = np.random.default_rng(seed)
    while True:
        shift = int(chance.integers(CONTEXT))
        starts = np.arange(shift, len(stream) - CONTEXT - 1, CONTEXT)
        chance.shuffle(starts)
        for i in range(0, len(starts) - rows + 1, rows):
            yield torch.stack([stream[s : s + CONTEXT + 1] for s in starts[i : i + rows]])


class Muon(torch.optim.Optimizer):
    """Momentum, with each update brought near to an orthogonal matrix.

    torch.optim.Muon does the same in bfloat16, which took 9.5 s a step against 0.4 s here on a
    processor without bfloat16 units (torch 2.13, AVX2); a step of the model itself takes 2.3 s.

    Source: Jordan et al., Muon, 2024, https://kellerjordan.github.io/posts/muon/
    """

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        """Train ``params``, all of them matrices."""
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every matrix by ``lr`` along its orthogonalised Nesterov momentum."""
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalised(p.grad.lerp(mean, group["momentum"]))
                p.mul_(1 - group["lr"] * 0.05)
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """Five Newton-Schulz steps towards the nearest orthogonal matrix."""
    x: torch.Tensor = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        Muon(inner, lr=0.02),
        torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.97), weight_decay=0.0),
    ]


def loss_of(logits: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each next token, in nats."""
    loss: torch.Tensor = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), window[:, 1:].flatten()
    )
    return loss


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: torch.Tensor, windows: int = 64) -> float:
    """Mean loss over the first windows of the held-out stream, in nats a token."""
    model.eval()  # type: ignore[no-untyped-call]
    starts = range(0, min(len(stream) - CONTEXT - 1, windows * CONTEXT), CONTEXT)
    losses = []
    for s in starts:
        window = stream[s : s + CONTEXT + 1][None]
        losses.append(loss_of(model(window[:, :-1]).logits, window).item())
    model.train()
    return float(np.mean(losses))


def train(
    model: LlamaForCausalLM,
    stream: torch.Tensor,
    held_out: torch.Tensor,
    *,
    minutes: float,
    rows: int,
    teacher: LlamaForCausalLM | None = None,
) -> dict[str, float]:
    """Train for ``minutes``; with a teacher, towards its distribution rather than the text's."""
    model.train()
    opts = optimizers(model)
    peaks = [o.param_groups[0]["lr"] for o in opts]
    began, seen, step = time.monotonic(), 0, 0
    for window in batches(stream, rows, seed=0):
        spent = (time.monotonic() - began) / (60 * minutes)
        if spent >= 1:
            break
        scale = min(1.0, (step + 1) / 40) * (1.0 if spent < 0.4 else (1 - spent) / 0.6)
        for opt, peak in zip(opts, peaks, strict=True):
            opt.param_groups[0]["lr"] = peak * max(scale, 0.01)
        logits = model(window[:, :-1]).logits
        loss = loss_of(logits, window)
        if teacher is not None:
            with torch.no_grad():
                aim = teacher(window[:, :-1]).logits.log_softmax(-1)
            kl = nn.functional.kl_div(
                logits.log_softmax(-1), aim, log_target=True, reduction="sum"
            ) / (logits.shape[0] * logits.shape[1])
            loss = 0.2 * loss + 0.8 * kl
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        seen, step = seen + rows * CONTEXT, step + 1
        if step % 50 == 0:
            print(f"step {step} {spent:5.1%} loss {loss.item():.3f} tokens {seen:,}", flush=True)
        if step % 500 == 0:
            print(f"  held out {held_out_loss(model, held_out, 12):.3f}", flush=True)
    loss_now = held_out_loss(model, held_out)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_seen": seen,
        "steps": step,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "held_out_loss_nats": round(loss_now, 4),
        "held_out_perplexity": round(math.exp(loss_now), 2),
    }


def round_to_half(model: LlamaForCausalLM) -> None:
    """Round the weights to what a half holds: they are stored so, and computed in single."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().float())


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write an ordinary Hugging Face folder."""
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, model_max_length=CONTEXT
    )
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)


def main() -> None:
    """Read, train both, write, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--draft-minutes", type=float, default=12)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    files = library_files()
    texts = [p.read_text("utf-8", errors="replace") for p in files]
    kept = [t for p, t in zip(files, texts, strict=True) if not is_held_out(p)]
    held = [t for p, t in zip(files, texts, strict=True) if is_held_out(p)]
    tokenizer = train_tokenizer(kept)
    stream, held_stream = as_one_stream(tokenizer, kept), as_one_stream(tokenizer, held)
    print(f"{len(kept)} files {len(stream):,} tokens; held out {len(held)} {len(held_stream):,}")

    target = LlamaForCausalLM(target_config())
    told = {"tiny-code": train(target, stream, held_stream, minutes=options.minutes, rows=2)}
    round_to_half(target)
    save(target, tokenizer, options.out / "tiny-code")
    target.eval()  # type: ignore[no-untyped-call]
    draft = LlamaForCausalLM(draft_config())
    told["tiny-code-draft"] = train(
        draft, stream, held_stream, minutes=options.draft_minutes, rows=2, teacher=target
    )
    round_to_half(draft)
    save(draft, tokenizer, options.out / "tiny-code-draft")
    facts = {
        "python": platform.python_version(),
        "training_tokens": len(stream),
        "held_out_tokens": len(held_stream),
        "files": len(kept),
        "models": told,
    }
    (options.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
