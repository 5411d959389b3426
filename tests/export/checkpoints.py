"""Tiny checkpoints with random weights, written as transformers writes them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COMMON = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 16,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": 320,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE_HEADS = {**COMMON, "hidden_size": 128, "head_dim": 32, "num_key_value_heads": 4}
"""Wide enough for half of a head to be rotated by the attention operator."""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10_000.0,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10_000.0,
}
GEMMA = {
    **COMMON,
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 1.0,
    "layer_types": ["sliding_attention", "full_attention"],
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "llama": ("llama", COMMON),
    "llama tied": ("llama", {**COMMON, "tie_word_embeddings": True}),
    "llama, llama3 rope": ("llama", {**COMMON, "rope_parameters": LLAMA3_ROPE}),
    "llama, yarn rope": ("llama", {**COMMON, "rope_parameters": YARN_ROPE}),
    "llama, odd heads": ("llama", {**COMMON, "head_dim": 24}),
    "qwen2": ("qwen2", COMMON),
    "phi, small part": ("phi", {**COMMON, "num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "smollm3": ("smollm3", {**COMMON, "num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "mistral, window": ("mistral", {**COMMON, "sliding_window": 8}),
    "mistral": ("mistral", {**COMMON, "sliding_window": None}),
    "qwen3": ("qwen3", COMMON),
    "gemma2": ("gemma2", GEMMA),
    "gemma3_text": (
        "gemma3_text",
        {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi": ("phi", {**WIDE_HEADS, "partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {**COMMON, "sliding_window": None}),
    "opt": ("opt", {**COMMON, "ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}),
    "gptj": ("gptj", {**GPT2, "n_embd": 128, "rotary_dim": 16}),
    "gpt_neox": ("gpt_neox", {**WIDE_HEADS, "rotary_pct": 0.5}),
    "olmo2": ("olmo2", COMMON),
    "granite": ("granite", COMMON),
    "starcoder2": ("starcoder2", {**COMMON, "sliding_window": None}),
    "stablelm": ("stablelm", {**WIDE_HEADS, "partial_rotary_factor": 0.5}),
    "cohere": ("cohere", COMMON),
}


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
