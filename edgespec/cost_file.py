"""What forwards cost on this machine, kept from one process to the next."""

import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from edgespec.files import write_whole

VARIABLE = "EDGESPEC_CACHE_DIR"
FORMAT = 1
_MOST_ROWS = 1024
_LONGEST_S = 3600.0


def cache_folder() -> Path | None:
    """Where this user's caches lie on this system, or where ``EDGESPEC_CACHE_DIR`` says.

    None if the variable is empty, or nobody knows: then nothing is kept.
    """
    said = os.environ.get(VARIABLE)
    if said is not None:
        return Path(os.path.expanduser(said)) if said else None  # Path's raises for unknown users
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local, "edgespec", "Cache") if local else None
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "edgespec"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "edgespec")


class CostFile:
    """Seconds of a forward by its rows, for one model on one machine.

    A file for each, so that processes do not write over each other's. Damage, and a folder that
    cannot be written, mean that nothing is known: never an error.
    """

    def __init__(self, *key: object) -> None:
        """Find the file of ``key``: all that the costs depend on."""
        self.key = [str(part) for part in key]
        name = hashlib.sha256("\n".join(self.key).encode()).hexdigest()[:24]
        folder = cache_folder()
        self.path = None if folder is None else folder / "costs" / f"{name}.json"

    def read(self) -> dict[int, float]:
        """What was measured before; empty where nothing was."""
        if self.path is None:
            return {}
        try:
            said = json.loads(self.path.read_bytes())
            if said["format"] != FORMAT or said["key"] != self.key:
                return {}
            costs = {int(rows): float(seconds) for rows, seconds in said["seconds"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        sane = all(
            0 < rows <= _MOST_ROWS and math.isfinite(seconds) and 0 < seconds < _LONGEST_S
            for rows, seconds in costs.items()
        )
        return costs if sane else {}

    def write(self, costs: Mapping[int, float]) -> None:
        """Keep ``costs`` for later processes, if that can be."""
        if self.path is None:
            return
        content = json.dumps({"format": FORMAT, "key": self.key, "seconds": dict(costs)}).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, lambda file: file.write(content))
        except OSError:
            return
