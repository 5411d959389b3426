"""What lies in a model folder: ours, and those that other exporters made."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from edgespec.errors import ModelFolderError
from edgespec.manifest import FILE_NAME, Manifest, read_json

EMBEDDED = "tiny-code"
_GRAPHS = ("model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")
_GENAI = "genai_config.json"
_BESIDE = ("edgespec.json", _GENAI, "config.json", "tokenizer.json")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The files of a model.

    Attributes:
        graph: The ONNX file.
        folder: Where the files that go with it lie: beside it, or one level up.
        made_by: Who wrote it: "edgespec", "onnxruntime-genai", "optimum", "transformers.js" or
            "another exporter".
        manifest: What is known of the graph; read from ``edgespec.json``, or gathered from the
            configuration files of the others.
        generation_config: What ``generation_config.json`` says, empty without one.
    """

    graph: Path
    folder: Path
    made_by: str
    manifest: Manifest
    generation_config: Mapping[str, Any]

    @property
    def tokenizer(self) -> Path:
        """Where ``tokenizer.json`` should be."""
        return self.folder / "tokenizer.json"

    def sha256(self) -> str:
        """Digest of the graph and of the weights that it keeps in files beside it."""
        content = self.graph.read_bytes()
        # A tensor in another file has an entry of key and value for it: "location" and the name.
        beside = set(re.findall(rb"\x0a\x08location\x12([\x01-\x7f])([^\x00]*)", content))
        names = {name[: size[0]].decode() for size, name in beside}
        digest = hashlib.sha256(content)
        for name in sorted(names):
            with open(self.graph.parent / name, "rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        return digest.hexdigest()


def embedded_model(name: str = EMBEDDED) -> Path:
    """The folder of a model that comes with the package: ``"tiny-code"`` or its draft."""
    package = Path(__file__).parent
    for models in (package / "models", package.parent / "models"):  # installed, checked out
        if (models / name / "model.onnx").is_file():
            return models / name
    raise ModelFolderError(
        f"the embedded model {name} is not part of this installation; pass a model's folder"
    )


def draft_folder(target: ModelFolder) -> Path:
    """Where the draft model of ``target`` lies: in its ``draft/``, or beside the embedded model.

    Raises:
        ModelFolderError: If it has none.
    """
    beside = target.folder.with_name(f"{EMBEDDED}-draft")
    for folder in (target.folder / "draft", beside if target.folder.name == EMBEDDED else None):
        if folder is not None and folder.is_dir():
            return folder
    raise ModelFolderError(
        f"{target.folder} holds no draft/; pass draft= the folder of a model with its tokenizer"
    )


_CLASSES = {"whisper": "EdgeTranscriber", "t5": "EdgeSeq2Seq"}
"""Which class runs an encoder-decoder of an architecture; all else is EdgeGenerator's."""


def class_for(folder: ModelFolder) -> str:
    """The name of the class that runs what lies in ``folder``."""
    if folder.manifest.kind != "encoder_decoder":
        return "EdgeGenerator"
    return _CLASSES.get(folder.manifest.architecture, "a later edgespec")


def require_class(folder: ModelFolder, name: str) -> None:
    """Return if ``folder`` is for the class ``name``.

    Raises:
        ModelFolderError: If it is for another one.
    """
    right = class_for(folder)
    if right != name:
        is_pair = folder.manifest.kind == "encoder_decoder"
        kind = "an encoder-decoder" if is_pair else "a decoder-only model"
        raise ModelFolderError(
            f"{folder.folder} holds {kind} ({folder.manifest.architecture}), which "
            f"{name} cannot run; load it with {right}"
        )


def open_model_folder(path: str | PathLike[str] | None) -> ModelFolder:
    """Find a model and what is said about it.

    Args:
        path: A folder, or its ``.onnx`` file; ``~`` is understood. None is the embedded model.

    Raises:
        ModelFolderError: If there is no model, there are several, or a file cannot be read.
    """
    given = embedded_model() if path is None else Path(os.path.expanduser(path)).absolute()
    graph = _graph(given)
    folder = given if given.is_dir() and (given / FILE_NAME).is_file() else _folder_of(graph)
    config = folder / "generation_config.json"
    generation_config = read_json(config) if config.is_file() else {}
    manifest = Manifest.read(folder)
    if manifest is not None:
        return ModelFolder(graph, folder, "edgespec", manifest, generation_config)
    if (folder / _GENAI).is_file():
        manifest = _from_genai(folder / _GENAI)
        return ModelFolder(graph, folder, "onnxruntime-genai", manifest, generation_config)
    said = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    manifest = _from_config(said, generation_config)
    return ModelFolder(graph, folder, _maker(graph, said), manifest, generation_config)


def _graph(given: Path) -> Path:
    """The ONNX file that ``given`` means."""
    if os.path.isfile(given):  # False for a name that is too long; Path.is_file raises
        if given.suffix != ".onnx":
            raise ModelFolderError(f"{given} is no .onnx file; pass a model's folder or .onnx file")
        return given
    if not os.path.isdir(given):
        raise ModelFolderError(f"{given} does not exist; pass a model's folder or .onnx file")
    manifest = Manifest.read(given)
    if manifest is not None and manifest.graph is not None:
        return given / manifest.graph
    for folder in (given, given / "onnx"):
        for name in _GRAPHS:
            if (folder / name).is_file():
                return folder / name
    found = sorted((*given.glob("*.onnx"), *given.glob("onnx/*.onnx")))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.relative_to(given).as_posix() for path in found)
        raise ModelFolderError(
            f"{given} holds several models ({names}); pass the file that is meant"
        )
    hint = ""
    if any(given.glob("*.safetensors")) or (given / "config.json").is_file():
        hint = f": it is a checkpoint; export it first: edgespec export {given}"
    raise ModelFolderError(f"{given} holds no model.onnx{hint}")


