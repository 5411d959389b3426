"""One small export that tests share when they only read it."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def llama_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.export.checkpoints import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny-llama", "llama")


@pytest.fixture(scope="session")
def llama_folder(llama_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import edgespec_export

    return edgespec_export.export(llama_checkpoint, tmp_path_factory.mktemp("exported") / "llama")
