"""``edgespec info``: what a model folder is."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from edgespec.cli.generate import on_provider, with_threads
from edgespec.encoder_decoder import EncoderDecoder
from edgespec.generator import EdgeGenerator
from edgespec.manifest import CROSS, ENCODER, Manifest
from edgespec.model_folder import class_for, open_model_folder

IF_ROUNDED = ("accuracy_level", "block_size", "kl_against_fp32")
"""What the table leaves out where it has no value: a float32 graph has none of these."""


@click.command("info")
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@on_provider
@with_threads
def command(model: str | None, as_json: bool, provider: str, threads: int | None) -> None:
    """Load MODEL and say what it is, and whether it can verify candidates.

    MODEL is a model folder or its .onnx file; left out, it is the small model that comes with
    edgespec.
    """
    runs_on = class_for(open_model_folder(model))
    if model is None or runs_on == "EdgeGenerator":
        facts = describe(EdgeGenerator(model, provider=provider, threads=threads))
    else:
        facts = describe(EncoderDecoder(model, used_by=runs_on, provider=provider, threads=threads))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        if value is None and name in IF_ROUNDED:
            continue
        table.add_row(name.replace("_", " "), _in_words(value))
    Console().print(table)


def describe(generator: EdgeGenerator | EncoderDecoder) -> dict[str, Any]:
    """The facts, named as in ``edgespec.json`` where they stand there."""
    folder, session = generator.folder, generator.session
    manifest, shape = folder.manifest, generator.model.cache.shape
    model = generator.model
    ours = (folder.graph.name, ENCODER, CROSS)
    others = [p.name for p in folder.graph.parent.glob("*.onnx") if p.name not in ours]
    files = sorted(p for p in folder.graph.parent.iterdir() if _is_part(p, others))
    return {
        "graph": str(folder.graph),
        "made_by": folder.made_by,
        "source": manifest.source,
        "architecture": manifest.architecture,
        "runs_on": class_for(folder),
        "precision": manifest.precision,
        "accuracy_level": manifest.accuracy_level,
        "block_size": manifest.block_size,
        "kl_against_fp32": manifest.parity.get("kl"),
        "size_bytes": {p.name: p.stat().st_size for p in files},
        "provider": session.provider,
        "threads": session.threads,
        "inputs": [name for name in session.inputs if name not in dict(shape.pairs)],
        "vocabulary": model.vocab_size,
        "tokenizer": None if generator.tokenizer is None else generator.tokenizer.size,
        "longest_text": generator.max_length,
        "layers": manifest.num_layers or len(shape.pairs) // 2,
        "kv_heads": shape.num_heads,
        "head_size": shape.head_size,
        "cache_layout": manifest.cache_layout,
        "cache_axes": shape.in_words,
        "min_onnxruntime": manifest.min_onnxruntime,
        "cache_dtype": str(shape.dtype),
        "cache_bytes_per_token": shape.bytes_per_position,
        "eos_token_ids": list(manifest.eos_token_ids),
        "verifies_candidates": model.cannot_verify is None,
        "why": model.cannot_verify or _checked(folder.made_by),
        "versions": dict(manifest.versions),
        "parity": dict(manifest.parity),
        "draft": _draft(folder.folder),
    }


def _draft(folder: Path) -> dict[str, Any]:
    """What is known of the draft model in a folder; empty where there is none."""
    manifest = Manifest.read(folder / "draft")
    if manifest is None:
        return {}
    facts = {
        "source": manifest.source,
        "precision": manifest.precision,
        "layers": manifest.num_layers,
        "kl_against_fp32": manifest.parity.get("kl"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _checked(made_by: str) -> str:
    """How it is known that candidates can be verified."""
    if made_by == "edgespec":
        return "checked when it was exported"
    return "tokens read together and one by one gave the same scores when it was loaded"


def _is_part(path: Path, others: list[str]) -> bool:
    """Whether a file is the graph or holds weights of it: writers name such files freely.

    ``others`` are the graphs beside it; weights of theirs begin with their names.
    """
    is_of_another = path.name.startswith(tuple(others))
    return path.is_file() and not is_of_another and path.suffix not in (".json", ".jinja", ".txt")


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{k} {_size(k, v)}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)


def _size(name: str, value: object) -> str:
    """File sizes in MB."""
    is_file = isinstance(value, int) and Path(name).suffix in (".onnx", ".data")
    return f"{value / 1e6:,.1f} MB" if is_file and isinstance(value, int) else str(value)
