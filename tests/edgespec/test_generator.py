"""The public interface: text or ids in, text and what happened out."""

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Candidates, EdgeGenerator, PromptLookupCandidateGenerator, Result
from edgespec.arrays import TokenIds
from edgespec.errors import (
    CandidateError,
    GraphMismatchError,
    LogitsError,
    ModelFolderError,
)
from edgespec.options import GenerateOptions
from tests.folders import EOS, byte_tokenizer, metaspace_tokenizer, write_folder, write_json
from tests.toylm import HASH, MARKOV, Rule, oracle

pytestmark = pytest.mark.onnx

COUNTING = [17, 18, 19, 20, 21, 22, 5, 17]


class TestResult:
    def test_it_prints_as_its_text(self, text_model: EdgeGenerator) -> None:
        result = text_model.generate("abc", max_new_tokens=5)
        assert str(result) == result.text == "defgh"
        assert result.tokens.tolist() == list(b"defgh")
        assert result.tokens.dtype == np.int64

    @pytest.mark.parametrize(
        ("options", "text", "reason"),
        [
            ({}, "defgh", "length"),
            ({"eos_token_id": ord("f")}, "de", "eos"),
            ({"eos_token_id": [ord("z"), ord("f")]}, "de", "eos"),
            ({"stop": "fg"}, "de", "stop"),
            ({"stop": ["zz", "e"]}, "d", "stop"),
            ({"stop": "fx"}, "defgh", "length"),
            ({"stop": "zz", "eos_token_id": ord("h")}, "defg", "eos"),
            ({"stopping_criteria": [lambda tokens: len(tokens) == 5]}, "de", "stop"),
            ({"max_length": 6}, "def", "length"),
            ({"max_time_s": 1e-9}, "d", "time"),
        ],
        ids=[
            "length",
            "end token",
            "one of several end tokens",
            "stop string",
            "one of several stop strings",
            "no stop string after all",
            "stop strings add to end tokens",
            "criterion",
            "whole length",
            "time",
        ],
    )
    @pytest.mark.parametrize("lookup", [False, True], ids=["plain", "lookup"])
    def test_why_it_ended(
        self,
        text_model: EdgeGenerator,
        options: dict[str, Any],
        text: str,
        reason: str,
        lookup: bool,
    ) -> None:
        result = text_model.generate("abc", **({"max_new_tokens": 5} | options), lookup=lookup)
        assert (result.text, result.finish_reason) == (text, reason)

    def test_end_tokens_are_tokens_and_no_text(self, tmp_path: Path) -> None:
        folder = write_folder(
            tmp_path, Rule(script=(97, EOS)), 257, tokenizer=byte_tokenizer(), eos=EOS
        )
        result = EdgeGenerator(folder).generate("a", max_new_tokens=9)
        assert result.tokens.tolist() == [EOS]
        assert (result.text, result.finish_reason) == ("", "eos")


