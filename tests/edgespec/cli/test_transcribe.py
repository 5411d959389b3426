"""``edgespec transcribe``: text, subtitles or JSON; and a sentence where there is no sound."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgespec import EdgeTranscriber
from edgespec.cli.main import main
from tests.edgespec.speech.test_audio import write_wav
from tests.heard import write_speech, write_text

pytestmark = pytest.mark.onnx
GREEDY = ("--language", "en", "--temperature", "0")


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder with a draft in it, and a file of noise."""
    root = tmp_path_factory.mktemp("transcribe")
    write_speech(root / "model")
    write_speech(root / "model" / "draft", alone=True)
    noise = 0.2 * np.random.default_rng(0).standard_normal(24_000).clip(-4, 4)
    return root / "model", write_wav(root / "noise.wav", noise, 8_000)


def _run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    main(arguments)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_text_is_written(heard: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, file = heard
    out, err = _run(["transcribe", str(model), str(file), *GREEDY, "--stats"], capsys)
    found = EdgeTranscriber(model).transcribe(file, language="en", temperature=0.0)
    assert out.split() == "\n".join(s.text.strip() for s in found.segments).split()
    assert "3.0 s of sound, language en; " in err


def test_json_holds_segments_and_what_a_draft_brought(
    heard: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = heard
    out, _ = _run(["transcribe", str(model), str(file), *GREEDY, "--draft", "--json"], capsys)
    said = json.loads(out)
    assert said["duration_s"] == 3.0
    assert said["segments"][0]["start_s"] == 0.0
    assert said["stats"]["acceptance_rate"] == 1.0


@pytest.mark.parametrize(
    ("form", "starts"),
    [("--srt", "1\n00:00:00,000 --> "), ("--vtt", "WEBVTT\n\n00:00:00.000 --> ")],
)
def test_subtitles_are_written(
    form: str, starts: str, heard: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = heard
    out, _ = _run(["transcribe", str(model), str(file), *GREEDY, form], capsys)
    assert out.startswith(starts)


@pytest.mark.parametrize(
    ("make", "code", "sentence"),
    [
        (lambda folder: folder / "no.wav", 1, "no.wav does not exist; pass a file of sound"),
        (lambda folder: folder, 1, "is a folder; pass a file of sound"),
    ],
    ids=["nothing", "a folder"],
)
def test_what_is_no_sound_is_said_in_a_sentence(
    make: Callable[[Path], Path],
    code: int,
    sentence: str,
    heard: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["transcribe", str(heard[0]), str(make(tmp_path))])
    assert ended.value.code == code
    assert capsys.readouterr().err.rstrip().endswith(sentence)


def test_info_says_which_class_runs_it(
    heard: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    said = json.loads(_run(["info", str(heard[0]), "--json"], capsys)[0])
    assert said["runs_on"] == "EdgeTranscriber"
    assert {"model.onnx", "encoder.onnx", "cross.onnx"} <= set(said["size_bytes"])


def test_generate_runs_a_text_to_text_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_text(tmp_path / "text")
    out, _ = _run(["generate", str(folder), "a text", "-n", "5", "--json"], capsys)
    assert len(json.loads(out)["tokens"]) == 5
