"""Between calls the cache keeps what the next prompt begins with, and only the rest is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Candidates, EdgeGenerator
from edgespec.arrays import TokenIds
from edgespec.exact import InPairs
from edgespec.model import PREFILL_ROWS, CausalLM
from tests.toylm import HASH, oracle

pytestmark = pytest.mark.onnx


@pytest.fixture(params=["hash", "in_place"])
def generator(request: pytest.FixtureRequest, models: Path) -> EdgeGenerator:
    """A model that depends on all it read, once for each layout, with an empty cache."""
    return EdgeGenerator(models / request.param)


@contextmanager
def watched(model: CausalLM) -> Iterator[list[tuple[int, bool]]]:
    """How many tokens each forward reads, and whether it computes logits."""
    run = model._run
    seen: list[tuple[int, bool]] = []

    def watch(tokens: TokenIds, *, logits: bool, stay: bool = False) -> None:
        seen.append((len(tokens), logits))
        run(tokens, logits=logits, stay=stay)

    model._run = watch  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del model._run


def tokens_of(generator: EdgeGenerator, prompt: list[int], **options: Any) -> list[int]:
    tokens: list[int] = generator.generate(prompt, max_new_tokens=12, **options).tokens.tolist()
    return tokens


def afresh(generator: EdgeGenerator, prompt: list[int]) -> list[int]:
    """What a generator that has read nothing yet writes."""
    return tokens_of(EdgeGenerator(generator.folder.folder), prompt)


class Failing:
    """Proposes what is wrong, and fails when the text is so long."""

    def __init__(self, at: int) -> None:
        self.at = at

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        if len(input_ids) >= self.at:
            raise RuntimeError("on purpose")
        return Candidates(np.arange(max_candidates) % 64)

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...


def test_a_second_turn_reads_what_is_new(generator: EdgeGenerator) -> None:
    first = list(range(40))
    answer = tokens_of(generator, first)
    second = [*first, *answer, 7, 9, 11]
    with watched(generator.model) as seen:
        result = generator.generate(second, max_new_tokens=12)
    # The last token of the answer was never read, and the last of the prompt comes with the step.
    assert result.stats.reused_tokens == len(first) + len(answer) - 1
    assert sum(count for count, logits in seen if not logits) == 3
    assert result.tokens.tolist() == afresh(generator, second)


@pytest.mark.parametrize("shared", [0, 1, 17, 39, 40])
def test_only_the_common_start_is_kept(generator: EdgeGenerator, shared: int) -> None:
    first = list(range(40))
    tokens_of(generator, first)
    second = [*first[:shared], 63, 62, 61]
    result = generator.generate(second, max_new_tokens=12)
    assert result.stats.reused_tokens == shared
    assert result.tokens.tolist() == afresh(generator, second)


def test_the_same_prompt_again_reads_nothing_twice(generator: EdgeGenerator) -> None:
    prompt = list(range(30))
    text = tokens_of(generator, prompt)
    result = generator.generate(prompt, max_new_tokens=12)
    assert (result.stats.prompt_tokens, result.stats.reused_tokens) == (30, 29)
    assert result.tokens.tolist() == text


@pytest.mark.parametrize("disturb", ["refused", "failed", "closed", "another stream"])
def test_whatever_happened_the_cache_knows_what_it_holds(
    generator: EdgeGenerator, disturb: str
) -> None:
    prompt = list(range(20))
    if disturb == "refused":
        tokens_of(generator, prompt, candidate_generator=Failing(99), num_assistant_tokens=4)
    elif disturb == "failed":
        with pytest.raises(RuntimeError, match="on purpose"):
            tokens_of(generator, prompt, candidate_generator=Failing(26), num_assistant_tokens=4)
    else:
        stream = generator.stream(prompt, max_new_tokens=12)
        next(stream), next(stream)
        if disturb == "another stream":
            other = generator.stream([*prompt[:9], 50, 51], max_new_tokens=12)
            next(other), next(stream), next(other)
        stream.close()
    second = [*prompt, 1, 2, 3]
    result = generator.generate(second, max_new_tokens=12)
    assert result.stats.reused_tokens == (9 if disturb == "another stream" else 20)
    assert result.tokens.tolist() == afresh(generator, second)
    assert generator.model.tokens.tolist() == [*second, *result.tokens.tolist()[:-1]]


def test_streams_that_take_turns_read_what_differs(generator: EdgeGenerator) -> None:
    system = list(range(30))
    prompts = ([*system, 40], [*system, 50])
    with watched(generator.model) as seen:
        streams = [generator.stream(prompt, max_new_tokens=4) for prompt in prompts]
        texts = [[int(t) for _ in range(4) for t in next(s).tokens] for s in streams for _ in "x"]
    assert texts == [afresh(generator, prompt)[:4] for prompt in prompts]
    assert sum(count for count, logits in seen if not logits) == 30
    turns = [generator.stream(prompt, max_new_tokens=4) for prompt in prompts]
    mixed = [[int(next(s).tokens[0]) for s in turns] for _ in range(4)]
    assert [list(text) for text in zip(*mixed, strict=True)] == texts


def test_a_model_that_failed_in_a_forward_is_not_believed(generator: EdgeGenerator) -> None:
    prompt = list(range(20))
    tokens_of(generator, prompt)
    run = generator.session.run

    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("on purpose")

    generator.session.run = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="on purpose"):
        tokens_of(generator, [*prompt[:10], 60, 61, 62])
    generator.session.run = run  # type: ignore[method-assign]
    second = [*prompt[:10], 60, 61, 62]
    result = generator.generate(second, max_new_tokens=12)
    assert result.stats.reused_tokens == 10
    assert result.tokens.tolist() == afresh(generator, second)


def test_reuse_can_be_turned_off(generator: EdgeGenerator) -> None:
    prompt = list(range(30))
    tokens_of(generator, prompt)
    with watched(generator.model) as seen:
        result = generator.generate(prompt, max_new_tokens=12, reuse_prefix=False)
    assert result.stats.reused_tokens == 0
    assert seen[0] == (29, False)


def test_a_draft_reads_what_is_new_too(models: Path) -> None:
    target, draft = EdgeGenerator(models / "hash"), EdgeGenerator(models / "hash")
    prompt = list(range(30))
    options: dict[str, Any] = {"draft": draft, "num_assistant_tokens": 3}
    second_read = {}
    answer = tokens_of(target, prompt, **options)
    assert answer == oracle(HASH, prompt, 12)
    for reuse in (True, False):
        second = [*prompt, *answer[:4], 5]
        with watched(draft.model) as seen:
            got = tokens_of(target, second, **options, reuse_prefix=reuse)
        assert got == oracle(HASH, second, 12)
        second_read[reuse] = sum(count for count, logits in seen if not logits)
    assert second_read[True] <= 4
    assert second_read[False] >= len(second) - 1


class TestExact:
    """What a kernel for a single row has touched is read again, and nothing else."""

    def test_rows_read_alone_are_not_reused(self, models: Path) -> None:
        generator, prompt = EdgeGenerator(models / "hash"), list(range(20))
        tokens_of(generator, [1], exact=True)  # the probe of the kernels reads a text of its own
        answer = tokens_of(generator, prompt)
        again = [*prompt, *answer]
        assert generator.model.length == 31
        assert generator.model.exact_length == 19  # the prompt's last token was read alone
        result = generator.generate(again, max_new_tokens=12, exact=True)
        assert result.stats.reused_tokens == 19
        after = generator.generate([*again, *result.tokens.tolist()], max_new_tokens=12, exact=True)
        assert after.stats.reused_tokens == 20 + 12 + 12 - 1

    @pytest.mark.parametrize("sizes", [(2, 3), (7, 1, 5), (1, 9), (3, PREFILL_ROWS + 1, 2)])
    def test_the_count_ends_before_the_first_row_read_alone(
        self, in_place: EdgeGenerator, sizes: tuple[int, ...]
    ) -> None:
        model = CausalLM(in_place.session, in_place.folder.manifest)
        want, is_exact = 0, True
        for size in sizes:
            model.forward(np.zeros(size, np.int64))
            is_exact = is_exact and size not in (1, PREFILL_ROWS + 1)
            want += size if is_exact else 0
        assert model.exact_length == want
        model.rewind(2)
        assert model.exact_length == min(2, want)

    def test_the_logits_are_those_of_a_fresh_model_bit_for_bit(self) -> None:
        generator = EdgeGenerator()
        model, rng = generator.model, np.random.default_rng(0)
        text = rng.integers(5, 200, 60)
        for cut in (1, 2, 20, 33, 58):
            model.rewind(0)
            model.prefill(text[: cut // 2])
            for token in text[cut // 2 : cut]:  # alone: not to be reused
                model.forward(np.array([token]))
            reader = InPairs(model)
            held = reader.rewind_to_shared(text[:-3])
            reader.prefill(text[held:-3])
            got = reader.forward(text[-3:]).copy()
            model.rewind(0)
            reader.prefill(text[:-3])
            assert got.tobytes() == reader.forward(text[-3:]).tobytes(), cut


class TestPrefill:
    """Chunked, into buffers that stay where they are, without a row of logits."""

    def test_it_computes_no_logits_and_moves_no_buffer(self, models: Path) -> None:
        generator = EdgeGenerator(models / "in_place")
        model = generator.model
        stream = generator.stream(np.arange(400) % 64, max_new_tokens=50)
        with watched(model) as seen:
            next(stream)
        assert [count for count, logits in seen if not logits] == [128, 128, 128, 15]
        assert [count for count, logits in seen if logits] == [1]
        assert model._logits.size == 64
        assert model.cache.generation == 1  # reserved once, for the whole text
        assert len(model._bound[False].binding.get_outputs()) == len(model.cache.shape.pairs)
        list(stream)
        assert model.cache.generation == 1
