"""The face of the exporter: its arguments, its steps, and what it needs."""

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import edgespec_export
import pytest

from edgespec.errors import ExportError, MissingExtraError

pytestmark = pytest.mark.export


def test_importing_the_exporter_imports_no_pytorch() -> None:
    code = "import sys, edgespec_export; assert not {'torch', 'onnx', 'optimum'} & set(sys.modules)"
    path = [p for p in sys.path if p]
    command = f"import sys; sys.path[:0] = {path!r}; {code}"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_missing_packages_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("torch", "onnx_ir") else found(name),
    )
    with pytest.raises(MissingExtraError) as caught:
        edgespec_export.export(tmp_path)
    assert str(caught.value) == (
        'exporting needs torch, onnx-ir, not installed here; run: pip install "edgespec[export]"'
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"precision": "int2"}, "precision must be one of fp32, fp16, int8, int4, got 'int2'"),
        ({"accuracy_level": 4}, "accuracy_level belongs to precision int8 or int4, got fp32"),
        ({"precision": "int8", "block_size": 48}, "block_size must be one of 16, .*, got 48"),
        (
            {"precision": "int8", "int8_layers": "mixed"},
            "int8_layers belongs to precision int4, got int8",
        ),
        (
            {"precision": "int4", "int8_layers": "head"},
            "int8_layers must be one of auto, none, mixed, got 'head'",
        ),
        (
            {"precision": "int4", "weights": "fp16"},
            "weights='fp16' belongs to precision fp32, got int4",
        ),
        ({"weights": "int8"}, "weights must be one of fp32, fp16, got 'int8'"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
    ],
)
def test_arguments_out_of_bounds_are_refused(
    arguments: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        edgespec_export.export(tmp_path, **arguments)  # type: ignore[arg-type]


def test_an_existing_folder_is_refused_before_anything_is_loaded(
    llama_checkpoint: Path, llama_folder: Path
) -> None:
    before = (llama_folder / "edgespec.json").stat().st_mtime_ns
    with pytest.raises(ExportError, match="exists already"):
        edgespec_export.export(llama_checkpoint, llama_folder, progress=Steps())
    assert (llama_folder / "edgespec.json").stat().st_mtime_ns == before


def test_progress_is_told_of_each_step_and_out_is_named_like_the_source(
    llama_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = Steps()
    folder = edgespec_export.export(llama_checkpoint, progress=steps)
    assert steps.names == ["load checkpoint", "trace", "cache", "fuse", "write", "check"]
    assert folder.resolve() == (tmp_path / "tiny-llama").resolve()


def test_an_interruption_leaves_no_folder(llama_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        edgespec_export.export(llama_checkpoint, tmp_path / "out", progress=Steps(stop_at="check"))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_printed(llama_checkpoint: Path, tmp_path: Path) -> None:
    # In a process of its own: libraries speak most when they are first imported.
    code = "import sys, edgespec_export; edgespec_export.export(sys.argv[1], sys.argv[2])"
    command = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}; {code}"
    done = subprocess.run(
        [sys.executable, "-c", command, str(llama_checkpoint), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_window_that_the_attention_does_not_mention_is_refused() -> None:
    import onnx_ir as ir
    from edgespec_export.trace import _check_windows

    node = ir.node("CachedAttention", [], {"layer": 0, "window": 0}, domain="edgespec")
    graph = ir.Graph([], [], nodes=[node], opset_imports={"": 20})
    config = SimpleNamespace(
        sliding_window=8, layer_types=["sliding_attention"], model_type="invented"
    )
    with pytest.raises(ExportError, match="layer 0 of invented should attend to 8 tokens"):
        _check_windows(ir.Model(graph, ir_version=10), config)  # type: ignore[arg-type]


class Steps:
    """Remembers the steps that it is told of; stops like a user at one of them."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.names: list[str] = []
        self._stop_at = stop_at

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.names.append(name)
        if name == self._stop_at:
            raise KeyboardInterrupt
        yield
