"""What the README quotes is run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgespec.cli.main import commands

README = Path(__file__).parents[1] / "README.md"
PREFIXES = README.parent / "docs" / "prefixes.md"


def block(mark: str, path: Path = README) -> str:
    """The fenced block that follows a mark in the README, or in another page."""
    text = path.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert found, f"{path.name} has no block behind <!-- {mark} -->"
    return found[1]


@pytest.mark.onnx
@pytest.mark.parametrize(
    ("mark", "path"), [("own generator", README), ("kept prefixes", PREFIXES)], ids=str
)
def test_an_example_runs(mark: str, path: Path) -> None:
    code = block(f"python: {mark}", path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("mark", ["command: try", "command: test"])
def test_a_command_is_one_line(mark: str) -> None:
    assert block(mark).count("\n") == 1


@pytest.mark.onnx
def test_the_command_that_tries_it_uses_options_that_exist() -> None:
    command = block("command: try").split("&&")[-1].strip()
    arguments = re.findall(r'"[^"]*"|\S+', command)[1:]
    said = CliRunner().invoke(commands, [a.strip('"') for a in arguments] + ["-n", "8"])
    assert said.exit_code == 0, said.output
    assert "8 written" in said.stderr
