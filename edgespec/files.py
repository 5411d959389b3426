"""Files that appear whole or not at all."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write ``path``; whoever reads it meanwhile sees the old file or the new one, whole.

    Args:
        path: The file; one that is there is replaced.
        write: Writes the content into an open file.

    Raises:
        OSError: If it cannot be written; then ``path`` is as it was.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
