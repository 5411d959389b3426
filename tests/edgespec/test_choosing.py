"""Which candidates a call gets, and which target: what its options come to together."""

import numpy as np
import pytest

from edgespec import Candidates, EdgeGenerator
from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from tests.toylm import HASH, oracle

pytestmark = pytest.mark.onnx

PROMPT = [3, 9, 4, 3, 9, 4, 3, 9]


def test_lookup_copies_from_references_and_writes_the_same_text(hash_model: EdgeGenerator) -> None:
    want = oracle(HASH, PROMPT, 30, 64)
    result = hash_model.generate(
        PROMPT, max_new_tokens=30, lookup_references=[want], num_assistant_tokens=8
    )
    assert result.tokens.tolist() == want
    assert result.stats.rounds < 12


def test_a_reference_may_be_a_text(text_model: EdgeGenerator) -> None:
    result = text_model.generate(
        "xyz abc", max_new_tokens=8, lookup_references="abcdefghijklmnop", num_assistant_tokens=8
    )
    assert (result.text, result.stats.rounds) == ("defghijk", 1)


def test_lookup_and_draft_together_are_mixed(
    hash_model: EdgeGenerator, markov: EdgeGenerator
) -> None:
    result = hash_model.generate(
        PROMPT, max_new_tokens=30, lookup=True, draft=markov, num_assistant_tokens=3
    )
    assert result.tokens.tolist() == oracle(HASH, PROMPT, 30, 64)
    assert set(result.stats.by_source) <= {
        "PromptLookupCandidateGenerator",
        "AssistedCandidateGenerator",
    }
    assert "AssistedCandidateGenerator" in result.stats.by_source


def test_a_generator_of_ones_own_is_not_mixed_in_silence(hash_model: EdgeGenerator) -> None:
    with pytest.raises(
        ValueError,
        match=r"^lookup and candidate_generator exclude each other; to let several propose, "
        r"pass a MixedCandidateGenerator of them$",
    ):
        hash_model.generate(
            PROMPT, lookup=True, candidate_generator=PromptLookupCandidateGenerator()
        )


def test_references_without_lookup_are_refused(hash_model: EdgeGenerator) -> None:
    with pytest.raises(
        ValueError, match=r"^lookup_references and lookup=False exclude each other$"
    ):
        hash_model.generate(PROMPT, lookup=False, lookup_references=["a"])


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_exact_text_is_that_of_the_model_with_any_candidates(sample: bool) -> None:
    generator = EdgeGenerator()
    prompt = "for i in range(10):\n    print(i)\n\nfor i in"
    texts = {
        tuple(
            generator.generate(
                prompt,
                max_new_tokens=40,
                exact=True,
                lookup=count > 0,
                num_assistant_tokens=count,
                do_sample=sample,
                seed=5,
            ).tokens.tolist()
        )
        for count in (0, 1, 3, 10)
    }
    assert len(texts) == 1


class Remembering:
    """Notes when a request ends."""

    def __init__(self) -> None:
        self.ended: list[list[int]] = []

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        return NO_CANDIDATES

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...

    def end(self, input_ids: TokenIds) -> None:
        self.ended.append(input_ids.tolist())


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mixture"])
def test_a_generator_is_told_when_a_request_ends(markov: EdgeGenerator, mixed: bool) -> None:
    remembering = Remembering()
    generator = (
        MixedCandidateGenerator([PromptLookupCandidateGenerator(), remembering])
        if mixed
        else remembering
    )
    markov.generate([5], max_new_tokens=3, candidate_generator=generator)
    stream = markov.stream([9], max_new_tokens=9, candidate_generator=generator)
    next(stream)
    stream.close()
    assert remembering.ended == [[5, 6, 7, 8], [9, 10]]
    assert np.all([len(text) for text in remembering.ended])
