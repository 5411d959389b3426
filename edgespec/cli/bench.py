"""``edgespec bench``: does lookup pay with this model, here?"""

import json

import click
from rich.console import Console
from rich.table import Table

from edgespec.bench import Report, measure
from edgespec.generator import EdgeGenerator


@click.command("bench")
@click.argument("model", required=False)
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=8), default=96, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--provider", default="auto", show_default=True, help="cpu, cuda or auto.")
@click.option("--threads", type=int, help="Threads to compute with.")
def command(
    model: str | None,
    max_new_tokens: int,
    repeats: int,
    as_json: bool,
    provider: str,
    threads: int | None,
) -> None:
    """Write four prompts with MODEL, plain and with lookup in turn, and say whether lookup pays.

    MODEL is a model folder; left out, it is the model that comes with edgespec.
    """
    progress = Console(stderr=True)
    with progress.status("load the model ...") as status:
        generator = EdgeGenerator(model, provider=provider, threads=threads)
        report = measure(
            generator,
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            told=lambda step: status.update(f"{step} ..."),
        )
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        _show(report)


def _show(report: Report) -> None:
    console = Console()
    table = Table("prompt", "plain tokens/s", "lookup", "speed-up", "accepted", "tokens a round")
    for c in report.comparisons:
        accepted = "-" if c.acceptance_rate is None else f"{c.acceptance_rate:.0%}"
        table.add_row(
            c.prompt + ("" if c.same_text else " (texts differ)"),
            f"{c.plain_tokens_per_s:.1f}",
            f"{c.lookup_tokens_per_s:.1f}",
            f"{c.speed_up:.2f}",
            accepted,
            f"{c.tokens_per_round:.2f}",
        )
    console.print(table)
    costs = Table("tokens in a forward", *map(str, report.step_ms))
    one = report.step_ms[1]
    costs.add_row("milliseconds", *(f"{ms:.1f}" for ms in report.step_ms.values()))
    costs.add_row("against one", *(f"{ms / one:.2f}" for ms in report.step_ms.values()))
    console.print(costs)
    click.echo(report.advice)
