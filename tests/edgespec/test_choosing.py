"""Which candidates a call gets, and which target: what its options come to together."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import (
    Candidates,
    EdgeGenerator,
    MixedCandidateGenerator,
    NgramCacheCandidateGenerator,
    NgramStore,
    Options,
    PastOutputs,
    PromptLookupCandidateGenerator,
    SuffixCandidateGenerator,
    get_candidate_generator,
    stream,
)
from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES
from edgespec.defaults import resolve
from edgespec.errors import NgramFileError
from edgespec.logit_rules import NoRepeatNgram
from edgespec.logits import make_bans
from tests.toylm import HASH, MARKOV, oracle

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


def test_an_empty_reference_has_nothing_to_copy(text_model: EdgeGenerator) -> None:
    """A file that is about to be written, say."""
    several: list[Any] = ["", [""], ["", "defg"], [[]]]
    for references in several:
        result = text_model.generate("abc", max_new_tokens=4, lookup_references=references)
        assert result.text == "defg"


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


class TestByName:
    @pytest.mark.parametrize(
        ("options", "kinds"),
        [
            ({"ngram": True}, [NgramCacheCandidateGenerator]),
            ({"ngram_past": NgramStore()}, [NgramCacheCandidateGenerator]),
            ({"suffix": True}, [SuffixCandidateGenerator]),
            ({"suffix_past": PastOutputs()}, [SuffixCandidateGenerator]),
            (
                {"lookup": True, "ngram": True, "suffix": True},
                [
                    PromptLookupCandidateGenerator,
                    NgramCacheCandidateGenerator,
                    SuffixCandidateGenerator,
                ],
            ),
            ({"ngram": False}, []),
            ({}, []),
        ],
        ids=str,
    )
    def test_who_is_named_proposes(
        self, hash_model: EdgeGenerator, options: dict[str, Any], kinds: list[type]
    ) -> None:
        chosen = get_candidate_generator(hash_model, resolve(options, {}), len(PROMPT))
        found = chosen.generators if isinstance(chosen, MixedCandidateGenerator) else [chosen]
        assert [type(one) for one in found if one is not None] == kinds
        result = hash_model.generate(PROMPT, max_new_tokens=12, **options)
        assert result.tokens.tolist() == oracle(HASH, PROMPT, 12, 64)

    def test_settings_reach_the_suffixes(self, hash_model: EdgeGenerator) -> None:
        past = PastOutputs()
        options = Options(
            suffix_past=past,
            suffix_max_match_length=5,
            suffix_max_spec_factor=2.0,
            suffix_min_token_prob=0.5,
        )
        made = get_candidate_generator(hash_model, options, 3)
        assert isinstance(made, SuffixCandidateGenerator)
        assert (made.max_match_length, made.max_spec_factor, made.min_token_prob) == (5, 2.0, 0.5)
        assert made.past is past

    def test_a_corpus_is_read_once_and_again_when_it_was_written_anew(
        self, markov: EdgeGenerator, tmp_path: Path
    ) -> None:
        file = tmp_path / "grams"
        store = NgramStore()
        store.add(np.tile(np.arange(64), 3))
        store.save(file)
        texts = [
            markov.generate([9], max_new_tokens=8, ngram_corpus=file, num_assistant_tokens=4)
            for _ in range(2)
        ]
        assert [text.tokens.tolist() for text in texts] == [oracle(MARKOV, [9], 8)] * 2
        assert texts[0].stats.rounds == 2
        NgramStore().save(file)
        os.utime(file, ns=(1, 1))  # a clock may stand still between two writes
        assert markov.generate([9], max_new_tokens=8, ngram_corpus=file).stats.accepted == 0

    def test_a_corpus_of_other_tokens_is_refused(
        self, text_model: EdgeGenerator, tmp_path: Path
    ) -> None:
        file = tmp_path / "grams"
        NgramStore("ab" * 32).save(file)
        for store in (file, NgramStore("ab" * 32)):
            with pytest.raises(NgramFileError, match=r"was counted with the tokenizer abab"):
                text_model.stream("a", ngram_corpus=store)
        with pytest.raises(NgramFileError, match=r"^ngram_past was counted with the tokenizer"):
            text_model.stream("a", ngram_past=NgramStore("ab" * 32))
        with pytest.raises(NgramFileError, match=r"missing cannot be read"):
            text_model.stream("a", ngram_corpus=tmp_path / "missing")

    @pytest.mark.parametrize("name", ["ngram_past", "suffix_past"])
    def test_past_outputs_are_shared_only_when_asked(
        self, hash_model: EdgeGenerator, name: str
    ) -> None:
        """ggml-org/llama.cpp#27852."""
        past = NgramStore() if name == "ngram_past" else PastOutputs()
        alone = {name.removesuffix("_past"): True}

        def accepted(options: dict[str, Any]) -> list[int]:
            return [
                hash_model.generate(
                    PROMPT, max_new_tokens=30, num_assistant_tokens=8, **options
                ).stats.accepted
                for _ in range(5)
            ]

        assert len(set(accepted(alone))) == 1
        remembered = accepted({name: past})
        assert remembered[-1] > 20 > remembered[0]


