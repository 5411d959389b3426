"""The report as a picture."""

from pathlib import Path
from typing import Any

from edgespec.bench.report import Report
from edgespec.errors import MissingExtraError

FORMATS = (".png", ".svg")


def require_matplotlib() -> None:
    """Say before anything is measured that no picture can be made.

    Raises:
        MissingExtraError: If the extra ``bench`` is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "a chart needs matplotlib, which is not installed; pip install 'edgespec[bench]'"
        ) from None


def draw(report: Report, path: Path) -> None:
    """Write tokens a second by method and prompt set, t(k), and acceptance by position.

    Args:
        report: What was measured.
        path: A ``.png`` or ``.svg`` file.
    """
    from matplotlib.figure import Figure

    picture = Figure(figsize=(12, 7.5), layout="constrained")
    grid = picture.add_gridspec(2, 2, height_ratios=(3, 2))
    picture.suptitle(f"{report.model}\n{report.machine}", fontsize=10)
    _speeds(picture.add_subplot(grid[0, :]), report)
    _costs(picture.add_subplot(grid[1, 0]), report)
    _acceptance(picture.add_subplot(grid[1, 1]), report)
    picture.savefig(path, dpi=120)


def _speeds(axes: Any, report: Report) -> None:
    kinds, ways = report.kinds, report.ways
    width = 0.8 / len(ways)
    for i, (engine, method) in enumerate(ways):
        at = [k + (i - (len(ways) - 1) / 2) * width for k in range(len(kinds))]
        speeds = [report.tokens_per_s(engine, method, kind) for kind in kinds]
        bars = axes.bar(at, speeds, width * 0.9, label=f"{engine}, {method}")
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("tokens a second")
    axes.legend(fontsize=8, ncols=min(4, len(ways)))
    axes.margins(y=0.15)


def _costs(axes: Any, report: Report) -> None:
    rows = list(report.step_ms)
    one = report.step_ms[rows[0]]
    axes.plot(rows, [ms / one for ms in report.step_ms.values()], "o-", label="measured")
    axes.plot(rows, rows, ":", color="grey", label="as many plain steps")
    axes.set(xlabel="tokens in a forward, k", ylabel="t(k) / t(1)", ylim=(0, None))
    axes.set_ylim(0, max(ms / one for ms in report.step_ms.values()) * 1.3)
    axes.legend(fontsize=8)


def _acceptance(axes: Any, report: Report) -> None:
    for i, (engine, method) in enumerate(report.ways):
        shares = report.acceptance_by_position(engine, method)
        if shares:
            line = range(1, len(shares) + 1), shares, "o-"
            axes.plot(*line, color=f"C{i}", markersize=3, label=method)  # the bars' own colours
    axes.set(xlabel="position of the candidate", ylabel="share that stood", ylim=(0, 1.05))
    if axes.lines:
        axes.legend(fontsize=8)
