"""Which architectures can be exported, told from a checkpoint's configuration alone.

Nothing here imports PyTorch: a checkpoint that cannot be exported is refused before its weights
are read.
"""

import importlib.metadata
import re
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError, ModelFolderError, UnsupportedArchitectureError
from edgespec.manifest import read_json
from edgespec_export import gguf_file, requirements

SUPPORTED = (
    "cohere",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "gptj",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
    "stablelm",
    "starcoder2",
)
"""``model_type`` names whose export a test compares with transformers."""

ENCODER_DECODERS = {"t5": "text2text-generation", "whisper": "automatic-speech-recognition"}
"""The same for encoder-decoders, each with its task by optimum's name."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def read_config(source: str) -> dict[str, Any]:
    """``config.json`` of a local folder, a GGUF file or a hub name; no more is fetched or read.

    Raises:
        ModelFolderError: If the folder has no readable ``config.json``.
        MissingExtraError: If ``source`` is a GGUF file and the packages for it are missing.
        ExportError: If ``source`` is no folder, GGUF file or name that the hub gives out.
    """
    folder = Path(source)
    if gguf_file.is_gguf(folder):
        requirements.check_installed(requirements.GGUF)
        return gguf_file.config(gguf_file.read_header(folder))
    if folder.is_dir():
        path = folder / "config.json"
        if not path.is_file():
            raise ModelFolderError(
                f"{folder} has no config.json; give the folder of a transformers checkpoint"
            )
        return read_json(path)
    if folder.exists() or not HUB_NAME.fullmatch(source):
        raise ExportError(
            f"{source} is no folder and no GGUF file; give a folder with a transformers "
            "checkpoint, a .gguf file, or a name on the Hugging Face hub such as "
            "HuggingFaceTB/SmolLM2-135M"
        )
    return read_json(_fetch_config(source))


def check_architecture(config: dict[str, Any]) -> str:
    """The ``model_type`` of a configuration, if it can be exported.

    Raises:
        UnsupportedArchitectureError: If it cannot.
        ExportError: If the weights are quantised already.
    """
    model_type = config.get("model_type")
    if model_type not in (*SUPPORTED, *ENCODER_DECODERS):
        raise UnsupportedArchitectureError(
            f"model_type {model_type!r} cannot be exported (transformers "
            f"{importlib.metadata.version('transformers')} is installed); supported are "
            f"{', '.join([*SUPPORTED, *ENCODER_DECODERS])}; for others try optimum's exporter: "
            "optimum-cli export onnx --task text-generation-with-past"
        )
    if config.get("quantization_config") is not None:
        raise ExportError(
            "the checkpoint's weights are quantised already, and an export starts from full "
            "precision; give the checkpoint that it was made from"
        )
    return str(model_type)


def _fetch_config(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(name, "config.json"))
    except Exception as error:
        # The hub's client raises a dozen kinds: no network, no such name, no access.
        reason = str(error).strip().splitlines()[0]
        raise ExportError(
            f"{name} is no folder here, and the Hugging Face hub did not give its config.json: "
            f"{reason}"
        ) from error
