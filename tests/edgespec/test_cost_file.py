import json
import os
import sys
from pathlib import Path

import pytest

from edgespec import EdgeGenerator
from edgespec.budget import StepCosts
from edgespec.cost_file import CostFile, cache_folder
from edgespec.machine import _named

COSTS = {1: 0.01, 2: 0.0125, 9: 0.03}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, not made yet."""
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_later_process_knows_what_an_earlier_one_measured() -> None:
    CostFile("model", 2, "machine").write(COSTS)
    assert CostFile("model", 2, "machine").read() == COSTS
    assert CostFile("model", 1, "machine").read() == {}
    assert StepCosts(COSTS).table()[1] == 0.0125


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"format": 2, "key": ["model"], "seconds": {"1": 1.0}}',
        b'{"format": 1, "key": ["another"], "seconds": {"1": 1.0}}',
        b'{"format": 1, "key": ["model"], "seconds": [1.0]}',
        b'{"format": 1, "key": ["model"], "seconds": {"one": 1.0}}',
        b'{"format": 1, "key": ["model"], "seconds": {"1": NaN}}',
        b'{"format": 1, "key": ["model"], "seconds": {"1": -1.0}}',
        b'{"format": 1, "key": ["model"], "seconds": {"0": 1.0}}',
        b'{"format": 1, "key": ["model"], "seconds": {"1": null}}',
    ],
)
def test_a_damaged_file_means_that_nothing_is_known(content: bytes) -> None:
    file = CostFile("model")
    assert file.path is not None
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(content)
    assert file.read() == {}
    file.write(COSTS)
    assert file.read() == COSTS


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    CostFile("model").write(COSTS)
    assert CostFile("model").read() == {}


def test_an_empty_variable_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", "")
    assert cache_folder() is None
    CostFile("model").write(COSTS)
    assert CostFile("model").read() == {}


@pytest.mark.parametrize(
    ("system", "variables", "expected"),
    [
        ("linux", {"HOME": "/home/ada"}, "/home/ada/.cache/edgespec"),
        ("linux", {"HOME": "/home/ada", "XDG_CACHE_HOME": "/tmp/x"}, "/tmp/x/edgespec"),
        ("darwin", {"HOME": "/Users/ada"}, "/Users/ada/Library/Caches/edgespec"),
        ("win32", {"LOCALAPPDATA": "C:/Local"}, "C:/Local/edgespec/Cache"),
        ("win32", {}, None),
    ],
)
def test_each_system_has_a_place_for_caches(
    system: str,
    variables: dict[str, str],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("EDGESPEC_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        if name == "HOME":
            monkeypatch.setenv("USERPROFILE", value)
    monkeypatch.setattr(sys, "platform", system)
    found = cache_folder()
    assert (None if found is None else found.as_posix()) == expected


def test_costs_are_told_after_16_32_64_forwards() -> None:
    told: list[dict[int, float]] = []
    costs = StepCosts(tell=lambda medians: told.append(dict(medians)))
    for _ in range(100):
        costs.add(1, 0.5)
    assert told == [{1: 0.5}] * 3


@pytest.mark.onnx
def test_a_second_generator_begins_with_the_costs_of_the_first(models: Path, folder: Path) -> None:
    options = {"max_new_tokens": 40, "lookup": True}
    EdgeGenerator(models / "hash").generate([1, 2, 3], **options)  # type: ignore[call-overload]
    (kept,) = (folder / "costs").iterdir()
    measured = {int(rows) for rows in json.loads(kept.read_bytes())["seconds"]}
    assert 1 in measured
    second = EdgeGenerator(models / "hash")
    second.generate([1, 2, 3], max_new_tokens=1, lookup=True)
    (costs,) = second._budgets._costs.values()
    assert measured <= set(costs._medians)
    assert os.listdir(folder) == ["costs"]


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor : 0\nmodel name : A 1\n\nprocessor : 1\nmodel name : A 1\n", "A 1"),
        ("CPU part : 0xd05\n\nCPU part : 0xd0a\n", "0xd05 + 0xd0a"),
        ("nothing", ""),
    ],
    ids=["x86", "big and little ARM", "none"],
)
def test_a_processor_is_told_from_another(cpuinfo: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    assert _named(path) == name
    assert _named(tmp_path / "none") == ""
