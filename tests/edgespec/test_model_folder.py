import json
import os
import shutil
from pathlib import Path

import onnx
import pytest

from edgespec import EdgeGenerator
from edgespec.errors import ModelFolderError, TokenizerError, VocabularyMismatchError
from edgespec.model_folder import open_model_folder
from tests.folders import (
    GENAI_CONFIG,
    METASPACE,
    byte_tokenizer,
    metaspace_tokenizer,
    move_weights_out,
    write_folder,
    write_in_place_folder,
    write_json,
)
from tests.toylm import HASH, MARKOV, oracle, write_toy


def refusal(path: str | Path) -> str:
    with pytest.raises(ModelFolderError) as raised:
        open_model_folder(path)
    return str(raised.value)


@pytest.mark.onnx
class TestPaths:
    """microsoft/onnxruntime#6696: a model loads from anywhere, however its path is written."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = write_in_place_folder(tmp_path / "m\u00f6del dir" / "na\u00efve \U0001f600")
        move_weights_out(folder / "model.onnx")
        return folder

    @pytest.mark.parametrize("written", ["folder", "file", "str", "relative", "home", "dots"])
    def test_every_way_to_write_a_path_is_understood(
        self, folder: Path, tmp_path: Path, written: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir("/")
        ways: dict[str, str | Path] = {
            "folder": folder,
            "file": folder / "model.onnx",
            "str": str(folder),
            "relative": os.path.relpath(folder, "/"),
            "home": f"~/{folder.relative_to(tmp_path)}",
            "dots": folder / ".." / folder.name,
        }
        generator = EdgeGenerator(ways[written])
        monkeypatch.chdir(tmp_path)  # what comes later must not depend on it
        text = generator.generate([1, 2, 3], max_new_tokens=6).tokens.tolist()
        assert text == EdgeGenerator(folder).generate([1, 2, 3], max_new_tokens=6).tokens.tolist()

    def test_a_folder_on_the_way_may_be_a_link(self, folder: Path, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(folder, target_is_directory=True)
        assert EdgeGenerator(link).generate([1, 2, 3], max_new_tokens=2).tokens.size == 2


class TestNoModel:
    def test_a_path_that_leads_nowhere(self, tmp_path: Path) -> None:
        path = tmp_path / "missing"
        assert refusal(path) == (f"{path} does not exist; pass a model's folder or .onnx file")

    @pytest.mark.parametrize("name", ["~nosuchuser/model", "x" * 300, "a\0b"], ids=str.__repr__)
    def test_a_path_that_could_never_lead_anywhere(self, name: str) -> None:
        assert refusal(name).endswith(" does not exist; pass a model's folder or .onnx file")

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        assert refusal(tmp_path) == f"{tmp_path} holds no model.onnx"

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_checkpoint_is_to_be_exported_first(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("{}")
        assert refusal(tmp_path) == (
            f"{tmp_path} holds no model.onnx: it is a checkpoint; "
            f"export it first: edgespec export {tmp_path}"
        )

    def test_several_models_and_none_that_is_meant(self, tmp_path: Path) -> None:
        for name in ("b.onnx", "a.onnx"):
            (tmp_path / name).write_bytes(b"")
        assert refusal(tmp_path) == (
            f"{tmp_path} holds several models (a.onnx, b.onnx); pass the file that is meant"
        )

    def test_a_file_that_is_no_model(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(b"")
        assert refusal(path) == (f"{path} is no .onnx file; pass a model's folder or .onnx file")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["model.onnx", "other.onnx"], "model.onnx"),
        (["decoder_with_past_model.onnx", "decoder_model.onnx"], "decoder_with_past_model.onnx"),
        (["onnx/model.onnx"], "onnx/model.onnx"),
        (["smollm.onnx"], "smollm.onnx"),
    ],
    ids=["ours", "optimum's", "in a folder of its own", "the only one"],
)
def test_the_graph_is_found_under_the_names_that_exporters_give(
    tmp_path: Path, files: list[str], found: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert open_model_folder(tmp_path).graph == tmp_path / found


class TestWhatIsSaid:
    @pytest.mark.parametrize("name", ["edgespec.json", "generation_config.json", "config.json"])
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{", "cannot be read as JSON: "),
            ("\ufeff", "cannot be read as JSON: "),
            ("[]", "should hold a JSON object, got list"),
        ],
        ids=["broken", "empty", "a list"],
    )
    def test_a_file_that_is_no_json_object_is_named(
        self, tmp_path: Path, name: str, text: str, said: str
    ) -> None:
        (tmp_path / "model.onnx").write_bytes(b"")
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert refusal(tmp_path).startswith(f"{tmp_path / name} {said}")

    def test_what_a_manifest_lacks_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"")
        write_json(tmp_path / "edgespec.json", {"architecture": "llama", "vocab_size": 5})
        assert refusal(tmp_path) == (
            f"{tmp_path / 'edgespec.json'} lacks max_length, cache_layout, num_layers, "
            "num_kv_heads, head_size; export the model again"
        )

    def test_a_manifest_of_later_days_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"")
        write_json(tmp_path / "edgespec.json", {"format": 2})
        assert refusal(tmp_path) == (
            f"{tmp_path / 'edgespec.json'} has format 2, this edgespec reads 1; "
            "update edgespec, or export the model again"
        )

    def test_unknown_facts_in_a_manifest_are_no_harm(self, tmp_path: Path) -> None:
        folder = write_in_place_folder(tmp_path)
        text = (folder / "edgespec.json").read_text().replace("{", '{"color": "red",', 1)
        (folder / "edgespec.json").write_text(text)
        assert open_model_folder(folder).manifest.cache_layout == "in_place"

    def test_a_checkpoints_configuration_serves_where_nothing_else_does(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "model.onnx").write_bytes(b"")
        said = {
            "model_type": "llama",
            "vocab_size": 99,
            "max_position_embeddings": 77,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hidden_size": 64,
            "eos_token_id": [5, 6],
        }
        write_json(tmp_path / "config.json", said)
        opened = open_model_folder(tmp_path)
        manifest = opened.manifest
        assert opened.made_by == "another exporter"
        assert (manifest.architecture, manifest.vocab_size, manifest.max_length) == (
            "llama",
            99,
            77,
        )
        assert (manifest.num_layers, manifest.num_kv_heads, manifest.head_size) == (3, 2, 16)
        assert (manifest.eos_token_ids, manifest.cache_layout) == ((5, 6), "growing")

    @pytest.mark.parametrize("said", ["</s>", None], ids=["a string", "nothing"])
    def test_an_end_token_that_is_no_id_is_left_out(self, tmp_path: Path, said: object) -> None:
        (tmp_path / "model.onnx").write_bytes(b"")
        write_json(tmp_path / "config.json", {"eos_token_id": said})
        assert open_model_folder(tmp_path).manifest.eos_token_ids == ()


class TestBuilderFolders:
    """Folders of onnxruntime-genai's builder."""

    def test_they_say_in_their_own_way_what_a_manifest_says(self, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"")
        write_json(tmp_path / "genai_config.json", GENAI_CONFIG)
        opened = open_model_folder(tmp_path)
        manifest = opened.manifest
        assert opened.made_by == "onnxruntime-genai"
        assert (manifest.architecture, manifest.max_length) == ("llama", 600)
        assert (manifest.cache_layout, manifest.eos_token_ids) == ("in_place", (0, 63))

    @pytest.mark.onnx
    def test_they_run(self, tmp_path: Path) -> None:
        ours = write_in_place_folder(tmp_path / "ours")
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        shutil.copy(ours / "model.onnx", theirs)
        write_json(theirs / "genai_config.json", GENAI_CONFIG)
        texts = [
            EdgeGenerator(folder).generate(
                [1, 2, 3], max_new_tokens=12, eos_token_id=None, lookup=True
            )
            for folder in (ours, theirs)
        ]
        assert texts[0].tokens.tolist() == texts[1].tokens.tolist()

    @pytest.mark.parametrize("said", [{}, {"model": {"decoder": {}}}, {"model": []}], ids=str)
    def test_a_configuration_that_lacks_something_is_named(
        self, tmp_path: Path, said: object
    ) -> None:
        (tmp_path / "model.onnx").write_bytes(b"")
        write_json(tmp_path / "genai_config.json", said)
        told = refusal(tmp_path)
        assert told.startswith(f"{tmp_path / 'genai_config.json'} does not say what it should (")
        assert told.endswith("; build the model again")


