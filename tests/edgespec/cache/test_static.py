"""One buffer whose filling alone should cost: grown in steps, and never ahead."""

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.cache.static import STEP, StaticCache
from edgespec.model import CausalLM
from tests.inplace import POSITIONS, V, reference, weights

pytestmark = pytest.mark.onnx

TEXT = np.random.default_rng(0).integers(0, V, POSITIONS)


@pytest.fixture
def model(static: EdgeGenerator) -> CausalLM:
    return CausalLM(static.session, static.folder.manifest, POSITIONS)


def capacity(model: CausalLM) -> int:
    return model.cache.bytes_held // model.cache.shape.bytes_per_position


@pytest.fixture(scope="module")
def want() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return reference(TEXT.tolist(), weights())


def test_logits_are_those_of_a_full_pass(
    model: CausalLM, want: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    for past, new in ((0, 12), (1, 11), (7, 5), (11, 1)):
        model.rewind(0)
        model.prefill(TEXT[:past])
        got = model.forward(TEXT[past : past + new])
        np.testing.assert_allclose(got, want[past : past + new], atol=1e-4)


def test_a_rewind_forgets_what_came_later(
    model: CausalLM, want: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    model.prefill(TEXT[:20])
    model.forward(np.flip(TEXT[:9]))
    model.rewind(20)
    np.testing.assert_allclose(model.forward(TEXT[20:23]), want[20:23], atol=1e-4)


def test_the_past_survives_when_the_buffer_grows(
    model: CausalLM, want: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> None:
    model.prefill(TEXT[: STEP - 2])
    assert capacity(model) == STEP
    got = model.forward(TEXT[STEP - 2 : STEP + 3])
    np.testing.assert_allclose(got, want[STEP - 2 : STEP + 3], atol=1e-4)
    assert capacity(model) == 2 * STEP


def test_nothing_is_made_ahead(model: CausalLM) -> None:
    assert isinstance(model.cache, StaticCache)
    model.reserve(POSITIONS)
    assert capacity(model) == 0
    model.prefill(TEXT[:-1])
    assert capacity(model) == POSITIONS
