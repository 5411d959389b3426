"""What is asked of a checkpoint before it is traced."""

import json
import shutil
from pathlib import Path

import edgespec_export
import pytest

from edgespec.errors import ExportError, TokenizerError
from tests.export.checkpoints import write_checkpoint
from tests.export.family_cases import LLAMA3_ROPE

pytestmark = pytest.mark.export


def copy_without(checkpoint: Path, folder: Path, *names: str) -> Path:
    shutil.copytree(checkpoint, folder)
    for name in names:
        (folder / name).unlink()
    return folder


def change_config(checkpoint: Path, **changes: object) -> None:
    path = checkpoint / "config.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**said, **changes}), encoding="utf-8")


def test_without_a_tokenizer_nothing_is_exported(llama_checkpoint: Path, tmp_path: Path) -> None:
    names = ("tokenizer.json", "tokenizer_config.json")
    source = copy_without(llama_checkpoint, tmp_path / "source", *names)
    with pytest.raises(TokenizerError, match="has no tokenizer that can be loaded"):
        edgespec_export.export(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_vocabulary_and_merges_becomes_tokenizer_json(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "gpt2", vocab_size=320)
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (source / "vocab.json").write_text(json.dumps(tokenizer["vocab"]), encoding="utf-8")
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]]
    (source / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    (source / "tokenizer.json").unlink()
    said = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "</s>",
    }
    (source / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    folder = edgespec_export.export(source, tmp_path / "out", check=False)
    made = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert made["model"]["vocab"] == tokenizer["vocab"]


def test_tokenizer_json_is_copied_as_it_is(llama_checkpoint: Path, llama_folder: Path) -> None:
    name = "tokenizer.json"
    assert (llama_folder / name).read_bytes() == (llama_checkpoint / name).read_bytes()


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", "llama", vocab_size=100)
    with pytest.raises(TokenizerError, match=r"the tokenizer has \d+ ids, the model's logits 100;"):
        edgespec_export.export(source, tmp_path / "out")


def test_missing_weights_are_not_made_up(llama_checkpoint: Path, tmp_path: Path) -> None:
    source = copy_without(llama_checkpoint, tmp_path / "source")
    change_config(source, num_hidden_layers=3)
    with pytest.raises(ExportError, match=r"lacks \d+ of the model's weights, the first is model"):
        edgespec_export.export(source, tmp_path / "out")


def test_truncated_weights_are_refused(llama_checkpoint: Path, tmp_path: Path) -> None:
    source = copy_without(llama_checkpoint, tmp_path / "source")
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ExportError, match=r"^the weights of .* cannot be loaded: "):
        edgespec_export.export(source, tmp_path / "out")


def test_length_dependent_rotation_is_refused(llama_checkpoint: Path, tmp_path: Path) -> None:
    source = copy_without(llama_checkpoint, tmp_path / "source")
    rope = {**LLAMA3_ROPE, "rope_type": "dynamic"}
    change_config(source, rope_parameters=rope, rope_scaling=rope)
    with pytest.raises(ExportError, match="'dynamic' change with the length of the text"):
        edgespec_export.export(source, tmp_path / "out")


@pytest.mark.parametrize("max_length", [15, 65])
def test_max_length_has_bounds(max_length: int, llama_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"max_length must be 16 to 64 .*, got {max_length}$"):
        edgespec_export.export(llama_checkpoint, tmp_path / "out", max_length=max_length)


def test_max_length_shortens_the_tables(llama_checkpoint: Path, tmp_path: Path) -> None:
    import onnx

    folder = edgespec_export.export(llama_checkpoint, tmp_path / "out", max_length=16)
    model = onnx.load(folder / "model.onnx")
    tables = [t for t in model.graph.initializer if t.name.startswith(("cos_", "sin_"))]
    assert [list(table.dims) for table in tables] == [[16, 8], [16, 8]]


def test_the_chat_template_comes_along(llama_checkpoint: Path, tmp_path: Path) -> None:
    source = copy_without(llama_checkpoint, tmp_path / "source")
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (source / "chat_template.jinja").write_text(template, encoding="utf-8")
    folder = edgespec_export.export(source, tmp_path / "out", check=False)
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == template
