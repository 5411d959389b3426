from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgespec import EdgeGenerator
from edgespec.errors import CacheRewindError, GraphMismatchError, ModelFolderError
from edgespec.model import PREFILL_ROWS, CausalLM
from tests.folders import write_folder
from tests.toylm import HASH, MARKOV, Graph, oracle, save

pytestmark = pytest.mark.onnx

TEXT = np.random.default_rng(0).integers(0, 64, 400)


@pytest.fixture(params=["hash_model", "in_place"])
def model(request: pytest.FixtureRequest) -> CausalLM:
    """A model with an empty cache, once for each layout."""
    generator: EdgeGenerator = request.getfixturevalue(request.param)
    return CausalLM(generator.session, generator.folder.manifest)


def test_any_split_of_a_text_gives_the_same_logits(model: CausalLM) -> None:
    whole = model.forward(TEXT[:24]).copy()
    assert whole.shape == (24, 64)
    assert whole.dtype == np.float32
    for cuts in ([1, 2, 3], [10], [23], [5, 6, 17]):
        model.rewind(0)
        rows = [model.forward(part).copy() for part in np.split(TEXT[:24], cuts)]
        np.testing.assert_allclose(np.concatenate(rows), whole, atol=1e-4)


def test_a_prefill_reads_what_a_forward_reads(model: CausalLM) -> None:
    long = TEXT[: PREFILL_ROWS + 50]
    model.prefill(long[:-1])
    assert model.length == len(long) - 1
    after_prefill = model.forward(long[-1:]).copy()
    model.rewind(0)
    np.testing.assert_allclose(model.forward(long)[-1:], after_prefill, atol=1e-4)


def test_nothing_is_a_prefill_too(model: CausalLM) -> None:
    model.prefill(TEXT[:0])
    assert model.length == 0


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_rewind_keeps_exactly_so_many_positions(model: CausalLM, length: int) -> None:
    """huggingface/transformers#47433."""
    model.prefill(TEXT[:3])
    model.rewind(length)
    assert model.length == length
    after = model.forward(np.array([7])).copy()
    model.rewind(0)
    np.testing.assert_allclose(model.forward(np.append(TEXT[:length], 7))[-1:], after, atol=1e-4)


@pytest.mark.parametrize("length", [4, -1])
def test_a_rewind_to_what_is_not_held_is_refused_and_changes_nothing(
    model: CausalLM, length: int
) -> None:
    model.prefill(TEXT[:3])
    said = f"^cannot rewind to {length} positions: the cache holds 3$"
    with pytest.raises(CacheRewindError, match=said):
        model.rewind(length)
    assert model.length == 3


def test_a_rewind_to_nothing_works_before_the_first_run_and_twice(model: CausalLM) -> None:
    """microsoft/onnxruntime-genai#2140."""
    model.rewind(0)
    model.rewind(0)
    first = model.forward(TEXT[:4]).copy()
    model.rewind(0)
    model.rewind(0)
    np.testing.assert_array_equal(model.forward(TEXT[:4]), first)


def test_more_kinds_of_forwards_than_are_kept_stay_right(model: CausalLM) -> None:
    """Bindings are kept for a number of row counts; larger logits need a larger buffer."""
    want = model.forward(TEXT[:90]).copy()
    model.rewind(0)
    for count in [*range(1, 60), 3, 2, 1, 90, 1]:
        got = model.forward(TEXT[:count]).copy()
        np.testing.assert_allclose(got, want[:count], atol=1e-4)
        model.rewind(0)


def test_a_reader_is_told_when_another_one_came_between(model: CausalLM) -> None:
    one, two = object(), object()
    assert [model.hand_to(reader) for reader in (one, one, two, two, one)] == [
        False,
        True,
        False,
        True,
        False,
    ]


