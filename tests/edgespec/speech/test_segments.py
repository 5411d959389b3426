"""Tokens of a window to pieces, and where the next window starts; by hand."""

import pytest

from edgespec.speech.segments import cut

T = 1000  # the token of 0.00 seconds


@pytest.mark.parametrize(
    ("tokens", "pieces", "advance_s"),
    [
        ([T, 1, 2, T + 100], [(0.0, 2.0, 4)], 30.0),
        ([T, 1, 2], [(0.0, 30.0, 3)], 30.0),
        ([1, 2], [(0.0, 30.0, 2)], 30.0),
        ([], [(0.0, 30.0, 0)], 30.0),
        ([T, 1, T + 100, T + 100, 2, T + 200], [(0.0, 2.0, 3), (2.0, 4.0, 3)], 30.0),
        ([T, 1, T + 100, T + 150, 2, T + 200, T + 200], [(0.0, 2.0, 3), (3.0, 4.0, 3)], 4.0),
        ([T, 1, T + 100, T + 100, 2, 3], [(0.0, 2.0, 3)], 2.0),
        ([T, 1, T, T], [(0.0, 0.0, 3)], 30.0),
        ([T, 1, T + 2000, T + 2000], [(0.0, 30.0, 3)], 30.0),
    ],
    ids=[
        *("one", "no end", "no times", "nothing", "all said", "the last not whole"),
        *("cut off", "no time passes", "behind the end"),
    ],
)
def test_pieces_end_where_two_times_meet(
    tokens: list[int], pieces: list[tuple[float, float, int]], advance_s: float
) -> None:
    found, advance = cut(tokens, T, 30.0)
    assert [(p.start_s, p.end_s, len(p.tokens)) for p in found] == pieces
    assert advance == advance_s