class TestPrompts:
    @pytest.mark.parametrize(
        "prompt",
        [
            "abc",
            [97, 98, 99],
            (97, 98, 99),
            np.array([97, 98, 99]),
            np.array([97, 98, 99], np.uint8),
            [np.int32(97), np.int32(98), np.int32(99)],
        ],
        ids=["text", "list", "tuple", "array", "small integers", "numpy integers"],
    )
    def test_text_and_ids_are_alike(self, text_model: EdgeGenerator, prompt: Any) -> None:
        assert text_model.generate(prompt, max_new_tokens=3).text == "def"

    def test_a_list_of_texts_is_a_batch(self, text_model: EdgeGenerator) -> None:
        """huggingface/transformers#29769."""
        prompts = ["abc", "x", "hijk"]
        results = text_model.generate(prompts, max_new_tokens=3, eos_token_id=ord("n"), lookup=True)
        assert [r.text for r in results] == ["def", "yz{", "lm"]
        assert [r.finish_reason for r in results] == ["length", "length", "eos"]
        alone = [
            text_model.generate(p, max_new_tokens=3, eos_token_id=ord("n"), lookup=True)
            for p in prompts
        ]
        assert [r.text for r in alone] == [r.text for r in results]
        assert text_model.generate(("abc",), max_new_tokens=1)[0].text == "d"

    @pytest.mark.parametrize(
        ("prompt", "said"),
        [
            ("", "prompt must hold at least one token, got an empty one"),
            ([], "prompt must hold at least one token, got an empty one"),
            (
                [[1, 2], [3, 4]],
                "prompt must be a text or one row of whole numbers, "
                "got an array of int64 with shape [2, 2]",
            ),
            (
                [1.5],
                "prompt must be a text or one row of whole numbers, "
                "got an array of float64 with shape [1]",
            ),
            (
                None,
                "prompt must be a text or one row of whole numbers, "
                "got an array of object with shape []",
            ),
            ([257], "prompt holds the token id 257, but the model's ids are below 257"),
            ([-1], "prompt holds the token id -1, but the model's ids are below 257"),
            (
                "a" * 512,
                "the prompt has 512 tokens and the longest text 512, which leaves no room for a "
                "new one; shorten the prompt or raise max_length",
            ),
        ],
        ids=[
            "empty text",
            "no ids",
            "several rows",
            "halves",
            "nothing",
            "id too high",
            "id too low",
            "too long",
        ],
    )
    def test_one_that_cannot_be_continued_is_refused_before_anything_runs(
        self, text_model: EdgeGenerator, prompt: Any, said: str
    ) -> None:
        with pytest.raises(ValueError, match="prompt") as raised:
            text_model.stream(prompt, max_new_tokens=5)
        assert str(raised.value) == said

    def test_ragged_rows_are_refused_in_our_words(self, text_model: EdgeGenerator) -> None:
        prompt: Any = [[1, 2], [3]]
        with pytest.raises(ValueError, match=r"^prompt must be a text or one row"):
            text_model.generate(prompt, max_new_tokens=5)

    def test_an_option_of_the_call_shortens_the_longest_text(
        self, text_model: EdgeGenerator
    ) -> None:
        with pytest.raises(ValueError, match=r"^the prompt has 3 tokens and the longest text 3, "):
            text_model.generate("abc", max_length=3)

    def test_a_generator_may_be_made_for_shorter_texts(self, models: Path) -> None:
        generator = EdgeGenerator(models / "text", max_length=8)
        assert generator.generate("abc").text == "defgh"
        with pytest.raises(ValueError, match=r"^max_length must be at least 2, got 1$"):
            EdgeGenerator(models / "text", max_length=1)

    def test_a_text_without_any_limit_is_refused(self, tmp_path: Path) -> None:
        generator = EdgeGenerator(write_folder(tmp_path, HASH, max_length=None))
        with pytest.raises(ValueError, match="max_new_tokens") as raised:
            generator.generate([1])
        assert str(raised.value) == (
            "max_new_tokens must be given: nothing in the model's folder says how long a text it "
            "can hold"
        )
        assert len(generator.generate([1], max_new_tokens=700).tokens) == 700

    def test_special_tokens_are_added_once(self, models: Path) -> None:
        generator = EdgeGenerator(models / "metaspace")
        counts = [
            generator.generate(text, max_new_tokens=1, add_special_tokens=add).stats.prompt_tokens
            for text, add in (("Hi", True), ("<s>Hi", True), ("<s>Hi", False), ("Hi", False))
        ]
        assert counts == [3, 3, 3, 2]


