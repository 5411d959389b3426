"""``edgespec transcribe``: write down what is said in a file."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from edgespec.cli.generate import on_provider, with_threads
from edgespec.speech.subtitles import srt, vtt
from edgespec.speech.transcriber import EdgeTranscriber, Segment, Transcription


@click.command("transcribe")
@click.argument("model")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--language", metavar="NAME", help="Short name such as en.  [default: what is heard]")
@click.option(
    "--task",
    metavar="TASK",
    default="transcribe",
    show_default=True,
    help="Of transcribe, or translate, which writes English.",
)
@click.option(
    "--prompt", metavar="TEXT", help="What could have come before: names, words to expect."
)
@click.option("--no-timestamps", is_flag=True, help="Write text without times.")
@click.option("--lookup", is_flag=True, help="Propose candidates from what was said before.")
@click.option("--draft", is_flag=True, help="Let the draft model in MODEL's folder propose.")
@click.option("--draft-model", metavar="FOLDER", help="Let this draft model propose.")
@click.option(
    "--temperature", type=float, help="A single one, instead of the usual row of fall-backs."
)
@click.option("--seed", type=int, help="Repeat what is drawn above temperature 0.")
@click.option("--srt", "form", flag_value="srt", help="Write SRT subtitles.")
@click.option("--vtt", "form", flag_value="vtt", help="Write WebVTT subtitles.")
@click.option("--json", "form", flag_value="json", help="Print one JSON object.")
@click.option("--stats", "show_stats", is_flag=True, help="Say on stderr what it took.")
@on_provider
@with_threads
def command(
    model: str,
    file: Path,
    no_timestamps: bool,
    draft: bool,
    draft_model: str | None,
    form: str | None,
    show_stats: bool,
    provider: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Write down what is said in FILE with the Whisper model in the folder MODEL.

    Segments appear as they are written. WAV files are read as they are; other formats need the
    extra "audio".

    \b
    edgespec transcribe whisper-base talk.wav --draft
    edgespec transcribe whisper-base talk.wav --srt > talk.srt
    """  # noqa: D301 - \\b is click's own sign for lines that stay apart
    given = {name: value for name, value in options.items() if value is not None}
    transcriber = EdgeTranscriber(
        model, draft=draft_model or draft or None, provider=provider, threads=threads
    )
    found = Transcription()
    bar = Progress(
        TextColumn("{task.fields[clock]}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        shown = bar.add_task("", total=1.0, clock="")

        def progress(done_s: float, all_s: float) -> None:
            clock = f"{done_s:,.0f} of {all_s:,.0f} s"
            bar.update(shown, completed=done_s, total=all_s, clock=clock)

        segments = transcriber.segments(
            file, progress=progress, into=found, timestamps=not no_timestamps, **given
        )
        for block in _written(segments, form, found):
            click.echo(block)
    if form == "json":
        click.echo(json.dumps(_as_json(model, found), ensure_ascii=False))
    if show_stats:
        click.echo(_in_words(found), err=True)


def _written(segments: Iterable[Segment], form: str | None, found: Transcription) -> Iterator[str]:
    """What is printed as segments come."""
    if form == "srt":
        yield from srt(segments)
    elif form == "vtt":
        yield from vtt(segments)
    elif form == "json":
        found.segments.extend(segments)
    else:
        yield from (segment.text.strip() for segment in segments)


def _as_json(model: str, found: Transcription) -> dict[str, Any]:
    return {
        "model": model,
        "text": found.text,
        "language": found.language,
        "duration_s": found.duration_s,
        "segments": [dataclasses.asdict(segment) for segment in found.segments],
        "stats": found.stats.as_dict(),
    }


def _in_words(found: Transcription) -> str:
    stats = found.stats
    lines = [
        f"{found.duration_s:.1f} s of sound, language {found.language or 'unknown'}; "
        f"{stats.emitted} tokens written in {stats.decode_s:.2f} s"
    ]
    if stats.acceptance_rate is not None:
        lines.append(
            f"{stats.rounds} rounds of {stats.tokens_per_round:.2f} tokens; {stats.accepted} of "
            f"{stats.evaluated} candidates accepted ({stats.acceptance_rate:.0%})"
        )
    return "\n".join(lines)
