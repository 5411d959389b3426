"""A GGUF file becomes the folder that the checkpoint becomes which it was made from."""

import json
from pathlib import Path

import edgespec_export
import numpy as np
import pytest
from edgespec_export import families, gguf_file
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from edgespec.errors import (
    ExportError,
    MissingExtraError,
    TokenizerError,
    UnsupportedArchitectureError,
)
from edgespec.manifest import Manifest
from edgespec.tokenizer import Tokenizer as OwnTokenizer
from edgespec.tokenizer import same_token_ids
from tests.export.checkpoints import reference_logits, write_checkpoint
from tests.export.gguf_files import write_gguf

pytestmark = pytest.mark.export

TOKENS = [5, 9, 77, 300, 41, 8]
TEXTS = (
    "def add(a, b):\n    return a + b\n",
    "x  =    42 + 1234567  # twice\n\n\n    7",
    "it's we'LL",
    "na\u00efve cafe\u0301 \u4e16\u754c \U0001f600",
    "<s>def</s> <pad>",
)


def logits(folder: Path) -> np.ndarray:
    from edgespec_export.cache_layouts.base import CacheShape
    from edgespec_export.written import Written

    return Written(folder / "model.onnx", CacheShape(2, 2, 16), 64).read(TOKENS)


@pytest.mark.parametrize("case", ["llama", "llama tied", "qwen2", "qwen3"])
def test_weights_are_those_of_the_checkpoint(case: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", case)
    file = write_gguf(tmp_path / "tiny.gguf", checkpoint)
    folder = edgespec_export.export(file, tmp_path / "out")
    assert np.abs(logits(folder) - reference_logits(checkpoint, TOKENS)).max() < 1e-4
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert (manifest.eos_token_ids, manifest.bos_token_id) == ((2,), 1)
    assert manifest.max_length == 64
    assert manifest.source == "tiny.gguf"


def test_every_architecture_is_compared() -> None:
    compared = {"llama", "qwen2", "qwen3"}
    assert set(gguf_file.ARCHITECTURES) == compared
    assert set(gguf_file.ARCHITECTURES.values()) <= set(families.SUPPORTED)


def test_quantised_blocks_are_read_and_the_folder_is_named_like_the_file(
    llama_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_gguf(tmp_path / "tiny.Q8_0.gguf", llama_checkpoint, quantised=True)
    folder = edgespec_export.export(file)
    assert folder.resolve() == (tmp_path / "tiny.Q8_0").resolve()
    expected = reference_logits(llama_checkpoint, TOKENS)
    difference = np.abs(logits(folder) - expected).max()
    assert 1e-4 < difference < 0.1 * np.abs(expected).max()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config
    said = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    # The name that older versions of transformers know too.
    assert said["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (said["eos_token"], said["bos_token"]) == ("</s>", "<s>")


def test_factors_of_the_rotary_embedding_count(tmp_path: Path) -> None:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama, llama3 rope")
    config = AutoConfig.from_pretrained(checkpoint)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 10_000.0 ** -(np.arange(0, 16, 2, dtype=np.float32) / 16)
    factors = {"rope_freqs.weight": (plain / scaled.numpy()).astype(np.float32)}
    file = write_gguf(tmp_path / "tiny.gguf", checkpoint, tensors=factors)
    folder = edgespec_export.export(file, tmp_path / "out")
    assert np.abs(logits(folder) - reference_logits(checkpoint, TOKENS)).max() < 1e-4
    assert factors["rope_freqs.weight"].max() > 3


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def letters(*, cuts: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cuts)


def cut_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, letters(cuts=False)])


@pytest.mark.parametrize(
    ("pre", "cuts", "composes"),
    [
        ("gpt-2", letters(cuts=True), False),
        (
            "smollm",
            pre_tokenizers.Sequence([pre_tokenizers.Digits(True), letters(cuts=True)]),
            False,
        ),
        ("qwen2", cut_by(QWEN2), True),
        ("llama-bpe", cut_by(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")), False),
    ],
    ids=["gpt-2", "smollm", "qwen2", "llama-bpe"],
)
def test_text_is_cut_as_the_models_own_tokenizer_cuts_it(
    pre: str, cuts: pre_tokenizers.PreTokenizer, composes: bool, tmp_path: Path
) -> None:
    from edgespec_export import gguf_tokenizer

    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama", vocab_size=400)
    own = train(cuts, composes=composes)
    own.save(str(checkpoint / "tokenizer.json"))
    file = write_gguf(tmp_path / "tiny.gguf", checkpoint, pre=pre)
    found = gguf_tokenizer.load(gguf_file.read_header(file))
    for text in TEXTS:
        expected = own.encode(text, add_special_tokens=False).ids
        assert found(text, add_special_tokens=False)["input_ids"] == expected
    starts_text = found("a")["input_ids"][0] == 1
    assert starts_text == (pre == "llama-bpe")
    assert found.chat_template == "{{ messages[0]['content'] }}!"


def train(cuts: pre_tokenizers.PreTokenizer, *, composes: bool) -> Tokenizer:
    """A tokenizer that has merged what the texts repeat, spaces and digits among it."""
    from tokenizers import decoders, models, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = cuts, decoders.ByteLevel()
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=390,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, "    123  caf\u00e9 "] * 9, trainer)
    return tokenizer


def test_ids_that_only_fill_the_table_are_no_tokens(llama_checkpoint: Path, tmp_path: Path) -> None:
    from edgespec_export import gguf_tokenizer

    file = write_gguf(tmp_path / "tiny.gguf", llama_checkpoint)
    header = gguf_file.read_header(file)
    assert header.metadata["tokenizer.ggml.token_type"].count(5) > 0
    gguf_tokenizer.load(header).save_pretrained(tmp_path / "made")
    ours, theirs = (
        OwnTokenizer(place / "tokenizer.json") for place in (tmp_path / "made", llama_checkpoint)
    )
    assert same_token_ids(ours, theirs)
    assert ours.encode("def add(a, b): 42").tolist() == theirs.encode("def add(a, b): 42").tolist()


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ExportError, match=r"model\.gguf is no GGUF file: it does not begin with"):
        edgespec_export.export(file, tmp_path / "out")
    file.write_bytes(b"")
    with pytest.raises(ExportError, match="is no GGUF file"):
        families.read_config(str(file))


