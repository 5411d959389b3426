"""A transcription is the target's own, whoever proposes; and what is asked for is what comes."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec import EdgeGenerator, EdgeTranscriber, Transcription
from edgespec.errors import ModelFolderError
from edgespec.speech.window import WindowWriter
from tests.folders import write_folder
from tests.heard import FIRST_TIME, write_speech, write_text
from tests.toylm import HASH

pytestmark = pytest.mark.onnx

Sound = NDArray[np.float32]
DRAFTS = ("identical", "random", "distilled", "random decoder")
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.7, "seed": 5},
    "with fall-backs": {"seed": 5},
    "without times": {"temperature": 0.0, "timestamps": False},
    "each window alone": {"temperature": 0.0, "condition_on_prev_tokens": False},
}


def _rows(found: Transcription) -> list[Any]:
    """What must be equal to the last token; mean log-probabilities differ by rounding."""
    return [(s.start_s, s.end_s, s.tokens, s.temperature) for s in found.segments]


def _written(transcriber: EdgeTranscriber, sound: Sound, **options: Any) -> list[Any]:
    return _rows(transcriber.transcribe(sound, language="en", **options))


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_draft_changes_the_speed_and_never_the_text(
    draft: str, way: str, speech_models: Path, transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    assisted = EdgeTranscriber(speech_models / "target", draft=speech_models / draft)
    options = {**WAYS[way], "num_assistant_tokens": 4}
    with_draft = assisted.transcribe(five_seconds, language="en", **options)
    plain = transcriber.transcribe(five_seconds, language="en", draft=False, **options)
    assert plain.segments
    assert _rows(with_draft) == _rows(plain)
    assert with_draft.stats.evaluated > 0
    if way == "greedy" and draft in ("identical", "distilled"):
        assert with_draft.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("way", WAYS)
def test_lookup_changes_the_speed_and_never_the_text(
    way: str, transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    plain = _written(transcriber, five_seconds, **WAYS[way])
    assert _written(transcriber, five_seconds, lookup=True, **WAYS[way]) == plain


def test_lookup_and_a_draft_propose_together(
    speech_models: Path, transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    assisted = EdgeTranscriber(speech_models / "target", draft=speech_models / "identical")
    both = assisted.transcribe(five_seconds, language="en", temperature=0.0, lookup=True)
    assert _rows(both) == _written(transcriber, five_seconds, temperature=0.0)


def test_what_is_heard_decides_what_is_written(
    transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    other = five_seconds[::-1].copy()
    assert _written(transcriber, five_seconds, temperature=0.0) != _written(
        transcriber, other, temperature=0.0
    )


def test_an_interrupted_text_does_not_hear_the_other_sound(
    transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    other = five_seconds[::-1].copy()
    alone = [_written(transcriber, sound, temperature=0.0) for sound in (five_seconds, other)]
    turns = [
        transcriber.segments(sound, language="en", temperature=0.0)
        for sound in (five_seconds, other)
    ]
    found: list[list[Any]] = [[], []]
    for _ in range(400):
        for segments, written in zip(turns, found, strict=True):
            segment = next(segments, None)
            if segment is not None:
                row = (segment.start_s, segment.end_s, segment.tokens, segment.temperature)
                written.append(row)
    assert found == alone


def test_threads_that_share_one_take_turns(
    transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    expected = _written(transcriber, five_seconds, temperature=0.0)
    found: list[list[Any]] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(_written(transcriber, five_seconds, temperature=0.0))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_segments_follow_each_other_within_the_sound(
    transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    found = transcriber.transcribe(five_seconds, language="en", temperature=0.0)
    times = [t for s in found.segments for t in (s.start_s, s.end_s)]
    assert times == sorted(times)
    assert found.duration_s == 5.0
    assert found.text == "".join(s.text for s in found.segments).strip()


def test_suppressed_tokens_are_not_written(
    transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    plain = transcriber.transcribe(five_seconds, language="en", temperature=0.0)
    often = [t for s in plain.segments for t in s.tokens if t < 256]
    banned = max(set(often), key=often.count)
    found = transcriber.transcribe(
        five_seconds, language="en", temperature=0.0, suppress_tokens=[banned]
    )
    assert banned not in {t for s in found.segments for t in s.tokens}


def test_without_times_there_are_none(transcriber: EdgeTranscriber, five_seconds: Sound) -> None:
    found = transcriber.transcribe(five_seconds, language="en", temperature=0.0, timestamps=False)
    assert all(t < FIRST_TIME for s in found.segments for t in s.tokens)
    assert [s.start_s for s in found.segments] == [0.0, 2.0, 4.0]


def test_a_prompt_is_heeded(transcriber: EdgeTranscriber, five_seconds: Sound) -> None:
    plain = _written(transcriber, five_seconds, temperature=0.0)
    by_text = _written(transcriber, five_seconds, temperature=0.0, prompt="names")
    by_ids = _written(transcriber, five_seconds, temperature=0.0, prompt_ids=list(b" names"))
    assert by_text != plain
    assert by_text == by_ids


def test_the_language_is_heard_once_and_kept(
    transcriber: EdgeTranscriber, five_seconds: Sound, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = transcriber.transcribe(five_seconds, temperature=0.0)
    assert found.language in ("en", "de")
    assert transcriber.transcribe(five_seconds, language="de", temperature=0.0).language == "de"


def test_a_refused_text_is_tried_at_the_next_temperature(
    transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    refused = transcriber.transcribe(
        five_seconds,
        language="en",
        temperature=(0.0, 0.5),
        logprob_threshold=0.0,
        no_speech_threshold=None,
        seed=1,
    )
    assert {s.temperature for s in refused.segments} == {0.5}
    believed = transcriber.transcribe(
        five_seconds,
        language="en",
        temperature=(0.0, 0.5),
        logprob_threshold=None,
        compression_ratio_threshold=None,
    )
    assert {s.temperature for s in believed.segments} == {0.0}


def test_a_text_that_nobody_spoke_is_left_out(
    transcriber: EdgeTranscriber, five_seconds: Sound
) -> None:
    found = transcriber.transcribe(
        five_seconds, language="en", logprob_threshold=0.0, no_speech_threshold=0.0
    )
    assert found.segments == []


@pytest.mark.parametrize("seconds", [0.0, 0.001, 3.0], ids=["empty", "a moment", "long"])
def test_silence_has_no_words_and_costs_no_forward(
    seconds: float, transcriber: EdgeTranscriber
) -> None:
    found = transcriber.transcribe(np.zeros(round(seconds * 16_000), np.float32))
    assert (found.text, found.segments, found.language) == ("", [], None)
    assert found.stats.rounds == 0


def test_a_long_sound_is_read_a_window_at_a_time(
    transcriber: EdgeTranscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    listen = WindowWriter.listen

    def noted(self: WindowWriter, samples: Sound) -> Any:
        lengths.append(len(samples))
        return listen(self, samples)

    monkeypatch.setattr(WindowWriter, "listen", noted)
    hour = np.zeros(3600 * 8_000, np.int16)
    hour[8_000 * 3000 : 8_000 * 3001] = 3_000
    told: list[tuple[float, float]] = []
    found = transcriber.transcribe(
        hour,
        sampling_rate=8_000,
        language="en",
        temperature=0.0,
        progress=lambda done, of: told.append((done, of)),
    )
    assert found.duration_s == 3600.0
    assert 0 < len(lengths) < 20
    assert max(lengths) <= 32_000
    assert told[-1] == (3600.0, 3600.0)
    assert all(2998 <= s.start_s <= 3003 for s in found.segments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"langauge": "en"}, "'langauge' is not an option of transcribe; did you mean 'language'?"),
        ({"language": "xx"}, "language 'xx' is not one of the model's: de, en"),
        ({"task": "sing"}, "task must be 'transcribe' or 'translate', got 'sing'"),
        ({"temperature": -1.0}, "temperature must be from 0 to 2, or several of such, got -1.0"),
        ({"temperature": ()}, "temperature must be from 0 to 2, or several of such, got ()"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        (
            {"prompt": "a", "prompt_ids": [1]},
            "prompt and prompt_ids exclude each other: both come before the text",
        ),
        (
            {"prompt_ids": [FIRST_TIME]},
            f"prompt_ids must be token ids of text, below {FIRST_TIME}, got {FIRST_TIME}",
        ),
        (
            {"num_assistant_tokens": -1},
            "num_assistant_tokens must be 'auto' or a whole number, 0 or more, got -1",
        ),
        (
            {"max_initial_timestamp_s": -1.0},
            "max_initial_timestamp_s must be 0 or more, got -1.0",
        ),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(
    options: dict[str, Any], message: str, transcriber: EdgeTranscriber
) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole message is compared
        transcriber.segments(np.zeros(9, np.float32), **options)
    assert str(raised.value) == message


def test_each_class_names_the_right_one(tmp_path: Path, speech_models: Path) -> None:
    target = speech_models / "target"
    with pytest.raises(ModelFolderError) as raised:
        EdgeGenerator(target)
    assert str(raised.value) == (
        f"{target} holds an encoder-decoder (whisper), which EdgeGenerator cannot run; "
        "load it with EdgeTranscriber"
    )
    toy = write_folder(tmp_path / "toy", HASH)
    with pytest.raises(ModelFolderError, match=r"which EdgeTranscriber .* with EdgeGenerator$"):
        EdgeTranscriber(toy)
    text = write_text(tmp_path / "text")
    with pytest.raises(ModelFolderError, match=r"\(t5\), .* load it with EdgeSeq2Seq$"):
        EdgeTranscriber(text)


def test_a_decoder_alone_is_no_target(speech_models: Path, five_seconds: Sound) -> None:
    alone = EdgeTranscriber(speech_models / "distilled")
    with pytest.raises(ModelFolderError, match=r"holds no encoder\.onnx: it is a decoder that"):
        alone.transcribe(five_seconds)


def test_a_model_cannot_be_its_own_draft(transcriber: EdgeTranscriber) -> None:
    target = EdgeTranscriber(transcriber.model.folder.folder, draft=transcriber)
    assert target.draft is transcriber.model


def test_the_draft_in_the_folder_is_found(tmp_path: Path, five_seconds: Sound) -> None:
    write_speech(tmp_path / "target")
    write_speech(tmp_path / "target" / "draft", alone=True)
    found = EdgeTranscriber(tmp_path / "target", draft=True).transcribe(
        five_seconds, temperature=0.0, num_assistant_tokens=3
    )
    assert found.stats.acceptance_rate == 1.0
