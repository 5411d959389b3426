"""What the options of a call do to the model's scores before a token is picked.

The order is transformers' (``GenerationMixin._get_logits_processor``, 5.24): bias, penalties,
bans, then the caller's own. Temperature, top-k and the like come after it, in ``sampling.py``.

Everything here is a pure function of the tokens so far. Under speculation a row may be judged for
a candidate that is refused a moment later; what keeps no memory has nothing to undo.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.arrays import Logits, TokenIds
from edgespec.logit_rules import (
    BadWords,
    Ban,
    CountPenalty,
    ForcedToken,
    LogitBias,
    LogitsProcessor,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
)
from edgespec.sampling import Distribution, distribute
from edgespec.verify import MakeDistribution, Pick, Sampler, pick_greedy

if TYPE_CHECKING:
    from edgespec.options import Options  # for its types alone


@dataclass(frozen=True, slots=True)
class Processing:
    """All rules of one call, in order.

    Attributes:
        rules: Each with the option it comes from, for messages.
        vocab_limit: Only ids below it can be picked: a graph's output may be wider than the
            vocabulary.
    """

    rules: tuple[tuple[str, LogitsProcessor], ...]
    vocab_limit: int

    def __call__(self, row: Logits, prefix: TokenIds) -> Logits:
        """The scores that are left, [vocab_limit], at least one of them above minus infinity.

        Without rules it is a view of ``row``, which is never written to.

        Args:
            row: [V] the model's scores.
            prefix: [T] the tokens before it.

        Raises:
            LogitsError: If a score of the model's is NaN or infinity, or all are minus infinity.
            ValueError: If the rules forbid every token, or a caller's processor returned
                anything but [V] numbers.
        """
        known = row[: self.vocab_limit]
        pick_greedy(known, prefix)  # refuses scores that are no numbers
        if not self.rules:
            return known
        *_, (_, scores) = self._steps(row, prefix)
        left = scores[: self.vocab_limit]
        if left.max() == -np.inf:
            raise ValueError(
                f"no token may follow the {len(prefix)} tokens so far; "
                f"loosen {' or '.join(self._forbidding(row, prefix))}"
            )
        return left

    def _steps(self, row: Logits, prefix: TokenIds) -> Iterator[tuple[str, Logits]]:
        """Each option and the scores [V] after it; one array all along, if rules write in place."""
        tokens = prefix.view()
        tokens.flags.writeable = False
        scores = row.copy()
        scores[self.vocab_limit :] = -np.inf
        for name, rule in self.rules:
            # What falls below float32's range is forbidden, and that is no accident to warn of.
            with np.errstate(over="ignore"):
                scores = rule(tokens, scores)
            yield name, scores

    def _forbidding(self, row: Logits, prefix: TokenIds) -> Iterator[str]:
        """The options that forbade a token."""
        before = np.count_nonzero(row[: self.vocab_limit] == -np.inf)
        for name, scores in self._steps(row, prefix):
            after = np.count_nonzero(scores[: self.vocab_limit] == -np.inf)
            if after > before:
                yield name
            before = after


def make_processing(options: "Options", *, prompt_length: int, vocab_limit: int) -> Processing:
    """The rules that ``options`` ask for, in transformers' order.

    Args:
        options: The settings of the call.
        prompt_length: Tokens in the prompt; what comes after them is the model's own.
        vocab_limit: Ids at and above it are never picked, so bans on them are dropped.

    Raises:
        ValueError: If an option names a token id that cannot be meant.
    """
    rules: list[tuple[str, LogitsProcessor]] = []
    if options.logit_bias:
        rules += [("logit_bias", rule) for rule in _logit_bias(options, vocab_limit)]
    if options.repetition_penalty != 1.0:
        rules.append(("repetition_penalty", RepetitionPenalty(options.repetition_penalty)))
    if options.presence_penalty or options.frequency_penalty:
        penalty = CountPenalty(options.presence_penalty, options.frequency_penalty, prompt_length)
        rules.append(("presence_penalty and frequency_penalty", penalty))
    if options.no_repeat_ngram_size:
        rules.append(("no_repeat_ngram_size", NoRepeatNgram(options.no_repeat_ngram_size)))
    if words := _bad_words(options, vocab_limit):
        rules.append(("bad_words_ids", BadWords(words)))
    if options.min_new_tokens and options.eos_token_id:
        ends = _ids("eos_token_id", options.eos_token_id, vocab_limit)
        until = prompt_length + options.min_new_tokens
        rules.append(("min_new_tokens", SuppressTokens(ends, end=until)))
    first = prompt_length
    if options.forced_bos_token_id is not None:
        if not 0 <= options.forced_bos_token_id < vocab_limit:
            raise ValueError(
                f"forced_bos_token_id must be a token id below {vocab_limit}, "
                f"got {options.forced_bos_token_id}"
            )
        forced = ForcedToken(options.forced_bos_token_id, prompt_length, vocab_limit)
        rules.append(("forced_bos_token_id", forced))
        first += 1  # of those that are chosen, as in transformers
    if options.suppress_tokens:
        ids = _ids("suppress_tokens", options.suppress_tokens, vocab_limit)
        rules.append(("suppress_tokens", SuppressTokens(ids)))
    if options.begin_suppress_tokens:
        ids = _ids("begin_suppress_tokens", options.begin_suppress_tokens, vocab_limit)
        at_first = SuppressTokens(ids, begin=first, end=first + 1)
        rules.append(("begin_suppress_tokens", at_first))
    rules += [
        (getattr(p, "option", "logits_processors"), _checked(p)) for p in options.logits_processors
    ]
    return Processing(tuple(rules), vocab_limit)


def make_bans(options: "Options", *, prompt_length: int, vocab_limit: int) -> tuple[Ban, ...]:
    """The rules of :func:`make_processing` that forbid tokens whatever their scores are."""
    made = make_processing(options, prompt_length=prompt_length, vocab_limit=vocab_limit)
    return tuple(rule for _, rule in made.rules if isinstance(rule, Ban))


def make_pick(options: "Options", *, prompt_length: int, vocab_limit: int) -> Pick:
    """How the target chooses in one call of ``generate``.

    A pick never writes to its row. A greedy one takes the lowest of equals. One that draws takes
    exactly one random number a token, from a generator of its own: called once for every token of
    the text, it gives the same text for a seed, with and without candidates.

    Args:
        options: The settings of the call.
        prompt_length: Tokens in the prompt.
        vocab_limit: Ids at and above it are never picked.

    Raises:
        ValueError: If an option names a token id that cannot be meant.
    """
    if options.do_sample:
        distribution = make_distribution(
            options, prompt_length=prompt_length, vocab_limit=vocab_limit
        )
        rng = np.random.default_rng(options.seed)
        return Sampler(distribution, rng, options.lossy_typical_acceptance)
    process = make_processing(options, prompt_length=prompt_length, vocab_limit=vocab_limit)
    if not process.rules:
        return lambda row, prefix: pick_greedy(row[:vocab_limit], prefix)
    return lambda row, prefix: pick_greedy(process(row, prefix), prefix)


def make_draft_pick(options: "Options", *, prompt_length: int, vocab_limit: int) -> Pick:
    """How a draft chooses for that call: by the same rules, and by chance of its own.

    With the target's own random numbers a draft would be judged by those that it drew with, and
    the text would not follow the target's distribution.

    Args:
        options: The settings of the call.
        prompt_length: Tokens in the prompt.
        vocab_limit: Ids at and above it are never picked.

    Raises:
        ValueError: If an option names a token id that cannot be meant.
    """
    pick = make_pick(options, prompt_length=prompt_length, vocab_limit=vocab_limit)
    if not isinstance(pick, Sampler):
        return pick
    seed = np.random.SeedSequence(options.seed, spawn_key=(1,))
    return replace(pick, rng=np.random.default_rng(seed))


def make_distribution(
    options: "Options", *, prompt_length: int, vocab_limit: int
) -> MakeDistribution:
    """What :func:`make_pick` draws from, for whoever needs p itself.

    Args:
        options: The settings of the call; ``do_sample`` and ``seed`` do not matter here.
        prompt_length: Tokens in the prompt.
        vocab_limit: Ids at and above it have no probability.

    Raises:
        ValueError: If an option names a token id that cannot be meant.
    """
    process = make_processing(options, prompt_length=prompt_length, vocab_limit=vocab_limit)

    def distribution(row: NDArray[np.float32], prefix: TokenIds) -> Distribution:
        return distribute(
            process(row, prefix),
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            typical_p=options.typical_p,
        )

    return distribution


def _checked(processor: LogitsProcessor) -> LogitsProcessor:
    """The caller's processor, held to its promise."""
    name = getattr(processor, "__name__", type(processor).__name__)

    def checked(input_ids: TokenIds, scores: Logits) -> Logits:
        width = len(scores)
        returned = np.asarray(processor(input_ids, scores), dtype=np.float32)
        if returned.shape != (width,):
            raise ValueError(
                f"logits processor {name} must return scores of shape ({width},), "
                f"got {returned.shape}"
            )
        if np.isnan(returned).any():
            raise ValueError(f"logits processor {name} returned NaN after {len(input_ids)} tokens")
        return returned

    return checked


