"""A folder that appears whole or not at all."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from edgespec import manifest
from edgespec.errors import ExportError

MODEL = "model.onnx"
DRAFT = "draft"
"""The folder in a model's folder with its draft."""
DRAFT_GRAPH = "draft.onnx"
"""A draft's graph that shares its target's weights. It lies beside the target's: ONNX Runtime reads
no weights from outside of a graph's own folder, not even by a link (1.32, tried)."""


@contextlib.contextmanager
def built_whole(out: Path, *, force: bool) -> Iterator[Path]:
    """A temporary folder beside ``out`` that takes its place on success and else disappears.

    Raises:
        ExportError: If ``out`` exists and may not be replaced.
    """
    check_place(out, force=force)
    out.parent.mkdir(parents=True, exist_ok=True)
    mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    building = out.parent / f".{out.name}.{mark}.tmp"
    building.mkdir()
    try:
        yield building
        _put_in_place(building, out, out.parent / f".{out.name}.{mark}.old")
    finally:
        shutil.rmtree(building, ignore_errors=True)


def name_of(source: str) -> str:
    """What a source is called, wherever it lies: the last part of its path, a file's stem."""
    path = Path(source).resolve()
    return path.stem if path.is_file() else path.name


def check_place(out: Path, *, force: bool) -> None:
    """Return if a folder can be made at ``out``.

    Raises:
        ExportError: If something is there, unless it is a model folder and ``force`` is set.
    """
    if not out.exists():
        return
    if not force:
        raise ExportError(f"{out} exists already; choose another folder, or add --force")
    is_model = (out / MODEL).is_file() or (out / manifest.FILE_NAME).is_file()
    if not out.is_dir() or (any(out.iterdir()) and not is_model):
        raise ExportError(
            f"{out} is not a model folder, so --force does not replace it; choose another folder"
        )


def _put_in_place(building: Path, out: Path, aside: Path) -> None:
    """Rename; an old folder steps aside first and comes back if that fails."""
    if out.exists():
        out.rename(aside)
    try:
        building.rename(out)
    except BaseException:
        if aside.exists():
            aside.rename(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)
