"""Subtitles as players read them."""

from edgespec import Segment
from edgespec.speech.subtitles import clock, srt, vtt

SEGMENTS = [
    Segment(0.0, 1.5, " Hello.", (), 0.0, 0.0, 1.0),
    Segment(3661.25, 3662.0, " a --> b", (), 0.0, 0.0, 1.0),
]


def test_srt_counts_and_has_commas() -> None:
    assert list(srt(SEGMENTS)) == [
        "1\n00:00:00,000 --> 00:00:01,500\nHello.\n",
        "2\n01:01:01,250 --> 01:01:02,000\na -> b\n",
    ]


def test_vtt_has_a_first_line_and_points() -> None:
    assert list(vtt(SEGMENTS)) == [
        "WEBVTT\n",
        "00:00:00.000 --> 00:00:01.500\nHello.\n",
        "01:01:01.250 --> 01:01:02.000\na -> b\n",
    ]


def test_thousandths_carry_over() -> None:
    assert clock(59.9996, ".") == "00:01:00.000"
