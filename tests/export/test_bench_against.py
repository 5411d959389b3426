"""A peer runs for real: transformers, which the extra brings."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.export, pytest.mark.onnx]


def test_edgespec_and_a_peer_write_the_same_text_in_turn(
    llama_checkpoint: Path, llama_folder: Path
) -> None:
    from edgespec import EdgeGenerator
    from edgespec.bench.engines import Ours, Peer
    from edgespec.bench.measure import figures
    from edgespec.bench.prompts import BenchPrompt

    peer = Peer("transformers", str(llama_checkpoint), python=None, threads=1)
    try:
        assert peer.methods == ("plain", "lookup 10")
        found = figures(
            [Ours(EdgeGenerator(llama_folder), ["plain"]), peer],
            [BenchPrompt("one", "chat", "a b c a b c")],
            max_new_tokens=12,
            repeats=1,
        )
    finally:
        peer.close()
    ours, plain, lookup = ((f.engine, f.method, f.same_text, f.tokens_per_s > 0) for f in found)
    assert ours == ("edgespec", "plain", True, True)
    assert plain == ("transformers", "plain", True, True)
    assert lookup == ("transformers", "lookup 10", True, True)
