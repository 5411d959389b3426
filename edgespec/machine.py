"""Which processor this is: what was measured or rounded on one need not hold on another."""

import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "CPU part", "Hardware", "cpu")
"""Lines that name a processor: those of x86, of ARM, of older ARM boards, of POWER."""


@cache
def processor() -> str:
    """The processor's name, as exactly as the system tells it without starting a program."""
    return f"{platform.machine()} {_named(_CPUINFO) or platform.processor()}".strip()


def _named(cpuinfo: Path) -> str:
    """Every name in a ``/proc/cpuinfo``, big cores and little ones; nothing where there is none."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = [line.partition(":") for line in lines]
    for name in _NAMES:
        found = sorted({value.strip() for key, _, value in pairs if key.strip() == name})
        if found:
            return " + ".join(found)
    return ""
