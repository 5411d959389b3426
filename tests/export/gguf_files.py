"""Tiny GGUF files, written from tiny checkpoints as llama.cpp's converter writes them."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

NORMAL, CONTROL, UNUSED = 1, 3, 5


def write_gguf(
    path: Path,
    checkpoint: Path,
    *,
    pre: str = "gpt-2",
    architecture: str | None = None,
    facts: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[np.float32]] | None = None,
    quantised: bool = False,
) -> Path:
    """Write ``path`` with the weights and the tokenizer of ``checkpoint``.

    Args:
        path: The file.
        checkpoint: A folder that transformers wrote; of a llama, qwen2 or qwen3.
        pre: What the file calls the rule by which its tokenizer cuts text.
        architecture: Another name than the checkpoint's own.
        facts: More strings and numbers of the header.
        tensors: More tensors.
        quantised: Write matrices as Q8_0.
    """
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    kind, layers = config["model_type"], config["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, architecture or kind)
    _write_sizes(writer, config)
    _write_tokenizer(writer, checkpoint, config, pre)
    for name, value in (facts or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(name, value)
    (arch,) = [a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == kind]
    names = gguf.get_tensor_name_map(arch, layers)
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        stem, suffix = name.rsplit(".", 1)
        if kind == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"]
            weight = _in_pairs(weight, heads)
        found = f"{names.get_name(stem)}.{suffix}"
        if quantised and weight.ndim == 2:
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(found, gguf.quantize(weight, q8), raw_dtype=q8)
        else:
            writer.add_tensor(found, weight)
    for name, weight in (tensors or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])


def _write_tokenizer(
    writer: gguf.GGUFWriter, checkpoint: Path, config: dict[str, Any], pre: str
) -> None:
    """Vocabulary, merges and template; ids that only fill the table are called unused."""
    said = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    control = {token["id"]: token["content"] for token in said["added_tokens"]}
    tokens = {i: token for token, i in said["model"]["vocab"].items()} | control
    ids = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([tokens.get(i, f"[PAD{i}]") for i in ids])
    kinds = [CONTROL if i in control else NORMAL if i in tokens else UNUSED for i in ids]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in said["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_chat_template("{{ messages[0]['content'] }}!")


def _in_pairs(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows in the order that llama.cpp rotates: neighbours, where transformers rotates halves."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)
