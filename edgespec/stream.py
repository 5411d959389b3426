"""A text on its way: what a round of the loop brings, as text and tokens."""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.budget import Budget
from edgespec.candidates.base import CandidateGenerator
from edgespec.decode import Decoding, Round, TargetModel
from edgespec.drafting import draft_models
from edgespec.logits import make_bans, make_pick
from edgespec.options import Options
from edgespec.stats import Stats
from edgespec.stopping import FinishReason, Stopping, StopText
from edgespec.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a round adds to the text.

    Attributes:
        tokens: [N] new token ids.
        pieces: [N] the text of each; empty where a character or a stop string is not decided yet,
            and for an end token.
        num_accepted: How many of them, the first ones, were candidates.
        finish_reason: Why the text ends with this chunk, or None.
        stats: Those of the call so far; the same object in every chunk.
    """

    tokens: TokenIds
    pieces: tuple[str, ...]
    num_accepted: int
    finish_reason: FinishReason | None
    stats: Stats

    @property
    def text(self) -> str:
        """The new text."""
        return "".join(self.pieces)


class Stream:
    """A text on its way: iterate for its chunks.

    Attributes:
        stats: What happened so far.
    """

    def __init__(
        self,
        model: TargetModel,
        tokenizer: Tokenizer | None,
        prompt: TokenIds,
        options: Options,
        *,
        known_ids: int,
        candidates: CandidateGenerator | None,
        budget: Budget,
        lock: AbstractContextManager[bool],
    ) -> None:
        """Get ready; nothing is computed before the first chunk is asked for.

        Args:
            model: The target.
            tokenizer: Its tokenizer; without one there is no text.
            prompt: [T] the tokens to continue.
            options: The call's, with ``max_length`` set.
            known_ids: Token ids below it stand for something.
            candidates: Who proposes; None for plain decoding.
            budget: How many candidates a round may take.
            lock: Held for a round: threads that share the model take turns.
        """
        assert options.max_length is not None, "the caller sets the nearest limit"
        self.stats = Stats(prompt_tokens=len(prompt))
        self._cancelled = threading.Event()
        self._stopping = Stopping(
            max_length=options.max_length,
            eos_token_ids=frozenset(options.eos_token_id),
            text=StopText(
                options.stop,
                None if tokenizer is None else tokenizer.stream(prompt),
                include_stop=options.include_stop,
            ),
            deadline=None if options.max_time_s is None else time.monotonic() + options.max_time_s,
            criteria=options.stopping_criteria,
            cancelled=self._cancelled,
        )
        self._decoding = Decoding(
            model,
            candidates,
            prompt,
            pick=make_pick(options, prompt_length=len(prompt), vocab_limit=known_ids),
            budget=budget,
            stopping=self._stopping,
            vocab_size=known_ids,
            reuse_prefix=options.reuse_prefix,
            bans=make_bans(options, prompt_length=len(prompt), vocab_limit=known_ids),
        )
        # Always in the same order: two models that draft for each other must not wait in a ring.
        self._locks = sorted([lock, *(draft.lock for draft in draft_models(candidates))], key=id)
        self._rounds = iter(self._decoding)
        self._chunks = self._run()

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks, each once."""
        return self._chunks

    def __next__(self) -> Chunk:
        """The next chunk."""
        return next(self._chunks)

    def close(self) -> None:
        """Leave the text as it is; nothing more is computed."""
        self._chunks.close()
        self._rounds.close()

    def cancel(self) -> None:
        """End the text with the token in work; may be called from another thread."""
        self._cancelled.set()

    def read_all(self) -> tuple[str, TokenIds, FinishReason]:
        """Write to the end: the text, [N] its tokens, and why it ended.

        Raises:
            ValueError: If the text was read already, or closed.
        """
        try:
            rounds = [self._round()]
        except StopIteration:
            raise ValueError("the text was read already, or closed; start another one") from None
        while rounds[-1].finish_reason is None:
            rounds.append(self._round())
        self._rounds.close()
        text = "".join(self._stopping.text.drain(last=True))
        return text, np.concatenate([r.tokens for r in rounds]), rounds[-1].finish_reason

    def _run(self) -> Generator[Chunk, None, None]:
        while True:
            done = self._round()
            began = time.perf_counter()
            last = done.finish_reason is not None
            pieces = self._stopping.text.drain(last=last)
            rest = pieces.pop() if last else ""
            pieces += [""] * (len(done.tokens) - len(pieces))  # an end token has no text
            pieces[-1] += rest
            self.stats.decode_s += time.perf_counter() - began
            yield Chunk(
                done.tokens, tuple(pieces), done.num_accepted, done.finish_reason, self.stats
            )
            if last:
                self._rounds.close()
                return

    def _round(self) -> Round:
        """One pass through the loop, by whose turn it is."""
        began = time.perf_counter()
        with ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            done = next(self._rounds)
        self.stats.add(done)
        self.stats.reused_tokens = self._decoding.reused_tokens or 0
        prefill_s = self._decoding.prefill_s - self.stats.prefill_s
        self.stats.prefill_s += prefill_s
        self.stats.decode_s += time.perf_counter() - began - prefill_s
        return done
