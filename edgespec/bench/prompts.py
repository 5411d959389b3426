"""What people ask for, from much to copy to nothing to copy; and prompts of one's own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """Something to write.

    Attributes:
        name: What it is called in a table.
        kind: The set that it belongs to: figures of a set are put together.
        prompt: A text, or token ids [T].
    """

    name: str
    kind: str
    prompt: str | Sequence[int]


PROMPTS = (
    BenchPrompt(
        "paragraph",
        "copying",
        "Copy this paragraph word for word, twice.\n\nThe inspection covers the impeller, the "
        "shaft seal, the bearings and the float switch. A worn seal is replaced at once; worn "
        "bearings are noted and replaced at the next inspection unless the vibration is too "
        "strong.\n\n",
    ),
    BenchPrompt(
        "numbers",
        "copying",
        "Repeat this table line by line.\n\nstation,depth_m,flow_l_s,checked\n"
        "Harrow Weir,4.20,1260,2026-03-14\nMill Lane,2.85,640,2026-03-15\n"
        "Ox Meadow,3.10,715,2026-03-15\nLower Lock,5.75,1480,2026-03-17\n\n",
    ),
    BenchPrompt(
        "rename",
        "code edit",
        "Print this function again with `total` renamed to `result`.\n\n"
        "def invoice(lines):\n    total = 0\n    for line in lines:\n        total += line.price\n"
        "    if total > 1000:\n        total = total * 0.98\n    return round(total, 2)\n\n",
    ),
    BenchPrompt(
        "docstring",
        "code edit",
        "Add a docstring to each function and leave everything else as it is.\n\n"
        "import math\n\n\ndef area(radius):\n    return math.pi * radius**2\n\n\n"
        "def volume(radius, height):\n    return area(radius) * height\n\n",
    ),
    BenchPrompt(
        "sailing",
        "chat",
        "Explain in a few sentences how a sailing boat can move against the wind.\n\n",
    ),
    BenchPrompt(
        "soup",
        "chat",
        "How do I make a simple vegetable soup for four people?\n\n",
    ),
    BenchPrompt(
        "people",
        "JSON",
        "Turn this list into a JSON array of objects with the keys name, city and year.\n\n"
        "Ada Krull, Bremen, 1987\nJon Vestergaard, Aarhus, 1992\nMaria Lopes, Porto, 1979\n\n",
    ),
    BenchPrompt(
        "sensor",
        "JSON",
        'Fill in this template for a sensor called door-3 that measures humidity.\n\n{"sensor": '
        '"", "quantity": "", "interval_s": 0, "alarm": {"low": null, "high": null}}\n\n',
    ),
)
"""The built-in sets."""


def read_prompts(path: Path) -> tuple[BenchPrompt, ...]:
    """Prompts from a JSON file: a list of objects with ``name``, ``prompt`` and perhaps ``kind``.

    Raises:
        ValueError: If the file is not of this form.
    """
    expected = 'expected a list like [{"name": "edit", "kind": "code edit", "prompt": "..."}]'
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}); {expected}") from None
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path} holds no prompts; {expected}")
    for entry in found:
        texts = [entry.get("name"), entry.get("prompt")] if isinstance(entry, dict) else [None]
        if not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"{path} holds {json.dumps(entry)[:60]}; {expected}")
    return tuple(
        BenchPrompt(entry["name"], str(entry.get("kind", entry["name"])), entry["prompt"])
        for entry in found
    )
