"""The tokenizer inside a GGUF file, made to cut text as the model's own does.

transformers builds it from vocabulary and merges. What a file only names, the rule by which text is
cut before merges apply, it knows for some names and takes GPT-2's for the others (5.24: SmolLM2's
"smollm" among them, so that spaces before a digit came out as other tokens; 4.57: for all).
"""

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from edgespec.errors import TokenizerError
from edgespec_export.gguf_file import UNUSED, Header

LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
GPT2_CUTS = [{**LETTERS, "use_regex": True}]
DIGIT_CUTS = [{"type": "Digits", "individual_digits": True}, *GPT2_CUTS]


def _cuts(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    return [{**split, "pattern": {"Regex": pattern}}, {**LETTERS, "use_regex": False}]


_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_LETTERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_CUTS = _cuts(_ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _AFTER_LETTERS)
QWEN2_CUTS = _cuts(_ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _AFTER_LETTERS)

CUTS: Mapping[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "mellum"), GPT2_CUTS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), DIGIT_CUTS),
    **dict.fromkeys(("exaone", "minerva-7b"), DIGIT_CUTS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), LLAMA3_CUTS),
    **dict.fromkeys(("dbrx", "smaug-bpe"), LLAMA3_CUTS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), QWEN2_CUTS),
}
"""How text is cut, by ``tokenizer.ggml.pre``: what llama.cpp does under these names
(https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp, MIT), written as the
models' own ``tokenizer.json`` has it."""
COMPOSED = ("qwen2",)
"""Names under which characters are composed first (NFC); llama.cpp leaves that to its caller."""
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3")
"""Names under which a word that is a token is taken before any merge, and a text gets its bos."""


def load(header: Header) -> PreTrainedTokenizerBase:
    """The tokenizer and chat template of a file.

    Raises:
        TokenizerError: If there is none, or nothing says how it cuts text.
    """
    path, kind = header.path, header.metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise TokenizerError(
            f"{path} has a tokenizer of the kind {kind!r}, 'gpt2' and 'llama' can be read; export "
            "the checkpoint that it was made from"
        )
    pre = header.metadata.get("tokenizer.ggml.pre")
    if kind == "gpt2" and pre not in CUTS:
        raise TokenizerError(
            f"{path} cuts text by the rule {pre!r}, known are {', '.join(sorted(CUTS))}; export "
            "the checkpoint that it was made from"
        )
    extra = {"add_bos_token": True} if pre in WHOLE_WORDS else {}
    try:
        found = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, **extra)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TokenizerError(f"the tokenizer of {path} cannot be loaded: {reason}") from error
    made = mended(json.loads(found.backend_tokenizer.to_str()), header)
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(json.dumps(made)),
        chat_template=found.chat_template,
        **{name: str(token) for name in names if (token := getattr(found, name)) is not None},
    )


def mended(tokenizer: dict[str, Any], header: Header) -> dict[str, Any]:
    """``tokenizer`` (as in tokenizer.json) with the rules that the file's model has."""
    metadata, model = header.metadata, tokenizer["model"]
    pre = metadata.get("tokenizer.ggml.pre")
    if metadata["tokenizer.ggml.model"] == "gpt2":
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": CUTS[str(pre)]}
        tokenizer["normalizer"] = {"type": "NFC"} if pre in COMPOSED else None
        model["ignore_merges"] = pre in WHOLE_WORDS
    types = metadata.get("tokenizer.ggml.token_type", [0] * len(metadata["tokenizer.ggml.tokens"]))
    # Ids that fill up the table would make this another tokenizer than that of a model of the
    # same family whose table is filled up otherwise. transformers adds its classes' own special
    # tokens where the file has none of the name, beyond the model's last id (5.24, tried).
    used = {i for i, kind in enumerate(types) if kind != UNUSED}
    model["vocab"] = {token: i for token, i in model["vocab"].items() if i in used}
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] in used]
    return tokenizer
