"""What a GGUF file says of itself, read without the packages that its weights need.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. gguf's own reader takes
12 s for the header of SmolLM2-135M, as it looks at each token by itself (gguf 0.19, tried).
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError, UnsupportedArchitectureError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""``general.architecture`` and the ``model_type`` that it is; a test compares each."""
SIZES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""Facts of an architecture, by their names in the file and in ``config.json``."""
WEIGHTS = {
    *("token_embd", "output_norm", "output", "rope_freqs", "attn_norm", "ffn_norm", "ffn_gate"),
    *("ffn_up", "ffn_down", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("attn_q_norm", "attn_k_norm"),
}
"""Tensors that the models of ``ARCHITECTURES`` have; another means another model."""
UNUSED = 5
"""``tokenizer.ggml.token_type`` of an id that only fills the table."""

_SCALARS = dict(enumerate("BbHhIif?", 0)) | {10: "Q", 11: "q", 12: "d"}
_WIDTHS = {code: struct.calcsize(f"<{code}") for code in _SCALARS.values()}
_STRING, _ARRAY = 8, 9
_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Header:
    """All of a file but its weights.

    Attributes:
        path: The file.
        metadata: Its facts by name; an array is a list.
        tensors: The shape of each tensor by its name, rows first as PyTorch has it.
        rope_factors: [D / 2] what the frequencies of the rotary embedding are divided by, as in
            Llama 3.1; empty where they are used as they are.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    rope_factors: tuple[float, ...]

    def fact(self, name: str) -> Any:
        """What the file says under ``name`` of its architecture, or None."""
        return self.metadata.get(f"{self.metadata['general.architecture']}.{name}")

    def token_id(self, kind: str) -> int | None:
        """Which token is the "bos", "eos", "eot", "padding" or "unknown" one."""
        found: int | None = self.metadata.get(f"tokenizer.ggml.{kind}_token_id")
        return found


