import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli.generate import _model_and_prompt
from edgespec.decode import Round
from edgespec.stats import Stats
from tests.folders import byte_tokenizer, metaspace_tokenizer, write_folder
from tests.toylm import HASH, MARKOV

pytestmark = pytest.mark.onnx

Run = Callable[..., Any]
GREEN, PLAIN = "\x1b[32m", "\x1b[0m"


@pytest.fixture
def text(models: Path) -> Path:
    return models / "text"


def process(*arguments: object, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "edgespec", "generate", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


class TestText:
    def test_it_is_printed_and_ends_with_a_line_break(self, edgespec: Run, text: Path) -> None:
        told = edgespec("generate", text, "abc", "-n", 5)
        assert (told.out, told.err, told.code) == ("defgh\n", "", 0)

    @pytest.mark.parametrize(
        ("options", "out"),
        [
            (["--lookup"], "defgh\n"),
            (["--no-lookup"], "defgh\n"),
            (["--ngram"], "defgh\n"),
            (["--suffix", "--lookup"], "defgh\n"),
            (["--include-stop", "--stop", "fg"], "defg\n"),
            (["--lookup", "--num-assistant-tokens", "auto"], "defgh\n"),
            (["--lookup", "--num-assistant-tokens", "3"], "defgh\n"),
            (["--stop", "zz", "--stop", "fg"], "de\n"),
            (["--max-length", "6"], "def\n"),
            (["--max-time", "1e-9"], "d\n"),
            (["--threads", "1000000"], None),
        ],
        ids=str,
    )
    def test_options_reach_the_generator(
        self, edgespec: Run, text: Path, options: list[str], out: str | None
    ) -> None:
        told = edgespec("generate", text, "abc", "-n", 5, *options)
        if out is None:
            assert (told.out, told.code) == ("", 2)
            assert told.err == "edgespec: threads must be at most 1,024, got 1,000,000\n"
        else:
            assert (told.out, told.err, told.code) == (out, "", 0)

    def test_a_draft_with_another_tokenizer_is_taken_when_asked_for(
        self, edgespec: Run, text: Path, tmp_path: Path
    ) -> None:
        draft = write_folder(tmp_path, MARKOV, 265, tokenizer=metaspace_tokenizer())
        asked = ("generate", text, "abc", "-n", 5, "--draft-model", draft)
        told = edgespec(*asked)
        assert (told.out, told.code) == ("", 1)
        assert told.err.endswith("or be asked for with universal_draft=True\n")
        told = edgespec(*asked, "--universal-draft", "--suffix", "--stats")
        assert (told.out, told.code) == ("defgh\n", 0)

    def test_candidates_come_from_a_corpus(self, edgespec: Run, text: Path, tmp_path: Path) -> None:
        notes, grams = tmp_path / "notes.txt", tmp_path / "notes.ngrams"
        notes.write_text("abcdefgh" * 3, encoding="utf-8")
        assert edgespec("ngrams", "build", notes, "-o", grams, "--model", text).code == 0
        asked = ("generate", text, "abc", "-n", 5, "--num-assistant-tokens", 4)
        told = edgespec(*asked, "--ngram-corpus", grams, "--stats")
        assert told.out == "defgh\n"
        assert "by source: NgramCacheCandidateGenerator 4 of 4" in told.err
        told = edgespec("generate", text, "abc", "--ngram-corpus", tmp_path / "none")
        assert (told.out, told.code) == ("", 1)
        assert "none cannot be read" in told.err

    def test_a_seed_repeats_a_sampled_text(self, edgespec: Run, tmp_path: Path) -> None:
        folder = write_folder(tmp_path, HASH, 257, tokenizer=byte_tokenizer(), height=1.0)
        told = [
            edgespec("generate", folder, "a", "--sample", "--seed", s, "--top-k", 0, "-n", 20).out
            for s in (1, 1, 2)
        ]
        assert told[0] == told[1] != told[2]

    def test_accepted_candidates_are_green(self, edgespec: Run, text: Path) -> None:
        options = ("-n", 6, "--lookup", "--num-assistant-tokens", 3)
        told = edgespec("generate", text, "defghij abc", *options, "--show-accepted")
        assert GREEN in told.out
        assert told.out.replace(GREEN, "").replace(PLAIN, "") == "defghi\n"
        green = told.out.split(GREEN)[1].split(PLAIN)[0]
        assert green in "defghi"
        assert len(green) == 3
        assert edgespec("generate", text, "defghij abc", *options).out == "defghi\n"

    def test_statistics_go_to_stderr(self, edgespec: Run, text: Path) -> None:
        told = edgespec("generate", text, "defgh abc", "-n", 6, "--lookup", "--stats")
        assert told.out == "defghi\n"
        assert told.err.startswith("9 tokens read in ")
        assert "6 written in " in told.err
        assert "end: length" in told.err
        assert "candidates accepted" in told.err
        assert "by source: PromptLookupCandidateGenerator " in told.err

    def test_json_is_one_object_and_nothing_else(self, edgespec: Run, text: Path) -> None:
        told = edgespec("generate", text, "abc", "-n", 5, "--json", "--lookup")
        said = json.loads(told.out)
        assert (said["text"], said["finish_reason"]) == ("defgh", "length")
        assert said["tokens"] == list(b"defgh")
        assert said["model"] == str(text)
        assert said["stats"]["emitted"] == 5

    def test_a_message_is_laid_out_for_a_chat(self, edgespec: Run, tmp_path: Path) -> None:
        folder = write_folder(
            tmp_path,
            MARKOV,
            265,
            tokenizer=metaspace_tokenizer(adds_bos=True),
            chat_template="<s>{{ messages[0].content }}]",
        )
        told = edgespec("generate", folder, "Hi", "--chat", "-n", 2, "--json")
        said = json.loads(told.out)
        assert (said["text"], said["stats"]["prompt_tokens"]) == ("^_", 4)


class TestPrompt:
    def test_from_standard_input(self, text: Path) -> None:
        done = process(text, "-", "-n", 1, stdin="\u00e9abc".encode())
        assert (done.stdout, done.stderr, done.returncode) == (b"d\n", b"", 0)

    def test_from_a_file(self, edgespec: Run, text: Path, tmp_path: Path) -> None:
        path = tmp_path / "prompt.txt"
        path.write_text("\u00e9abc", encoding="utf-8")
        assert edgespec("generate", text, "--file", path, "-n", 2).out == "de\n"

    @pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "not text"])
    def test_from_a_file_that_cannot_be_read(
        self, edgespec: Run, text: Path, tmp_path: Path, content: bytes | None
    ) -> None:
        path = tmp_path / "prompt.txt"
        if content is not None:
            path.write_bytes(content)
        told = edgespec("generate", text, "--file", path)
        assert (told.out, told.code) == ("", 2)
        assert f"{path} cannot be read as text: " in told.err

    @pytest.mark.parametrize("prompt", ["x" * 3000, "a\nb", "/", "-n", "", "a\0b"], ids=len)
    def test_any_text_may_stand_without_a_model(self, prompt: str) -> None:
        """It is first looked at as a path, to notice a model that no prompt follows."""
        assert _model_and_prompt((prompt,), None) == (None, prompt)

    def test_a_model_that_no_prompt_follows_is_noticed(self, edgespec: Run, text: Path) -> None:
        told = edgespec("generate", text)
        assert (told.out, told.code) == ("", 2)
        assert f"{text} is a model folder and no prompt follows it" in told.err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "expected [MODEL] PROMPT, got 0 arguments"),
            (
                ["a", "b", "c"],
                "expected [MODEL] PROMPT, got 3 arguments; quote a prompt of several",
            ),
            (["a", "b", "--file", "c"], "expected [MODEL], got 2 arguments"),
        ],
        ids=["none", "too many", "too many with a file"],
    )
    def test_arguments_that_cannot_be_meant(
        self, edgespec: Run, arguments: list[str], said: str
    ) -> None:
        told = edgespec("generate", *arguments)
        assert (told.out, told.code) == ("", 2)
        assert said in told.err


