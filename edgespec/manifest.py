"""edgespec.json: what a model folder says of itself, and the contract with the exporter.

The exporter writes a :class:`Manifest`; the runtime reads it. It holds facts about the graph and
nothing that a user would set: those stand in ``generation_config.json``.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.errors import ModelFolderError

FILE_NAME = "edgespec.json"
FORMAT = 1
ENCODER, CROSS = "encoder.onnx", "cross.onnx"
"""Beside an encoder-decoder's decoder: its encoder, and what makes keys and values of that."""
CACHE_LAYOUTS = ("in_place", "static", "growing")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the exporter knows about the graph that it wrote.

    Attributes:
        architecture: ``model_type`` of the checkpoint's configuration, such as ``"llama"``.
        vocab_size: V, the width of a row of logits; at least the tokenizer's number of ids.
        max_length: The longest text in tokens, prompt included, that the model was made for;
            None where no file says it.
        cache_layout: ``"in_place"``, ``"static"`` or ``"growing"``; see ``edgespec/cache``.
        num_layers: L.
        num_kv_heads: H, key/value heads of one layer.
        head_size: D.
        cache_dtype: Element type of the key/value cache, ``"float32"`` or ``"float16"``.
        precision: ``"fp32"``, ``"fp16"``, ``"int8"`` or ``"int4"``: how the graph computes.
        weights_dtype: How the weights lie in the file, ``"float32"``, ``"float16"``, or as the
            precision says where it is int8 or int4.
        accuracy_level: MatMulNBits' accuracy level where the precision is int4 or int8.
        block_size: How many weights share a scale where the precision is int4 or int8.
        int8_layers: Which layers of an int4 graph have 8 bits: ``"auto"``, ``"none"``, ``"mixed"``.
        eos_token_ids: Token ids that end a text; may be empty.
        bos_token_id: Token id that starts a text, if the model has one.
        pad_token_id: Token id that fills a row, if the model has one.
        tokenizer_sha256: Digest of ``tokenizer.json``; equal digests mean the same token ids.
        source: Where the checkpoint came from: a hub name or a folder's own name.
        versions: The tools that wrote the folder and their versions.
        parity: What the export's checks measured.
        min_onnxruntime: The oldest ONNX Runtime that was seen to run such a graph.
        kind: ``"causal"``, or ``"encoder_decoder"``: then ``encoder.onnx`` and ``cross.onnx`` lie
            beside the decoder, or ``cross.onnx`` alone where it works on another's encoder.
        decoder_start_token_id: The token that an encoder-decoder's text starts with.
        encoder_sha256: Digest of the encoder's weights; equal digests mean equal outputs.
        graph: The ONNX file, from the folder, if it is not ``model.onnx`` in it: a draft that
            shares its target's weights lies beside its target's graph.
        format: Version of this file's layout.
    """

    architecture: str
    vocab_size: int
    max_length: int | None
    cache_layout: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    cache_dtype: str = "float32"
    precision: str = "fp32"
    weights_dtype: str = "float32"
    accuracy_level: int | None = None
    block_size: int | None = None
    int8_layers: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    tokenizer_sha256: str | None = None
    source: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    parity: Mapping[str, Any] = field(default_factory=dict)
    min_onnxruntime: str | None = None
    kind: str = "causal"
    decoder_start_token_id: int | None = None
    encoder_sha256: str | None = None
    graph: str | None = None
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write ``edgespec.json`` into ``folder``."""
        text = json.dumps(dataclasses.asdict(self), indent=2)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """Read ``folder``'s manifest; None where it has none.

        Raises:
            ModelFolderError: If the file is not JSON, lacks a field or comes from a newer edgespec.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            return None
        said = read_json(path)
        if said.get("format", FORMAT) != FORMAT:
            raise ModelFolderError(
                f"{path} has format {said['format']}, this edgespec reads {FORMAT}; "
                "update edgespec, or export the model again"
            )
        known = {f.name for f in dataclasses.fields(cls)}
        said = {name: value for name, value in said.items() if name in known}
        said["eos_token_ids"] = tuple(said.get("eos_token_ids") or ())
        try:
            manifest = cls(**said)
        except TypeError:
            required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
            missing = [n for n in required if n not in said and n not in ("versions", "parity")]
            raise ModelFolderError(
                f"{path} lacks {', '.join(missing)}; export the model again"
            ) from None
        if manifest.cache_layout not in CACHE_LAYOUTS:
            raise ModelFolderError(
                f"{path} names the cache layout {manifest.cache_layout!r}, "
                f"known are {', '.join(CACHE_LAYOUTS)}; export the model again"
            )
        return manifest


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelFolderError: If the file cannot be read, is not JSON, or holds no object.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFolderError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(said, dict):
        raise ModelFolderError(f"{path} should hold a JSON object, got {type(said).__name__}")
    return said
