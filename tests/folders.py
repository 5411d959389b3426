"""Model folders around the toys: a graph, a tokenizer, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import onnx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from edgespec.manifest import Manifest
from tests.inplace import KV_HEADS, LAYERS, POSITIONS, D, V, weights, write_in_place
from tests.toylm import Rule, write_toy

EOS = 256
"""Of the byte tokenizer."""


GENAI_CONFIG: dict[str, Any] = {
    "model": {
        "type": "llama",
        "vocab_size": 64,
        "context_length": 600,
        "eos_token_id": [0, 63],
        "bos_token_id": 1,
        "decoder": {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_size": 8},
    },
    "search": {"past_present_share_buffer": True},
}
"""What onnxruntime-genai's builder says of :mod:`tests.inplace`."""


def byte_tokenizer() -> Tokenizer:
    """One token a byte, its id the byte's value, and ``<eos>`` with id 256."""
    # ByteLevel writes bytes that are no printable letter as letters from U+0100 on, in order.
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    letters, others = {}, 0
    for byte in range(256):
        letter = chr(byte)
        if letter not in alphabet:
            letter, others = chr(256 + others), others + 1
        letters[letter] = byte
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def few_letters(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """Of the letters of ``vocab`` alone, joined by ``merges``."""
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


METASPACE = (
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *("\u2581", "\u2581Hello", "\u2581world", "Hello", "world", "!"),
)
"""The pieces of the metaspace tokenizer; a byte's id is its value + 3."""


def metaspace_tokenizer(*, adds_bos: bool = False) -> Tokenizer:
    """SentencePiece style: byte fallback, and a decoder that strips one leading space."""
    vocab = {piece: i for i, piece in enumerate(METASPACE)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    return tokenizer


def write_folder(
    folder: Path,
    rule: Rule,
    vocab_size: int = 64,
    *,
    tokenizer: Tokenizer | None = None,
    eos: int | list[int] | None = None,
    max_length: int | None = 512,
    chat_template: str | None = None,
    generation_config: dict[str, Any] | None = None,
    **graph: Any,
) -> Path:
    """A folder as other exporters write it; ``graph`` is for :func:`tests.toylm.write_toy`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_toy(folder / "model.onnx", rule, vocab_size, **graph)
    write_json(folder / "config.json", {"model_type": "toy", "n_positions": max_length})
    write_json(
        folder / "generation_config.json", {"eos_token_id": eos, **(generation_config or {})}
    )
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    if chat_template is not None:
        said = {"chat_template": chat_template, "bos_token": "<s>", "eos_token": "</s>"}
        write_json(folder / "tokenizer_config.json", said)
    return folder


def write_in_place_folder(
    folder: Path,
    *,
    max_length: int | None = POSITIONS,
    int4: bool = False,
    layout: str = "in_place",
) -> Path:
    """A folder of our own kind around :mod:`tests.inplace`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_in_place(folder / "model.onnx", weights(), int4=int4, layout=layout)
    manifest = Manifest(
        architecture="toy",
        vocab_size=V,
        max_length=max_length,
        cache_layout=layout,
        num_layers=LAYERS,
        num_kv_heads=KV_HEADS,
        head_size=D,
    )
    manifest.write(folder)
    return folder


def move_weights_out(path: Path, data: str = "model.onnx.data") -> None:
    """Keep the weights of the graph at ``path`` in the file ``data`` beside it."""
    model = onnx.load(path)
    # Axes and shapes stay inside: ONNX Runtime needs them before it opens the file (1.32, tried).
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=256)


def write_json(path: Path, said: object) -> None:
    """Write ``said`` as JSON."""
    path.write_text(json.dumps(said), encoding="utf-8")
