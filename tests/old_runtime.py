"""Does an exported folder run on the ONNX Runtime that is installed here?

    python tests/old_runtime.py FOLDER LOGITS.npy

Needs numpy and onnxruntime alone, and Python 3.8, so that it runs where edgespec does not. Reads
twelve tokens in pieces, and a batch of two texts of different lengths. The first run writes their
logits to LOGITS.npy; later runs, with other versions of ONNX Runtime, compare with them. For the
layouts ``growing`` and ``static``, whose graphs take and give the cache as plain arrays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Array = NDArray[Any]

CAPACITY = 32
TOLERANCE = 1e-3


class Graph:
    """A folder's graph with its cache as arrays."""

    def __init__(self, folder: Path, texts: int) -> None:
        """Load it, for ``texts`` texts at a time."""
        said = json.loads((folder / "edgespec.json").read_text(encoding="utf-8"))
        self.grows = said["cache_layout"] == "growing"
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        shape = (texts, said["num_kv_heads"], 0 if self.grows else CAPACITY, said["head_size"])
        names = [i.name for i in self.session.get_inputs() if i.name.startswith("past")]
        self.cache = {name: np.zeros(shape, np.float32) for name in names}

    def read(self, tokens: Array, mask: Array, positions: Array) -> Array:
        """Logits [B, S, V]."""
        outputs = ["logits"] + [n.replace("past_key_values", "present") for n in self.cache]
        feeds = {
            "input_ids": np.array(tokens, np.int64),
            "attention_mask": np.array(mask, np.int64),
            "position_ids": np.array(positions, np.int64),
            "num_logits_to_keep": np.array(0, np.int64),
        }
        logits, *present = self.session.run(outputs, {**feeds, **self.cache})
        self.cache = dict(zip(self.cache, present))  # noqa: B905 - Python 3.8
        return np.asarray(logits)


def alone(folder: Path) -> Array:
    """[12, V] logits of one text, read as 7, 1 and 4 tokens."""
    graph, tokens = Graph(folder, 1), np.arange(3, 15)[None]
    rows = [
        graph.read(tokens[:, begin:end], np.ones((1, end)), np.arange(begin, end)[None])[0]
        for begin, end in ((0, 7), (7, 8), (8, 12))
    ]
    return np.concatenate(rows)


def together(folder: Path) -> tuple[Array, Array]:
    """[12, V] and [7, V] logits of two texts, read as a batch."""
    graph = Graph(folder, 2)
    long, short = np.arange(3, 15), np.arange(20, 27)
    if graph.grows:  # padded at the left
        tokens = np.stack([long, np.concatenate([np.zeros(5, np.int64), short])])
        mask = np.ones((2, 12), np.int64)
        mask[1, :5] = 0
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        got = np.concatenate(
            [
                graph.read(tokens[:, b:e], mask[:, :e], positions[:, b:e])
                for b, e in ((0, 8), (8, 12))
            ],
            axis=1,
        )
        return got[0], got[1, 5:]
    # Pasts of 8 and 3 tokens, then 4 more of each; what fills up the shorter row is overwritten.
    pasts = np.array([[8], [3]])
    filled = np.stack([long[:8], np.concatenate([short[:3], np.zeros(5, np.int64)])])
    first = graph.read(filled, np.ones((2, 8)), np.arange(8)[None].repeat(2, 0))
    counted = np.arange(12) < pasts + 4
    second = graph.read(np.stack([long[8:], short[3:]]), counted, pasts + np.arange(4))
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1, :3], second[1]])


def main() -> None:
    """Read, and write or compare."""
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    got = np.concatenate([alone(folder), *together(folder)])
    if not path.exists():
        np.save(str(path), got)
    difference = np.abs(got - np.load(str(path))).max()
    assert np.abs(got[:12] - got[12:24]).max() < TOLERANCE, "one text alone differs from a batch"
    assert difference < TOLERANCE, f"logits differ by {difference}"
    print(f"onnxruntime {onnxruntime.__version__}: {folder.name} differs by {difference:.2g}")


if __name__ == "__main__":
    main()
