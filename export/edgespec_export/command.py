"""``edgespec export``: the exporter on the command line."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from edgespec.manifest import Manifest
from edgespec_export import CACHES, PRECISIONS, WEIGHTS, drafts, export


class Shown:
    """Shows each step while it runs, and what it took when it is done."""

    def __init__(self, console: Console) -> None:
        """Write to ``console``; where it is no terminal, only the finished steps."""
        self._console = console

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show one step."""
        began = time.perf_counter()
        with self._console.status(f"{name} ..."):
            yield
        self._console.print(f"{name:22} {time.perf_counter() - began:6.1f} s", highlight=False)


@click.command("export")
@click.argument("source")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The folder to make.  [default: named like the source, in the working directory]",
)
@click.option(
    "--cache",
    metavar="LAYOUT",
    default="in_place",
    show_default=True,
    help=f"Layout of the key/value cache, of {', '.join(CACHES)}: static is for batches, growing "
    "for older runtimes and other tools.",
)
@click.option(
    "--precision",
    metavar="NAME",
    default="fp32",
    show_default=True,
    help=f"How the graph computes, of {', '.join(PRECISIONS)}; fp16 is for CUDA.",
)
@click.option(
    "--accuracy-level",
    type=int,
    help="int8, int4: 4 rounds activations to int8, which is fastest; 0 computes in float32.  "
    "[default: 4]",
)
@click.option(
    "--block-size", type=int, help="int8, int4: how many weights share a scale.  [default: 32]"
)
@click.option(
    "--int8-layers",
    metavar="WHICH",
    help="int4: which layers stay at 8 bits. auto: embedding, lm_head, and what a source of 4 bits "
    "itself holds finer; mixed: also down_proj and the attention's values in the first and last "
    "eighth of the layers and every third between; none.  [default: auto]",
)
@click.option(
    "--weights",
    metavar="NAME",
    default="fp32",
    show_default=True,
    help=f"How an fp32 graph's weights lie in the file, of {', '.join(WEIGHTS)}: fp16 rounds them "
    "to half the size, and still computes in float32.",
)
@click.option(
    "--max-length",
    type=int,
    help="Longest text in tokens, prompt included.  [default: the checkpoint's own]",
)
@click.option(
    "--draft",
    metavar="SOURCE|layers:N|PRECISION",
    help="Put a draft model into the folder: another checkpoint, the first N layers of this one, "
    "or this one in another precision.",
)
@click.option(
    "--draft-precision",
    metavar="NAME",
    help="Precision of a draft from another checkpoint.  [default: that of --precision]",
)
@click.option("--force", is_flag=True, help="Replace a model folder that exists.")
@click.option("--no-check", is_flag=True, help="Do not compare the result with the checkpoint.")
def command(
    source: str,
    out: Path | None,
    cache: str,
    precision: str,
    accuracy_level: int | None,
    block_size: int | None,
    int8_layers: str | None,
    weights: str,
    max_length: int | None,
    force: bool,
    draft: str | None,
    draft_precision: str | None,
    no_check: bool,
) -> None:
    """Turn SOURCE into a model folder that runs without PyTorch.

    SOURCE is a folder with a transformers checkpoint, a GGUF file, or a name on the Hugging Face
    hub. The folder appears whole, and only if its graph computes what the checkpoint computes.
    Needs the extra: pip install "edgespec[export]".

    \b
    edgespec export HuggingFaceTB/SmolLM2-135M-Instruct -o smollm2
    edgespec export model.gguf --precision int4
    """  # noqa: D301 - \\b is click's own sign for lines that stay apart
    folder = export(
        source,
        out,
        cache=cache,
        precision=precision,
        accuracy_level=accuracy_level,
        block_size=block_size,
        int8_layers=int8_layers,
        weights=weights,
        max_length=max_length,
        force=force,
        check=not no_check,
        draft=draft,
        draft_precision=draft_precision,
        progress=Shown(Console(stderr=True)),
    )
    megabytes = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6
    click.echo(f"{folder} ({megabytes:,.1f} MB)")
    if draft is not None:
        click.echo(f"draft: {drafts.serves(folder)}")
    manifest = Manifest.read(folder)
    if manifest is not None and "kl" in manifest.parity:
        click.echo(_nearness(manifest.parity), err=True)


def _nearness(measured: Mapping[str, Any]) -> str:
    """What the gate measured of a graph that rounds, in one line."""
    return (
        f"against fp32: mean KL {measured['kl']:.2g}, greedy picks {measured['greedy_equal']} of "
        f"{measured['greedy_tokens']}, perplexity {measured['perplexity']:.4g} "
        f"(fp32 {measured['perplexity_fp32']:.4g})"
    )
