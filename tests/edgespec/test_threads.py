"""Rules of the pool that a process shares are tried in processes of their own."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec import EdgeGenerator, threads
from edgespec.threads import VARIABLE, available_cpus, cgroup_quota, threads_to_use
from tests.toylm import HASH, oracle


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


CGROUP, V2, V1 = "proc/self/cgroup", "sys/fs/cgroup", "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({CGROUP: "0::/\n", f"{V2}/cpu.max": "200000 100000\n"}, 2.0),
        ({CGROUP: "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, None),
        ({CGROUP: "0::/\n", f"{V2}/cpu.max": "50000 100000\n"}, 0.5),
        ({CGROUP: "0::/a/b\n", f"{V2}/a/cpu.max": "300000 100000\n"}, 3.0),
        (
            {
                CGROUP: "0::/a/b\n",
                f"{V2}/a/cpu.max": "100000 100000\n",
                f"{V2}/a/b/cpu.max": "400000 100000\n",
            },
            1.0,
        ),
        ({CGROUP: "0::/gone\n"}, None),
        ({CGROUP: "0::/\n", f"{V2}/cpu.max": "nonsense\n"}, None),
        (
            {
                CGROUP: "12:memory:/d\n4:cpu,cpuacct:/d\n",
                f"{V1}/d/cpu.cfs_quota_us": "250000\n",
                f"{V1}/d/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                CGROUP: "4:cpu,cpuacct:/\n",
                f"{V1}/cpu.cfs_quota_us": "-1\n",
                f"{V1}/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
    ids=[
        "no cgroups",
        "two CPUs",
        "no limit",
        "half a CPU",
        "a limit around the group",
        "the tightest of several",
        "a group that is not mounted",
        "a file that makes no sense",
        "version 1",
        "version 1 without a limit",
    ],
)
def test_quota_of_a_control_group(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    """microsoft/onnxruntime#29510."""
    assert cgroup_quota(tree(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("quota", "cpus"), [(None, 8), (2.0, 2), (2.9, 2), (0.5, 1), (64.0, 8)], ids=str
)
def test_cpus_are_counted_within_the_quota(
    quota: float | None, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: set(range(8)))
    monkeypatch.setattr(threads, "_core_of", str)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: quota)
    assert available_cpus() == cpus


def test_two_hardware_threads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: set(range(8)))
    monkeypatch.setattr(threads, "_core_of", lambda cpu: str(cpu % 4))
    monkeypatch.setattr(threads, "cgroup_quota", lambda: None)
    assert available_cpus() == 4