@pytest.mark.onnx
class TestTokenizer:
    def test_a_model_without_one_takes_token_ids(self, tmp_path: Path) -> None:
        """huggingface/optimum-intel#1388."""
        generator = EdgeGenerator(write_folder(tmp_path, HASH))
        with pytest.raises(TokenizerError) as raised:
            generator.generate("abc", max_new_tokens=2)
        assert str(raised.value) == (
            f"{tmp_path / 'tokenizer.json'} does not exist; copy it from the checkpoint, "
            "or pass token ids"
        )
        result = generator.generate([1, 2], max_new_tokens=4)
        assert (result.text, result.tokens.tolist()) == ("", oracle(HASH, [1, 2], 4))

    def test_one_with_more_ids_than_the_model_is_refused(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path, MARKOV, 64, tokenizer=byte_tokenizer())
        with pytest.raises(TokenizerError) as raised:
            EdgeGenerator(folder)
        assert str(raised.value) == (
            f"{folder / 'tokenizer.json'} has 257 token ids, but {folder / 'model.onnx'} scores "
            "64; it belongs to another model: copy the tokenizer.json of this one"
        )

    def test_a_graph_alone_is_enough_for_token_ids(self, tmp_path: Path) -> None:
        path = write_toy(tmp_path / "toy.onnx", HASH)
        result = EdgeGenerator(path).generate([1, 2], max_new_tokens=4)
        assert result.tokens.tolist() == oracle(HASH, [1, 2], 4)


