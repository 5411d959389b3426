import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.budget import ConstantBudget
from edgespec.candidates.assisted import AssistedCandidateGenerator
from edgespec.decode import Decoding
from edgespec.errors import ModelFolderError, VocabularyMismatchError
from edgespec.stopping import Stopping, StopText
from edgespec.verify import pick_greedy
from tests.fakes import CountingModel
from tests.folders import byte_tokenizer, metaspace_tokenizer, write_folder
from tests.toylm import HASH, MARKOV, oracle


def assisted(draft: CountingModel, **settings: Any) -> AssistedCandidateGenerator:
    return AssistedCandidateGenerator(draft, **({"vocab_size": 64} | settings))


def certain(draft: CountingModel | None = None, **settings: Any) -> AssistedCandidateGenerator:
    """The counting model's scores are flat; its word is taken all the same."""
    settings.setdefault("assistant_confidence_threshold", 0)
    return assisted(draft or CountingModel(), **settings)


def drafted(generator: AssistedCandidateGenerator, text: list[int], count: int) -> list[int]:
    return [int(token) for token in generator.get_candidates(np.array(text), count).tokens]


class TestDrafting:
    def test_the_draft_says_what_it_would_say_alone(self) -> None:
        assert drafted(certain(), [3, 4, 5], 4) == [6, 7, 8, 9]

    def test_after_an_end_token_nothing_is_drafted(self) -> None:
        assert drafted(certain(eos_token_ids=[7]), [5], 9) == [6, 7]

    def test_only_ids_that_both_have_are_drafted(self) -> None:
        """huggingface/transformers#45307: rows of the draft may be wider than its target's."""
        got = drafted(certain(CountingModel(72), vocab_size=60), [57], 6)
        assert got[:2] == [58, 59]
        assert max(got) < 60

    def test_a_doubtful_token_is_the_last(self) -> None:
        # the likeliest of 64 has e / (e + 63) = 4 % here
        assert drafted(assisted(CountingModel()), [5], 4) == [6]
        sure = assisted(CountingModel(), assistant_confidence_threshold=0.04)
        assert drafted(sure, [5], 4) == [6, 7, 8, 9]
        assert drafted(certain(), [5], 2) == [6, 7]

    def test_a_text_longer_than_the_draft_reads_is_left_to_the_target(self) -> None:
        generator = certain(max_length=6)
        assert drafted(generator, [1, 2, 3, 4], 9) == [5, 6]
        assert drafted(generator, [1, 2, 3, 4, 5, 6], 9) == []
        assert generator.draft.length <= 6


@pytest.mark.parametrize("budget", [1, 2, 5])
@pytest.mark.parametrize(
    ("lies_at", "rate"),
    [
        pytest.param(frozenset(), 1.0, id="always right"),
        pytest.param(frozenset({4, 9}), None, id="wrong now and then"),
        pytest.param(frozenset(range(10)), 0.0, id="always wrong"),
    ],
)
def test_the_draft_has_read_all_of_the_text_but_what_it_said_last(
    lies_at: frozenset[int], rate: float | None, budget: int
) -> None:
    """lablup/mlxcel#994: draft and target forget different amounts."""
    target, draft = CountingModel(10), CountingModel(10, lies_at)
    decoding = Decoding(
        target,
        certain(draft, vocab_size=10),
        np.array([0, 1, 2]),
        pick=pick_greedy,
        budget=ConstantBudget(budget),
        stopping=Stopping(63, frozenset(), StopText((), None)),
        vocab_size=10,
    )
    text, accepted, verified = [0, 1, 2], 0, 0
    for done in decoding:
        text += done.tokens.tolist()
        accepted, verified = accepted + done.num_accepted, verified + done.num_verified
        assert target.cached == text[:-1]
        stood = len(text) - len(done.tokens) + done.num_accepted
        common = min(len(draft.cached), stood)
        assert draft.cached[:common] == text[:common]
    assert text == [i % 10 for i in range(63)]
    assert set(draft.forwards) == {1}  # nothing is read twice, and after a prefill token by token
    if rate is not None:
        assert accepted / verified == rate


def test_what_was_accepted_is_not_read_again() -> None:
    draft = CountingModel()
    generator = certain(draft)
    drafted(generator, [1, 2, 3], 3)  # 4 5 6, of which the draft has read 4 and 5
    assert draft.cached == [1, 2, 3, 4, 5]
    drafted(generator, [1, 2, 3, 4, 5, 6, 7], 1)  # all stand, and 7 is the target's own
    assert draft.cached == [1, 2, 3, 4, 5, 6, 7]
    assert draft.forwards == [1] * 4
    drafted(generator, [1, 2, 3, 4, 5, 6, 7, 20], 1)  # 8 was refused
    assert draft.cached == [1, 2, 3, 4, 5, 6, 7, 20]


