"""Tiny checkpoints with random weights, written as transformers writes them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.export.family_cases import CASES


def write_checkpoint(folder: Path, case: str, **changes: Any) -> Path:
    """Write a checkpoint of the family ``case`` with a tokenizer to ``folder``."""
    with warnings.catch_warnings():
        # transformers and PyTorch warn of deprecations among themselves, at import and later.
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        model_type, settings = CASES[case]
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **{**settings, **changes})
        model = AutoModelForCausalLM.from_config(config).float()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight in model.parameters():
                # Norms and biases start at ones and zeros, where a fault would not show.
                if weight.ndim == 1:
                    weight.add_(0.1 * torch.randn_like(weight))
        model.save_pretrained(folder)
        write_tokenizer(folder, config.vocab_size)
    return folder


def reference_logits(checkpoint: Path, tokens: list[int]) -> NDArray[np.float32]:
    """What transformers computes in one pass: [T, V]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager")
        with torch.no_grad():
            logits = model.eval()(  # type: ignore[no-untyped-call]
                torch.tensor([tokens]), use_cache=False
            ).logits[0]
    array: NDArray[np.float32] = logits.numpy()
    return array


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level tokenizer with ``<pad>``, ``<s>`` and ``</s>`` as its first ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["def add(a, b):\n    return a + b\n"] * 9, trainer)
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