def _logit_bias(options: "Options", vocab_limit: int) -> Iterator[LogitsProcessor]:
    for token in options.logit_bias:
        if not 0 <= token < vocab_limit:
            raise ValueError(f"logit_bias must name token ids below {vocab_limit}, got {token}")
    with np.errstate(over="ignore"):
        biases = np.array(list(options.logit_bias.values()), np.float32)
    # Written so that NaN fails too.
    if not (biases < np.inf).all():
        raise ValueError(
            f"logit_bias must be numbers below infinity, got {dict(options.logit_bias)}"
        )
    tokens = np.array(list(options.logit_bias), np.int64)
    forbids = biases == -np.inf
    if forbids.any():
        yield SuppressTokens(tokens[forbids])
    if not forbids.all():
        yield LogitBias(tokens[~forbids], biases[~forbids])


def _bad_words(options: "Options", vocab_limit: int) -> tuple[tuple[int, ...], ...]:
    """Without end tokens, whose ban would be a text without end; so it is in transformers."""
    for word in options.bad_words_ids:
        if not word or min(word) < 0:
            raise ValueError(f"bad_words_ids must be rows of token ids, got the row {list(word)}")
    ends = {(end,) for end in options.eos_token_id}
    return tuple(w for w in options.bad_words_ids if w not in ends and max(w) < vocab_limit)


def _ids(name: str, given: Sequence[int], vocab_limit: int) -> TokenIds:
    """Those of the ids that could be picked at all."""
    if min(given) < 0:
        raise ValueError(f"{name} must hold token ids from 0, got {min(given)}")
    return np.array([token for token in given if token < vocab_limit], np.int64)
