import json
import sys

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
