"""Encoder-decoders with random weights: a Whisper of two seconds and a text-to-text model.

Their graphs have the form that edgespec's exporter writes: encoder, cross-attention keys and
values, and a decoder around ``GroupQueryAttention`` and ``MultiHeadAttention``.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tokenizers import AddedToken

from edgespec.manifest import CROSS, ENCODER, Manifest
from tests.folders import byte_tokenizer, write_json
from tests.toylm import Graph, save

E, HEADS, D, LAYERS, POSITIONS = 16, 2, 8, 2, 96
"""Width, heads, head size, layers, longest text."""
MELS, FRAMES, STEPS = 8, 200, 20
"""Features of two seconds, and the positions that the encoder makes of them."""
SPECIAL = (
    *("<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
END, START, NO_SPEECH, NO_TIMES = 256, 257, 263, 264
FIRST_TIME, TIMES = 265, 101
V = FIRST_TIME + TIMES
INFO = helper.make_tensor_value_info


def write_speech(
    folder: Path, seed: int = 0, *, encoder_seed: int = 0, alone: bool = False
) -> Path:
    """A tiny Whisper; ``alone`` leaves its encoder out."""
    said = {
        "lang_to_id": {"<|en|>": 258, "<|de|>": 259},
        "task_to_id": {"translate": 260, "transcribe": 261},
        "no_timestamps_token_id": NO_TIMES,
        "is_multilingual": True,
        "suppress_tokens": [9, START, 262, NO_SPEECH],
        "begin_suppress_tokens": [32, END],
    }
    encoder = _random(encoder_seed, into=(MELS * FRAMES // STEPS, E))
    _write(folder, "whisper", seed, encoder, V, START, said, alone=alone)
    if not alone:
        _write_listener(folder / ENCODER, encoder["into"])
    return folder


def write_text(folder: Path, seed: int = 0, *, encoder_seed: int = 0) -> Path:
    """A tiny text-to-text model over bytes."""
    encoder = _random(encoder_seed, tokens=(257, E), positions=(POSITIONS, E))
    _write(folder, "t5", seed, encoder, 257, 0, {})
    g = Graph()
    tokens, places = (g.const(encoder[name], np.float32) for name in ("tokens", "positions"))
    length = g.add("Squeeze", g.add("Shape", "input_ids", start=1, end=2))
    at = g.add("Range", g.const(0), length, g.const(1))
    rows = g.add("Gather", tokens, "input_ids", axis=0)
    g.add("Add", rows, g.add("Gather", places, at, axis=0), to="encoder_hidden_states")
    inputs = [INFO("input_ids", TensorProto.INT64, [1, "source"])]
    save(folder / ENCODER, g, inputs, [_hidden("source")])
    return folder


def _random(seed: int, **shapes: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def _write(
    folder: Path,
    architecture: str,
    seed: int,
    encoder: dict[str, NDArray[np.float32]],
    vocab_size: int,
    start: int,
    said: dict[str, Any],
    *,
    alone: bool = False,
) -> None:
    """All but the encoder."""
    folder.mkdir(parents=True)
    tokenizer = byte_tokenizer()
    if architecture == "whisper":
        tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "generation_config.json", {"eos_token_id": END, **said})
    shapes: dict[str, tuple[int, ...]] = {"tokens": (vocab_size, E), "positions": (POSITIONS, E)}
    for layer in range(LAYERS):
        shapes |= {f"{name}{layer}": (E, HEADS * D) for name in ("q", "k", "v", "o", "cq", "co")}
        shapes |= {f"{name}{layer}": (E, HEADS * D) for name in ("ck", "cv")}
    weights = _random(seed + 100, head=(E, vocab_size), **shapes)
    weights["positions"] *= 3  # so that the text does not repeat one token
    weights["head"] *= 0.3  # nor is sure of each
    _write_cross(folder / CROSS, weights)
    _write_decoder(folder / "model.onnx", weights, vocab_size)
    digest = hashlib.sha256(b"".join(a.tobytes() for a in encoder.values())).hexdigest()
    Manifest(
        architecture=architecture,
        kind="encoder_decoder",
        vocab_size=vocab_size,
        max_length=POSITIONS,
        cache_layout="in_place",
        num_layers=LAYERS,
        num_kv_heads=HEADS,
        head_size=D,
        eos_token_ids=(END,),
        decoder_start_token_id=start,
        encoder_sha256=None if alone else digest,
    ).write(folder)


def _write_listener(path: Path, into: NDArray[np.float32]) -> None:
    g = Graph()
    turned = g.add("Transpose", "input_features", perm=[0, 2, 1])
    steps = g.add("Reshape", turned, g.const([1, STEPS, -1]))
    g.add("MatMul", steps, g.const(into, np.float32), to="encoder_hidden_states")
    inputs = [INFO("input_features", TensorProto.FLOAT, [1, MELS, FRAMES])]
    save(path, g, inputs, [_hidden(STEPS)])


def _hidden(length: int | str) -> Any:
    return INFO("encoder_hidden_states", TensorProto.FLOAT, [1, length, E])


def _cross(length: int | str) -> list[Any]:
    names = [f"cross_key_values.{n}.{kind}" for n in range(LAYERS) for kind in ("key", "value")]
    return [INFO(name, TensorProto.FLOAT, [1, HEADS, length, D]) for name in names]


def _write_cross(path: Path, w: dict[str, NDArray[np.float32]]) -> None:
    g = Graph()
    for layer in range(LAYERS):
        for kind, name in (("key", "ck"), ("value", "cv")):
            rows = g.add(
                "MatMul", "encoder_hidden_states", g.const(w[f"{name}{layer}"], np.float32)
            )
            heads = g.add("Reshape", rows, g.const([1, -1, HEADS, D]))
            name = f"cross_key_values.{layer}.{kind}"
            g.add("Transpose", heads, perm=[0, 2, 1, 3], to=name)
    save(path, g, [_hidden("source")], _cross("source"))


def _write_decoder(path: Path, w: dict[str, NDArray[np.float32]], vocab_size: int) -> None:
    g = Graph()
    held = {name: g.const(value, np.float32) for name, value in w.items()}
    one = g.const([1])
    last = g.add("Sub", g.add("ReduceSum", "attention_mask", one, keepdims=0), one)
    total = g.add("Gather", g.add("Shape", "attention_mask"), g.const(1), axis=0)
    lengths = ["seqlens", "total"]
    for value, name in zip((last, total), lengths, strict=True):
        g.nodes.append(helper.make_node("Cast", [value], [name], to=TensorProto.INT32))
    hidden = g.add(
        "Add",
        g.add("Gather", held["tokens"], "input_ids", axis=0),
        g.add("Gather", held["positions"], "position_ids", axis=0),
    )
    pasts, presents = [], []
    for layer in range(LAYERS):
        rows = [g.add("MatMul", hidden, held[f"{name}{layer}"]) for name in "qkv"]
        past, present = (
            [f"{name}.{layer}.{kind}" for kind in ("key", "value")]
            for name in ("past_key_values", "present")
        )
        g.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [*rows, *past, *lengths],
                [f"self{layer}", *present],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=HEADS,
            )
        )
        hidden = g.add("Add", hidden, g.add("MatMul", f"self{layer}", held[f"o{layer}"]))
        query = g.add("MatMul", hidden, held[f"cq{layer}"])
        cross = [f"cross_key_values.{layer}.{kind}" for kind in ("key", "value")]
        g.nodes.append(
            helper.make_node(
                "MultiHeadAttention",
                [query, *cross],
                [f"cross{layer}"],
                domain="com.microsoft",
                num_heads=HEADS,
            )
        )
        hidden = g.add("Add", hidden, g.add("MatMul", f"cross{layer}", held[f"co{layer}"]))
        pasts += past
        presents += present
    g.add("MatMul", hidden, held["head"], to="logits")
    buffer: list[int | str | None] = ["batch", HEADS, "max_sequence", D]
    inputs = [
        INFO("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        INFO("attention_mask", TensorProto.INT64, ["batch", "total"]),
        INFO("position_ids", TensorProto.INT64, ["batch", "sequence"]),
        *(INFO(name, TensorProto.FLOAT, buffer) for name in pasts),
        *_cross("source"),
    ]
    outputs = [
        INFO("logits", TensorProto.FLOAT, ["batch", "sequence", vocab_size]),
        *(INFO(name, TensorProto.FLOAT, buffer) for name in presents),
    ]
    save(path, g, inputs, outputs)
