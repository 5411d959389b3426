"""Segments as subtitles."""

from collections.abc import Iterable, Iterator

from edgespec.speech.transcriber import Segment


def srt(segments: Iterable[Segment]) -> Iterator[str]:
    """The blocks of an SRT file, a segment each."""
    for number, segment in enumerate(segments, start=1):
        start, end = (clock(at, ",") for at in (segment.start_s, segment.end_s))
        yield f"{number}\n{start} --> {end}\n{_in_a_cue(segment.text)}\n"


def vtt(segments: Iterable[Segment]) -> Iterator[str]:
    """The blocks of a WebVTT file: its first line, then a segment each."""
    yield "WEBVTT\n"
    for segment in segments:
        start, end = (clock(at, ".") for at in (segment.start_s, segment.end_s))
        yield f"{start} --> {end}\n{_in_a_cue(segment.text)}\n"


def clock(at_s: float, point: str) -> str:
    """Seconds as hours, minutes, seconds and thousandths."""
    thousandths = round(at_s * 1000)
    seconds, thousandths = divmod(thousandths, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{thousandths:03}"


def _in_a_cue(text: str) -> str:
    """An arrow would end the text and start another cue."""
    return text.strip().replace("-->", "->")
