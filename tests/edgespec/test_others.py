"""What other exporters made: every form runs, and no fault of theirs changes a text."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edgespec import EdgeGenerator
from edgespec.arrays import TokenIds
from edgespec.errors import ExactnessError, GraphMismatchError, ModelFolderError
from edgespec.model import CausalLM
from tests import others
from tests.folders import GENAI_CONFIG, byte_tokenizer, write_in_place_folder, write_json
from tests.others import Axes, Rewrite, cache_tensors, write_as
from tests.toylm import HASH, MARKOV, oracle, write_toy

pytestmark = pytest.mark.onnx

PROMPT = [3, 9, 4, 3, 9, 4, 3, 9]

FORMS: dict[str, tuple[list[Rewrite], str]] = {
    "optimum": ([], "[B, H, S, D]"),
    "optimum, merged": ([others.merged], "[B, H, S, D]"),
    "optimum, old": ([others.without_positions], "[B, H, S, D]"),
    "optimum's bloom, old": ([others.heads_in_the_batch], "[B*H, D, S], [B*H, S, D]"),
    "optimum's gpt_bigcode, old": ([others.one_behind_the_other], "[B, H, S, 2D]"),
    "onnxruntime's gpt2": ([others.side_by_side], "[2, B, H, S, D]"),
    "transformers.js": ([others.chooses_rows], "[B, H, S, D]"),
    "32 bits": ([others.narrow_ids], "[B, H, S, D]"),
    "torch's names": ([cache_tensors("past_{}_0", "present_{}_0")], "[B, H, S, D]"),
    "positions before heads": (
        [cache_tensors("past_key_values.0.{}", "present.0.{}", "BSHD")],
        "[B, S, H, D]",
    ),
    "positions last": (
        [cache_tensors("past_key_values_0_{}", "present_key_values_0_{}", "BHDS")],
        "[B, H, D, S]",
    ),
}


@pytest.fixture(params=FORMS, scope="module")
def form(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of each form, and how its cache lies."""
    rewrites, order = FORMS[request.param]
    path = write_as(tmp_path_factory.mktemp("form") / "model.onnx", HASH, *rewrites)
    write_json(path.with_name("config.json"), {"n_head": 1, "hidden_size": 1, "n_positions": 99})
    return EdgeGenerator(path.parent), order


class TestForms:
    @pytest.mark.parametrize("lookup", [False, True], ids=["plain", "lookup"])
    def test_the_text_is_the_models_own(self, form: Any, lookup: bool) -> None:
        for _ in range(2):  # the second finds a cache
            result = form[0].generate(
                PROMPT, max_new_tokens=20, lookup=lookup, num_assistant_tokens=4
            )
            assert result.tokens.tolist() == oracle(HASH, PROMPT, 20)
        assert (result.stats.proposed > 0) == lookup

    def test_exact_mode_and_rewinds_work_too(self, form: Any) -> None:
        result = form[0].generate(PROMPT, max_new_tokens=20, lookup=True, exact=True)
        assert result.tokens.tolist() == oracle(HASH, PROMPT, 20)

    def test_how_the_cache_lies_is_told(self, form: Any) -> None:
        shape = form[0].model.cache.shape
        assert shape.in_words == form[1]
        assert (shape.num_heads, shape.head_size, shape.bytes_per_position) == (1, 1, 8)


FAULTS: dict[str, tuple[Rewrite, str]] = {
    "hides nothing": (
        others.hides_nothing,
        "it scores tokens that it reads together otherwise than one by one (token 0 of 5 by "
        "100.0% of the scores' spread)",
    ),
    "one position for all": (
        others.one_position_for_all,
        "it scores tokens that it reads together otherwise than one by one (token 1 of 5 by "
        "100.0% of the scores' spread)",
    ),
    "rows mix": (
        others.rows_mix,
        "it scores tokens that it reads together otherwise than one by one (token 0 of 5 by ",
    ),
    "the last row only": (others.last_row_only, "it cannot read two tokens at once ("),
    "the last row, as declared": (
        others.last_row_declared,
        "its output 'logits' scores only the last token that it reads",
    ),
    "breaks on two tokens": (others.takes_one_token, "it cannot read two tokens at once ("),
}
"""huggingface/optimum#1924: the text of a speculation is wrong, and nothing is said."""


