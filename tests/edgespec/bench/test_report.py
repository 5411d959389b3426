import json

import pytest

from edgespec.bench.report import Figure, Report


def figure(method: str, tokens_per_s: float, kind: str = "a", **more: object) -> Figure:
    told: dict[str, object] = {"prompt": f"{kind}1", "engine": "edgespec", "same_text": True}
    told |= more
    return Figure(
        kind=kind,
        method=method,
        tokens_per_s=tokens_per_s,
        prefill_s=0.1,
        **told,  # type: ignore[arg-type]
    )


def report(*figures: Figure) -> Report:
    return Report("toy", "here, 2 threads", figures, {1: 10.0, 2: 11.0, 9: 20.0})


def test_a_set_is_the_geometric_mean_of_its_prompts() -> None:
    both = report(
        figure("plain", 10.0),
        figure("plain", 40.0, prompt="a2"),
        figure("lookup", 40.0),
        figure("lookup", 40.0, prompt="a2"),
    )
    assert both.tokens_per_s("edgespec", "plain", "a") == pytest.approx(20.0)
    assert both.gain("edgespec", "lookup", "a") == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("gains", "advice"),
    [
        ([2.0, 1.0], "lookup pays: 2.0x on a, 1.0x on b"),
        ([1.0, 1.09], "lookup does not pay here"),
    ],
)
def test_the_advice_follows_from_the_figures(gains: list[float], advice: str) -> None:
    figures = [figure("plain", 10.0, kind) for kind in "ab"]
    figures += [figure("lookup", 10.0 * g, k) for k, g in zip("ab", gains, strict=True)]
    assert report(*figures).advice == advice


def test_the_advice_names_what_pays_before_what_does_not() -> None:
    figures = [figure("plain", 10.0), figure("draft", 9.0), figure("suffix", 9.5)]
    pays = figure("lookup", 19.0)
    assert report(*figures, pays).advice == (
        "lookup pays: 1.9x on a; draft and suffix do not pay here"
    )


def test_each_engine_is_compared_with_its_own_plain_decoding() -> None:
    both = report(
        figure("plain", 10.0),
        figure("plain", 5.0, engine="peer"),
        figure("n-gram", 20.0, engine="peer", same_text=False),
    )
    assert both.rows() == [
        ["edgespec, plain", "10.0", "-"],
        ["peer, plain", "5.0", "-"],
        ["peer, n-gram", "20.0 (4.00x)", "a1"],
    ]


def test_acceptance_adds_up_over_prompts_by_position() -> None:
    one: dict[str, object] = {"evaluated_by_position": [4, 2], "accepted_by_position": [2, 1]}
    other: dict[str, object] = {"evaluated_by_position": [4], "accepted_by_position": [4]}
    both = report(figure("lookup", 1.0, "a", **one), figure("lookup", 1.0, "b", **other))
    assert both.acceptance_by_position("edgespec", "lookup") == [6 / 8, 1 / 2]


def test_markdown_has_as_many_cells_in_each_line_of_a_table() -> None:
    text = report(figure("plain", 10.0), figure("lookup", 20.0)).markdown()
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert [len({line.count("|") for line in table}) for table in tables] == [1, 1]
    assert "| against one | 1.00 | 1.10 | 2.00 |" in text


def test_everything_goes_into_json() -> None:
    told = json.loads(json.dumps(report(figure("plain", 10.0)).as_dict()))
    assert told["figures"][0]["tokens_per_s"] == 10.0
    assert told["step_ms"] == {"1": 10.0, "2": 11.0, "9": 20.0}
