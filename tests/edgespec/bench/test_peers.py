import json
import sys
from pathlib import Path

import pytest

from edgespec.bench import peer_process
from edgespec.bench.engines import Peer
from edgespec.errors import EdgespecError


def test_requests_are_answered_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    def shout(prompt: str, tokens: int) -> peer_process.Answer:
        return prompt.upper(), tokens, 0.5, 2.0

    request = json.dumps({"method": "plain", "prompt": "abc", "max_new_tokens": 9})
    peer_process.serve({"plain": shout}, [request])
    said = [line.removeprefix(peer_process.MARK) for line in capsys.readouterr().out.splitlines()]
    assert json.loads(said[0]) == {"methods": ["plain"]}
    # Nine tokens, of which the first belongs to the prefill, in two seconds.
    assert json.loads(said[1]) == {"text": "ABC", "tokens_per_s": 4.0, "prefill_s": 0.5}


def test_a_peer_that_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(
        EdgespecError,
        match=r"^genai failed under .*: ModuleNotFoundError: .*; pip install onnxruntime-genai "
        r"in some environment, and name its --peer-python$",
    ):
        Peer("genai", "nowhere", python=sys.executable, threads=1)


def test_an_unknown_peer_and_a_missing_interpreter_are_named() -> None:
    with pytest.raises(ValueError, match=r"against must be one of genai, llamacpp, .*, got 'vllm'"):
        Peer("vllm", "nowhere", python=None, threads=1)
    with pytest.raises(ValueError, match="no_such_python cannot be run"):
        Peer("genai", "nowhere", python="no_such_python", threads=1)


def test_a_peer_may_talk_as_much_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warnings and progress bars fill a pipe that nobody reads, and then the peer waits."""
    script = tmp_path / "peer.py"
    script.write_text(
        "import sys\n"
        "sys.stderr.write('loading\\n' * 100_000)\n"
        f"print('{peer_process.MARK}' + '{{\"methods\": [\"plain\"]}}', flush=True)\n"
        "sys.exit('the engine is out of memory')\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(peer_process, "__file__", str(script))
    peer = Peer("genai", "nowhere", python=sys.executable, threads=1)
    assert peer.methods == ("plain",)
    peer._process.wait()
    with pytest.raises(
        EdgespecError, match=r"^genai failed under .*: the engine is out of memory$"
    ):
        peer.write("plain", "abc", 9)
    peer.close()