class TestStream:
    def test_chunks_joined_are_the_result(self, text_model: EdgeGenerator) -> None:
        options: dict[str, Any] = {"max_new_tokens": 12, "lookup": True, "stop": "no"}
        result = text_model.generate("defghijklmno abc", **options)
        chunks = list(text_model.stream("defghijklmno abc", **options))
        assert "".join(chunk.text for chunk in chunks) == result.text == "defghijklm"
        assert [t for chunk in chunks for t in chunk.tokens] == result.tokens.tolist()
        assert {chunk.finish_reason for chunk in chunks[:-1]} == {None}
        assert chunks[-1].finish_reason == "stop"
        assert all(len(chunk.pieces) == len(chunk.tokens) for chunk in chunks)

    @pytest.mark.parametrize("lookup", [False, True], ids=["plain", "lookup"])
    def test_no_chunk_holds_half_a_character(self, tmp_path: Path, lookup: bool) -> None:
        """abetlen/llama-cpp-python#57."""
        text = "Hi \U0001f600 n\u00e9!"
        rule = Rule(script=(*text.encode(), EOS))
        folder = write_folder(tmp_path, rule, 257, tokenizer=byte_tokenizer(), eos=EOS)
        chunks = list(
            EdgeGenerator(folder).stream(
                "Hi ", max_new_tokens=20, lookup=lookup, num_assistant_tokens=4
            )
        )
        assert "".join(chunk.text for chunk in chunks) == "\U0001f600 n\u00e9!"
        assert not any("\ufffd" in chunk.text for chunk in chunks)
        assert sum(len(chunk.tokens) for chunk in chunks) == 10

    def test_accepted_candidates_come_first(self, text_model: EdgeGenerator) -> None:
        chunks = list(text_model.stream("defgh abc", max_new_tokens=8, prompt_lookup_num_tokens=3))
        accepted = [chunk.pieces[: chunk.num_accepted] for chunk in chunks]
        assert ("e", "f", "g") in accepted

    def test_a_leading_space_of_the_answer_is_kept(self, tmp_path: Path) -> None:
        rule = Rule(script=(262, 261, 264))  # "Hello", then a space and "world", then "!"
        folder = write_folder(tmp_path, rule, 265, tokenizer=metaspace_tokenizer())
        result = EdgeGenerator(folder).generate([262], max_new_tokens=2)
        assert result.text == " world!"

    def test_it_can_be_cancelled_from_another_thread(self, markov: EdgeGenerator) -> None:
        stream = markov.stream([1], max_new_tokens=400)
        first = next(stream)
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        thread.join()
        rest = list(stream)
        assert first.finish_reason is None
        assert [chunk.finish_reason for chunk in rest] == ["cancelled"]
        assert len(rest[0].tokens) == 1

    def test_it_knows_its_stats_on_the_way(self, markov: EdgeGenerator) -> None:
        stream = markov.stream([1], max_new_tokens=6)
        seen = [stream.stats.emitted for _ in stream]
        assert seen == [1, 2, 3, 4, 5, 6]


class TestStats:
    """ggml-org/llama.cpp#12603."""

    @pytest.mark.parametrize("budget", [1, 5, 10, "auto"])
    def test_the_numbers_of_a_call_agree(self, markov: EdgeGenerator, budget: Any) -> None:
        result = markov.generate(
            [*range(40), 5, 6], max_new_tokens=30, lookup=True, num_assistant_tokens=budget
        )
        stats = result.stats
        assert stats.prompt_tokens == 42
        assert stats.emitted == len(result.tokens) == 30
        assert stats.emitted == stats.accepted + stats.rounds
        assert stats.proposed >= stats.evaluated >= stats.accepted > 0
        assert stats.evaluated == sum(stats.evaluated_by_position)
        assert stats.accepted == sum(stats.accepted_by_position)
        assert stats.by_source == {
            "PromptLookupCandidateGenerator": (stats.evaluated, stats.accepted)
        }
        assert stats.acceptance_rate == stats.accepted / stats.evaluated
        assert stats.tokens_per_round == stats.emitted / stats.rounds
        assert json.loads(json.dumps(stats.as_dict()))["accepted"] == stats.accepted

    def test_plain_decoding_has_no_acceptance(self, markov: EdgeGenerator) -> None:
        stats = markov.generate([1, 2], max_new_tokens=7).stats
        assert (stats.rounds, stats.emitted, stats.proposed, stats.evaluated) == (7, 7, 0, 0)
        assert (stats.acceptance_rate, stats.tokens_per_round, stats.by_source) == (None, 1.0, {})
        assert stats.plain_step_s is not None

    def test_a_text_that_repeats_itself_takes_few_forwards(self, markov: EdgeGenerator) -> None:
        """huggingface/transformers#36337."""
        prompt = [*range(64), *range(20)]
        stats = markov.generate(prompt, max_new_tokens=32, prompt_lookup_num_tokens=10).stats
        assert stats.rounds <= 4

    def test_an_edited_copy_is_picked_up_again_after_each_change(self, tmp_path: Path) -> None:
        """abetlen/llama-cpp-python#2110."""
        source = [int(t) for t in np.random.default_rng(0).integers(0, 60, 200)]
        edited = [63 if i % 20 == 19 else t for i, t in enumerate(source)]
        folder = write_folder(tmp_path, Rule(script=(*source, *edited)))
        result = EdgeGenerator(folder).generate(
            source, max_new_tokens=200, prompt_lookup_num_tokens=10
        )
        assert result.tokens.tolist() == edited
        assert result.stats.rounds <= 60

    def test_a_second_call_starts_from_nothing(self, models: Path) -> None:
        """ggml-org/llama.cpp#27852."""
        options: dict[str, Any] = {"max_new_tokens": 8, "prompt_lookup_num_tokens": 4}
        fresh = EdgeGenerator(models / "hash").generate([5, 6, 1, 2], **options)
        used = EdgeGenerator(models / "hash")
        used.generate([1, 2, 77 % 64, 1, 2] * 4, **options)
        again = used.generate([5, 6, 1, 2], **options)
        counts = [
            (r.stats.rounds, r.stats.proposed, r.stats.evaluated, r.stats.accepted)
            for r in (fresh, again)
        ]
        assert counts[0] == counts[1]


