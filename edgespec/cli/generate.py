"""``edgespec generate``: continue a text and show it as it comes."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from edgespec.generator import EdgeGenerator
from edgespec.model_folder import class_for, embedded_model, open_model_folder
from edgespec.seq2seq import EdgeSeq2Seq
from edgespec.stats import Stats
from edgespec.stream import Chunk, Stream


class CountOrAuto(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """A number of candidates, or what pays."""

    name = "N|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The number, or ``"auto"`` as it is."""
        return value if value == "auto" else click.INT.convert(value, param, ctx)


on_provider = click.option(
    "--provider",
    metavar="NAME",
    default="auto",
    show_default=True,
    help="Where to compute: cpu, cuda, or auto, which is cuda where it can be had.",
)
with_threads = click.option(
    "--threads", type=int, help="Threads to compute with.  [default: the cores it may use]"
)


@click.command("generate")
@click.argument("arguments", nargs=-1, metavar="[MODEL] PROMPT")
@click.option(
    "--file", type=click.Path(path_type=Path), metavar="FILE", help="Read the prompt from a file."
)
@click.option("--chat", is_flag=True, help="Lay the prompt out as a message, and answer it.")
@click.option(
    "--lookup/--no-lookup",
    default=None,
    help="Propose what followed the last tokens further up; --no-lookup is plain decoding.",
)
@click.option(
    "--ngram", is_flag=True, default=None, help="Propose what most often followed the last tokens."
)
@click.option(
    "--ngram-corpus",
    metavar="FILE",
    help="Propose from a file of 'edgespec ngrams build' too; switches --ngram on.",
)
@click.option(
    "--suffix", is_flag=True, default=None, help="Propose what continued the longest matches."
)
@click.option("--draft", is_flag=True, help="Let the draft model in MODEL's folder propose.")
@click.option("--draft-model", metavar="FOLDER", help="Let this draft model propose.")
@click.option(
    "--universal-draft", is_flag=True, help="Accept a draft model with another tokenizer."
)
@click.option(
    "--num-assistant-tokens",
    type=CountOrAuto(),
    metavar="N|auto",
    help="Candidates that a round verifies at most; auto is as many as pay.  [default: auto]",
)
@click.option(
    "-n",
    "--max-new-tokens",
    type=int,
    default=256,
    show_default=True,
    help="Tokens to write at most.",
)
@click.option(
    "--max-length",
    type=int,
    help="Tokens at most, those of the prompt included.  [default: the model's own]",
)
@click.option("--max-time", type=float, metavar="SECONDS", help="End after so long.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@click.option("--include-stop", is_flag=True, default=None, help="End after that text instead.")
@click.option(
    "--sample",
    is_flag=True,
    help="Draw tokens by chance instead of taking the likeliest. What the next three leave out is "
    "the model's own default.",
)
@click.option("--temperature", type=float, help="Below 1 favours likely tokens, above 1 others.")
@click.option("--top-k", type=int, help="Draw from the k likeliest tokens; 0 is all.")
@click.option(
    "--top-p", type=float, help="Draw from the likeliest tokens that together reach this share."
)
@click.option("--seed", type=int, help="Repeat a text that was drawn.")
@click.option("--show-accepted", is_flag=True, help="Show accepted candidates in green.")
@click.option("--stats", "show_stats", is_flag=True, help="Say on stderr what it took.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@on_provider
@with_threads
def command(
    arguments: tuple[str, ...],
    file: Path | None,
    chat: bool,
    draft: bool,
    draft_model: str | None,
    universal_draft: bool,
    max_time: float | None,
    sample: bool,
    show_accepted: bool,
    show_stats: bool,
    as_json: bool,
    provider: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Continue PROMPT with MODEL and show the text as it comes.

    MODEL is a model folder or its .onnx file; left out, it is the small model that comes with
    edgespec, which writes Python. PROMPT is a text, or - to read it from standard input; an
    encoder-decoder such as T5 reads it and writes another. Whatever proposes candidates, the text
    is MODEL's own; with several, each round takes the most promising.

    \b
    edgespec generate "def read_csv(path):"
    edgespec generate smollm2 --chat --lookup --stats --file question.txt
    """  # noqa: D301 - \\b is click's own sign for lines that stay apart
    model, prompt = _model_and_prompt(arguments, file)
    given = {name: value for name, value in options.items() if value not in (None, ())}
    given |= {"max_time_s": max_time} if max_time is not None else {}
    given |= {"do_sample": True} if sample else {}
    # Named when the target is loaded, a draft does not have it loaded a second time.
    runs_on = _class_for(model)
    if runs_on is EdgeSeq2Seq and (chat or universal_draft):
        option = "--chat" if chat else "--universal-draft"
        raise click.UsageError(f"{option} cannot be had with an encoder-decoder; leave it out")
    generator = runs_on(
        model,
        provider=provider,
        threads=threads,
        draft=draft_model or draft or None,
        **({"universal_draft": True} if universal_draft else {}),
    )
    if generator.draft is not None:
        given |= {"draft": draft_model or draft, "universal_draft": universal_draft}
    if chat:
        prompt, given["add_special_tokens"] = generator.chat_prompt(_message(prompt)), False
    stream = generator.stream(prompt, **given)
    with _cancelled_by_ctrl_c(stream):
        chunks = _shown(stream, quiet=as_json, in_colour=show_accepted)
    if as_json:
        click.echo(json.dumps(_as_json(model, chunks, stream.stats)))
    if show_stats:
        click.echo(_in_words(stream.stats, chunks), err=True)


def _class_for(model: str | None) -> Any:
    """The class that runs a text model."""
    if model is None or class_for(open_model_folder(model)) != "EdgeSeq2Seq":
        return EdgeGenerator
    return EdgeSeq2Seq


def _message(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _model_and_prompt(arguments: tuple[str, ...], file: Path | None) -> tuple[str | None, str]:
    """What the arguments mean; the embedded model where none is named."""
    most = 1 if file is not None else 2
    if len(arguments) > most or (file is None and not arguments):
        raise click.UsageError(
            f"expected [MODEL]{'' if file else ' PROMPT'}, got {len(arguments)} arguments; "
            "quote a prompt of several words"
        )
    if file is not None:
        try:
            return (arguments[0] if arguments else None), file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"{file} cannot be read as text: {error}") from None
    *model, prompt = arguments
    if not model and prompt != "-" and os.path.isfile(os.path.join(prompt, "model.onnx")):
        raise click.UsageError(f"{prompt} is a model folder and no prompt follows it")
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    return (model[0] if model else None), prompt


@contextmanager
def _cancelled_by_ctrl_c(stream: Stream) -> Iterator[None]:
    """The first Ctrl-C ends the text with the token in work, the second the program."""

    def cancel(signum: int, frame: object) -> None:
        stream.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _shown(stream: Stream, *, quiet: bool, in_colour: bool) -> list[Chunk]:
    """Print the chunks as they come, and keep them."""
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if quiet:
            continue
        accepted = "".join(chunk.pieces[: chunk.num_accepted])
        own = "".join(chunk.pieces[chunk.num_accepted :])
        if in_colour and accepted:
            accepted = click.style(accepted, fg="green")
        click.echo(accepted + own, nl=False, color=True if in_colour else None)
        sys.stdout.flush()
    if not quiet:
        click.echo()
    return chunks


def _as_json(model: str | None, chunks: list[Chunk], stats: Stats) -> dict[str, Any]:
    return {
        "model": model or str(embedded_model()),
        "text": "".join(chunk.text for chunk in chunks),
        "tokens": [int(token) for chunk in chunks for token in chunk.tokens],
        "finish_reason": chunks[-1].finish_reason,
        "stats": stats.as_dict(),
    }


def _in_words(stats: Stats, chunks: list[Chunk]) -> str:
    """The statistics of a call as a few lines."""
    lines = [
        f"{stats.prompt_tokens - stats.reused_tokens} tokens read in {stats.prefill_s:.2f} s, "
        + (f"{stats.reused_tokens} known already, " if stats.reused_tokens else "")
        + f"{stats.emitted} written in {stats.decode_s:.2f} s"
        + (f" ({stats.tokens_per_s:.1f} tokens/s)" if stats.tokens_per_s else "")
        + f", end: {chunks[-1].finish_reason}"
    ]
    if stats.acceptance_rate is not None:
        lines.append(
            f"{stats.rounds} rounds of {stats.tokens_per_round:.2f} tokens; "
            f"{stats.accepted} of {stats.evaluated} candidates accepted "
            f"({stats.acceptance_rate:.0%})"
        )
        sources = (f"{n} {a} of {e}" for n, (e, a) in stats.by_source.items())
        lines.append("by source: " + ", ".join(sources))
    if stats.speed_up is not None and stats.plain_step_s is not None:
        lines.append(
            f"{stats.speed_up:.2f} times the speed of one-token steps, "
            f"which took {stats.plain_step_s * 1000:.1f} ms here"
        )
    seconds = ("prefill", "draft", "verify", "rewind")
    lines.append(
        "seconds: " + ", ".join(f"{name} {getattr(stats, name + '_s'):.3f}" for name in seconds)
    )
    return "\n".join(lines)
