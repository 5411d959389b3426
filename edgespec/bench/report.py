"""What was measured, put together: ratios, tables, and advice in a sentence."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import geometric_mean

PAYS = 1.1
"""A gain from here on is worth turning something on; below it is noise."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One prompt, written by one engine in one way.

    Attributes:
        prompt: Its name.
        kind: The set that it belongs to.
        engine: Who wrote.
        method: What proposed candidates.
        tokens_per_s: Tokens a second without the prefill, the median of the repeats.
        prefill_s: Seconds until the prompt was read.
        same_text: Whether the text is that of the engine's plain decoding.
        tokens_per_round: Tokens that a forward of the target brought; None where unknown.
        acceptance_rate: Share of the candidates that stood; None where unknown.
        evaluated_by_position: How often there was a first, second, ... candidate.
        accepted_by_position: How often it stood.
    """

    prompt: str
    kind: str
    engine: str
    method: str
    tokens_per_s: float
    prefill_s: float
    same_text: bool
    tokens_per_round: float | None = None
    acceptance_rate: float | None = None
    evaluated_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """All figures of a run.

    Attributes:
        model: What was measured.
        machine: Where, in words.
        figures: One for each prompt, engine and method.
        step_ms: Milliseconds of a forward of edgespec by its number of rows.
    """

    model: str
    machine: str
    figures: Sequence[Figure]
    step_ms: dict[int, float]

    @property
    def kinds(self) -> list[str]:
        """The prompt sets, in order."""
        return list(dict.fromkeys(figure.kind for figure in self.figures))

    @property
    def ways(self) -> list[tuple[str, str]]:
        """Engine and method of each row of a table, in order."""
        return list(dict.fromkeys((figure.engine, figure.method) for figure in self.figures))

    def tokens_per_s(self, engine: str, method: str, kind: str) -> float:
        """The geometric mean over a set's prompts: ratios of such means are means of ratios."""
        found = [
            figure.tokens_per_s
            for figure in self.figures
            if (figure.engine, figure.method, figure.kind) == (engine, method, kind)
        ]
        return geometric_mean(found) if all(speed > 0 for speed in found) else 0.0

    def gain(self, engine: str, method: str, kind: str) -> float:
        """Against the same engine's plain decoding."""
        return self.tokens_per_s(engine, method, kind) / self.tokens_per_s(engine, "plain", kind)

    def differing(self, engine: str, method: str) -> list[str]:
        """The prompts whose text is not that of plain decoding."""
        return [
            figure.prompt
            for figure in self.figures
            if (figure.engine, figure.method) == (engine, method) and not figure.same_text
        ]

    def acceptance_by_position(self, engine: str, method: str) -> list[float]:
        """Share of the first, second, ... candidates that stood, over all prompts."""
        evaluated: list[int] = []
        accepted: list[int] = []
        for figure in self.figures:
            if (figure.engine, figure.method) == (engine, method):
                _add(evaluated, figure.evaluated_by_position)
                _add(accepted, figure.accepted_by_position)
        return [stood / tried for stood, tried in zip(accepted, evaluated, strict=True)]

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        engine, methods = "edgespec", [m for e, m in self.ways if e == "edgespec" and m != "plain"]
        if not methods:
            return "nothing was compared with plain decoding"
        said = []
        idle = []
        for method in methods:
            gains = {kind: self.gain(engine, method, kind) for kind in self.kinds}
            figures = ", ".join(f"{gain:.1f}x on {kind}" for kind, gain in gains.items())
            if max(gains.values()) >= PAYS:
                said.append(f"{method} pays: {figures}")
            else:
                idle.append(method)
        if idle:
            said.append(f"{' and '.join(idle)} {'do' if len(idle) > 1 else 'does'} not pay here")
        return "; ".join(said)

    def as_dict(self) -> dict[str, object]:
        """Everything, ready for JSON."""
        return {
            "model": self.model,
            "machine": self.machine,
            "figures": [asdict(figure) for figure in self.figures],
            "step_ms": self.step_ms,
            "advice": self.advice,
        }

    def rows(self) -> list[list[str]]:
        """Cells of the main table: a row a way, with its gain over plain in each set."""
        rows = []
        for engine, method in self.ways:
            cells = [f"{engine}, {method}"]
            for kind in self.kinds:
                speed = f"{self.tokens_per_s(engine, method, kind):.1f}"
                gain = f" ({self.gain(engine, method, kind):.2f}x)" if method != "plain" else ""
                cells.append(speed + gain)
            differing = self.differing(engine, method)
            cells.append(", ".join(differing) if differing else "-")
            rows.append(cells)
        return rows

    def markdown(self) -> str:
        """The tables, for a page."""
        head = ["tokens/s (against plain)", *self.kinds, "text differs on"]
        lines = [f"{self.model}; {self.machine}", "", _row(head), "|---" * len(head) + "|"]
        lines += [_row(cells) for cells in self.rows()]
        costs = list(self.step_ms.items())
        lines += ["", _row(["tokens in a forward", *(str(rows) for rows, _ in costs)])]
        lines += ["|---" * (len(costs) + 1) + "|"]
        lines += [_row(["milliseconds", *(f"{ms:.1f}" for _, ms in costs)])]
        lines += [_row(["against one", *(f"{ms / costs[0][1]:.2f}" for _, ms in costs)])]
        return "\n".join([*lines, "", self.advice])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _add(total: list[int], counts: Sequence[int]) -> None:
    """Add ``counts`` to ``total``, position by position, in place."""
    total += [0] * (len(counts) - len(total))
    for i, count in enumerate(counts):
        total[i] += count
