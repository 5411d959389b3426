"""``edgespec ngrams``: files of n-grams that candidates are drafted from."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from edgespec.errors import NgramFileError
from edgespec.model_folder import open_model_folder
from edgespec.ngram_store import FORMAT, MAX_ENTRIES, NgramStore
from edgespec.tokenizer import Tokenizer

_PIECE = 1_000_000
"""Characters that are tokenised at once, up to the end of a line."""

_output = click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to write; one that is there is replaced.",
)
_max_entries = click.option(
    "--max-entries",
    type=click.IntRange(min=1),
    help="Keep so many entries of 16 bytes, the most frequent ones.  [default: 1,000,000, or "
    "the most that a merged file may hold]",
)


@click.group("ngrams")
def command() -> None:
    """Build, describe and merge files of n-grams.

    Such a file says how often which token followed one to four others in a corpus; candidates are
    drafted from it. It holds for one tokenizer.
    """


@command.command("build")
@click.argument(
    "corpus",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="CORPUS...",
)
@_output
@click.option(
    "--model", metavar="MODEL", help="Count tokens of this model.  [default: the embedded one]"
)
@click.option(
    "--tokenizer",
    "tokenizer_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Count tokens of this tokenizer.json instead.",
)
@_max_entries
def build(
    corpus: tuple[Path, ...],
    output: Path,
    model: str | None,
    tokenizer_file: Path | None,
    max_entries: int | None,
) -> None:
    """Count the n-grams of CORPUS, text files and folders of such, in UTF-8.

    Without --model or --tokenizer the tokens are those of the small model that comes with edgespec.
    In a folder, files that are no text and those whose names begin with a dot are passed over.
    """
    if model is not None and tokenizer_file is not None:
        raise click.UsageError("--model and --tokenizer both say whose tokens to count; pass one")
    tokenizer = Tokenizer(tokenizer_file or open_model_folder(model).tokenizer)
    store = NgramStore(tokenizer.sha256(), max_entries or MAX_ENTRIES)
    files = [found for path in corpus for found in _files(path)]
    given = {path for path in corpus if path.is_file()}
    num_read = 0
    console = Console(stderr=True)
    # Before rich 14 a disabled bar still ends with a line break (13.0, 13.5 and 13.9.4, tried).
    console.quiet = not console.is_terminal
    with Progress(
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("counting", total=sum(path.stat().st_size for path in files))
        for path in files:
            text = _text(path)
            if text is None:
                if path in given:
                    raise click.ClickException(f"{path} cannot be read as UTF-8 text")
            else:
                num_read += 1
                for piece in _pieces(text):
                    store.add(tokenizer.encode(piece, add_special_tokens=False))
            progress.advance(task, path.stat().st_size)
    if not store.num_tokens:
        raise click.ClickException(f"no text in {', '.join(map(str, corpus))}: nothing to count")
    store.save(output)
    click.echo(f"{output}: {_summary(store)}, from {_counted(num_read, 'file')}")


@command.command("info")
@click.argument("file", type=click.Path(path_type=Path))
def info(file: Path) -> None:
    """Say what FILE holds."""
    store = NgramStore.load(file)
    facts = {
        "file": file,
        "format": FORMAT,
        "size": f"{file.stat().st_size / 1e6:,.1f} MB",
        "tokenizer sha256": store.tokenizer_sha256 or "unknown",
        "tokens counted": f"{store.num_tokens:,}",
        **{f"entries of {n}-grams": f"{count:,}" for n, count in store.num_entries().items()},
        "most entries": f"{store.max_entries:,}",
    }
    for name, fact in facts.items():
        click.echo(f"{name:<20}{fact}")


@command.command("merge")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE FILE..."
)
@_output
@_max_entries
def merge(files: tuple[Path, ...], output: Path, max_entries: int | None) -> None:
    """Add up FILEs that were counted with the same tokenizer."""
    if len(files) < 2:
        raise click.UsageError(f"expected two files or more to merge, got {len(files)}")
    stores = [NgramStore.load(file) for file in files]
    most = max_entries or max(store.max_entries for store in stores)
    merged = NgramStore(stores[0].tokenizer_sha256, most)
    for store, file in zip(stores, files, strict=True):
        _add(merged, store, f"{files[0]} and {file}")
    merged.save(output)
    click.echo(f"{output}: {_summary(merged)}, from {_counted(len(files), 'file')}")


def _add(merged: NgramStore, store: NgramStore, names: str) -> None:
    try:
        merged.merge(store)
    except NgramFileError as error:
        raise NgramFileError(f"{names}: {error}") from None


def _summary(store: NgramStore) -> str:
    entries = sum(store.num_entries().values())
    return f"{_counted(store.num_tokens, 'token')} counted, {entries:,} entries"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _files(path: Path) -> Iterator[Path]:
    """The files that ``path`` means, in the same order on every machine."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _text(path: Path) -> str | None:
    """The text in a file; None where it is none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror or error}") from None
    return None if "\0" in text else text


def _pieces(text: str) -> Iterator[str]:
    """Parts of a long text, so that its tokens need not be in memory at once."""
    start = 0
    while start < len(text):
        line_end = text.find("\n", start + _PIECE)
        end = len(text) if line_end < 0 else line_end + 1
        yield text[start:end]
        start = end