def test_a_new_request_reads_its_text_from_the_start() -> None:
    draft = CountingModel()
    generator = certain(draft)
    drafted(generator, [1, 2, 3, 4], 2)
    generator.begin(np.array([9, 2, 3]))
    assert drafted(generator, [9, 2, 3], 1) == [4]
    assert draft.cached == [9, 2, 3]


def test_a_draft_that_others_used_meanwhile_reads_again() -> None:
    draft = CountingModel()
    one, two = (certain(draft) for _ in range(2))
    drafted(one, [1, 2, 3], 2)
    drafted(two, [30, 31], 2)
    assert drafted(one, [1, 2, 3, 4], 2) == [5, 6]
    assert draft.cached == [1, 2, 3, 4, 5]


@pytest.mark.onnx
class TestModels:
    """With real graphs, by the option ``draft``."""

    @pytest.fixture
    def draft(self, models: Path) -> EdgeGenerator:
        return EdgeGenerator(models / "hash")

    def test_a_draft_equal_to_its_target_is_always_right(
        self, hash_model: EdgeGenerator, draft: EdgeGenerator
    ) -> None:
        """openvinotoolkit/openvino.genai#4425."""
        result = hash_model.generate(
            [3, 9, 4], max_new_tokens=30, draft=draft, num_assistant_tokens=4
        )
        assert result.tokens.tolist() == oracle(HASH, [3, 9, 4], 30)
        assert result.stats.accepted == result.stats.evaluated == 24
        assert result.stats.rounds == 6

    def test_a_folder_is_loaded_once(self, hash_model: EdgeGenerator, models: Path) -> None:
        for _ in range(2):
            result = hash_model.generate([3, 9], max_new_tokens=6, draft=models / "markov")
            assert result.tokens.tolist() == oracle(HASH, [3, 9], 6)
        assert list(hash_model._drafts) == [str(models / "markov")]

    def test_rows_of_another_width_are_no_harm(self, markov: EdgeGenerator, tmp_path: Path) -> None:
        wide = write_folder(tmp_path, MARKOV, 72)
        result = markov.generate([58], max_new_tokens=9, draft=wide, num_assistant_tokens=4)
        assert result.tokens.tolist() == oracle(MARKOV, [58], 9)
        assert result.stats.accepted > 0

    def test_a_draft_with_another_tokenizer_is_refused(
        self, text_model: EdgeGenerator, tmp_path: Path
    ) -> None:
        """ggml-org/llama.cpp#3812."""
        other = write_folder(tmp_path, MARKOV, 265, tokenizer=metaspace_tokenizer())
        with pytest.raises(VocabularyMismatchError, match="must be exported with its target's"):
            text_model.stream("abc", max_new_tokens=3, draft=other)
        same = write_folder(tmp_path / "same", MARKOV, 300, tokenizer=byte_tokenizer())
        assert text_model.generate("abc", max_new_tokens=3, draft=same).text == "def"

    def test_a_draft_that_is_not_there_is_named(self, markov: EdgeGenerator) -> None:
        with pytest.raises(ModelFolderError, match="does not exist; pass a model's folder"):
            markov.stream([1], max_new_tokens=3, draft="missing")
        with pytest.raises(ModelFolderError, match=r"holds no draft/; pass draft= the folder of"):
            markov.stream([1], max_new_tokens=3, draft=True)

    def test_a_model_cannot_draft_for_itself(self, markov: EdgeGenerator) -> None:
        said = (
            "^draft must be another EdgeGenerator than its target: each needs a cache of its own$"
        )
        with pytest.raises(ValueError, match=said):
            markov.stream([1], max_new_tokens=3, draft=markov)

    def test_threads_share_a_draft(self, hash_model: EdgeGenerator, draft: EdgeGenerator) -> None:
        got: dict[int, list[int]] = {}

        def write(i: int) -> None:
            target = hash_model if i % 2 else draft
            other = draft if i % 2 else None
            result = target.generate([i, 2, 3], max_new_tokens=20, draft=other)
            got[i] = result.tokens.tolist()

        threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {i: oracle(HASH, [i, 2, 3], 20) for i in range(6)}
