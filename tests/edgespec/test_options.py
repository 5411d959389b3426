import inspect
import re
from typing import Any

import pytest

from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.candidates.suffix import PastOutputs
from edgespec.defaults import resolve
from edgespec.ngram_store import NgramStore
from edgespec.options import NAMES, GenerateOptions, Options


def test_every_option_can_be_given_and_every_keyword_is_an_option() -> None:
    assert tuple(GenerateOptions.__annotations__) == NAMES


def test_every_option_is_explained() -> None:
    said = inspect.getdoc(Options) or ""
    assert [name for name in NAMES if f"    {name}: " not in said] == []


def test_a_call_comes_before_the_models_own_defaults() -> None:
    model = {"do_sample": True, "temperature": 0.9, "top_k": 3, "eos_token_id": [1]}
    options = resolve({"temperature": 0.5}, model)
    assert (options.temperature, options.top_k, options.eos_token_id) == (0.5, 3, (1,))


def test_sampling_options_without_sampling_are_not_ignored_in_silence() -> None:
    with pytest.raises(
        ValueError,
        match=r"^top_p has no effect without do_sample=True; add that, or leave it out$",
    ):
        resolve({"top_p": 0.9}, {})
    assert resolve({"top_p": 1.0}, {}).top_p == 1.0


def test_sampling_options_of_the_model_wait_until_sampling_is_asked_for() -> None:
    model = {"temperature": 0.0, "top_p": 0.9}
    assert resolve({}, model).top_p == 1.0
    with pytest.raises(ValueError, match=r"^the model's generation_config.json: temperature must"):
        resolve({"do_sample": True}, model)


def test_what_a_generation_config_says_of_other_things_is_left_alone() -> None:
    said = {"_from_model_config": True, "max_length": 20, "top_p": None, "num_beams": 4}
    options = resolve({}, said)
    assert (options.max_length, options.top_p) == (None, 1.0)


def test_end_tokens_may_be_switched_off() -> None:
    """huggingface/transformers#46790."""
    assert resolve({"eos_token_id": None}, {"eos_token_id": 5}).eos_token_id == ()
    assert resolve({"eos_token_id": []}, {"eos_token_id": 5}).eos_token_id == ()
    assert resolve({}, {"eos_token_id": 5}).eos_token_id == (5,)
    assert resolve({"eos_token_id": 0}, {"eos_token_id": 5}).eos_token_id == (0,)


