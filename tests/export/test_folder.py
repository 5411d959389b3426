"""A folder appears whole or not at all, and never in place of something else."""

from pathlib import Path

import pytest
from edgespec_export.folder import built_whole, check_place

from edgespec.errors import ExportError


def test_a_folder_appears_when_it_is_finished(tmp_path: Path) -> None:
    out = tmp_path / "a" / "model"
    with built_whole(out, force=False) as building:
        (building / "model.onnx").write_text("new")
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["model.onnx"]
    assert [path.name for path in out.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_behind(fault: type[BaseException], tmp_path: Path) -> None:
    def build() -> None:
        with built_whole(tmp_path / "model", force=False) as building:
            (building / "model.onnx").write_text("half")
            raise fault

    with pytest.raises(fault):
        build()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    out = write_old(tmp_path)
    with (
        pytest.raises(ExportError, match=r"exists already; choose another folder, or add --force$"),
        built_whole(out, force=False),
    ):
        raise AssertionError
    assert (out / "model.onnx").read_text() == "old"


def test_force_replaces_a_model_folder_whole(tmp_path: Path) -> None:
    out = write_old(tmp_path)
    with built_whole(out, force=True) as building:
        (building / "model.onnx").write_text("new")
        assert (out / "model.onnx").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert {p.name: p.read_text() for p in out.iterdir()} == {"model.onnx": "new"}


def test_a_failure_with_force_keeps_the_old_folder(tmp_path: Path) -> None:
    out = write_old(tmp_path)
    with pytest.raises(RuntimeError), built_whole(out, force=True):
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (out / "model.onnx").read_text() == "old"


def test_force_replaces_nothing_that_is_not_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="is not a model folder, so --force does not replace it"):
        check_place(tmp_path, force=True)
    with pytest.raises(ExportError, match="is not a model folder"):
        check_place(tmp_path / "thesis.txt", force=True)


def write_old(parent: Path) -> Path:
    out = parent / "model"
    out.mkdir()
    (out / "model.onnx").write_text("old")
    (out / "left_over.bin").write_text("old")
    return out
