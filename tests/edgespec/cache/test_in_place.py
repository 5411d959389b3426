"""The layout of our own exporter, with GroupQueryAttention writing into the bound buffers."""

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.cache.in_place import STEP, InPlaceCache
from edgespec.model import CausalLM
from tests.inplace import KV_HEADS, LAYERS, POSITIONS, D, V, reference, weights

pytestmark = pytest.mark.onnx

TEXT = np.random.default_rng(0).integers(0, V, POSITIONS)


def fresh(generator: EdgeGenerator, max_length: int | None = None) -> CausalLM:
    return CausalLM(generator.session, generator.folder.manifest, max_length)


def buffers(model: CausalLM) -> list[int]:
    assert isinstance(model.cache, InPlaceCache)
    return [value.data_ptr() for value in model.cache._values]


@pytest.fixture(scope="module")
def want() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[T, V] logits of the whole text, by NumPy."""
    return reference(TEXT.tolist(), weights())


def test_logits_are_those_of_a_full_pass(
    in_place: EdgeGenerator, want: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    for past, new in ((0, 12), (1, 11), (7, 5), (11, 1)):
        model = fresh(in_place)
        model.prefill(TEXT[:past])
        got = model.forward(TEXT[past : past + new])
        np.testing.assert_allclose(got, want[past : past + new], atol=1e-4)


def test_the_past_survives_when_the_buffers_grow(
    in_place: EdgeGenerator, want: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    model = fresh(in_place)
    model.prefill(TEXT[: STEP - 2])
    small = model.cache.bytes_held
    for start in range(STEP - 2, STEP + 4, 3):
        got = model.forward(TEXT[start : start + 3])
        np.testing.assert_allclose(got, want[start : start + 3], atol=1e-4)
    assert model.cache.bytes_held > small


def test_a_long_prompt_is_read_in_pieces_and_wholly(
    in_place: EdgeGenerator, want: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    model = fresh(in_place)
    model.prefill(TEXT[:-1])
    assert model.length == POSITIONS - 1
    np.testing.assert_allclose(model.forward(TEXT[-1:])[0], want[-1], atol=1e-4)


def test_what_was_refused_is_never_read_again(
    in_place: EdgeGenerator, want: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    model = fresh(in_place)
    model.prefill(TEXT[:20])
    for length in (18, 5, 12, 0, 19):
        model.forward(TEXT[model.length : 20] if model.length < 20 else TEXT[:1])
        model.forward(np.array([63, 62, 61]))  # refused candidates
        model.rewind(min(length, 20))
        model.forward(TEXT[model.length : 20])
        model.rewind(length)
        got = model.forward(TEXT[length : length + 2])
        np.testing.assert_allclose(got, want[length : length + 2], atol=1e-4)
        model.rewind(length)


def test_a_rewind_moves_no_buffer(in_place: EdgeGenerator) -> None:
    model = fresh(in_place)
    model.prefill(TEXT[:30])
    before = buffers(model)
    for length in (25, 3, 0):
        model.rewind(length)
        model.forward(TEXT[:2])
        assert buffers(model) == before
        model.rewind(length)


def test_a_small_text_takes_little_memory(in_place: EdgeGenerator) -> None:
    position = 2 * LAYERS * KV_HEADS * D * 4
    model = fresh(in_place)
    assert model.cache.bytes_held == 0
    model.forward(TEXT[:5])
    assert model.cache.bytes_held == STEP * position
    model.prefill(TEXT[: STEP + 10])
    assert model.cache.bytes_held == 2 * STEP * position


def test_no_buffer_is_longer_than_the_longest_text(in_place: EdgeGenerator) -> None:
    position = 2 * LAYERS * KV_HEADS * D * 4
    model = fresh(in_place, max_length=300)
    model.prefill(TEXT[:280])
    assert model.cache.bytes_held == 300 * position
