"""The layout of most exporters, with a toy whose every cached row matters."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from edgespec import EdgeGenerator
from edgespec.cache.growing import GrowingCache
from edgespec.model import CausalLM
from edgespec.threads import pool_is_shared
from tests.folders import write_folder
from tests.toylm import HASH, oracle

pytestmark = pytest.mark.onnx


@pytest.fixture(scope="module")
def two_heads(tmp_path_factory: pytest.TempPathFactory) -> EdgeGenerator:
    folder = tmp_path_factory.mktemp("two heads")
    return EdgeGenerator(write_folder(folder, HASH, heads=2))


def fresh(generator: EdgeGenerator) -> CausalLM:
    return CausalLM(generator.session, generator.folder.manifest)


def held(model: CausalLM) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    assert isinstance(model.cache, GrowingCache)
    return [value.numpy() for value in model.cache._values]


def test_the_first_past_has_no_row_at_all(two_heads: EdgeGenerator) -> None:
    """microsoft/onnxruntime#6245."""
    model = fresh(two_heads)
    assert [rows.shape for rows in held(model)] == [(1, 2, 0, 1)] * 2
    assert model.cache.bytes_held == 0
    said = model.forward(np.array([9])).argmax(-1)
    assert said.tolist() == oracle(HASH, [9], 1)


def test_a_rewind_keeps_the_first_rows_of_keys_and_values(two_heads: EdgeGenerator) -> None:
    """huggingface/transformers#47433."""
    model = fresh(two_heads)
    model.prefill(np.array([3, 4, 5]))
    model.rewind(2)
    model.forward(np.array([8]))
    keys, values = held(model)
    assert keys[0, :, :, 0].tolist() == [[3, 4, 8], [6, 8, 16]]
    assert values.tolist() == (2 * keys).tolist()


def test_nothing_is_copied_where_nothing_was_refused(two_heads: EdgeGenerator) -> None:
    model = fresh(two_heads)
    model.prefill(np.array([3, 4, 5]))
    assert isinstance(model.cache, GrowingCache)
    before = model.cache._values
    model.rewind(3)
    binding = model.session.new_binding()
    model.cache.bind(binding)
    assert model.cache._values is before


def test_a_cropped_cache_is_bound_as_it_would_be_fed(two_heads: EdgeGenerator) -> None:
    """Ki6an/fastT5#49: a slice is not contiguous, and its pointer leads to other rows."""
    model = fresh(two_heads)
    model.prefill(np.array([11, 12, 13, 14, 15]))
    whole = [rows.copy() for rows in held(model)]
    model.rewind(3)
    bound = model.forward(np.array([20])).copy()
    options = ort.SessionOptions()
    options.use_per_session_threads = not pool_is_shared()
    plain = ort.InferenceSession(
        str(two_heads.folder.graph), options, providers=["CPUExecutionProvider"]
    )
    (fed,) = plain.run(
        ["logits"],
        {
            "input_ids": np.array([[20]]),
            "attention_mask": np.ones((1, 4), np.int64),
            "position_ids": np.array([[3]]),
            "past_key_values.0.key": whole[0][:, :, :3],
            "past_key_values.0.value": whole[1][:, :, :3],
        },
    )
    assert bound.tolist() == fed[0].tolist()
    assert bound.argmax(-1).tolist() == oracle(HASH, [11, 12, 13, 20], 1)


def test_bytes_are_those_of_the_rows_held(two_heads: EdgeGenerator) -> None:
    model = fresh(two_heads)
    model.prefill(np.arange(10))
    assert model.cache.bytes_held == 10 * 2 * 2 * 4


def test_a_cache_in_half_precision_is_fed_as_the_graph_declares(tmp_path: Path) -> None:
    """microsoft/onnxruntime#25824: and it is said once that a CPU is no place for it."""
    folder = write_folder(tmp_path, HASH, cache_dtype="float16")
    with pytest.warns(RuntimeWarning, match=r"^\S+model.onnx is made for float16, ") as warned:
        generator = EdgeGenerator(folder, provider="cpu")
    assert len(warned) == 1
    assert generator.model.cache.shape.dtype == np.float16
    result = generator.generate([3, 9, 4], max_new_tokens=8)
    assert result.tokens.tolist() == oracle(HASH, [3, 9, 4], 8)
