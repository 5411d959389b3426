import sys
from pathlib import Path

import pytest

from edgespec.bench import chart
from edgespec.bench.report import Figure, Report
from edgespec.errors import MissingExtraError

REPORT = Report(
    "toy",
    "here",
    [
        Figure("a1", "a", "edgespec", "plain", 10.0, 0.1, True),
        Figure("a1", "a", "edgespec", "lookup", 25.0, 0.1, True, 2.5, 0.8, [9, 3], [8, 2]),
    ],
    {1: 10.0, 2: 11.0, 9: 20.0},
)


def test_a_picture_names_what_it_shows(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters as letters
        chart.draw(REPORT, tmp_path / "bench.svg")
    drawn = (tmp_path / "bench.svg").read_text(encoding="utf-8")
    for words in ("edgespec, lookup", "tokens a second", "t(k) / t(1)", "share that stood"):
        assert words in drawn


def test_a_png_is_one(tmp_path: Path) -> None:
    chart.draw(REPORT, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgespec\[bench\]'"):
        chart.require_matplotlib()