@pytest.mark.parametrize("fault", FAULTS)
class TestFaults:
    def test_speculation_is_refused_with_the_reason(self, fault: str, tmp_path: Path) -> None:
        path = write_as(tmp_path / "model.onnx", HASH, FAULTS[fault][0])
        generator = EdgeGenerator(path)
        with pytest.raises(GraphMismatchError) as raised:
            generator.generate(PROMPT, max_new_tokens=2, lookup=True)
        said = str(raised.value)
        assert said.startswith(f"{path} cannot verify candidates: {FAULTS[fault][1]}")
        assert said.endswith(
            "; export it again (edgespec export MODEL), or leave lookup, ngram, "
            "suffix, draft and candidate_generator out"
        )

    def test_plain_decoding_works(self, fault: str, tmp_path: Path) -> None:
        generator = EdgeGenerator(write_as(tmp_path / "model.onnx", HASH, FAULTS[fault][0]))
        assert generator.model.length == 0
        result = generator.generate(PROMPT, max_new_tokens=20)
        assert result.tokens.tolist() == oracle(HASH, PROMPT, 20)

    def test_it_may_draft_for_another(
        self, fault: str, tmp_path: Path, markov: EdgeGenerator
    ) -> None:
        draft = EdgeGenerator(write_as(tmp_path / "model.onnx", MARKOV, FAULTS[fault][0]))
        result = markov.generate(PROMPT, max_new_tokens=12, draft=draft)
        assert result.tokens.tolist() == oracle(MARKOV, PROMPT, 12)
        assert result.stats.accepted > 0

    def test_exact_mode_is_refused(self, fault: str, tmp_path: Path) -> None:
        generator = EdgeGenerator(write_as(tmp_path / "model.onnx", HASH, FAULTS[fault][0]))
        with pytest.raises(ExactnessError, match=r"^exact=True cannot be had with \S+model.onnx"):
            generator.generate(PROMPT, max_new_tokens=2, exact=True)


