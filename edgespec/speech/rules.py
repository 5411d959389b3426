"""What Whisper may write: times in pairs that never run backwards."""

from dataclasses import dataclass

import numpy as np

from edgespec.arrays import Logits, TokenIds


@dataclass(frozen=True, slots=True)
class TimeRules:
    """Forbids what breaks the order of times; a logits processor.

    A text starts with a time. Times stand in pairs, the end of a segment and the beginning of the
    next, but for the last. None is before the one before it. Where all times together are
    likelier than any one token of text, a time is written.

    Attributes:
        begin: Tokens of the prompt: what comes after them is the model's own.
        first_time: The token of 0.00 seconds; all from it on are times.
        no_times: Asks for a text without times, and is not one.
        end: Ends the text; tokens below it are text.
        latest_start: How many ticks after 0.00 a text may start; None for any.

    Source: Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision, 2022,
    https://arxiv.org/abs/2212.04356, section 4.5, by the behaviour of transformers'
    ``WhisperTimeStampLogitsProcessor``, 5.24.
    """

    begin: int
    first_time: int
    no_times: int
    end: int
    latest_start: int | None = None

    def __call__(self, input_ids: TokenIds, scores: Logits) -> Logits:
        """Forbid in ``scores`` [V] what cannot follow ``input_ids`` [T]."""
        scores[self.no_times] = -np.inf
        written = input_ids[self.begin :]
        if not len(written):
            scores[: self.first_time] = -np.inf
            if self.latest_start is not None:
                scores[self.first_time + self.latest_start + 1 :] = -np.inf
            return scores
        is_time = written >= self.first_time
        pair_is_open = bool(is_time[-1]) and len(written) > 1 and not is_time[-2]
        if pair_is_open:
            scores[: self.end] = -np.inf
        elif is_time[-1]:
            scores[self.first_time :] = -np.inf
        if is_time.any():
            latest = int(written[is_time][-1])
            # The first of a pair may come again as the second; no segment is empty.
            scores[self.first_time : latest + (not pair_is_open)] = -np.inf
        times = scores[self.first_time :]
        highest = times.max(initial=-np.inf)
        if highest > -np.inf:
            together = highest + np.log(np.exp(times - highest).sum())
            if together > scores[: self.first_time].max():
                scores[: self.first_time] = -np.inf
        return scores
