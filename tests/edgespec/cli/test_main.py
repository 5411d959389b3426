import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import click
import pytest

from edgespec.cli.main import COMMANDS, Commands

Run = Callable[..., Any]


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(edgespec: Run, flag: str) -> None:
    told = edgespec(flag)
    assert told.code == 0
    for name, (_, said) in COMMANDS.items():
        assert name in told.out
        assert said in told.out


def test_help_loads_no_command() -> None:
    code = (
        "import sys\nfrom edgespec.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*(m for m in sys.modules if m.startswith(('edgespec.cli.', 'edgespec_export'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "edgespec.cli.main"


def test_every_command_is_there() -> None:
    commands = Commands()
    context = click.Context(commands)
    for name in COMMANDS:
        assert isinstance(commands.get_command(context, name), click.Command)


def options(command: click.Command, name: str) -> Iterator[tuple[str, click.Option]]:
    """The options of a command and of those below it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield name, parameter
    if isinstance(command, click.Group):
        for below in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), below)
            assert found is not None
            yield from options(found, f"{name} {below}")


def shows_default(option: click.Option) -> bool:
    return option.is_flag or bool(option.show_default)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    command = Commands().get_command(click.Context(Commands()), name)
    assert command is not None
    found = list(options(command, name))
    assert found
    silent = [
        (at, option.opts[-1])
        for at, option in found
        if not (option.help or "").endswith((".", "]"))
        or (isinstance(option.default, str | float | int) and not shows_default(option))
    ]
    assert silent == []


def test_the_version_is_that_of_the_package(edgespec: Run) -> None:
    told = edgespec("--version")
    assert (told.code, told.out) == (0, f"edgespec, version {version('edgespec')}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generat"], "No such command 'generat'"),
        (["generate", "--max-new-token", "3", "x"], "No such option"),
        (["--colour"], "No such option"),
        (["generate", "-n", "many", "x"], "'many' is not a valid integer"),
    ],
    ids=["unknown command", "unknown option", "unknown option of all", "no number"],
)
def test_what_cannot_be_meant_exits_with_2(edgespec: Run, arguments: list[str], said: str) -> None:
    told = edgespec(*arguments)
    assert told.code == 2
    assert said in told.err
    assert told.out == ""


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edgespec", "generate", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Usage: edgespec generate [OPTIONS] [MODEL] PROMPT")
