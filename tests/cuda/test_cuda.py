"""With a GPU: the cache stays on it, and the text is the one of the CPU.

pytest -m cuda tests/cuda
"""

from pathlib import Path

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.cache.growing import GrowingCache
from edgespec.cache.in_place import InPlaceCache
from edgespec.shortlist import Shortlisted
from tests import others
from tests.others import write_as
from tests.toylm import HASH, oracle

pytestmark = pytest.mark.cuda

TEXT = np.random.default_rng(0).integers(0, 64, 12)


@pytest.fixture(params=["hash", "in_place"])
def name(request: pytest.FixtureRequest) -> str:
    said: str = request.param
    return said


def test_the_cache_lies_on_the_device(models: Path, name: str) -> None:
    """microsoft/onnxruntime#23372: never in silence on the CPU."""
    generator = EdgeGenerator(models / name, provider="cuda")
    generator.generate(TEXT, max_new_tokens=4, lookup=True)
    assert generator.session.provider == "CUDAExecutionProvider"
    cache = generator.model.cache
    assert isinstance(cache, InPlaceCache | GrowingCache)
    assert {value.device_name() for value in cache._values} == {"cuda"}


@pytest.mark.parametrize(("past", "new"), [(0, 12), (1, 11), (7, 5), (11, 1)])
def test_both_providers_score_alike_however_the_text_is_cut(
    models: Path, past: int, new: int
) -> None:
    """microsoft/onnxruntime#29020: the CPU and CUDA disagree on what a token sees."""
    on = {p: EdgeGenerator(models / "in_place", provider=p).model for p in ("cpu", "cuda")}
    logits = {}
    for provider, model in on.items():
        model.prefill(TEXT[:past])
        logits[provider] = model.forward(TEXT[past : past + new]).copy()
    np.testing.assert_allclose(logits["cuda"], logits["cpu"], atol=1e-2)
    assert logits["cuda"].argmax(-1).tolist() == logits["cpu"].argmax(-1).tolist()


@pytest.mark.parametrize("lookup", [False, True], ids=["plain", "lookup"])
def test_what_is_fed_changes_with_every_round(models: Path, lookup: bool) -> None:
    """An input that kept its first value would change this text at once."""
    generator = EdgeGenerator(models / "hash", provider="cuda")
    for prompt in ([3, 9, 4, 3, 9, 4], [1, 2, 3]):
        said = generator.generate(prompt, max_new_tokens=40, lookup=lookup).tokens.tolist()
        assert said == oracle(HASH, prompt, 40)


def test_a_cache_that_grows_keeps_what_it_held(models: Path) -> None:
    long = np.random.default_rng(1).integers(0, 64, 400)  # past one step of the buffers
    on = {p: EdgeGenerator(models / "in_place", provider=p) for p in ("cpu", "cuda")}
    said = [g.generate(long, max_new_tokens=20, lookup=True).tokens.tolist() for g in on.values()]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "rewrite", [others.merged, others.side_by_side, others.narrow_ids], ids=lambda r: r.__name__
)
def test_other_forms_run_too(tmp_path: Path, rewrite: others.Rewrite) -> None:
    generator = EdgeGenerator(write_as(tmp_path / "model.onnx", HASH, rewrite), provider="cuda")
    said = generator.generate([3, 9, 4], max_new_tokens=20, lookup=True).tokens.tolist()
    assert said == oracle(HASH, [3, 9, 4], 20)


def test_a_shortlist_holds_the_best_of_all_scores(models: Path) -> None:
    model = EdgeGenerator(models / "in_place", provider="cuda").model
    whole = model.forward(TEXT).copy()
    model.rewind(0)
    best = Shortlisted(model, 3, 64).forward(TEXT)
    ids = np.argsort(-whole, axis=1)[:, :3]
    np.testing.assert_allclose(
        np.take_along_axis(best, ids, 1), np.take_along_axis(whole, ids, 1), atol=1e-3
    )
    assert (np.isfinite(best).sum(axis=1) == 3).all()