class TestOptionsOfACall:
    def test_speculation_can_be_switched_from_call_to_call(self, markov: EdgeGenerator) -> None:
        """ggml-org/llama.cpp#23052."""
        session = markov.session
        prompt = [*range(30), 3, 4]

        def call(**options: Any) -> Result:
            result: Result = markov.generate(prompt, max_new_tokens=20, **options)
            return result

        results = [
            call(prompt_lookup_num_tokens=3),
            call(),
            call(prompt_lookup_num_tokens=9),
            call(lookup=True, num_assistant_tokens=0),
            call(candidate_generator=PromptLookupCandidateGenerator(2), num_assistant_tokens=5),
        ]
        assert {tuple(r.tokens) for r in results} == {tuple(oracle(MARKOV, prompt, 20))}
        longest = [len(r.stats.evaluated_by_position) for r in results]
        assert longest == [3, 0, 9, 0, 2]
        assert markov.session is session

    def test_a_generator_of_its_own_proposes_where_the_call_names_none(self, models: Path) -> None:
        lookup = PromptLookupCandidateGenerator(4)
        generator = EdgeGenerator(models / "markov", candidate_generator=lookup)
        assert generator.generate(COUNTING, max_new_tokens=3).stats.proposed > 0
        assert generator.generate(COUNTING, max_new_tokens=3, lookup=False).stats.proposed == 0

    def test_generation_config_says_what_the_call_leaves_out(self, tmp_path: Path) -> None:
        said = {"max_new_tokens": 3, "repetition_penalty": 1.2, "max_length": 20}
        folder = write_folder(tmp_path, MARKOV, eos=40, generation_config=said)
        generator = EdgeGenerator(folder)
        assert generator.generate([9]).tokens.tolist() == [10, 11, 12]
        assert generator.generate([38]).tokens.tolist() == [39, 40]
        assert generator.generate([38], eos_token_id=None).tokens.tolist() == [39, 40, 41]
        assert len(generator.generate([9], max_new_tokens=25).tokens) == 25

    def test_an_unknown_option_is_refused_with_the_nearest_known(
        self, markov: EdgeGenerator
    ) -> None:
        options: Any = {"max_new_token": 3}
        said = "^'max_new_token' is not an option of generate; did you mean 'max_new_tokens'\\?$"
        with pytest.raises(ValueError, match=said):
            markov.stream([1], **options)

    @pytest.mark.parametrize("count", [0, -1])
    def test_no_new_tokens_at_all_cannot_be_asked_for(
        self, markov: EdgeGenerator, count: int
    ) -> None:
        said = f"^max_new_tokens must be at least 1, got {count}$"
        with pytest.raises(ValueError, match=said):
            markov.stream([1], max_new_tokens=count)

    def test_an_empty_stop_string_is_refused(self, text_model: EdgeGenerator) -> None:
        with pytest.raises(ValueError, match=r"^stop strings must not be empty, got ''$"):
            text_model.stream("abc", stop=["x", ""])


