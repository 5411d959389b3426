"""The best scores alone, found by a graph of its own: on the CPU, as no other device is there."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgespec import EdgeGenerator
from edgespec.defaults import resolve
from edgespec.model import CausalLM
from edgespec.shortlist import GRAPHS, Shortlisted, shortlisted
from tests.make_shortlist import KINDS, shortlist

pytestmark = pytest.mark.onnx

TEXT = np.random.default_rng(0).integers(0, 64, 30)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a CPU were a device apart."""
    monkeypatch.setattr("edgespec.shortlist._PAYS_ON", ("cpu", "cuda"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_that_lies_here_is_the_one_that_is_written(kind: str) -> None:
    assert onnx.load(GRAPHS / f"{kind}.onnx") == shortlist(KINDS[kind])


@pytest.mark.parametrize(("k", "known_ids"), [(1, 64), (5, 64), (5, 40)])
def test_the_best_of_the_known_stay_and_the_others_are_out_of_the_question(
    in_place: EdgeGenerator, k: int, known_ids: int
) -> None:
    model = CausalLM(in_place.session, in_place.folder.manifest)
    target = Shortlisted(model, k, known_ids)
    for count in (1, 3, 2, 5, 1):  # rows come and go, and so must what they held
        model.rewind(0)
        whole = model.forward(TEXT[:count]).copy()
        model.rewind(0)
        best = target.forward(TEXT[:count])
        for row, kept in zip(whole, best, strict=True):
            ids = np.argsort(-row[:known_ids], kind="stable")[:k]
            assert sorted(np.flatnonzero(kept > -np.inf)) == sorted(ids)
            np.testing.assert_array_equal(kept[ids], row[ids])
    assert target.length == 1


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flat", {}),
        ("in_place", {}),
        ("in_place", {"do_sample": True, "top_k": 7, "seed": 3}),
        ("flat", {"lookup": True, "num_assistant_tokens": 3}),
        ("in_place", {"lookup": True, "num_assistant_tokens": 3}),
    ],
    ids=str,
)
def test_the_text_is_the_same(
    request: pytest.FixtureRequest,
    name: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator: EdgeGenerator = request.getfixturevalue(name)
    used: list[int] = []
    forward = Shortlisted.forward

    def count(target: Shortlisted, tokens: Any) -> Any:
        used.append(len(tokens))
        return forward(target, tokens)

    monkeypatch.setattr(Shortlisted, "forward", count)
    short = generator.generate(TEXT[:9], max_new_tokens=20, **options)
    assert used
    monkeypatch.setattr("edgespec.shortlist._PAYS_ON", ())
    whole = generator.generate(TEXT[:9], max_new_tokens=20, **options)
    assert short.tokens.tolist() == whole.tokens.tolist()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    ("given", "is_short"),
    [
        ({}, True),
        ({"repetition_penalty": 1.3}, False),
        ({"logits_processors": [lambda ids, scores: scores]}, False),
        ({"do_sample": True, "top_k": 5}, True),
        ({"do_sample": True, "top_k": 0}, False),
        ({"do_sample": True, "top_k": 64}, False),
    ],
    ids=str,
)
def test_all_scores_come_where_a_call_may_ask_for_them(
    hash_model: EdgeGenerator, given: dict[str, Any], is_short: bool
) -> None:
    options = resolve(given, {"eos_token_id": None})
    found = shortlisted(hash_model.model, options, 64)
    assert isinstance(found, Shortlisted) == is_short


def test_on_a_cpu_they_are_where_they_are_needed(hash_model: EdgeGenerator) -> None:
    assert shortlisted(hash_model.model, resolve({}, {}), 64) is hash_model.model


def test_the_graphs_come_with_the_package() -> None:
    assert {path.name for path in Path(GRAPHS).iterdir()} == {"float16.onnx", "float32.onnx"}