def _folder_of(graph: Path) -> Path:
    """Where the files that go with ``graph`` lie; one level up where the graphs have a folder."""
    own, above = graph.parent, graph.parent.parent
    alone = not any((own / name).is_file() for name in _BESIDE)
    return above if alone and (above / "config.json").is_file() else own


def _maker(graph: Path, said: Mapping[str, Any]) -> str:
    """Who wrote a graph with a checkpoint's configuration, as far as the folder gives it away."""
    if "transformers.js_config" in said or graph.parent.name == "onnx":
        return "transformers.js"
    if graph.name.startswith("decoder_") or (graph.parent / "ort_config.json").is_file():
        return "optimum"
    return "another exporter"


def _from_genai(path: Path) -> Manifest:
    """What onnxruntime-genai's builder wrote down."""
    try:
        return _read_genai(read_json(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFolderError(
            f"{path} does not say what it should ({error}); build the model again"
        ) from None


def _read_genai(said: Mapping[str, Any]) -> Manifest:
    model, decoder = said["model"], said["model"]["decoder"]
    shared = said.get("search", {}).get("past_present_share_buffer", False)
    return Manifest(
        architecture=model.get("type", "unknown"),
        vocab_size=model["vocab_size"],
        max_length=model.get("context_length"),
        cache_layout="in_place" if shared else "growing",
        num_layers=decoder["num_hidden_layers"],
        num_kv_heads=decoder["num_key_value_heads"],
        head_size=decoder["head_size"],
        precision="unknown",
        eos_token_ids=_ids(model.get("eos_token_id")),
        bos_token_id=model.get("bos_token_id"),
        pad_token_id=model.get("pad_token_id"),
    )


def _from_config(said: Mapping[str, Any], generation_config: Mapping[str, Any]) -> Manifest:
    """What a checkpoint's own configuration says."""
    eos = generation_config.get("eos_token_id")
    eos = said.get("eos_token_id") if eos is None else eos
    heads = said.get("num_attention_heads") or said.get("n_head") or 0
    width = said.get("hidden_size") or said.get("n_embd") or 0
    return Manifest(
        architecture=said.get("model_type", "unknown"),
        vocab_size=said.get("vocab_size", 0),
        max_length=next((said[n] for n in _CONTEXT_NAMES if isinstance(said.get(n), int)), None),
        cache_layout="growing",
        num_layers=said.get("num_hidden_layers") or said.get("n_layer") or 0,
        num_kv_heads=said.get("num_key_value_heads") or heads,
        head_size=said.get("head_dim") or (width // heads if heads else 0),
        precision="unknown",
        eos_token_ids=_ids(eos),
        bos_token_id=said.get("bos_token_id"),
        pad_token_id=said.get("pad_token_id"),
    )


def _ids(said: object) -> tuple[int, ...]:
    """One id, several or none, as a row; what is no number is no id."""
    ids = said if isinstance(said, list) else [said]
    return tuple(i for i in ids if isinstance(i, int))
