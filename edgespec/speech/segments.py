"""From the tokens of a window to segments with times, and to where the next window starts."""

from dataclasses import dataclass

from edgespec.speech.vocabulary import TICK_S


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a window.

    Attributes:
        start_s: Seconds from the window's beginning.
        end_s: The same of its end.
        tokens: Text and times.
    """

    start_s: float
    end_s: float
    tokens: list[int]


def cut(tokens: list[int], first_time: int, length_s: float) -> tuple[list[Piece], float]:
    """Cut a window's tokens where two times meet.

    Args:
        tokens: What was written, without the end token.
        first_time: All tokens from it on are times.
        length_s: Seconds of sound in the window.

    Returns:
        The pieces, and the seconds after which the next window starts: where the last piece that
        is whole ends, or the window itself if all of it was written down.

    Source: openai-whisper's ``transcribe``, by its behaviour.
    """
    is_time = [token >= first_time for token in tokens]
    ends = [i for i in range(1, len(tokens)) if is_time[i - 1] and is_time[i]]
    # A single time at the end: after it nobody spoke.
    all_is_said = is_time[-2:] == [False, True]
    if not ends:
        times = [token for token in tokens if token >= first_time]
        end_s = length_s
        if times and times[-1] != first_time:
            end_s = min(length_s, (times[-1] - first_time) * TICK_S)
        start_s = min(end_s, (times[0] - first_time) * TICK_S) if len(times) > 1 else 0.0
        return [Piece(start_s, end_s, tokens)], length_s
    if all_is_said:
        ends.append(len(tokens))
    pieces, last = [], 0
    for end in ends:
        part = tokens[last:end]
        # A model may name a time behind the end of the sound.
        start_s, end_s = (
            min(length_s, (time - first_time) * TICK_S) for time in (part[0], part[-1])
        )
        pieces.append(Piece(start_s, end_s, part))
        last = end
    advance_s = length_s if all_is_said else (tokens[last - 1] - first_time) * TICK_S
    # A model that says "0.00 to 0.00" must not be asked the same for ever.
    return pieces, min(advance_s, length_s) or length_s