class TestWhoDecides:
    def test_the_caller_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "5")
        assert threads_to_use(3) == 3

    def test_then_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, " 5 ")
        assert threads_to_use() == 5

    @pytest.mark.parametrize("said", ["", "0"], ids=["empty", "0"])
    def test_then_the_machine(self, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, said)
        monkeypatch.setattr(threads, "available_cpus", lambda: 7)
        assert threads_to_use() == 7

    @pytest.mark.parametrize("said", ["abc", "-1", "1.5", "\u00b2"])
    def test_a_variable_that_is_no_number_is_named(
        self, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(VARIABLE, said)
        with pytest.raises(ValueError, match="environment") as raised:
            threads_to_use()
        assert str(raised.value) == (
            "the environment variable ORT_INTRA_OP_NUM_THREADS must be a whole number, "
            f"got {said!r}; correct or unset it"
        )

    @pytest.mark.parametrize("given", [0, -2, True, 1.5, "2"], ids=repr)
    def test_a_caller_who_names_no_number_is_told(self, given: int) -> None:
        with pytest.raises(ValueError, match="threads") as raised:
            threads_to_use(given)
        assert str(raised.value) == (f"threads must be a whole number of at least 1, got {given!r}")


def run(code: str, *arguments: object, **environment: str) -> str:
    """What a process of its own prints; it must end well and soon."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.onnx
class TestSharedPool:
    START = """
import os, sys
from edgespec import EdgeGenerator
path, other = sys.argv[1:]
def told(make):
    try:
        return str(make().session.threads)
    except ValueError as error:
        return str(error)
"""

    def test_target_and_draft_set_the_size_for_all_that_follow(self, models: Path) -> None:
        code = self.START + (
            "print(told(lambda: EdgeGenerator(path, threads=2, draft=other)))\n"
            "print(told(lambda: EdgeGenerator(other)))\n"
            "print(told(lambda: EdgeGenerator(other, threads=2)))\n"
            "print(told(lambda: EdgeGenerator(other, threads=3)))\n"
            "print(told(lambda: EdgeGenerator(other, own_threads=True)))\n"
        )
        assert run(code, models / "hash", models / "markov").splitlines() == [
            "2",
            "2",
            "2",
            "threads must be 2, as many as the models of this process share, got 3",
            "own_threads must be asked for before a draft model is used in a process, "
            "whose models now share a pool of 2 threads",
        ]

    def test_a_draft_named_in_a_call_makes_both_share(self, models: Path) -> None:
        code = self.START + (
            "one = EdgeGenerator(path)\n"
            "print(one.session.shares_threads)\n"
            "plain = one.generate([3, 9, 4], max_new_tokens=9).tokens.tolist()\n"
            "drafted = one.generate([3, 9, 4], max_new_tokens=9, draft=other).tokens.tolist()\n"
            "print(one.session.shares_threads, drafted == plain)\n"
            "session = one.session\n"
            "one.generate([3, 9, 4], max_new_tokens=9, draft=other)\n"
            "print(one.session is session)\n"
        )
        said = run(code, models / "hash", models / "markov").splitlines()
        assert said == ["False", "True True", "True"]

    def test_the_first_call_with_a_draft_runs_on_the_target_that_shares(self, models: Path) -> None:
        code = self.START + (
            "one = EdgeGenerator(path)\n"
            "stream = one.stream([3, 9, 4], max_new_tokens=9, draft=other)\n"
            "print(stream._decoding.target is one.model, one.session.shares_threads)\n"
        )
        assert run(code, models / "hash", models / "markov") == "True True"

    def test_a_draft_shares_too_where_another_model_runs_alone(self, models: Path) -> None:
        code = self.START + (
            "alone = EdgeGenerator(other)\n"
            "one = EdgeGenerator(path)\n"
            "plain = one.generate([3, 9, 4], max_new_tokens=9).tokens.tolist()\n"
            "for _ in range(2):\n"
            "    drafted = one.generate([3, 9, 4], max_new_tokens=9, draft=other)\n"
            "    print(one.session.shares_threads, drafted.tokens.tolist() == plain)\n"
        )
        said = run(code, models / "hash", models / "markov").splitlines()
        assert said == ["True True", "True True"]

    def test_a_model_that_cannot_join_the_pool_goes_on_alone(self, models: Path) -> None:
        code = self.START + (
            "one, two = EdgeGenerator(path, threads=1), EdgeGenerator(other)\n"
            "EdgeGenerator(other, threads=2, draft=path)\n"
            "print(told(lambda: one.stream([3, 9, 4], max_new_tokens=2, draft=two)))\n"
            "print(one.generate([3, 9, 4], max_new_tokens=9).tokens.tolist())\n"
        )
        assert run(code, models / "hash", models / "markov").splitlines() == [
            "threads must be 2, as many as the models of this process share, got 1",
            str(oracle(HASH, [3, 9, 4], 9)),
        ]

    def test_others_may_use_a_model_while_it_is_loaded_to_share(self, models: Path) -> None:
        code = self.START + (
            "import threading, time\n"
            "one = EdgeGenerator(path)\n"
            "from edgespec.loading import Loading\n"
            "load, wrong = Loading.load, []\n"
            "def slow(self):\n"
            "    time.sleep(0.5)\n"
            "    load(self)\n"
            "def write():\n"
            "    try:\n"
            "        for _ in range(50):\n"
            "            one.generate([3, 9, 4], max_new_tokens=2)\n"
            "            time.sleep(0.01)\n"
            "    except Exception as error:\n"
            "        wrong.append(repr(error))\n"
            "writing = [threading.Thread(target=write) for _ in range(2)]\n"
            "Loading.load = slow\n"
            "for thread in writing:\n"
            "    thread.start()\n"
            "one.generate([3, 9, 4], max_new_tokens=2, draft=other)\n"
            "for thread in writing:\n"
            "    thread.join()\n"
            "print(wrong, one.session.shares_threads)\n"
        )
        assert run(code, models / "hash", models / "markov") == "[] True"

    @pytest.mark.parametrize("more", ["", ", own_threads=True, draft=other"], ids=["alone", "own"])
    def test_models_with_threads_of_their_own_leave_other_sessions_alone(
        self, models: Path, more: str
    ) -> None:
        code = self.START + (
            f"print(told(lambda: EdgeGenerator(path, threads=1{more})))\n"
            "import onnxruntime\n"
            "onnxruntime.InferenceSession(other + '/model.onnx')\n"
            "print(told(lambda: EdgeGenerator(other, threads=2, own_threads=True)))\n"
        )
        assert run(code, models / "hash", models / "markov").splitlines() == ["1", "2"]

    @pytest.mark.parametrize("more", ["", ", draft=other"], ids=["alone", "with a draft"])
    def test_no_more_threads_are_started_than_were_chosen(self, models: Path, more: str) -> None:
        code = self.START + (
            "def count(): return len(os.listdir('/proc/self/task'))\n"
            "before = count()\n"
            f"one = EdgeGenerator(path, threads=3{more})\n"
            "print(count() - before)\n"
        )
        if sys.platform == "linux":
            assert int(run(code, models / "hash", models / "markov")) <= 2

    def test_the_environment_reaches_the_pool(self, models: Path) -> None:
        code = self.START + "print(told(lambda: EdgeGenerator(path)))\n"
        arguments = (models / "hash", models / "markov")
        assert run(code, *arguments, **{VARIABLE: "3"}) == "3"
        assert "environment variable ORT_INTRA_OP_NUM_THREADS" in run(
            code, *arguments, **{VARIABLE: "abc"}
        )


@pytest.mark.onnx
class TestOtherProcesses:
    """microsoft/onnxruntime#9800 and #10736."""

    FORK = """
import os, sys
from edgespec import EdgeGenerator
from edgespec.errors import ProcessError
path, inside = sys.argv[1:]
generator = EdgeGenerator(path, threads=2)
print(os.getpid(), generator.generate([3, 9, 4], max_new_tokens=4).tokens.tolist(), flush=True)
if os.fork() == 0:
    try:
        again = EdgeGenerator(path) if inside == "new" else generator
        print(again.generate([3, 9, 4], max_new_tokens=4).tokens.tolist(), flush=True)
    except ProcessError as error:
        print(os.getpid(), error, flush=True)
    os._exit(0)
os.wait()
"""

    def test_a_forked_child_is_told_and_does_not_hang(self, models: Path) -> None:
        first, second = run(self.FORK, models / "hash", "old").splitlines()
        parent, child = first.split()[0], second.split()[0]
        assert second == (
            f"{child} model.onnx was loaded in process {parent} and is used in {child}; "
            "make the EdgeGenerator after the fork"
        )

    def test_a_model_loaded_after_the_fork_works(self, models: Path) -> None:
        first, second = run(self.FORK, models / "hash", "new").splitlines()
        assert second == str(oracle(HASH, [3, 9, 4], 4))
        assert first.endswith(second)

    def test_a_pickled_generator_loads_its_model_again(self, hash_model: EdgeGenerator) -> None:
        copy = pickle.loads(pickle.dumps(hash_model))
        assert copy is not hash_model
        result = copy.generate([3, 9, 4], max_new_tokens=4)
        assert result.tokens.tolist() == oracle(HASH, [3, 9, 4], 4)