@pytest.mark.parametrize(
    "name",
    [
        *("stop", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
        *("logits_processors", "stopping_criteria"),
    ],
)
def test_none_is_as_good_as_leaving_an_option_out(name: str) -> None:
    assert getattr(resolve({name: None}, {}), name) == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"max_new_token": 3},
            "'max_new_token' is not an option of generate; did you mean 'max_new_tokens'?",
        ),
        (
            {"temprature": 3},
            "'temprature' is not an option of generate; did you mean 'temperature'?",
        ),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 1, got -1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens must be at least 1, got 1.5"),
        ({"max_new_tokens": True}, "max_new_tokens must be at least 1, got True"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens must be at least 1, got 0"),
        ({"max_time_s": 0}, "max_time_s must be above 0, got 0"),
        ({"max_time_s": float("nan")}, "max_time_s must be above 0, got nan"),
        ({"temperature": 0}, "temperature must be above 0 (do_sample=False is greedy), got 0"),
        (
            {"temperature": "hot"},
            "temperature must be above 0 (do_sample=False is greedy), got 'hot'",
        ),
        ({"top_k": -1}, "top_k must be a whole number, 0 or more, got -1"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, got 1.1"),
        ({"min_p": 2}, "min_p must be from 0 to 1, got 2"),
        ({"typical_p": 0}, "typical_p must be above 0 and at most 1, got 0"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0, got 0"),
        ({"min_new_tokens": -1}, "min_new_tokens must be a whole number, 0 or more, got -1"),
        ({"seed": -1}, "seed must be a whole number, 0 or more, got -1"),
        (
            {"num_assistant_tokens": -1},
            "num_assistant_tokens must be 'auto' or a whole number, 0 or more, got -1",
        ),
        (
            {"num_assistant_tokens": "many"},
            "num_assistant_tokens must be 'auto' or a whole number, 0 or more, got 'many'",
        ),
        (
            {"lookup": False, "prompt_lookup_num_tokens": 3},
            "prompt_lookup_num_tokens and lookup=False exclude each other",
        ),
        (
            {"ngram": False, "ngram_past": NgramStore()},
            "ngram_past and ngram=False exclude each other",
        ),
        (
            {"suffix": False, "suffix_past": PastOutputs()},
            "suffix_past and suffix=False exclude each other",
        ),
        ({"ngram_past": "a.ngrams"}, "ngram_past must be a NgramStore, got 'a.ngrams'"),
        ({"suffix_past": True}, "suffix_past must be a PastOutputs, got True"),
        ({"suffix_max_match_length": 0}, "suffix_max_match_length must be at least 1, got 0"),
        ({"suffix_max_spec_factor": 0}, "suffix_max_spec_factor must be above 0, got 0"),
        ({"suffix_min_token_prob": 2}, "suffix_min_token_prob must be from 0 to 1, got 2"),
        (
            {"suffix_max_spec_factor": 2.0, "lookup": True},
            "suffix_max_spec_factor has no effect without suffix=True; add that, or leave it out",
        ),
        (
            {"prompt_lookup_policy": "first", "ngram": True},
            "prompt_lookup_policy has no effect without lookup=True; add that, or leave it out",
        ),
        (
            {"assistant_confidence_threshold": 0.9, "lookup": True},
            "assistant_confidence_threshold has no effect without draft=True; add that, or leave "
            "it out",
        ),
        (
            {"include_stop": True},
            "include_stop has no effect without stop=...; name a stop string",
        ),
        ({"stop": [1]}, "stop must hold strings, got [1]"),
        ({"stop": b"fg"}, "stop must hold strings, got b'fg'"),
        ({"suppress_tokens": 5}, "suppress_tokens must hold whole numbers, got 5"),
        ({"logits_processors": len}, f"logits_processors must hold functions, got {len!r}"),
        ({"stopping_criteria": [3]}, "stopping_criteria must hold functions, got [3]"),
        ({"lookup_references": 5}, "lookup_references must hold texts or token ids, got 5"),
        ({"presence_penalty": "x"}, "presence_penalty must be a number, got 'x'"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty must be a number, got nan"),
        ({"logit_bias": [1]}, "logit_bias must be numbers by token id, got [1]"),
        ({"logit_bias": {"a": 1}}, "logit_bias must be numbers by token id, got {'a': 1}"),
        ({"logit_bias": {1: "a"}}, "logit_bias must be numbers by token id, got {1: 'a'}"),
        (
            {"candidate_generator": PromptLookupCandidateGenerator},
            "candidate_generator must be an object with get_candidates and "
            f"update_candidate_strategy, got {PromptLookupCandidateGenerator!r}",
        ),
        (
            {"num_assistant_tokens": 5},
            "num_assistant_tokens has no effect where nobody proposes candidates; add lookup=True "
            "or draft=..., or leave it out",
        ),
        (
            {"num_assistant_tokens_schedule": "heuristic"},
            "num_assistant_tokens_schedule has no effect where nobody proposes candidates; add "
            "lookup=True or draft=..., or leave it out",
        ),
        (
            {"lossy_typical_acceptance": 0.1},
            "lossy_typical_acceptance has no effect without do_sample=True; add that, or leave it "
            "out",
        ),
        (
            {"lossy_typical_acceptance": 1, "do_sample": True},
            "lossy_typical_acceptance must be above 0 and below 1, or None, got 1",
        ),
        (
            {"lossy_typical_acceptance": 0.1, "do_sample": True, "exact": True},
            "exact and lossy_typical_acceptance exclude each other: the text cannot be the same "
            "with any candidates and depend on them",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_what_cannot_be_meant_is_said_in_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        resolve(given, {})


def test_an_option_like_no_other_is_answered_with_all_that_are_known() -> None:
    with pytest.raises(ValueError, match="zzz") as raised:
        resolve({"zzz": 1}, {})
    assert str(raised.value) == (
        f"'zzz' is not an option of generate; known are {', '.join(NAMES)}"
    )


@pytest.mark.parametrize("name", ["lookup", "ngram", "suffix", "draft"])
def test_two_proposers_exclude_each_other(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} and candidate_generator exclude each other"):
        resolve({name: True, "candidate_generator": PromptLookupCandidateGenerator()}, {})


def test_an_empty_store_of_past_outputs_is_one_all_the_same() -> None:
    assert resolve({"suffix_past": PastOutputs()}, {}).wants("suffix")
    assert not resolve({"suffix": True}, {}).wants("ngram")


def test_no_model_folder_can_ask_for_another_distribution() -> None:
    model = {"do_sample": True, "lossy_typical_acceptance": 0.5}
    assert resolve({}, model).lossy_typical_acceptance is None


def test_who_is_named_takes_the_place_of_the_models_own_lookup() -> None:
    model = {"prompt_lookup_num_tokens": 10}
    assert resolve({}, model).wants("lookup")
    for given in ({"lookup": False}, {"suffix": True}, {"ngram_past": NgramStore()}):
        assert not resolve(given, model).wants("lookup")


def test_a_number_of_candidates_may_stand_beside_what_refuses_them() -> None:
    """One setting for all calls, and each says whether it speculates."""
    assert resolve({"lookup": False, "num_assistant_tokens": 3}, {}).num_assistant_tokens == 3
    for given in ({"lookup": True}, {"regex": "a+"}, {"ngram_past": NgramStore()}):
        assert resolve({**given, "num_assistant_tokens": 3}, {}).num_assistant_tokens == 3
    assert resolve({"num_assistant_tokens": 3}, {}, proposes="draft").num_assistant_tokens == 3
    assert resolve({"num_assistant_tokens": 0}, {}).num_assistant_tokens == 0


@pytest.mark.parametrize("given", [{"lookup": True}, {"lookup": False}, {"suffix": True}])
def test_a_threshold_is_not_ignored_where_another_takes_the_models_drafts_place(
    given: dict[str, Any],
) -> None:
    assert resolve(
        {"assistant_confidence_threshold": 0.9}, {}, proposes="draft"
    ).assistant_confidence_threshold
    with pytest.raises(ValueError, match=r"^assistant_confidence_threshold has no effect without"):
        resolve({**given, "assistant_confidence_threshold": 0.9}, {}, proposes="draft")
