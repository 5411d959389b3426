"""A draft goes into its target's folder, and the runtime finds and uses it there."""

import shutil
from pathlib import Path

import edgespec_export
import edgespec_export.command
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from edgespec_export import drafts

from edgespec import EdgeGenerator
from edgespec.errors import UnsupportedArchitectureError
from edgespec.manifest import Manifest
from tests.export.checkpoints import reference_logits, write_checkpoint
from tests.export.gguf_files import write_gguf
from tests.export.test_export import Steps

pytestmark = pytest.mark.export

TOKENS = [5, 9, 77, 250, 41, 8]


def check_serves(folder: Path) -> None:
    """The text with the folder's draft is the target's own, and the draft proposed."""
    plain = EdgeGenerator(folder).generate(TOKENS, max_new_tokens=20, eos_token_id=())
    generator = EdgeGenerator(folder, draft=True)
    for draft in (None, True):
        result = generator.generate(
            TOKENS, max_new_tokens=20, eos_token_id=(), num_assistant_tokens=3, draft=draft
        )
        assert result.tokens.tolist() == plain.tokens.tolist()
        assert result.stats.proposed > 0


@pytest.fixture(scope="module")
def sliced(llama_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sliced") / "out"
    return edgespec_export.export(llama_checkpoint, out, draft="layers:1")


def test_the_first_layers_compute_what_the_checkpoint_computes_up_to_there(
    llama_checkpoint: Path, sliced: Path, tmp_path: Path
) -> None:
    from edgespec_export.cache_layouts.base import CacheShape
    from edgespec_export.written import Written
    from transformers import AutoModelForCausalLM

    manifest = Manifest.read(sliced / "draft")
    assert manifest is not None
    assert (manifest.num_layers, manifest.graph) == (1, "../draft.onnx")
    model = AutoModelForCausalLM.from_pretrained(llama_checkpoint)
    del model.model.layers[1:]
    model.config.num_hidden_layers = 1
    model.save_pretrained(tmp_path / "first")
    expected = reference_logits(tmp_path / "first", TOKENS)
    written = Written(sliced / "draft.onnx", CacheShape(1, 2, 16), 64)
    assert np.abs(written.read(TOKENS) - expected).max() < 1e-4
    assert np.abs(expected - reference_logits(llama_checkpoint, TOKENS)).max() > 1e-2


def test_the_first_layers_hold_no_weight_a_second_time(sliced: Path, tmp_path: Path) -> None:
    graph = onnx.load(sliced / "draft.onnx", load_external_data=False).graph
    inside = [t for t in graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    assert sum(len(t.raw_data) for t in inside) < 2000
    places = {e.value for t in graph.initializer for e in t.external_data if e.key == "location"}
    assert places == {"model.onnx.data"}
    assert [p.name for p in (sliced / "draft").glob("*.onnx*")] == []
    moved = tmp_path / "moved"
    shutil.copytree(sliced, moved)
    check_serves(moved)


def test_another_checkpoint_of_the_same_tokenizer_proposes_token_ids(
    llama_checkpoint: Path, tmp_path: Path
) -> None:
    file = write_gguf(
        tmp_path / "small.gguf", write_checkpoint(tmp_path / "small", "qwen2", num_hidden_layers=1)
    )
    done = CliRunner().invoke(
        edgespec_export.command.command,
        [str(llama_checkpoint), "-o", str(tmp_path / "out"), "--draft", str(file)],
    )
    assert "draft: assisted: it proposes token ids" in done.stdout
    manifest = Manifest.read(tmp_path / "out" / "draft")
    assert manifest is not None
    assert (manifest.architecture, manifest.source) == ("qwen2", "small.gguf")
    check_serves(tmp_path / "out")


def test_another_tokenizer_proposes_text(llama_checkpoint: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    small = write_checkpoint(tmp_path / "small", "llama", num_hidden_layers=1)
    said = Tokenizer.from_file(str(small / "tokenizer.json"))
    said.add_tokens(["return"])
    said.save(str(small / "tokenizer.json"))
    folder = edgespec_export.export(llama_checkpoint, tmp_path / "out", draft=small, check=False)
    assert drafts.serves(folder).startswith(
        "universal: it proposes by way of the text, as the tokenizer "
    )
    check_serves(folder)


@pytest.fixture(scope="module")
def beside_float(
    llama_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Steps]:
    """A float32 target with itself in int4 for a draft, and the steps of that export."""
    steps, out = Steps(), tmp_path_factory.mktemp("quantised") / "out"
    return edgespec_export.export(llama_checkpoint, out, draft="int4", progress=steps), steps


def test_the_checkpoint_quantised_is_a_draft_of_itself_from_one_trace(
    beside_float: tuple[Path, Steps],
) -> None:
    folder, steps = beside_float
    assert steps.names[-4:] == ["check", "draft: to int4", "draft: write", "draft: check"]
    said = [Manifest.read(place) for place in (folder, folder / "draft")]
    assert [(m.precision, m.source) for m in said if m] == [
        ("fp32", "tiny-llama"),
        ("int4", "tiny-llama"),
    ]
    check_serves(folder)


def test_a_draft_does_not_inherit_how_its_target_was_rounded(
    llama_checkpoint: Path, beside_float: tuple[Path, Steps], tmp_path: Path
) -> None:
    folder = edgespec_export.export(
        llama_checkpoint, tmp_path / "out", precision="int8", draft="int4", check=False
    )
    both = [(place / "draft" / "model.onnx").read_bytes() for place in (folder, beside_float[0])]
    assert both[0] == both[1]


def test_a_draft_that_fails_leaves_no_folder(llama_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        edgespec_export.export(
            llama_checkpoint,
            tmp_path / "out",
            draft="layers:1",
            check=False,
            progress=Steps(stop_at="draft: write"),
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"draft": "layers:2"}, r"draft layers:N must keep 1 to 1 of the 2 layers, got 2"),
        ({"draft": "layers:0"}, r"draft layers:N must keep 1 to 1 of the 2 layers, got 0"),
        ({"draft": "layers:1", "draft_precision": "int4"}, r"shares the target's weights, so"),
        ({"draft": "fp32"}, r"draft fp32 would be its target once more"),
        ({"draft": "int3"}, r"^precision must be one of fp32.*, got 'int3'"),
        ({"draft": "int4", "draft_precision": "int8"}, r"is a precision, got draft_precision int8"),
        ({"draft_precision": "int4"}, r"draft_precision 'int4' was given without a draft"),
    ],
)
def test_drafts_that_cannot_be_meant_are_refused_before_anything_is_loaded(
    arguments: dict[str, str], said: str, llama_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        edgespec_export.export(llama_checkpoint, tmp_path / "out", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_draft_of_an_unknown_architecture_is_refused_before_anything_is_loaded(
    llama_checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    steps = Steps()
    with pytest.raises(UnsupportedArchitectureError, match="model_type 'mamba'"):
        edgespec_export.export(llama_checkpoint, tmp_path / "out", draft=tmp_path, progress=steps)
    assert steps.names == []