class TestSeveralDrafts:
    def test_two_drafts_take_turns_in_one_text(self, models: Path) -> None:
        target = EdgeGenerator(models / "hash")
        drafts: list[Path | EdgeGenerator] = [models / "markov", EdgeGenerator(models / "hash")]
        ways: tuple[dict[str, Any], ...] = ({}, {"lookup": True}, {"do_sample": True, "seed": 3})
        for options in ways:
            result = target.generate(
                PROMPT, max_new_tokens=30, num_assistant_tokens=3, draft=drafts, **options
            )
            if not options.get("do_sample"):
                assert result.tokens.tolist() == oracle(HASH, PROMPT, 30, 64)
            assert result.stats.evaluated > 0

    def test_the_better_draft_comes_to_propose(self, models: Path) -> None:
        result = EdgeGenerator(models / "hash").generate(
            PROMPT,
            max_new_tokens=100,
            num_assistant_tokens=3,
            draft=[models / "markov", EdgeGenerator(models / "hash")],
        )
        accepted = {name: stood for name, (_, stood) in result.stats.by_source.items()}
        assert accepted["AssistedCandidateGenerator#2"] > 25

    def test_the_same_draft_twice_is_refused(self, models: Path) -> None:
        with pytest.raises(
            ValueError, match=r"^draft names \S+model.onnx twice; each draft needs a cache"
        ):
            EdgeGenerator(models / "hash").stream(PROMPT, draft=[models / "markov"] * 2)


COUNTING = [17, 18, 19, 20, 21, 22, 17]


class TestForbiddenCandidates:
    @pytest.mark.parametrize(
        "options",
        [
            {"suppress_tokens": [18]},
            {"bad_words_ids": [[17, 18]]},
            {"min_new_tokens": 9, "eos_token_id": 20},
            {"no_repeat_ngram_size": 3},
            {"logit_bias": {18: -np.inf}},
            {"forced_bos_token_id": 40},
            {"begin_suppress_tokens": [18]},
        ],
        ids=str,
    )
    def test_they_are_not_verified_and_the_text_is_the_same(
        self, markov: EdgeGenerator, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = {"max_new_tokens": 12, "num_assistant_tokens": 5, **options}
        plain = markov.generate(COUNTING, lookup=False, **said)
        cut = markov.generate(COUNTING, lookup=True, **said)
        monkeypatch.setattr(stream, "make_bans", lambda *args, **kwargs: ())
        uncut = markov.generate(COUNTING, lookup=True, **said)
        assert plain.tokens.tolist() == cut.tokens.tolist() == uncut.tokens.tolist()
        assert cut.stats.evaluated < uncut.stats.evaluated
        assert cut.stats.accepted == uncut.stats.accepted

    def test_samplers_that_cut_the_unlikely_forbid_nothing(self, flat: EdgeGenerator) -> None:
        """A top-p filter over a row of equals would throw good candidates away."""
        options = Options(do_sample=True, top_p=0.1, top_k=2, min_p=0.5, temperature=0.1)
        assert make_bans(options, prompt_length=1, vocab_limit=64) == ()

    def test_drawn_ones_are_judged_whatever_they_are(self, markov: EdgeGenerator) -> None:
        class Draws:
            def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
                return Candidates(np.array([18]), np.eye(64)[[18]])

            def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...

        stats = markov.generate(
            COUNTING,
            max_new_tokens=6,
            do_sample=True,
            suppress_tokens=[18],
            candidate_generator=Draws(),
            num_assistant_tokens=1,
        ).stats
        assert (stats.evaluated, stats.accepted) == (5, 0)

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_a_ban_says_the_same_of_one_token_as_of_all(self, size: int) -> None:
        rng = np.random.default_rng(size)
        ban = NoRepeatNgram(size)
        for length in [*range(size + 2), 30, 60]:
            text = rng.integers(0, 4, length)
            forbidden = [token for token in range(5) if ban.forbids(text, token)]
            assert forbidden == sorted(set(ban.banned(text).tolist()))