class TestMistakes:
    """One sentence on stderr, no traceback; 2 for what cannot be meant, 1 for what cannot be."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["-n", "0"], "max_new_tokens must be at least 1, got 0"),
            (["-n", "-1"], "max_new_tokens must be at least 1, got -1"),
            (["--top-p", "2"], "top_p must be above 0 and at most 1, got 2.0"),
            (["--stop", ""], "stop strings must not be empty, got ''"),
            (["--provider", "tpu"], "provider must be 'auto', 'cpu' or 'cuda', got 'tpu'"),
            (
                ["--num-assistant-tokens", "-1"],
                "num_assistant_tokens must be 'auto' or a whole number, 0 or more, got -1",
            ),
            (
                ["--max-length", "3"],
                "the prompt has 3 tokens and the longest text 3, which leaves no room for a new "
                "one; shorten the prompt or raise max_length",
            ),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_options(self, edgespec: Run, text: Path, arguments: list[str], said: str) -> None:
        told = edgespec("generate", text, "abc", *arguments)
        assert (told.out, told.err, told.code) == ("", f"edgespec: {said}\n", 2)

    def test_an_empty_prompt(self, edgespec: Run, text: Path) -> None:
        told = edgespec("generate", text, "")
        said = "edgespec: prompt must hold at least one token, got an empty one\n"
        assert (told.out, told.err, told.code) == ("", said, 2)

    def test_a_missing_model(self, edgespec: Run, tmp_path: Path) -> None:
        path = tmp_path / "missing"
        told = edgespec("generate", path, "abc")
        said = f"edgespec: {path} does not exist; pass a model's folder or .onnx file\n"
        assert (told.out, told.err, told.code) == ("", said, 1)

    def test_a_folder_without_a_model(self, edgespec: Run, tmp_path: Path) -> None:
        told = edgespec("generate", tmp_path, "abc")
        assert (told.out, told.err, told.code) == (
            "",
            f"edgespec: {tmp_path} holds no model.onnx\n",
            1,
        )

    def test_a_broken_model(self, edgespec: Run, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"nonsense")
        told = edgespec("generate", tmp_path, "abc")
        assert (told.out, told.code) == ("", 1)
        assert told.err.startswith(f"edgespec: {tmp_path / 'model.onnx'} is not a whole ONNX file")

    def test_scores_that_are_no_numbers_end_the_text_with_what_was_made(
        self, edgespec: Run, tmp_path: Path
    ) -> None:
        folder = write_folder(tmp_path, MARKOV, 257, tokenizer=byte_tokenizer(), spoilt_after=4)
        told = edgespec("generate", folder, "abc", "-n", 9)
        assert told.out.startswith("de")
        assert told.err.startswith("edgespec: the model returned nan as its highest logit after 5")
        assert told.code == 1

    def test_no_traceback_reaches_the_user(self, tmp_path: Path) -> None:
        done = process(tmp_path / "x", "abc")
        assert done.returncode == 1
        assert done.stderr.decode().startswith("edgespec: ")
        assert b"Traceback" not in done.stderr


class TestInterruption:
    @pytest.fixture
    def long(self, tmp_path: Path) -> Path:
        """A text model that writes until it is told to end."""
        return write_folder(tmp_path, MARKOV, 257, tokenizer=byte_tokenizer(), max_length=None)

    def start(self, folder: Path, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "edgespec", "generate", str(folder), "abc"]
        return subprocess.Popen(
            [*command, "-n", "1000000", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def test_ctrl_c_ends_the_text_with_what_was_made(self, long: Path) -> None:
        running = self.start(long, "--stats")
        assert running.stdout is not None
        first = running.stdout.read(20)
        running.send_signal(signal.SIGINT)
        rest, err = running.communicate(timeout=60)
        assert running.returncode == 0
        assert (first + rest).startswith(b"defghij")
        assert (first + rest).endswith(b"\n")
        assert "end: cancelled" in err.decode()
        assert b"Traceback" not in err

    def test_ctrl_c_leaves_whole_json(
        self, edgespec: Run, long: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = Stats.add

        def interrupted(stats: Stats, done: Round) -> None:
            add(stats, done)
            if stats.rounds == 5:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Stats, "add", interrupted)
        before = signal.getsignal(signal.SIGINT)
        told = edgespec("generate", long, "abc", "--json")
        said = json.loads(told.out)
        assert (said["text"], said["finish_reason"]) == ("defghi", "cancelled")
        assert (told.err, told.code) == ("", 0)
        assert signal.getsignal(signal.SIGINT) is before

    def test_a_reader_who_leaves_ends_the_program_in_silence(self, long: Path) -> None:
        with self.start(long) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.read(5) == b"defgh"
            running.stdout.close()
            assert running.wait(timeout=60) == 1
            assert running.stderr.read() == b""