class TestNearTheLimit:
    """turboderp-org/exllamav2#274: lookahead must not run past the model's positions."""

    @pytest.mark.parametrize("budget", [0, 1, 8, "auto"])
    def test_no_forward_passes_the_longest_text(
        self, tmp_path: Path, budget: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        generator = EdgeGenerator(write_folder(tmp_path, MARKOV, max_length=16))
        reached = []
        run = generator.model._run

        def spy(tokens: np.ndarray[Any, Any], **rest: Any) -> None:
            run(tokens, **rest)
            reached.append(generator.model.length)

        monkeypatch.setattr(generator.model, "_run", spy)
        prompt = [*range(4), *range(10)]
        result = generator.generate(
            prompt, max_new_tokens=10, lookup=True, num_assistant_tokens=budget
        )
        assert result.tokens.tolist() == [10, 11]
        assert result.finish_reason == "length"
        assert max(reached) <= 16

    def test_a_budget_beyond_what_is_left_is_cut(self, tmp_path: Path) -> None:
        generator = EdgeGenerator(write_folder(tmp_path, MARKOV, max_length=100))
        prompt = [t % 64 for t in range(24)]
        result = generator.generate(prompt, lookup=True, num_assistant_tokens=256)
        assert result.tokens.tolist() == oracle(MARKOV, prompt, 76)

    def test_a_prompt_that_leaves_no_room_is_refused(self, tmp_path: Path) -> None:
        generator = EdgeGenerator(write_folder(tmp_path, MARKOV, max_length=16))
        said = (
            r"^the prompt has 17 tokens and the longest text 16, which leaves no room for a new "
            r"one; shorten the prompt or raise max_length$"
        )
        with pytest.raises(ValueError, match=said):
            generator.generate(list(range(17)))


class TestGraphs:
    """Graphs that are no decoder with a cache are refused when they are loaded."""

    def test_an_unknown_input_is_named(self, tmp_path: Path) -> None:
        path = write_folder(tmp_path, HASH) / "model.onnx"
        model = onnx.load(path)
        for value in model.graph.input:
            if value.name == "position_ids":
                value.name = "token_type_ids"
        for node in model.graph.node:
            node.input[:] = [n.replace("position_ids", "token_type_ids") for n in node.input]
        onnx.save(model, path)
        with pytest.raises(GraphMismatchError) as raised:
            EdgeGenerator(path)
        assert str(raised.value) == (
            f"{path} has the input 'token_type_ids', which is not one of a decoder with a cache; "
            "export it again: edgespec export MODEL"
        )

    @pytest.mark.parametrize(
        ("inputs", "outputs", "said"),
        [
            (
                ["input_ids"],
                ["logits"],
                "has no input 'past_key_values.0.key' [1, H, S, D]; "
                "export it with a cache: edgespec export MODEL",
            ),
            (
                ["input_ids"],
                ["last_hidden_state"],
                "has no output 'logits'; it is not a causal language model",
            ),
            (
                ["past_key_values.0.key"],
                ["logits"],
                "has no input 'input_ids'; it is not a causal language model",
            ),
        ],
        ids=["no cache", "an encoder", "no tokens"],
    )
    def test_what_is_missing_is_named(
        self, tmp_path: Path, inputs: list[str], outputs: list[str], said: str
    ) -> None:
        path = tmp_path / "model.onnx"
        g = Graph()
        g.nodes.append(helper.make_node("Cast", inputs, outputs, to=TensorProto.FLOAT))
        info = helper.make_tensor_value_info
        axes: list[int | str | None] = ["batch", "sequence"]
        save(
            path,
            g,
            [info(name, TensorProto.INT64, axes) for name in inputs],
            [info(name, TensorProto.FLOAT, axes) for name in outputs],
        )
        with pytest.raises(GraphMismatchError) as raised:
            EdgeGenerator(path)
        assert str(raised.value) == f"{path} {said}"

    def test_a_layout_of_later_versions_is_named(self, models: Path, tmp_path: Path) -> None:
        for source in (models / "in_place").iterdir():
            data = source.read_bytes().replace(b'"in_place"', b'"paged"')
            (tmp_path / source.name).write_bytes(data)
        with pytest.raises(ModelFolderError) as raised:
            EdgeGenerator(tmp_path)
        assert str(raised.value) == (
            f"{tmp_path / 'edgespec.json'} names the cache layout 'paged', known are in_place, "
            "static, growing; export the model again"
        )
