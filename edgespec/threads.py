"""How many threads to compute with, and the pool that models share which work in turn.

A model alone has a pool of its own, as ONNX Runtime makes it: after a run its threads go on
spinning for a while, ready for the next. With a draft model that would take the processor from
whoever's turn it is, so target and draft share one pool. Measured on 2 cores, an fp32 target and
an int4 draft of 135M parameters in turn, milliseconds of a target and of a draft step: 26 + 7 with
the shared pool, 30 + 8 with a pool each that stops spinning after each run, 33 + 11 without
spinning, 55 + 14 with pools that spin (onnxruntime 1.32). A model alone was up to 8 % faster with
a pool of its own than with the shared one.
"""

import math
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

MOST_THREADS = 1024
"""ONNX Runtime starts as many as it is told to: a million take minutes (1.32, tried)."""
VARIABLE = "ORT_INTRA_OP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Pool:
    """The threads that a session computes with.

    Attributes:
        threads: How many, the calling one included.
        shared: Whether they are those of the whole process.
        spins: Whether they wait for the next run awake.
    """

    threads: int
    shared: bool
    spins: bool = True


_lock = threading.Lock()
_shared: Pool | None = None


def join_pool(threads: int | None = None, *, share: bool = False, own: bool = False) -> Pool:
    """The pool for a new session.

    The first session that shares makes the pool of the process and sets its size for good. ONNX
    Runtime then refuses every later session that wants threads of its own, other libraries'
    sessions too (1.32, tried); ``own`` is for processes that make such sessions.

    Args:
        threads: How many to compute with; None leaves it to the machine.
        share: Make the shared pool, if there is none yet. Where there is one, it is used anyway.
        own: Never share.

    Raises:
        ValueError: If ``threads`` is no number above 0, or differs from the shared pool's, or if
            threads of its own are wanted when the shared pool exists.
    """
    global _shared
    with _lock:
        if own and _shared is not None:
            raise ValueError(
                "own_threads must be asked for before a draft model is used in a process, "
                f"whose models now share a pool of {_shared.threads} threads"
            )
        wanted = threads_to_use(threads)
        if own or not (share or _shared is not None):
            return Pool(wanted, shared=False, spins=not own)
        # Missing from some vendors' builds; in the public ones from 1.23 on, not in 1.22 (tried).
        if not hasattr(ort, "set_global_thread_pool_sizes"):
            return Pool(wanted, shared=False, spins=False)
        if _shared is None:
            ort.set_global_thread_pool_sizes(wanted, 1)
            _shared = Pool(wanted, shared=True)
        if threads is not None and threads != _shared.threads:
            raise ValueError(
                f"threads must be {_shared.threads}, as many as the models of this process share, "
                f"got {threads}"
            )
        return _shared


def pool_is_shared() -> bool:
    """Whether every new session of this process must use the shared pool."""
    return _shared is not None


def threads_to_use(threads: int | None = None) -> int:
    """The number of threads for one process: asked for, else set in the environment, else counted.

    Args:
        threads: What the caller asked for; None leaves it to the machine.

    Raises:
        ValueError: If ``threads`` or the variable ``ORT_INTRA_OP_NUM_THREADS`` is no number.
    """
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads must be a whole number of at least 1, got {threads!r}")
        if threads > MOST_THREADS:
            raise ValueError(f"threads must be at most {MOST_THREADS:,}, got {threads:,}")
        return threads
    said = os.environ.get(VARIABLE, "").strip()
    # ONNX Runtime 1.32 reads the variable too, and fails on a bad one without naming it (tried).
    if said and (not said.isdecimal() or int(said) < 0):
        raise ValueError(
            f"the environment variable {VARIABLE} must be a whole number, got {said!r}; "
            "correct or unset it"
        )
    return int(said) if said and int(said) > 0 else available_cpus()


def available_cpus() -> int:
    """The CPUs that this process may use: cores in its affinity mask, within its cgroup's quota.

    Two hardware threads of one core count once: decoding waits for memory, and a second thread
    on the same core only adds to the queue.
    """
    allowed = _affinity()
    cores = len({_core_of(cpu) for cpu in allowed}) if allowed else os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, cores if quota is None else min(cores, math.floor(quota)))


def _affinity() -> set[int]:
    """CPU numbers that this process may run on; empty where the system does not tell."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set()


def _core_of(cpu: int) -> str:
    """Names the physical core of ``cpu`` by the hardware threads that share it."""
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return siblings.read_text()
    except OSError:
        return str(cpu)


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the process's control group may use, or None without a limit.

    Args:
        root: Where ``proc`` and ``sys`` lie; another folder in tests.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    base = root / "sys/fs/cgroup"
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += _limits_above(base, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            quotas += _limits_above(base / "cpu", path, _quota_v1)
    return min(quotas, default=None)


def _limits_above(base: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    """The limits of a group and of all groups around it: the tightest holds."""
    groups = [base]
    for part in Path(path.lstrip("/")).parts:
        groups.append(groups[-1] / part)
    return [quota for group in groups if (quota := read(group)) is not None]


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period