@pytest.mark.onnx
class TestDraftInside:
    """A draft in its target's folder, which ``draft=True`` means."""

    def test_its_graph_may_lie_beside_that_of_its_target(self, tmp_path: Path) -> None:
        folder = write_in_place_folder(tmp_path / "model")
        move_weights_out(folder / "model.onnx")
        shutil.copyfile(folder / "model.onnx", folder / "draft.onnx")
        (folder / "draft").mkdir()
        said = json.loads((folder / "edgespec.json").read_text(encoding="utf-8"))
        write_json(folder / "draft" / "edgespec.json", {**said, "graph": "../draft.onnx"})
        generator = EdgeGenerator(folder, draft=True)
        assert generator.folder.graph.name == "model.onnx"
        assert generator.draft is not None
        assert generator.draft.session.path == (folder / "draft.onnx").resolve()
        assert generator.draft.folder.folder == folder / "draft"
        result = generator.generate([1, 2, 3], max_new_tokens=8, num_assistant_tokens=3)
        assert result.stats.accepted == result.stats.evaluated > 0

    def test_it_may_have_a_tokenizer_of_its_own(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "model", HASH, 257, tokenizer=byte_tokenizer(), eos=256)
        write_folder(folder / "draft", HASH, len(METASPACE), tokenizer=metaspace_tokenizer(), eos=2)
        plain = EdgeGenerator(folder).generate("Hello", max_new_tokens=12)
        for generator, draft in (
            (EdgeGenerator(folder, draft=True), None),
            (EdgeGenerator(folder), True),
        ):
            result = generator.generate(
                "Hello", max_new_tokens=12, num_assistant_tokens=3, draft=draft
            )
            assert result.tokens.tolist() == plain.tokens.tolist()
        with pytest.raises(VocabularyMismatchError, match="universal_draft=True"):
            EdgeGenerator(folder, draft=folder / "draft")


def test_weights_in_another_folder_than_the_configuration_are_part_of_the_digest(
    tmp_path: Path,
) -> None:
    """transformers.js keeps its graphs in ``onnx/``, with their weights beside them."""
    write_folder(tmp_path, HASH)
    (tmp_path / "onnx").mkdir()
    model = onnx.load(tmp_path / "model.onnx")
    (tmp_path / "model.onnx").unlink()
    graph = tmp_path / "onnx" / "model.onnx"
    onnx.save(
        model, graph, save_as_external_data=True, location="model.onnx_data", size_threshold=0
    )
    folder = open_model_folder(tmp_path)
    assert folder.folder != folder.graph.parent
    before = folder.sha256()
    weights = tmp_path / "onnx" / "model.onnx_data"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert folder.sha256() != before
