"""``edgespec``: the commands, each imported when it is called."""

import importlib
import sys

import click

from edgespec.errors import EdgespecError, UnsupportedArchitectureError

# "export" belongs to the other package: named here, imported only when it is asked for.
COMMANDS = {
    "generate": ("edgespec.cli.generate", "Continue a text and show it as it comes."),
    "transcribe": ("edgespec.cli.transcribe", "Write down what is said in a file of sound."),
    "info": ("edgespec.cli.info", "Say what a model folder is."),
    "ngrams": ("edgespec.cli.ngrams", "Count the n-grams of a corpus, to propose from."),
    "bench": ("edgespec.cli.bench", "Measure what pays with a model on this machine."),
    "export": ("edgespec_export.command", "Turn a checkpoint into a model folder."),
}


class Commands(click.Group):
    """Commands that are imported when they are needed, so that ``--help`` comes at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in COMMANDS.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit code: 0 when all went well, 1 when it could not be done, 2 when something was "
    "asked for that cannot be meant. 'edgespec COMMAND --help' explains a command.",
)
@click.version_option(package_name="edgespec", prog_name="edgespec")
def commands() -> None:
    """Run a language model on ONNX Runtime, and let it write several tokens at a time.

    What is proposed is verified by the model: the text stays its own.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command.

    What goes wrong is said in one sentence on stderr. The exit code is 0 when all went well, 2
    when something was asked for that cannot be meant, 1 when it could not be done.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a console that lacks a character shows a mark
    try:
        commands.main(arguments, prog_name="edgespec", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("edgespec: interrupted", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()  # who read our output has gone; Python would complain about it at exit
        sys.exit(1)
    except (EdgespecError, ValueError) as error:
        click.echo(f"edgespec: {error}", err=True)
        asked_wrongly = isinstance(error, UnsupportedArchitectureError) or not isinstance(
            error, EdgespecError
        )
        sys.exit(2 if asked_wrongly else 1)