class TestTheProbe:
    def test_it_costs_eight_small_forwards(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[int] = []
        run = CausalLM._run

        def count(model: CausalLM, tokens: TokenIds, *, logits: bool) -> None:
            read.append(len(tokens))
            run(model, tokens, logits=logits)

        monkeypatch.setattr(CausalLM, "_run", count)
        EdgeGenerator(write_as(tmp_path / "model.onnx", HASH))
        assert read == [2] * 8

    def test_our_own_exports_are_not_asked(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(*_: object, **__: object) -> None:
            raise AssertionError("a forward at load")

        monkeypatch.setattr(CausalLM, "_run", run)
        assert EdgeGenerator(models / "in_place").model.cannot_verify is None

    def test_the_cache_is_as_it_was(self, tmp_path: Path) -> None:
        model = EdgeGenerator(write_as(tmp_path / "model.onnx", HASH)).model
        assert model.length == 0
        said = model.forward(np.array(PROMPT)).argmax(-1)[-1:]
        assert said.tolist() == oracle(HASH, PROMPT, 1)

    def test_rounding_is_no_fault(self, models: Path, tmp_path: Path) -> None:
        """A graph of floats that is right is not refused for its last digits."""
        shutil.copy(models / "in_place" / "model.onnx", tmp_path)
        write_json(tmp_path / "genai_config.json", GENAI_CONFIG)
        assert EdgeGenerator(tmp_path).model.cannot_verify is None

    def test_only_rows_that_mix_a_little_are_still_read_together(self, tmp_path: Path) -> None:
        limits = {}
        for name in ("hides nothing", "rows mix", "the last row, as declared"):
            path = write_as(tmp_path / f"{name}.onnx", HASH, FAULTS[name][0])
            limits[name] = EdgeGenerator(path).model.max_rows
        assert limits == {"hides nothing": 1, "rows mix": None, "the last row, as declared": None}


class TestFolders:
    @pytest.fixture
    def web(self, tmp_path: Path) -> Path:
        """As transformers.js wants it: configuration above, graphs in a folder of their own."""
        (tmp_path / "onnx").mkdir()
        for name in ("model_fp16.onnx", "model_q4.onnx"):
            write_as(tmp_path / "onnx" / name, HASH, others.chooses_rows)
        said = {"n_positions": 77, "transformers.js_config": {"use_external_data_format": True}}
        write_json(tmp_path / "config.json", said)
        write_json(tmp_path / "generation_config.json", {"eos_token_id": 5})
        return tmp_path

    def test_a_graph_is_named_and_the_files_above_it_are_found(self, web: Path) -> None:
        byte_tokenizer().save(str(web / "tokenizer.json"))
        write_toy(web / "onnx" / "model_q4.onnx", MARKOV, 257)
        generator = EdgeGenerator(web / "onnx" / "model_q4.onnx")
        assert (generator.folder.made_by, generator.max_length) == ("transformers.js", 77)
        assert generator.generate("abc", max_new_tokens=4).text == "defg"
        assert generator.generate([1, 2, 3]).finish_reason == "eos"

    def test_several_graphs_are_told_by_their_names(self, web: Path) -> None:
        with pytest.raises(ModelFolderError) as raised:
            EdgeGenerator(web)
        assert str(raised.value) == (
            f"{web} holds several models (onnx/model_fp16.onnx, onnx/model_q4.onnx); "
            "pass the file that is meant"
        )

    def test_the_only_one_needs_no_name(self, web: Path) -> None:
        (web / "onnx" / "model_fp16.onnx").unlink()
        assert EdgeGenerator(web).folder.graph == web / "onnx" / "model_q4.onnx"

    def test_one_with_a_past_and_without_comes_before_its_halves(self, tmp_path: Path) -> None:
        for name in ("decoder_model", "decoder_with_past_model", "decoder_model_merged"):
            write_as(tmp_path / f"{name}.onnx", HASH, others.merged)
        opened = EdgeGenerator(tmp_path).folder
        assert (opened.graph.name, opened.made_by) == ("decoder_model_merged.onnx", "optimum")

    def test_weights_may_lie_in_a_file_each(self, tmp_path: Path) -> None:
        folder = write_in_place_folder(tmp_path / "inside")
        want = EdgeGenerator(folder).generate(PROMPT, max_new_tokens=8).tokens.tolist()
        path = folder / "model.onnx"
        onnx.save(
            onnx.load(path),
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=False,
            size_threshold=256,
        )
        moved = folder.rename(tmp_path / "moved")
        assert len(list(moved.iterdir())) > 10
        assert EdgeGenerator(moved).generate(PROMPT, max_new_tokens=8).tokens.tolist() == want


class TestWhatIsNotKnown:
    @pytest.mark.parametrize(
        ("name", "axes", "said"),
        [
            ("attention_mask", ["batch", 1, "new", "total"], "of shape ['batch', 1, 'new'"),
            ("position_ids", [3, "batch", "new"], "of shape [3, 'batch', 'new'], expected 2"),
        ],
        ids=["a mask for each row", "positions in three directions"],
    )
    def test_an_input_of_another_shape_is_refused(
        self, tmp_path: Path, name: str, axes: Axes, said: str
    ) -> None:
        def rewrite(r: others.Rewriting) -> None:
            r.drop(name)
            r.first("Reshape", [name, r.const([1, -1])], r.free(name))
            r.input(name, TensorProto.INT64, axes)

        path = write_as(tmp_path / "model.onnx", HASH, rewrite)
        with pytest.raises(GraphMismatchError) as raised:
            EdgeGenerator(path)
        assert str(raised.value).startswith(f"{path} has the input {name!r} {said}")
        assert str(raised.value).endswith(" axes; export it again: edgespec export MODEL")

    def test_buffers_of_several_shapes_are_refused(self, tmp_path: Path) -> None:
        rewrite = cache_tensors("past_key_values.0.{}", "present.0.{}", "BSHD")
        path = write_as(tmp_path / "model.onnx", HASH, rewrite)
        write_json(tmp_path / "genai_config.json", GENAI_CONFIG)
        with pytest.raises(GraphMismatchError) as raised:
            EdgeGenerator(path)
        assert str(raised.value) == (
            f"{path} has the cache layout in_place and axes [B, S, H, D], expected [B, H, S, D] "
            "and the same H and D in every layer; export it again: edgespec export MODEL"
        )