def is_gguf(path: Path) -> bool:
    """Whether a file says that it is one, by its name or its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix == ".gguf" or file.read(len(MAGIC)) == MAGIC


def read_header(path: Path) -> Header:
    """Read all of ``path`` but its weights, and see that these are there.

    Raises:
        ExportError: If it is no GGUF file, a part of one, or cut short.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ExportError(f"{path} is no GGUF file: it does not begin with {MAGIC.decode()}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _parse(_Reader(content, path), path)


def _parse(reader: "_Reader", path: Path) -> Header:
    """The header behind the first four bytes of ``path``."""
    version = reader.number("I")
    if version not in VERSIONS:
        raise ExportError(
            f"{path} is GGUF version {version}, versions 2 and 3 can be read; "
            "convert the checkpoint again"
        )
    tensor_count, fact_count = reader.number("Q"), reader.number("Q")
    metadata = {reader.string(): reader.value(reader.number("I")) for _ in range(fact_count)}
    if "general.architecture" not in metadata:
        raise ExportError(f"{path} does not name its architecture; convert it again")
    if metadata.get("split.count", 1) > 1:
        raise ExportError(
            f"{path} is one of {metadata['split.count']} parts; join them first: "
            "llama-gguf-split --merge"
        )
    shapes, offsets, needed = {}, {}, 0
    for _ in range(tensor_count):
        name = reader.string()
        shape = tuple(reader.number("Q") for _ in range(reader.number("I")))[::-1]
        kind, offset = reader.number("I"), reader.number("Q")
        shapes[name], offsets[name] = shape, offset
        needed = max(needed, offset + _bytes(path, name, kind, math.prod(shape)))
    alignment = metadata.get("general.alignment", 32)
    start = -(-reader.at // alignment) * alignment
    needed += start
    if path.stat().st_size < needed:
        raise _cut_short(path, f"{needed} bytes are expected, it has {path.stat().st_size}")
    factors: tuple[float, ...] = ()
    if _ROPE_FACTORS in shapes:
        reader.at = start + offsets[_ROPE_FACTORS]
        factors = reader.numbers("f", shapes[_ROPE_FACTORS][0])
    return Header(path, metadata, shapes, factors)


def config(header: Header) -> dict[str, Any]:
    """The ``config.json`` that a file stands for.

    transformers makes one too, but forgets the size of heads and how the rotary embedding is scaled
    (5.24, read).

    Raises:
        UnsupportedArchitectureError: If the architecture cannot be exported.
        ExportError: If the file holds what the export would leave out.
    """
    architecture = header.metadata["general.architecture"]
    if architecture not in ARCHITECTURES:
        raise UnsupportedArchitectureError(
            f"{header.path} has the architecture {architecture!r}, GGUF files of "
            f"{', '.join(ARCHITECTURES)} can be exported; for others export the checkpoint that it "
            "was made from"
        )
    _check_complete(header)
    said = {ours: header.fact(theirs) for theirs, ours in SIZES.items()}
    found = {name: value for name, value in said.items() if value is not None}
    found["head_dim"] = header.fact("attention.key_length") or header.fact("rope.dimension_count")
    if found["head_dim"] is None:
        found["head_dim"] = found["hidden_size"] // found["num_attention_heads"]
    if ARCHITECTURES[architecture] != "qwen2":  # which always has these
        found["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    ends = [i for kind in ("eos", "eot") if (i := header.token_id(kind)) is not None]
    return {
        "model_type": ARCHITECTURES[architecture],
        **found,
        "vocab_size": header.tensors["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.token_id("bos"),
        "eos_token_id": ends[0] if len(set(ends)) == 1 else ends or None,
        "pad_token_id": header.token_id("padding"),
    }


def _check_complete(header: Header) -> None:
    """Refuse what transformers' loader would leave out without a word (5.24 and 4.57, read)."""
    advice = "export the checkpoint that it was made from"
    kinds = {name: name.split(".")[-2] for name in header.tensors if "." in name}
    strange = next((name for name, kind in kinds.items() if kind not in WEIGHTS), None)
    if strange is not None:
        raise ExportError(f"{header.path} holds {strange}, which no export reads; {advice}")
    lacks = [theirs for theirs in SIZES if header.fact(theirs) is None]
    lacks = [name for name in lacks if name not in ("rope.freq_base", "attention.head_count_kv")]
    if lacks or "token_embd.weight" not in header.tensors:
        lacking = lacks[0] if lacks else "token_embd.weight"
        raise ExportError(f"{header.path} does not say {lacking}; convert the checkpoint again")
    scaling = header.fact("rope.scaling.type") or "none"
    if scaling != "none":
        raise ExportError(
            f"{header.path} scales its rotary embedding by {scaling!r}, which its loader leaves "
            f"out; {advice}"
        )
    size, rotated = header.fact("attention.key_length"), header.fact("rope.dimension_count")
    if size is not None and rotated is not None and size != rotated:
        raise ExportError(
            f"{header.path} rotates {rotated} of {size} numbers of a head, which its loader leaves "
            f"out; {advice}"
        )


def _bytes(path: Path, name: str, kind: int, count: int) -> int:
    """Bytes of ``count`` numbers of the GGML type ``kind``."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise ExportError(
            f"{path} holds {name} in the GGML type {kind}, which this gguf does not know; "
            "pip install -U gguf"
        ) from None
    return count // block * size


def _cut_short(path: Path, why: str) -> ExportError:
    return ExportError(f"{path} is damaged or cut short ({why}); download it again")


class _Reader:
    """Numbers and strings from a file in memory, little end first.

    Attributes:
        at: Bytes that were read.
    """

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self._content, self._path = content, path
        self.at = len(MAGIC)

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def string(self) -> str:
        size = self.number("Q")
        self._require(size)
        self.at += size
        return self._content[self.at - size : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(self._code(kind))
        inner, count = self.number("I"), self.number("Q")
        if inner in (_STRING, _ARRAY):
            return [self.value(inner) for _ in range(count)]
        return list(self.numbers(self._code(inner), count))

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        size = count * _WIDTHS[code]
        self._require(size)
        self.at += size
        return struct.unpack_from(f"<{count}{code}", self._content, self.at - size)

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise _cut_short(self._path, f"its header has a value of the unknown type {kind}")
        return _SCALARS[kind]

    def _require(self, size: int) -> None:
        if size > len(self._content) - self.at:
            raise _cut_short(self._path, "its header does not end")
