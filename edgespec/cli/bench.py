"""``edgespec bench``: does speculation pay with this model, here, and how do others do?"""

import json
import platform
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from edgespec.bench.chart import FORMATS, draw, require_matplotlib
from edgespec.bench.engines import METHODS, Engine, Ours, Peer
from edgespec.bench.measure import figures, step_ms
from edgespec.bench.peer_process import PEERS
from edgespec.bench.prompts import PROMPTS, BenchPrompt, read_prompts
from edgespec.bench.report import Report
from edgespec.cli.generate import CountOrAuto, on_provider, with_threads
from edgespec.errors import ModelFolderError
from edgespec.generator import EdgeGenerator
from edgespec.model_folder import draft_folder


@click.command("bench")
@click.argument("model", required=False)
@click.option(
    "--methods",
    metavar="NAME,...",
    help=f"What to compare with plain decoding, of {', '.join(METHODS)}.  "
    "[default: all; draft where the folder has one]",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Prompts of your own: a JSON list of {"name", "kind", "prompt"}.  [default: built in]',
)
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only prompts of this kind; repeatable."
)
@click.option(
    "-n",
    "--max-new-tokens",
    type=click.IntRange(min=8),
    default=96,
    show_default=True,
    help="Tokens to write of each prompt.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each that count, after one that does not; medians are shown.",
)
@click.option(
    "--num-assistant-tokens",
    type=CountOrAuto(),
    metavar="N|auto",
    default="auto",
    show_default=True,
    help="Candidates that a round verifies at most; auto is as many as pay.",
)
@click.option(
    "--against", type=click.Choice(list(PEERS)), help="Run another engine in the same turns."
)
@click.option(
    "--peer-model",
    metavar="MODEL",
    help="What that engine loads: a folder, a hub name or a GGUF file.  [default: MODEL]",
)
@click.option(
    "--peer-python",
    metavar="PATH",
    help="The Python that has that engine's package.  [default: this one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--markdown", is_flag=True, help="Print Markdown instead of tables.")
@click.option(
    "--chart",
    "picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw a picture too, .png or .svg (needs matplotlib, the extra bench).",
)
@on_provider
@with_threads
def command(
    model: str | None,
    methods: str | None,
    prompts: Path | None,
    kind: tuple[str, ...],
    max_new_tokens: int,
    repeats: int,
    num_assistant_tokens: int | str,
    against: str | None,
    peer_model: str | None,
    peer_python: str | None,
    as_json: bool,
    markdown: bool,
    picture: Path | None,
    provider: str,
    threads: int | None,
) -> None:
    """Write prompts with MODEL in several ways in turn, and say what pays.

    MODEL is a model folder or its .onnx file; left out, it is the small model that comes with
    edgespec.

    \b
    edgespec bench smollm2 --chart smollm2.svg
    edgespec bench genai_int4 --against genai --peer-python ../genai/bin/python
    edgespec bench smollm2 --against llamacpp --peer-model smollm2.gguf
    """  # noqa: D301 - \\b is click's own sign for lines that stay apart
    chosen = _methods(methods)
    asked = _prompts(prompts, kind)
    if picture is not None:
        _check_picture(picture)
    with ExitStack() as open_, Console(stderr=True).status("load the model ...") as status:
        generator = EdgeGenerator(model, provider=provider, threads=threads)
        if chosen is None:
            chosen = [m for m in METHODS if m != "draft" or _has_draft(generator)]
        ours = Ours(generator, chosen, num_assistant_tokens=num_assistant_tokens)  # type: ignore[arg-type]
        engines: list[Engine] = [ours]
        if against is not None:
            peer = Peer(
                against,
                peer_model or str(generator.folder.folder),
                python=peer_python,
                threads=generator.session.threads,
            )
            open_.callback(peer.close)
            engines.append(peer)
        measured = figures(
            engines,
            asked,
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            told=lambda step: status.update(f"{step} ..."),
        )
        status.update("forwards ...")
        report = Report(
            generator.folder.folder.name, _machine(generator), measured, step_ms(generator)
        )
    if picture is not None:
        draw(report, picture)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    elif markdown:
        click.echo(report.markdown())
    else:
        _show(report)


def _methods(named: str | None) -> list[str] | None:
    """The methods asked for, plain first; None where nothing was said."""
    if named is None:
        return None
    chosen = [name.strip() for name in named.split(",") if name.strip()]
    for name in chosen:
        if name not in METHODS:
            raise ValueError(f"methods must be of {', '.join(METHODS)}, got {name!r}")
    return ["plain", *(name for name in dict.fromkeys(chosen) if name != "plain")]


def _prompts(path: Path | None, kinds: tuple[str, ...]) -> list[BenchPrompt]:
    found = PROMPTS if path is None else read_prompts(path)
    known = list(dict.fromkeys(prompt.kind for prompt in found))
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"kind must be one of {', '.join(known)}, got {kind!r}")
    return [prompt for prompt in found if not kinds or prompt.kind in kinds]


def _check_picture(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise ValueError(f"chart must end in {' or '.join(FORMATS)}, got {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.absolute().parent} does not exist; make it first")
    require_matplotlib()


def _has_draft(generator: EdgeGenerator) -> bool:
    try:
        draft_folder(generator.folder)
    except ModelFolderError:
        return False
    return True


def _machine(generator: EdgeGenerator) -> str:
    threads = generator.session.threads
    return (
        f"{platform.system()} {platform.machine()}, {threads} threads, {generator.session.provider}"
    )


def _show(report: Report) -> None:
    console = Console()
    table = Table("tokens/s (against plain)", *report.kinds, "text differs on")
    for cells in report.rows():
        table.add_row(*cells)
    console.print(table)
    costs = Table("tokens in a forward", *map(str, report.step_ms))
    one = next(iter(report.step_ms.values()))
    costs.add_row("milliseconds", *(f"{ms:.1f}" for ms in report.step_ms.values()))
    costs.add_row("against one", *(f"{ms / one:.2f}" for ms in report.step_ms.values()))
    console.print(costs)
    click.echo(report.advice)
