"""What a process holds after many calls: a plateau, not a staircase."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.onnx

MANY_CALLS = """
import gc, resource, sys
from edgespec import EdgeGenerator

scale = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6
told = []
if sys.argv[1] == "calls":
    model = EdgeGenerator()
    for call in range(200):
        length = 5 + 11 * call % 56
        model.generate(list(range(300, 300 + length)), max_new_tokens=length, lookup=call % 2 == 0)
        if call == 20:
            told.append(peak())
else:
    for times in range(20):
        EdgeGenerator(own_threads=True).generate([300, 301], max_new_tokens=4)
        gc.collect()
        if times == 4:
            told.append(peak())
print(told[0], peak())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no resource module")
@pytest.mark.parametrize("what", ["calls", "loads"])
def test_memory_stays_where_it_was(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_CALLS, what], capture_output=True, text=True, check=True
    )
    early, late = map(float, done.stdout.split())
    assert late - early < 20, f"{early:.0f} MB became {late:.0f} MB"
