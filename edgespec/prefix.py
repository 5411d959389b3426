"""A text that was read: its tokens and what the cache held of it, in memory or in a file."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgespec.arrays import CacheRows, TokenIds
from edgespec.errors import PrefixFileError
from edgespec.files import write_whole

FORMAT = 1
_FIELDS = {
    "graph": "the graph",
    "tokenizer": "the tokenizer",
    "cache": "the cache",
}
"""What must be the same where a file is written and read."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The start of texts, read once.

    Attributes:
        tokens: [T] token ids.
        rows: [T, N] their keys and values.
        is_exact: Whether they are the bits that ``exact=True`` reads on this machine.
    """

    tokens: TokenIds
    rows: CacheRows
    is_exact: bool


def common_start(one: TokenIds, other: TokenIds) -> int:
    """How many tokens are the same at the start of both."""
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    first = int(differ.argmax()) if count else 0
    return first if count and differ[first] else count


def save_prefix(
    path: str | PathLike[str], name: str, prefix: Prefix, made_by: Mapping[str, str]
) -> None:
    """Write a prefix; whoever reads the file meanwhile sees the old one or the new one, whole.

    Args:
        path: The file: a NumPy archive without pickled objects.
        name: What the prefix is called.
        prefix: What was read.
        made_by: The model that read it, as :func:`load_prefix` will compare it.

    Raises:
        PrefixFileError: If the file cannot be written.
    """
    said = {"format": FORMAT, "name": name, "is_exact": prefix.is_exact, **made_by}
    about = np.frombuffer(json.dumps(said).encode(), np.uint8)

    def write(file: BinaryIO) -> None:
        np.savez(file, about=about, tokens=prefix.tokens, rows=prefix.rows)

    try:
        write_whole(Path(path), write)
    except OSError as error:
        raise PrefixFileError(f"{path} cannot be written: {error.strerror or error}") from None


def load_prefix(path: str | PathLike[str], read_by: Mapping[str, str]) -> tuple[str, Prefix]:
    """Read a prefix that :func:`save_prefix` wrote.

    Args:
        path: The file.
        read_by: The model that is to go on from it.

    Returns:
        Its name and the prefix. It is exact only if the same machine and ONNX Runtime read it.

    Raises:
        PrefixFileError: If the file cannot be read, is no such file, is cut or damaged, of another
            format, or was made by another model.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
            said = json.loads(content["about"].tobytes())
            found = said.get("format")
            if found != FORMAT:
                raise PrefixFileError(
                    f"{path} has format {found}, this edgespec reads {FORMAT}; update edgespec, or "
                    "save the prefix again"
                )
            for field, what in _FIELDS.items():
                if said[field] != read_by[field]:
                    raise PrefixFileError(
                        f"{path} was made with another model: {what} is {_short(said[field])}, "
                        f"here {_short(read_by[field])}; save the prefix again with this model"
                    )
            is_exact = bool(said["is_exact"]) and said["machine"] == read_by["machine"]
            tokens, rows = content["tokens"], content["rows"]
            name = str(said["name"])
    except OSError as error:
        raise PrefixFileError(f"{path} cannot be read: {error.strerror or error}") from None
    # What NumPy, the archive (one of another form too) and its JSON raise for wrong bytes.
    except (
        *(ValueError, KeyError, TypeError, AttributeError, EOFError),
        *(RuntimeError, zipfile.BadZipFile, zlib.error),
    ):
        raise PrefixFileError(
            f"{path} is no saved prefix, or a damaged one; save the prefix again"
        ) from None
    if tokens.ndim != 1 or rows.ndim != 2 or len(rows) != len(tokens) or not len(tokens):
        raise PrefixFileError(
            f"{path} holds {len(tokens)} tokens and rows of shape {list(rows.shape)}, which do not "
            "fit; save the prefix again"
        )
    return name, Prefix(tokens.astype(np.int64), rows, is_exact)


def _short(value: str) -> str:
    return f"{value[:12]}..." if len(value) == 64 else value
