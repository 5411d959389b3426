"""What happened in each round of a call, and what it brought."""

from dataclasses import dataclass, field
from statistics import median

from edgespec.decode import Round


@dataclass(slots=True)
class Stats:
    """Counts and times of one call.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        reused_tokens: How many of them the cache held already, so that they were not read again.
        rounds: Forwards of the target after the prefill.
        proposed: Candidates that generators returned.
        evaluated: Candidates that the target read.
        accepted: Candidates that stand in the text.
        emitted: Tokens of the text.
        accepted_by_position: How often the first, second, ... candidate of a round stood.
        evaluated_by_position: How often there was such a candidate.
        by_source: For each generator, candidates evaluated and accepted.
        prefill_s: Seconds in which the prompt was read.
        draft_s: Seconds in which candidates were found.
        verify_s: Seconds in the target's forwards and in judging their rows.
        rewind_s: Seconds in which refused candidates were forgotten.
        decode_s: Seconds from the end of the prefill to the last token, all told.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    evaluated: int = 0
    accepted: int = 0
    emitted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    evaluated_by_position: list[int] = field(default_factory=list)
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    rewind_s: float = 0.0
    decode_s: float = 0.0
    _plain_steps_s: list[float] = field(default_factory=list, repr=False)

    def add(self, done: Round) -> None:
        """Take in a round."""
        self.rounds += 1
        self.proposed += done.num_proposed
        self.evaluated += done.num_verified
        self.accepted += done.num_accepted
        self.emitted += len(done.tokens)
        while len(self.evaluated_by_position) < done.num_verified:
            self.evaluated_by_position.append(0)
            self.accepted_by_position.append(0)
        for i in range(done.num_verified):
            self.evaluated_by_position[i] += 1
            self.accepted_by_position[i] += i < done.num_accepted
        if done.source is not None:
            evaluated, accepted = self.by_source.get(done.source, (0, 0))
            self.by_source[done.source] = (
                evaluated + done.num_verified,
                accepted + done.num_accepted,
            )
        self.draft_s += done.draft_s
        self.verify_s += done.verify_s
        self.rewind_s += done.rewind_s
        if done.num_verified == 0:
            self._plain_steps_s.append(done.verify_s)

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the evaluated candidates that stand; None if there were none."""
        return self.accepted / self.evaluated if self.evaluated else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that one forward of the target brought; plain decoding has 1."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second, the prefill left out."""
        return self.emitted / self.decode_s if self.decode_s > 0 and self.emitted else None

    @property
    def plain_step_s(self) -> float | None:
        """Seconds of the model's own one-token step: this call's median, None if it had none."""
        return median(self._plain_steps_s) if self._plain_steps_s else None

    @property
    def speed_up(self) -> float | None:
        """Tokens a second against plain decoding at :attr:`plain_step_s`; None where unmeasured."""
        if self.plain_step_s is None or self.tokens_per_s is None:
            return None
        return self.tokens_per_s * self.plain_step_s

    def as_dict(self) -> dict[str, object]:
        """Everything, ready for JSON."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "rounds": self.rounds,
            "proposed": self.proposed,
            "evaluated": self.evaluated,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_round": self.tokens_per_round,
            "accepted_by_position": self.accepted_by_position,
            "evaluated_by_position": self.evaluated_by_position,
            "by_source": {
                name: {"evaluated": evaluated, "accepted": accepted}
                for name, (evaluated, accepted) in self.by_source.items()
            },
            "prefill_s": self.prefill_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "rewind_s": self.rewind_s,
            "decode_s": self.decode_s,
            "tokens_per_s": self.tokens_per_s,
            "plain_step_s": self.plain_step_s,
            "speed_up": self.speed_up,
        }
