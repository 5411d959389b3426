"""Tiny random configurations: at least one for every family that can be exported."""

from typing import Any

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

FALCON = {
    **{k: v for k, v in COMMON.items() if k not in ("head_dim", "num_key_value_heads")},
    "ffn_hidden_size": 96,
}
EXPERTS = {**COMMON, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
ALTERNATING = {
    **COMMON,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}

Case = tuple[str, dict[str, Any]]

COMMON_CASES: dict[str, Case] = {
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
    "bloom": ("bloom", {**COMMON, "n_layer": 2, "n_head": 4}),
    "falcon": ("falcon", FALCON),
    "gpt_neo": (
        "gpt_neo",
        {
            **COMMON,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
        },
    ),
    "gpt_oss": ("gpt_oss", {**ALTERNATING, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "num_experts": 4, "norm_topk_prob": False}),
}
"""Each form of attention, positions, norms and experts once."""

TAIL: dict[str, Case] = {
    "falcon, grouped": (
        "falcon",
        {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True},
    ),
    "falcon, one head each": ("falcon", {**FALCON, "multi_query": False}),
    "mpt": ("mpt", {**COMMON, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "gemma": ("gemma", COMMON),
    "cohere2": ("cohere2", ALTERNATING),
    "glm": ("glm", COMMON),
    "glm4": ("glm4", COMMON),
    "ernie4_5": ("ernie4_5", COMMON),
    "exaone4": ("exaone4", ALTERNATING),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", COMMON),
    "seed_oss": ("seed_oss", COMMON),
    "ministral": (
        "ministral",
        {**COMMON, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2},
    ),
    "ministral3": ("ministral3", {**COMMON, "sliding_window": None}),
    "olmo": ("olmo", COMMON),
    "olmo3": ("olmo3", ALTERNATING),
    "nemotron": ("nemotron", COMMON),
    "helium": ("helium", COMMON),
    "apertus": ("apertus", COMMON),
    "arcee": ("arcee", COMMON),
    "codegen": ("codegen", {**GPT2, "rotary_dim": 16}),
    "gpt_bigcode": ("gpt_bigcode", GPT2),
    "biogpt": ("biogpt", COMMON),
    "persimmon": ("persimmon", COMMON),
    "mixtral": ("mixtral", {**EXPERTS, "num_local_experts": 4, "sliding_window": None}),
    "olmoe": ("olmoe", {**EXPERTS, "num_experts": 4}),
    "granitemoehybrid, no mamba, no experts": (
        "granitemoehybrid",
        {
            **COMMON,
            "layer_types": ["attention"] * 2,
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "position_embedding_type": "rope",
        },
    ),
    "granitemoe": ("granitemoe", {**EXPERTS, "num_local_experts": 4}),
}
"""Families and variants made of the same parts; their tests are slow ones."""

CASES = {**COMMON_CASES, **TAIL}
