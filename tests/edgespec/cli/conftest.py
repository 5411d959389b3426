"""The command line, called in this process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from edgespec.cli.main import main


@dataclass(frozen=True)
class Told:
    """What a command printed, and how it ended."""

    out: str
    err: str
    code: int


@pytest.fixture
def edgespec(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """Run ``edgespec`` with the arguments given."""

    def run(*arguments: object) -> Told:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Told(out, err, code)

    return run