class TestModelsThatAreDifferent:
    def test_a_graph_of_one_row_decodes_and_cannot_verify(self, tmp_path: Path) -> None:
        """huggingface/optimum#1668."""
        generator = EdgeGenerator(write_folder(tmp_path, HASH, rows=1))
        result = generator.generate([3, 9, 4], max_new_tokens=8)
        assert result.tokens.tolist() == oracle(HASH, [3, 9, 4], 8)
        with pytest.raises(GraphMismatchError) as raised:
            generator.generate([3, 9, 4], max_new_tokens=8, lookup=True)
        assert str(raised.value) == (
            f"{generator.session.path} cannot verify candidates: its input 'input_ids' takes 1 "
            "token at a time; export it again (edgespec export MODEL), or leave lookup, ngram, "
            "suffix, draft and candidate_generator out"
        )

    def test_scores_that_are_no_numbers_end_in_an_error(self, tmp_path: Path) -> None:
        """microsoft/onnxruntime#6328."""
        generator = EdgeGenerator(write_folder(tmp_path, HASH, spoilt_after=5))
        stream = generator.stream([3, 9, 4], max_new_tokens=8)
        got = [int(token) for _ in range(3) for token in next(stream).tokens]
        assert got == oracle(HASH, [3, 9, 4], 3)
        with pytest.raises(LogitsError) as raised:
            next(stream)
        assert str(raised.value) == (
            "the model returned nan as its highest logit after 6 tokens; its weights overflow at "
            "this precision: export it with another --precision"
        )

    @pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
    def test_ids_beyond_the_tokenizer_are_never_written(self, tmp_path: Path, sample: bool) -> None:
        """dottxt-ai/outlines#213: rows of logits are wider than the vocabulary."""
        folder = write_folder(tmp_path, HASH, 400, tokenizer=byte_tokenizer(), height=1.0)
        generator = EdgeGenerator(folder)
        options: GenerateOptions = {"max_new_tokens": 40, "lookup": True}
        if sample:
            options |= {"do_sample": True, "top_k": 0}
        written = []
        for seed in range(6):
            options["seed"] = seed
            written.append(generator.generate("abcabc", **options).tokens)
        assert np.concatenate(written).max() <= 256
        assert any(token > 256 for token in oracle(HASH, list(b"abcabc"), 40, 400))

    def test_candidates_beyond_the_tokenizer_are_refused(self, tmp_path: Path) -> None:
        class Beyond:
            def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
                return Candidates(np.array([300]))

            def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...

        folder = write_folder(tmp_path, HASH, 400, tokenizer=byte_tokenizer())
        with pytest.raises(CandidateError, match=r"^Beyond must return token ids below 257, got"):
            EdgeGenerator(folder).generate("abc", max_new_tokens=5, candidate_generator=Beyond())

    def test_of_equal_scores_the_lowest_id_is_written_in_every_mode(self, tmp_path: Path) -> None:
        """vllm-project/vllm#7627."""
        generator = EdgeGenerator(write_folder(tmp_path, HASH, height=0.0))
        for options in ({}, {"lookup": True}, {"prompt_lookup_num_tokens": 3}):
            result = generator.generate([0, 0, 5], max_new_tokens=10, **options)
            assert result.tokens.tolist() == [0] * 10


@pytest.mark.parametrize("returned", [None, [1, 2], np.array([1])], ids=["None", "list", "array"])
def test_a_generator_that_returns_something_else_is_named(
    markov: EdgeGenerator, returned: Any
) -> None:
    class Odd:
        def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Any:
            return returned

        def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...

    said = f"^Odd must return Candidates, got {type(returned).__name__}$"
    with pytest.raises(CandidateError, match=said):
        markov.generate([1], max_new_tokens=3, candidate_generator=Odd())


class TestACallWithinACall:
    """Whoever is asked in a round may use the same model; the text must not notice."""

    def test_a_candidate_generator_may_ask_the_target_itself(
        self, hash_model: EdgeGenerator
    ) -> None:
        class Asks:
            def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
                hash_model.generate([5, 6, 7, 8, 9], max_new_tokens=3)
                return Candidates(
                    np.array(oracle(HASH, input_ids.tolist(), min(2, max_candidates)))
                )

            def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...

        result = hash_model.generate([1, 2, 3], max_new_tokens=9, candidate_generator=Asks())
        assert result.tokens.tolist() == oracle(HASH, [1, 2, 3], 9)

    def test_a_criterion_may_ask_the_model(self, hash_model: EdgeGenerator) -> None:
        def criterion(tokens: TokenIds) -> bool:
            hash_model.generate([5, 6], max_new_tokens=1)
            return False

        result = hash_model.generate([1, 2, 3], max_new_tokens=9, stopping_criteria=[criterion])
        assert result.tokens.tolist() == oracle(HASH, [1, 2, 3], 9)


