"""The same options leave the same scores as in transformers, whose own code gives the answer."""

from typing import Any

import numpy as np
import pytest

from edgespec.arrays import Logits, Probs, TokenIds
from edgespec.logits import make_distribution, make_processing
from edgespec.options import Options

pytestmark = pytest.mark.export

V = 60
PROMPT_LENGTH = 6

RULES: list[dict[str, Any]] = [
    {"min_new_tokens": 3},
    {"min_new_tokens": 9},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"bad_words_ids": ((5,), (7, 8), (1, 2, 3), (50,))},
    {"suppress_tokens": (1, 2, 59, 60)},
    {"begin_suppress_tokens": (3, 4)},
    {"logit_bias": {0: 2.5, 7: -1.5}},
    {"logit_bias": {0: 2.5, 7: -np.inf, 9: -np.inf}},
    {
        "min_new_tokens": 9,
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": ((2, 1), (6,)),
        "suppress_tokens": (9,),
        "begin_suppress_tokens": (10,),
        "logit_bias": {3: -0.4, 8: 0.3},
    },
]

WARPERS: list[dict[str, Any]] = [
    {"temperature": 0.6},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.7},
    {"temperature": 1.4, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8},
]


def theirs(
    settings: dict[str, Any],
    row: Logits,
    prefix: TokenIds,
    custom: Any = (),
    prompt_length: int = PROMPT_LENGTH,
) -> Logits:
    """The row after the processors that transformers itself puts together for ``settings``."""
    import torch
    import transformers

    hf: Any = transformers  # typed in part only
    said = {name: value for name, value in settings.items() if name != "logit_bias"}
    if "bad_words_ids" in said:
        said["bad_words_ids"] = [list(word) for word in said["bad_words_ids"]]
    if "logit_bias" in settings:
        said["sequence_bias"] = {(t,): bias for t, bias in settings["logit_bias"].items()}
    said = {"top_k": 0, **said, "eos_token_id": [50, 51], "pad_token_id": 0}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=V, n_embd=8, n_layer=1, n_head=1))
    config = hf.GenerationConfig(**said)
    model._prepare_special_tokens(config)
    processors = model._get_logits_processor(
        config, input_ids_seq_length=prompt_length, logits_processor=list(custom)
    )
    ids, scores = torch.from_numpy(prefix)[None], torch.from_numpy(row)[None]
    left: Logits = processors(ids, scores)[0].numpy()
    return left


def texts() -> list[tuple[Logits, TokenIds]]:
    """Random rows, and prefixes of few different tokens so that they repeat themselves."""
    rng = np.random.default_rng(0)
    lengths = [PROMPT_LENGTH, PROMPT_LENGTH, 7, 8, 9, 12, 30, 30]
    return [(rng.normal(size=V).astype(np.float32) * 3, rng.integers(0, 10, n)) for n in lengths]


@pytest.mark.parametrize("settings", RULES, ids=str)
def test_rules_leave_the_scores_of_transformers(settings: dict[str, Any]) -> None:
    process = make_processing(
        Options(eos_token_id=(50, 51), **settings), prompt_length=PROMPT_LENGTH, vocab_limit=V
    )
    changed = False
    for row, prefix in texts():
        expected = theirs(settings, row, prefix)
        np.testing.assert_allclose(process(row, prefix), expected, rtol=0, atol=1e-6)
        changed |= not np.array_equal(row, expected)
    assert changed


@pytest.mark.parametrize(
    "settings",
    [
        {"forced_bos_token_id": 5},
        {"forced_bos_token_id": 3, "begin_suppress_tokens": (3, 4)},
        # Neither a ban before it nor a penalty keeps a forced token away.
        {**RULES[-1], "forced_bos_token_id": 6},
    ],
    ids=str,
)
def test_a_forced_first_token_leaves_the_scores_of_transformers(settings: dict[str, Any]) -> None:
    """Which forces it after a prompt of one token alone."""
    process = make_processing(
        Options(eos_token_id=(50, 51), **settings), prompt_length=1, vocab_limit=V
    )
    for row, text in texts():
        for length in (1, 2, 3):
            prefix = text[:length]
            expected = theirs(settings, row, prefix, prompt_length=1)
            np.testing.assert_allclose(process(row, prefix), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [*WARPERS, {**RULES[-1], **WARPERS[-1]}], ids=str)
def test_samplers_draw_from_the_distribution_of_transformers(settings: dict[str, Any]) -> None:
    options = Options(eos_token_id=(50, 51), do_sample=True, **{"top_k": 0, **settings})
    distribution = make_distribution(options, prompt_length=PROMPT_LENGTH, vocab_limit=V)
    for row, prefix in texts():
        expected = theirs({**settings, "do_sample": True}, row, prefix).astype(np.float64)
        probs: Probs = np.exp(expected - expected.max())
        found = distribution(row, prefix)
        np.testing.assert_array_equal(found.ids, np.flatnonzero(expected > -np.inf))
        np.testing.assert_allclose(found.dense(V), probs / probs.sum(), rtol=0, atol=1e-6)


def test_the_callers_processors_stand_where_transformers_puts_them() -> None:
    def square(input_ids: TokenIds, scores: Logits) -> Logits:
        squared: Logits = np.where(np.isinf(scores), scores, np.sign(scores) * scores**2)
        return squared

    def square_theirs(input_ids: Any, scores: Any) -> Any:
        return scores.where(scores.isinf(), scores.sign() * scores**2)

    settings = {**RULES[-1], **WARPERS[-1]}
    options = Options(
        eos_token_id=(50, 51), do_sample=True, logits_processors=(square,), **settings
    )
    distribution = make_distribution(options, prompt_length=PROMPT_LENGTH, vocab_limit=V)
    for row, prefix in texts():
        said = {**settings, "do_sample": True}
        expected = theirs(said, row, prefix, [square_theirs]).astype(np.float64)
        probs: Probs = np.exp(expected - expected.max())
        np.testing.assert_allclose(
            distribution(row, prefix).dense(V), probs / probs.sum(), rtol=0, atol=1e-6
        )
