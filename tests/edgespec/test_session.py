import json
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edgespec import EdgeGenerator
from edgespec.errors import (
    GraphMismatchError,
    ModelFolderError,
    ProviderError,
    RuntimeTooOldError,
)
from edgespec.session import Session
from tests.folders import move_weights_out, write_folder, write_in_place_folder
from tests.toylm import HASH, Graph, save, write_toy

pytestmark = pytest.mark.onnx

ORT = f"onnxruntime {ort.__version__}"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "model.onnx", HASH)


@pytest.fixture
def with_data(tmp_path: Path) -> Path:
    """A model that keeps its weights in a file beside it."""
    path = write_in_place_folder(tmp_path / "m\u00f6del dir") / "model.onnx"
    move_weights_out(path)
    return path


def refusal(kind: type[Exception], path: Path, provider: str = "cpu") -> str:
    with pytest.raises(kind) as raised:
        Session(path, provider=provider)
    return str(raised.value)


class TestProviders:
    """microsoft/onnxruntime#23372: a provider is what was asked for, or an error."""

    def test_the_provider_that_runs_is_reported(self, toy: Path) -> None:
        session = Session(toy, provider="cpu")
        assert (session.provider, session.device) == ("CPUExecutionProvider", "cpu")

    def test_an_unknown_provider_is_refused(self, toy: Path) -> None:
        said = refusal(ValueError, toy, "tpu")
        assert said == "provider must be 'auto', 'cpu' or 'cuda', got 'tpu'"

    def test_a_provider_that_is_not_there_is_refused(
        self, toy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
        monkeypatch.setattr("edgespec.session._installed", lambda name: name == "onnxruntime")
        assert refusal(ProviderError, toy, "cuda") == (
            "CUDAExecutionProvider is not available: this ONNX Runtime offers "
            "CPUExecutionProvider; pip uninstall -y onnxruntime && pip install onnxruntime-gpu"
        )
        assert Session(toy).provider == "CPUExecutionProvider"

    def test_two_distributions_that_hide_each_other_are_named(
        self, toy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """microsoft/onnxruntime#26996."""
        monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
        monkeypatch.setattr("edgespec.session._installed", lambda name: True)
        assert refusal(ProviderError, toy, "cuda") == (
            "CUDAExecutionProvider is not available: onnxruntime and onnxruntime-gpu are both "
            "installed and hide each other; pip uninstall -y onnxruntime onnxruntime-gpu && "
            "pip install onnxruntime-gpu"
        )

    @pytest.mark.filterwarnings("ignore:Specified provider")
    def test_a_provider_that_the_runtime_replaces_in_silence_is_refused(
        self, toy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The list says CUDA and the session runs on the CPU, as without its libraries."""
        both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        monkeypatch.setattr(ort, "get_available_providers", lambda: both)
        monkeypatch.setattr("edgespec.session._installed", lambda name: name.endswith("-gpu"))
        assert refusal(ProviderError, toy, "cuda") == (
            "CUDAExecutionProvider is not available though onnxruntime-gpu is installed: its CUDA "
            "or cuDNN libraries were not found; install those that its release notes name, or use "
            "provider='cpu'"
        )

    @pytest.mark.filterwarnings("ignore:Specified provider")
    def test_auto_says_once_that_the_cpu_has_to_do(
        self, toy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
        monkeypatch.setattr(ort, "get_available_providers", lambda: both)
        said = (
            "^CUDAExecutionProvider is installed but could not be used; "
            "CPUExecutionProvider runs instead$"
        )
        with pytest.warns(RuntimeWarning, match=said) as warned:
            session = Session(toy)
        assert [w.category for w in warned].count(RuntimeWarning) == 1
        assert (session.provider, session.device) == ("CPUExecutionProvider", "cpu")


class TestBrokenFiles:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        said = refusal(ModelFolderError, tmp_path / "model.onnx")
        path = tmp_path / "model.onnx"
        assert said == f"{path} does not exist; pass an exported model's folder or file"

    @pytest.mark.parametrize("kept", [0, 1, 100, -50], ids=str)
    def test_a_file_cut_short(self, toy: Path, kept: int) -> None:
        toy.write_bytes(toy.read_bytes()[:kept])
        assert refusal(ModelFolderError, toy) == (
            f"{toy} is not a whole ONNX file (damaged or cut short); copy or export it again"
        )

    def test_a_file_of_something_else(self, toy: Path) -> None:
        toy.write_text("version https://git-lfs.github.com/spec/v1\n")
        assert refusal(ModelFolderError, toy) == (
            f"{toy} is not a whole ONNX file (damaged or cut short); copy or export it again"
        )

    def test_a_graph_that_contradicts_itself(self, toy: Path) -> None:
        model = onnx.load(toy)
        del model.graph.node[0]
        onnx.save(model, toy)
        said = refusal(ModelFolderError, toy)
        assert said.startswith(f"{toy} cannot be loaded by {ORT}: ")
        assert "\n" not in said


class TestWeightsBesideTheGraph:
    """huggingface/optimum#254: the file of weights is left behind, cut short or renamed."""

    @pytest.mark.parametrize("name", ["model.onnx.data", "model.onnx_data", "weights.bin"])
    def test_any_name_is_read_from_the_graph(self, tmp_path: Path, name: str) -> None:
        folder = write_in_place_folder(tmp_path / "inside")
        want = EdgeGenerator(folder).generate([1, 2, 3], max_new_tokens=8).tokens.tolist()
        move_weights_out(folder / "model.onnx", name)
        moved = folder.rename(tmp_path / "moved away")
        assert (moved / name).stat().st_size > 5000
        got = EdgeGenerator(moved).generate([1, 2, 3], max_new_tokens=8).tokens.tolist()
        assert got == want

    def test_a_missing_file_is_named(self, with_data: Path) -> None:
        (with_data.parent / "model.onnx.data").unlink()
        assert refusal(ModelFolderError, with_data) == (
            f"{with_data} keeps its weights in model.onnx.data, which is not beside it; "
            "copy that file there under this name, or export the model again"
        )

    def test_a_renamed_file_is_named_as_the_graph_has_it(self, with_data: Path) -> None:
        """microsoft/onnxruntime#6696."""
        (with_data.parent / "model.onnx.data").rename(with_data.parent / "other.data")
        assert "keeps its weights in model.onnx.data, which" in refusal(ModelFolderError, with_data)

    def test_a_file_cut_short_is_told(self, with_data: Path) -> None:
        data = with_data.parent / "model.onnx.data"
        data.write_bytes(data.read_bytes()[:3000])
        assert refusal(ModelFolderError, with_data) == (
            f"the file of weights beside {with_data} is missing or cut short; "
            "copy it again, or export the model again"
        )

    def test_the_graph_may_be_renamed(self, with_data: Path) -> None:
        other = with_data.rename(with_data.with_name("other.onnx"))
        assert Session(other).path == other


class TestAnOlderRuntime:
    """microsoft/onnxruntime#20559."""

    def test_a_newer_file_format_is_told_with_both_versions(self, tmp_path: Path) -> None:
        path = write_toy(tmp_path / "model.onnx", HASH, ir_version=99)
        said = refusal(RuntimeTooOldError, path)
        assert said.startswith(f"{path} has ONNX IR version 99, and {ORT} reads at most ")
        assert said.endswith(
            "; pip install -U onnxruntime, or export the model with an older IR version"
        )

    def test_a_newer_opset_is_told(self, toy: Path) -> None:
        model = onnx.load(toy)
        model.opset_import[0].version = 99
        onnx.save(model, toy)
        said = refusal(RuntimeTooOldError, toy)
        assert said == (
            f"{toy} uses opset 99 of ai.onnx, which {ORT} does not know; pip install -U onnxruntime"
        )

    @pytest.mark.parametrize("domain", ["", "com.microsoft"])
    def test_an_operator_of_later_days_is_named(self, toy: Path, domain: str) -> None:
        model = onnx.load(toy)
        for node in model.graph.node:
            if node.op_type == "OneHot":
                node.op_type, node.domain = "OneColdHot", domain
        onnx.save(model, toy)
        said = refusal(RuntimeTooOldError, toy)
        assert said.startswith(f"{toy} uses an operator that {ORT} does not know (")
        assert "OneColdHot" in said


def test_an_element_type_that_cannot_be_held_is_named(tmp_path: Path) -> None:
    g = Graph()
    g.nodes.append(helper.make_node("Identity", ["past_key_values.0.key"], ["logits"]))
    info = helper.make_tensor_value_info
    path = tmp_path / "model.onnx"
    save(
        path,
        g,
        [info("past_key_values.0.key", TensorProto.UINT8, ["n"])],
        [info("logits", TensorProto.UINT8, ["n"])],
    )
    said = refusal(GraphMismatchError, path)
    assert said.startswith("past_key_values.0.key has the element type tensor(uint8), known are ")
    assert said.endswith("; export the model again")


def test_two_generators_live_side_by_side(tmp_path: Path) -> None:
    one = EdgeGenerator(write_folder(tmp_path / "one", HASH))
    two = EdgeGenerator(write_folder(tmp_path / "two", HASH, 32))
    first, second = (g.generate([3, 9, 4], max_new_tokens=3).tokens.tolist() for g in (one, two))
    assert first != second
    assert one.session.threads == two.session.threads


@pytest.mark.parametrize(
    ("needed", "found", "refused"),
    [
        ("1.28", "1.27.0", True),
        ("1.28", "1.28.0", False),
        ("1.9", "1.32.0", False),
        ("1.28", "1.30.0.dev20261201", False),
        (None, "1.23.2", False),
    ],
)
def test_an_older_runtime_than_the_graph_needs_is_refused(
    needed: str | None, found: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_in_place_folder(tmp_path)
    said = json.loads((folder / "edgespec.json").read_text("utf-8"))
    (folder / "edgespec.json").write_text(json.dumps({**said, "min_onnxruntime": needed}))
    monkeypatch.setattr(ort, "__version__", found)
    if not refused:
        assert EdgeGenerator(folder).generate([3], max_new_tokens=2).tokens.size == 2
        return
    with pytest.raises(RuntimeTooOldError) as caught:
        EdgeGenerator(folder)
    assert str(caught.value) == (
        f"{folder / 'model.onnx'} needs onnxruntime {needed} or newer, found {found}; "
        "pip install -U onnxruntime, or export the model again with --cache growing"
    )
