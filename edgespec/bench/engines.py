"""Who writes: edgespec with candidates of some kind, or a peer in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import edgespec.bench.peer_process as peer_process
from edgespec.errors import EdgespecError, TokenizerError
from edgespec.generator import EdgeGenerator
from edgespec.options import GenerateOptions

METHODS: dict[str, GenerateOptions] = {
    "plain": {"lookup": False, "draft": False},
    "lookup": {"lookup": True},
    "suffix": {"suffix": True},
    "ngram": {"ngram": True},
    "draft": {"draft": True},
    "mixed": {"lookup": True, "suffix": True, "ngram": True},
}
"""What proposes, and the options of a call that say so."""


@dataclass(frozen=True, slots=True)
class Written:
    """One run of one engine.

    Attributes:
        text: What it wrote.
        tokens_per_s: Tokens a second, the prefill and the first token left out.
        prefill_s: Seconds until the prompt was read.
        tokens_per_round: Tokens that a forward of the target brought; None if it does not say.
        acceptance_rate: Share of the candidates that stood; None if it does not say.
        evaluated_by_position: How often there was a first, second, ... candidate.
        accepted_by_position: How often it stood.
    """

    text: str
    tokens_per_s: float
    prefill_s: float
    tokens_per_round: float | None = None
    acceptance_rate: float | None = None
    evaluated_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)


class Engine(Protocol):
    """Writes a prompt in one of several ways.

    Attributes:
        name: What it is called in a table.
        methods: The ways, ``"plain"`` first: the others are compared with it.
    """

    name: str
    methods: tuple[str, ...]

    def write(self, method: str, prompt: str | Sequence[int], max_new_tokens: int) -> Written:
        """Continue ``prompt``, or answer it where the model has a chat template."""


class Ours:
    """edgespec on a loaded model."""

    name = "edgespec"

    def __init__(
        self,
        generator: EdgeGenerator,
        methods: Sequence[str],
        *,
        num_assistant_tokens: int | Literal["auto"] = "auto",
    ) -> None:
        """Measure ``methods``, names of :data:`METHODS`."""
        self.generator = generator
        self.methods = tuple(methods)
        self._num_assistant_tokens = num_assistant_tokens

    def write(self, method: str, prompt: str | Sequence[int], max_new_tokens: int) -> Written:
        """Write with the candidates that ``method`` names."""
        options = METHODS[method].copy()
        options["max_new_tokens"] = max_new_tokens
        options["num_assistant_tokens"] = self._num_assistant_tokens
        result = self._ask(prompt, options)
        stats = result.stats
        return Written(
            result.text,
            stats.tokens_per_s or 0.0,
            stats.prefill_s,
            stats.tokens_per_round,
            stats.acceptance_rate,
            stats.evaluated_by_position,
            stats.accepted_by_position,
        )

    def _ask(self, prompt: str | Sequence[int], options: GenerateOptions) -> Any:
        if isinstance(prompt, str):
            if self.generator.tokenizer is None:
                raise TokenizerError(
                    f"{self.generator.folder.tokenizer} does not exist, and the prompts are text; "
                    "copy it from the checkpoint"
                )
            if self.generator.has_chat_template:
                return self.generator.chat([{"role": "user", "content": prompt}], **options)
        return self.generator.generate(prompt, **options)


class Peer:
    """Another engine, which waits in its own process while it is not its turn.

    Its interpreter needs the peer's package and not edgespec, so that no two packages fight for one
    environment.
    """

    def __init__(self, name: str, model: str, *, python: str | None, threads: int) -> None:
        """Start it, and wait until the model is loaded.

        Args:
            name: One of :data:`edgespec.bench.peer_process.PEERS`.
            model: What it loads: a folder, a hub name or a GGUF file.
            python: The interpreter that has its package; None is this one.
            threads: Threads to compute with, set in every peer.

        Raises:
            ValueError: If the name is unknown.
            EdgespecError: If it does not start, with what it said last.
        """
        if name not in peer_process.PEERS:
            known = ", ".join(peer_process.PEERS)
            raise ValueError(f"against must be one of {known}, got {name!r}")
        self.name = name
        self._python = python or sys.executable
        self._last_said = ""
        command = [self._python, peer_process.__file__, name, model, str(threads)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # a pipe that nobody reads fills up, and the peer waits
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise ValueError(f"{self._python} cannot be run: {error.strerror}") from None
        self.methods = tuple(self._answer()["methods"])

    def write(self, method: str, prompt: str | Sequence[int], max_new_tokens: int) -> Written:
        """Ask the process."""
        assert self._process.stdin is not None
        request = {"method": method, "prompt": prompt, "max_new_tokens": max_new_tokens}
        with suppress(BrokenPipeError):  # it has ended: then it does not answer either
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        return Written(answer["text"], answer["tokens_per_s"], answer["prefill_s"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> Mapping[str, Any]:
        """The next line that is ours; libraries print what they like between."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said, mark, told = line.partition(peer_process.MARK)
            if mark:
                answer: dict[str, Any] = json.loads(told)
                return answer
            self._last_said = said.strip() or self._last_said
        self._process.communicate()
        last = self._last_said or f"exit code {self._process.returncode}"
        remedy = ""
        if last.startswith("ModuleNotFoundError"):
            package = peer_process.PEERS[self.name]
            remedy = f"; pip install {package} in some environment, and name its --peer-python"
        raise EdgespecError(f"{self.name} failed under {self._python}: {last[:200]}{remedy}")
