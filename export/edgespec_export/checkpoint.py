"""A transformers checkpoint in memory: the model, its tokenizer's files and its defaults."""

import copy
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from optimum.exporters.tasks import TasksManager
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from edgespec.errors import ExportError, TokenizerError
from edgespec_export import gguf_file, gguf_tokenizer
from edgespec_export.gguf_file import Header

METADATA = ("*.json", "*.jinja", "*.txt", "*.model")
"""Patterns of the files beside the weights: configurations and whatever tokenizers are made of."""
COPIED = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
LENGTHS = (
    "max_target_positions",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
)
"""Where configurations say the longest text; an encoder-decoder's, that of its decoder."""
UNSAID_LENGTH = {"t5": 512}
"""Longest text where a configuration names none."""
UNSAID_LENGTH_OF_OTHERS = 2048
"""BLOOM was trained with so many."""
FULL_LENGTH_ROPES = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies change once a text outgrows its original length."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an export starts from.

    Attributes:
        model: In float32 and evaluation mode; the reference that a graph is compared with.
        tokenizer: As transformers loads it.
        folder: Where the checkpoint's configuration and tokenizer files lie; None if it has none.
        max_length: The longest text in tokens that the export is for.
        copied: Files of ``folder`` that are as they should be in the new folder.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    folder: Path | None
    max_length: int
    copied: tuple[str, ...] = COPIED

    @property
    def vocab_size(self) -> int:
        """V, the width of a row of logits."""
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        return int(head.weight.shape[0])

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text, by the generation defaults or else the configuration."""
        found = self._default("eos_token_id")
        if found is None:
            return ()
        return tuple(found) if isinstance(found, list | tuple) else (int(found),)

    @property
    def bos_token_id(self) -> int | None:
        """Id that starts a text."""
        found: int | None = self._default("bos_token_id")
        return found

    @property
    def pad_token_id(self) -> int | None:
        """Id that fills a row."""
        found: int | None = self._default("pad_token_id")
        return found

    def encode(self, text: str) -> list[int]:
        """The token ids of ``text``."""
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def copy_for_trace(self) -> PreTrainedModel:
        """A copy with the same weights, not copied, and a configuration of its own.

        transformers keeps the kind of attention on the configuration, so with a shared one the
        reference would turn into the traced model without a word.
        """
        shared = {id(tensor): tensor for tensor in self.model.parameters()}
        return copy.deepcopy(self.model, shared)

    def first_layers(self, count: int) -> "Checkpoint":
        """The same with its first ``count`` layers alone, before the last norm and the head.

        Early exit of Elhoushi et al., LayerSkip, 2024, https://arxiv.org/abs/2404.16710.
        """
        config = self.model.config
        whole = config.num_hidden_layers
        for module in self.model.modules():
            for name, child in module.named_children():
                if isinstance(child, torch.nn.ModuleList) and len(child) == whole:
                    setattr(module, name, child[:count])
        config.num_hidden_layers = count
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = config.layer_types[:count]
        return replace(self, copied=tuple(name for name in COPIED if name != "config.json"))

    def round_weights(self, dtype: torch.dtype) -> None:
        """Round every weight to what ``dtype`` can hold; they stay float32."""
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(weight.to(dtype))

    def write_metadata(self, folder: Path) -> None:
        """Write tokenizer, chat template, generation defaults and configuration to ``folder``.

        Files that the checkpoint has are copied as they are; what it lacks is made.

        Raises:
            TokenizerError: If no ``tokenizer.json`` comes of it.
        """
        self.tokenizer.save_pretrained(folder)
        _name_class_plainly(folder / "tokenizer_config.json")
        for name in self.copied:
            if self.folder is not None and (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)
        if not (folder / "config.json").is_file():
            self.model.config.save_pretrained(folder)
        if not (folder / "generation_config.json").is_file():
            defaults = self.model.generation_config.to_diff_dict()
            text = json.dumps(defaults, indent=2)
            (folder / "generation_config.json").write_text(text + "\n", encoding="utf-8")
        template = _chat_template(self.tokenizer)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        if not (folder / "tokenizer.json").is_file():
            raise TokenizerError(
                f"{type(self.tokenizer).__name__} cannot be written as tokenizer.json, which the "
                "runtime needs; convert it with transformers' convert_slow_tokenizer first"
            )

    def _default(self, name: str) -> Any:
        found = getattr(self.model.generation_config, name, None)
        return getattr(self.model.config, name, None) if found is None else found


def load(
    source: str, model_type: str, max_length: int | None, task: str = "text-generation"
) -> Checkpoint:
    """Load a checkpoint in float32.

    Args:
        source: A local folder, a GGUF file or a hub name.
        model_type: As its configuration says.
        max_length: The longest text; None takes what the model was made for.
        task: By optimum's name.

    Raises:
        ExportError: If the weights cannot be loaded.
        TokenizerError: If there is no tokenizer, or it has more ids than the model.
        ValueError: If ``max_length`` is out of bounds.
    """
    # optimum names the class that loads an architecture for a task. Of its other services,
    # get_model_from_task asks the hub for a file list even for a local folder, and
    # NormalizedConfigManager knows fewer families than the graph itself says about layers,
    # heads and sizes, which the cache layout reads from the trace.
    model_class = TasksManager.get_model_class_for_task(task, framework="pt", model_type=model_type)
    header = gguf_file.read_header(Path(source)) if gguf_file.is_gguf(Path(source)) else None
    try:
        model, report = model_class.from_pretrained(
            **_place(source, header),
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
            # The reference: the other kinds of attention leave out a softcap without a word.
            attn_implementation="eager",
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"the weights of {source} cannot be loaded: {reason}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ExportError(
            f"{source} lacks {len(missing)} of the model's weights, the first is {missing[0]}; "
            "they would be random, so fetch the whole checkpoint"
        )
    model.eval()
    longest = _checked_length(model.config, max_length)
    if header is not None:
        _finish_gguf(model, header)
        checkpoint = Checkpoint(model, gguf_tokenizer.load(header), None, longest)
    else:
        folder = Path(source) if Path(source).is_dir() else _fetch_metadata(source)
        checkpoint = Checkpoint(model, _load_tokenizer(folder), folder, longest)
    known, wide = len(checkpoint.tokenizer), checkpoint.vocab_size
    if known > wide:
        raise TokenizerError(
            f"the tokenizer has {known} ids, the model's logits {wide}; give the tokenizer that "
            "the checkpoint was trained with"
        )
    return checkpoint


def _place(source: str, header: Header | None) -> dict[str, Any]:
    """Where transformers finds the checkpoint, and its configuration if no file holds it."""
    if header is None:
        return {"pretrained_model_name_or_path": source}
    config = AutoConfig.for_model(**gguf_file.config(header))
    return {
        "pretrained_model_name_or_path": str(header.path.parent),
        "gguf_file": header.path.name,
        "config": config,
    }


def _finish_gguf(model: PreTrainedModel, header: Header) -> None:
    """Mend what transformers leaves out or leaves behind (5.24, tried)."""
    # The weights are no longer quantised, and the copy in the new folder must not say so.
    model.config.__dict__.pop("quantization_config", None)
    if header.rope_factors:
        model.model.rotary_emb.inv_freq.div_(torch.tensor(header.rope_factors))


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    # AttributeError: what 4.57 raises where there is no file of a tokenizer at all.
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TokenizerError(
            f"{folder} has no tokenizer that can be loaded ({reason}); put its tokenizer.json there"
        ) from error
    if not tokenizer.is_fast:
        raise TokenizerError(
            f"{type(tokenizer).__name__} exists in Python alone and the runtime reads "
            f"tokenizer.json; convert it with transformers' convert_slow_tokenizer first"
        )
    loaded: PreTrainedTokenizerBase = tokenizer
    return loaded


def _checked_length(config: Any, max_length: int | None) -> int:
    longest = _longest(config)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind in FULL_LENGTH_ROPES:
        raise ExportError(
            f"rotary embeddings of type {kind!r} change with the length of the text, which a "
            "cache cannot follow; models with default, linear, llama3 or yarn ones can be exported"
        )
    if max_length is None:
        return longest
    if not 16 <= max_length <= longest:
        raise ValueError(f"max_length must be 16 to {longest} for this model, got {max_length}")
    return max_length


def _longest(config: Any) -> int:
    """The longest text that a model was made for, under whatever name its family says it."""
    for name in LENGTHS:
        if isinstance(found := getattr(config, name, None), int):
            return found
    return UNSAID_LENGTH.get(config.model_type, UNSAID_LENGTH_OF_OTHERS)


def _fetch_metadata(name: str) -> Path:
    import huggingface_hub

    return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(METADATA)))


def _name_class_plainly(path: Path) -> None:
    """Name the class as all of transformers' versions know it: 5 writes one that 4 has not."""
    said = path.read_text(encoding="utf-8")
    path.write_text(said.replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"'), "utf-8")


def _chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None