@pytest.mark.parametrize("kept", [6, 30, 500, -1], ids=str)
def test_a_file_that_is_cut_short_is_refused(
    kept: int, llama_checkpoint: Path, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_checkpoint)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ExportError, match=r"is damaged or cut short \(.*\); download it again"):
        families.read_config(str(file))


def test_an_architecture_is_refused_by_the_header_alone(
    llama_checkpoint: Path, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_checkpoint, architecture="mamba")
    with pytest.raises(
        UnsupportedArchitectureError, match=r"has the architecture 'mamba', GGUF files of llama"
    ):
        families.read_config(str(file))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre": "invented"}, "cuts text by the rule 'invented', known are"),
        ({"facts": {"llama.rope.scaling.type": "yarn"}}, "scales its rotary embedding by 'yarn'"),
        ({"facts": {"llama.rope.dimension_count": 8}}, "rotates 8 of 16 numbers of a head"),
        ({"facts": {"split.count": 3}}, "is one of 3 parts; join them first"),
        (
            {"tensors": {"blk.0.ffn_gate_exps.weight": np.ones((2, 2), np.float32)}},
            r"holds blk\.0\.ffn_gate_exps\.weight, which no export reads",
        ),
    ],
    ids=["rule of cutting", "scaled", "rotated in part", "parts", "experts"],
)
def test_what_would_be_left_out_is_refused(
    changes: dict[str, dict[str, object]], said: str, llama_checkpoint: Path, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_checkpoint, **changes)  # type: ignore[arg-type]
    with pytest.raises((ExportError, TokenizerError), match=said):
        edgespec_export.export(file, tmp_path / "out", check=False)
    assert not (tmp_path / "out").exists()


def test_a_missing_gguf_package_is_named(
    llama_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    file = write_gguf(tmp_path / "tiny.gguf", llama_checkpoint)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name)
    )
    with pytest.raises(MissingExtraError, match="exporting needs gguf, not installed here"):
        families.read_config(str(file))


def test_a_transformers_that_reads_other_tokens_is_refused(
    tmp_path: Path, llama_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    file = write_gguf(tmp_path / "tiny.gguf", llama_checkpoint)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "4.57.6")
    said = r"tokenizer transformers reads rightly from 5\.0, 4\.57\.6 is installed; run: pip"
    with pytest.raises(ExportError, match=said):
        families.read_config(str(file))
