"""Exported models write their own text, whatever proposes."""

from pathlib import Path
from typing import Any

import edgespec_export
import pytest

from edgespec import EdgeGenerator
from tests.edgespec.test_lossless import BUDGETS, GENERATORS, prompts
from tests.export.checkpoints import write_checkpoint

pytestmark = pytest.mark.export


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lossless")
    checkpoint = write_checkpoint(root / "checkpoint", request.param)
    return edgespec_export.export(checkpoint, root / "out")


@pytest.fixture(scope="module")
def model(folder: Path) -> EdgeGenerator:
    return EdgeGenerator(folder)


def check(model: EdgeGenerator, exact: bool, **options: Any) -> int:
    """Whether texts are those of plain decoding; how many candidates stood."""
    accepted = 0
    for prompt in prompts(3, seed=7):
        said: dict[str, Any] = {"max_new_tokens": 20, "eos_token_id": None, "exact": exact}
        want = model.generate(prompt, lookup=False, **said)
        for budget in BUDGETS:
            got = model.generate(prompt, num_assistant_tokens=budget, **said, **options)
            assert got.tokens.tolist() == want.tokens.tolist(), (prompt, budget)
            accepted += got.stats.accepted
    return accepted


@pytest.mark.parametrize("exact", [False, True], ids=["as usual", "exact"])
@pytest.mark.parametrize("name", GENERATORS)
def test_candidates_change_the_speed_and_never_the_text(
    model: EdgeGenerator, name: str, exact: bool
) -> None:
    check(model, exact, candidate_generator=GENERATORS[name]())


@pytest.mark.parametrize("exact", [False, True], ids=["as usual", "exact"])
def test_a_draft_that_is_the_same_model_is_always_right(
    model: EdgeGenerator, folder: Path, exact: bool
) -> None:
    assert check(model, exact, draft=folder) > 100
