"""Does what was drawn follow the distribution that it should?"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Outcome = TypeVar("Outcome", bound=Hashable)


def follows(drawn: Iterable[Outcome], expected: Mapping[Outcome, float]) -> bool:
    """Pearson's chi-square test at about 1 in 10,000; seeds keep the answer the same.

    Outcomes expected fewer than 5 times are counted together. The bound is Wilson and Hilferty's.
    """
    counts = Counter(drawn)
    total = counts.total()
    if set(counts) - {outcome for outcome, prob in expected.items() if prob > 0}:
        return False
    cells, rest, rest_seen = [], 0.0, 0
    for outcome, prob in expected.items():
        if prob * total < 5:
            rest, rest_seen = rest + prob * total, rest_seen + counts[outcome]
        else:
            cells.append((counts[outcome], prob * total))
    if rest >= 5:
        cells.append((rest_seen, rest))
    free = len(cells) - 1
    chi_square = sum((seen - due) ** 2 / due for seen, due in cells)
    bound = free * (1 - 2 / (9 * free) + 3.72 * (2 / (9 * free)) ** 0.5) ** 3
    return bool(chi_square < bound)
