"""Which architectures can be exported, told from a checkpoint's configuration alone.

Nothing here imports PyTorch: a checkpoint that cannot be exported is refused before its weights
are read.
"""

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError, ModelFolderError, UnsupportedArchitectureError
from edgespec.manifest import read_json
from edgespec_export import gguf_file, requirements


@dataclass(frozen=True, slots=True)
class Family:
    """What is particular about an architecture.

    Attributes:
        note: For the table in docs/families.md.
        since: The oldest transformers that its export was tested with.
        terms: What its attention asks for, by the names in ``placeholders.TERMS``.
    """

    note: str = ""
    since: str = "4.57"
    terms: tuple[str, ...] = ()


FAMILIES: dict[str, Family] = {
    "apertus": Family("xIELU", since="5.0"),
    "arcee": Family("squared ReLU", since="5.0"),
    "biogpt": Family("learned positions", since="5.0"),
    "bloom": Family("alibi", terms=("key_bias",)),
    "codegen": Family(since="5.0"),
    "cohere": Family(),
    "cohere2": Family("sliding window in most layers, the others without positions", since="5.0"),
    "ernie4_5": Family(since="5.0"),
    "exaone4": Family("sliding window in most layers, the others without positions", since="5.0"),
    "falcon": Family("multi-query; not with alibi"),
    "gemma": Family(since="5.0"),
    "gemma2": Family("sliding window, soft cap"),
    "gemma3_text": Family("sliding window; the text models, such as 1B"),
    "glm": Family(since="5.0"),
    "glm4": Family(since="5.0"),
    "gpt2": Family("learned positions"),
    "gpt_bigcode": Family("multi-query", since="5.0"),
    "gpt_neo": Family("local attention in every second layer"),
    "gpt_neox": Family(),
    "gpt_oss": Family("attention sinks, experts", since="5.0", terms=("sinks",)),
    "gptj": Family(since="5.0"),
    "granite": Family(),
    "granitemoe": Family("experts", since="5.0"),
    "granitemoehybrid": Family("Granite 4 without Mamba layers (micro, 1B, 350M)", since="5.0"),
    "helium": Family(since="5.0"),
    "hunyuan_v1_dense": Family(since="5.0"),
    "llama": Family(),
    "ministral": Family("sliding window", since="5.0"),
    "ministral3": Family("queries scaled by position", since="5.0"),
    "mistral": Family("sliding window"),
    "mixtral": Family("experts", since="5.0"),
    "mpt": Family("alibi", since="5.0", terms=("key_bias",)),
    "nemotron": Family(since="5.0"),
    "olmo": Family(since="5.0"),
    "olmo2": Family(),
    "olmo3": Family("sliding window in most layers", since="5.0"),
    "olmoe": Family("experts", since="5.0"),
    "opt": Family("learned positions", since="5.0"),
    "persimmon": Family(since="5.0"),
    "phi": Family(),
    "phi3": Family("Phi-3 to Phi-4"),
    "qwen2": Family("also Qwen2.5"),
    "qwen3": Family(),
    "qwen3_moe": Family("experts", since="5.0"),
    "seed_oss": Family(since="5.0"),
    "smollm3": Family("every fourth layer without positions"),
    "stablelm": Family(since="5.0"),
    "starcoder2": Family(),
}
"""By ``model_type``: whatever a test compares with transformers."""

SUPPORTED = tuple(FAMILIES)

STATE = (
    "its layers keep a recurrent state, which cannot be set back to an earlier token as "
    "speculation needs it"
)
HYBRID_UNLESS_SAID = ("granitemoehybrid",)
SEES = "it reads images or sound besides text; models of text alone can be exported"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("bamba", "falcon_h1", "falcon_mamba", "jamba", "kimi_linear"),
            *("lfm2", "lfm2_moe", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid"),
            *("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "recurrent_gemma", "rwkv"),
            *("xlstm", "zamba", "zamba2"),
        ),
        STATE,
    ),
    **dict.fromkeys(
        (
            *("gemma3", "gemma3n", "gemma4", "llama4", "llava", "mistral3", "mllama"),
            *("phi4_multimodal", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl", "smolvlm"),
        ),
        SEES,
    ),
}
"""Architectures that are known and cannot be exported, and why."""

ENCODER_DECODERS = {"t5": "text2text-generation", "whisper": "automatic-speech-recognition"}
"""The same for encoder-decoders, each with its task by optimum's name."""

GGUF_SINCE = "5.0"
"""The oldest transformers that GGUF files are exported with."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def read_config(source: str) -> dict[str, Any]:
    """``config.json`` of a local folder, a GGUF file or a hub name; no more is fetched or read.

    Raises:
        ModelFolderError: If the folder has no readable ``config.json``.
        MissingExtraError: If ``source`` is a GGUF file and the packages for it are missing.
        ExportError: If ``source`` is no folder, GGUF file or name that the hub gives out, or a
            GGUF file that the installed transformers is too old for.
    """
    folder = Path(source)
    if gguf_file.is_gguf(folder):
        requirements.check_installed(requirements.GGUF)
        _check_reads_gguf(folder)
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
    model_type = str(config.get("model_type"))
    family = FAMILIES.get(model_type)
    reason = STATE if _is_hybrid(config) else REFUSED.get(model_type)
    if model_type == "falcon" and config.get("alibi"):
        reason = "with alibi, the graph differs from transformers' eager attention"
    if reason is not None:
        raise UnsupportedArchitectureError(
            f"model_type {model_type!r} cannot be exported: {reason}; supported are "
            f"{', '.join(SUPPORTED)}"
        )
    installed = importlib.metadata.version("transformers")
    known = ", ".join([*SUPPORTED, *ENCODER_DECODERS])
    if family is None and model_type not in ENCODER_DECODERS:
        raise UnsupportedArchitectureError(
            f"model_type {model_type!r} cannot be exported (transformers {installed} is "
            f"installed); supported are {known}; for others try optimum-onnx, whose folders run "
            "too: optimum-cli export onnx --task text-generation-with-past"
        )
    if family is not None and not is_served(family, installed):
        raise UnsupportedArchitectureError(
            f"model_type {model_type!r} needs transformers {family.since} or newer, {installed} is "
            f'installed; run: pip install "transformers>={family.since}"'
        )
    if config.get("quantization_config") is not None:
        raise ExportError(
            "the checkpoint's weights are quantised already, and an export starts from full "
            "precision; give the checkpoint that it was made from"
        )
    return model_type


def is_served(family: Family, installed: str) -> bool:
    """Whether a version of transformers is new enough for ``family``."""
    return _numbers(installed) >= _numbers(family.since)


def _is_hybrid(config: dict[str, Any]) -> bool:
    """Whether some layers are recurrent, by the names that transformers has for their kinds."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds is None:
        return config.get("model_type") in HYBRID_UNLESS_SAID
    return bool({"mamba", "linear_attention", "conv", "recurrent"}.intersection(kinds))


def _numbers(version: str) -> tuple[int, ...]:
    """(4, 57) for 4.57.6."""
    return tuple(int(part) for part in version.split(".")[:2])


def _check_reads_gguf(path: Path) -> None:
    """4.57 gives texts a bos that the file does not ask for, and another eos (tried)."""
    installed = importlib.metadata.version("transformers")
    if _numbers(installed) < _numbers(GGUF_SINCE):
        raise ExportError(
            f"{path} is a GGUF file, whose tokenizer transformers reads rightly from {GGUF_SINCE}, "
            f'{installed} is installed; run: pip install "transformers>={GGUF_SINCE}"'
        )


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