class TestChat:
    TEMPLATE = "<s>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

    def test_a_conversation_is_laid_out_and_encoded_once(self, tmp_path: Path) -> None:
        folder = write_folder(
            tmp_path,
            MARKOV,
            265,
            tokenizer=metaspace_tokenizer(adds_bos=True),
            chat_template=self.TEMPLATE,
        )
        generator = EdgeGenerator(folder)
        messages = [{"role": "user", "content": "Hi"}]
        assert generator.chat_prompt(messages) == "<s>[user]Hi"
        result = generator.chat(messages, max_new_tokens=2)
        assert result.stats.prompt_tokens == 1 + len("[user]Hi")
        assert result.text == "jk"

    def test_a_cut_off_folder_says_what_it_lacks(self, text_model: EdgeGenerator) -> None:
        with pytest.raises(ModelFolderError, match="has no chat template"):
            text_model.chat([{"role": "user", "content": "Hi"}], max_new_tokens=2)


def test_an_end_token_of_the_model_holds_where_generation_config_names_none(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path, MARKOV, eos=None)
    write_json(folder / "config.json", {"eos_token_id": 5, "n_positions": 64})
    result = EdgeGenerator(folder).generate([1, 2, 3], max_new_tokens=9)
    assert result.tokens.tolist() == [4, 5]


def test_options_that_shape_the_scores_agree_with_and_without_candidates(
    flat: EdgeGenerator,
) -> None:
    """osaurus-ai/vmlx-swift#357: a refused candidate must leave no trace."""
    ways: list[dict[str, Any]] = [
        {"repetition_penalty": 1.5},
        {"presence_penalty": 0.4, "frequency_penalty": 0.3},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [19, 62]},
        {"min_new_tokens": 6, "eos_token_id": 62},
        {"logit_bias": {7: 1.5}},
    ]
    prompt = [3, 9, 4, 3, 9, 4, 3, 9]
    for way, budget in itertools.product(ways, (2, 8, "auto")):
        plain = flat.generate(prompt, max_new_tokens=16, **way)
        fast = flat.generate(
            prompt, max_new_tokens=16, lookup=True, num_assistant_tokens=budget, **way
        )
        assert fast.tokens.tolist() == plain.tokens.tolist(), way


@pytest.mark.parametrize("wrong", [5, PromptLookupCandidateGenerator(), ["a", "b"]])
def test_what_is_no_draft_model_is_refused(models: Path, wrong: Any) -> None:
    said = rf"^draft must be a model folder, an EdgeGenerator or True, got {type(wrong).__name__};"
    with pytest.raises(ValueError, match=said):
        EdgeGenerator(models / "markov", draft=wrong)
    if not isinstance(wrong, list):  # of which a call may name several
        with pytest.raises(ValueError, match=said):
            EdgeGenerator(models / "markov").stream([3], max_new_tokens=2, draft=wrong)


def test_no_draft_and_a_generator_go_together(models: Path) -> None:
    lookup = PromptLookupCandidateGenerator()
    EdgeGenerator(models / "markov", draft=False, candidate_generator=lookup)


def test_what_is_no_length_is_refused(models: Path) -> None:
    wrong: Any = "5"
    with pytest.raises(ValueError, match=r"^max_length must be at least 2, got '5'$"):
        EdgeGenerator(models / "markov", max_length=wrong)


@pytest.mark.parametrize("closed", [False, True])
def test_a_text_is_read_to_its_end_once(markov: EdgeGenerator, closed: bool) -> None:
    stream = markov.stream([5], max_new_tokens=3)
    if closed:
        stream.close()
    else:
        stream.read_all()
    with pytest.raises(ValueError, match=r"^the text was read already, or closed; start another"):
        stream.read_all()


def test_half_a_character_is_named(text_model: EdgeGenerator) -> None:
    """What the command line makes of an argument that is not UTF-8."""
    with pytest.raises(ValueError, match=r"^the text holds '\\udc80', which is half a character;"):
        text_model.generate("ab\udc80c", max_new_tokens=3)
