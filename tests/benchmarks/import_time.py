"""How long ``import edgespec`` takes, with and without ONNX Runtime's own import.

    python tests/benchmarks/import_time.py [--repeats 9]

Runs new processes and prints medians; files are in the system's cache after the first.
"""

import argparse
import statistics
import subprocess
import sys

CODE = """
import time
began = time.perf_counter()
import onnxruntime
between = time.perf_counter()
import edgespec
print(between - began, time.perf_counter() - between)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    pairs = []
    for _ in range(options.repeats + 1):
        said = subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, text=True, check=True
        ).stdout
        pairs.append([float(s) * 1000 for s in said.split()])
    runtime, ours = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
    print(f"onnxruntime (with numpy) {runtime:.0f} ms, edgespec on top of it {ours:.0f} ms")


if __name__ == "__main__":
    main()
