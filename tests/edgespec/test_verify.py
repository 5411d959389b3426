from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.arrays import Logits, Probs, TokenIds
from edgespec.errors import LogitsError
from edgespec.sampling import Distribution
from edgespec.verify import Sampler, Verdict, pick_greedy, verify, verify_match
from tests.chances import follows


@pytest.mark.parametrize(
    ("candidates", "accepted", "tokens"),
    [
        pytest.param([3, 4, 5], 2, [3, 4, 9], id="up to the first wrong one"),
        pytest.param([3, 4, 9], 3, [3, 4, 9, 6], id="all, and one of the target's own"),
        pytest.param([4, 4, 9], 0, [3], id="none where the first is wrong"),
        pytest.param([], 0, [3], id="a plain step"),
    ],
)
def test_candidates_stand_up_to_the_first_that_the_target_would_not_say(
    candidates: list[int], accepted: int, tokens: list[int]
) -> None:
    logits = np.eye(10, dtype=np.float32)[[3, 4, 9, 6]]  # the target would say 3 4 9 6
    known = np.array([7, 8, *candidates])
    verdict = verify_match(known, np.array(candidates, np.int64), logits, pick_greedy)
    assert (verdict.num_accepted, verdict.tokens.tolist()) == (accepted, tokens)


def test_a_pick_sees_each_prefix_once_and_none_behind_a_refused_candidate() -> None:
    seen = []

    def pick(row: np.ndarray[tuple[int], np.dtype[np.float32]], prefix: TokenIds) -> int:
        seen.append(prefix.tolist())
        return int(row.argmax())

    logits = np.eye(10, dtype=np.float32)[[3, 4, 9, 6]]
    verify_match(np.array([7, 8, 3, 5, 9]), np.array([3, 5, 9]), logits, pick)
    assert seen == [[7, 8], [7, 8, 3]]


def test_of_equal_scores_the_lowest_id_is_picked() -> None:
    """vllm-project/vllm#7627."""
    row = np.array([1, 3, 3, 0], np.float32)
    assert pick_greedy(row, np.array([0])) == 1
    verdict = verify_match(np.array([0, 2]), np.array([2]), np.stack([row, row]), pick_greedy)
    assert (verdict.num_accepted, verdict.tokens.tolist()) == (0, [1])


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("at", [0, 2])
def test_scores_that_are_no_numbers_are_refused(at: int, value: str) -> None:
    row = np.array([1, 3, 2], np.float32)
    row[at] = float(value)
    said = (
        f"^the model returned {value} as its highest logit after 2 tokens; its weights overflow "
        "at this precision: export it with another --precision$"
    )
    with pytest.raises(LogitsError, match=said):
        pick_greedy(row, np.array([5, 6]))


# Rejection sampling. p is the target, q the draft, as in the papers.

Rule = Callable[[TokenIds, TokenIds, Probs | None, Logits, Sampler], Verdict]


def following(table: Probs, rng: np.random.Generator) -> Sampler:
    """Draws the token after i by row i of ``table`` [V, V], whatever the logits."""
    rows = [Distribution(np.flatnonzero(row), row[row > 0]) for row in table]
    return Sampler(lambda row, prefix: rows[int(prefix[-1])], rng)


def rounds(
    p: Probs, q: Probs, rule: Rule, *, count: int, length: int = 3, greedy: bool = False
) -> list[tuple[int, ...]]:
    """The first tokens of ``count`` texts, ``length`` of each: a round, and plain steps."""
    target = following(p, np.random.default_rng(1))
    draft = following(q, np.random.default_rng(2))
    logits = np.zeros((length, p.shape[1]), np.float32)
    texts = []
    for _ in range(count):
        known = [0]
        for _ in range(length - 1):
            said = int(q[known[-1]].argmax()) if greedy else draft(logits[0], np.array(known))
            known.append(said)
        draft_probs = q[known[:-1]]
        verdict = rule(np.array(known), np.array(known[1:]), draft_probs, logits, target)
        text = [0, *verdict.tokens.tolist()]
        while len(text) <= length:
            text.append(target(logits[0], np.array(text)))
        texts.append(tuple(text[1:]))
    return texts


def exact(p: Probs, length: int = 3) -> dict[tuple[int, ...], float]:
    """How likely each text of ``length`` is, after token 0."""
    texts = {}
    for text in product(range(p.shape[1]), repeat=length):
        steps = zip((0, *text), text, strict=False)
        texts[text] = float(np.prod([p[before, token] for before, token in steps]))
    return texts


def one_step(first: list[float]) -> Probs:
    return np.array([first] * len(first))


P2, Q2 = one_step([0.6, 0.4]), one_step([0.9, 0.1])
P3, Q3 = one_step([0.5, 0.3, 0.2]), one_step([0.1, 0.6, 0.3])
RNG = np.random.default_rng(0)
P5, Q5 = RNG.dirichlet(np.ones(5), 5), RNG.dirichlet(np.ones(5), 5)
P5[:, 4] = 0  # what the target never says, and the draft does
P5 /= P5.sum(axis=1, keepdims=True)


def match(
    known: TokenIds, candidates: TokenIds, q: Probs | None, logits: Logits, sampler: Sampler
) -> Verdict:
    return verify_match(known, candidates, logits, sampler)


def softmax_of_the_residual(
    known: TokenIds, candidates: TokenIds, q: Probs | None, logits: Logits, sampler: Sampler
) -> Verdict:
    """huggingface/transformers#28508."""
    return _faulty(known, candidates, q, sampler, lambda p, q: np.exp(np.maximum(p - q, 0)))


def residual_of_p_alone(
    known: TokenIds, candidates: TokenIds, q: Probs | None, logits: Logits, sampler: Sampler
) -> Verdict:
    return _faulty(known, candidates, q, sampler, lambda p, q: p)


def _faulty(
    known: TokenIds,
    candidates: TokenIds,
    q: Probs | None,
    sampler: Sampler,
    residual: Callable[[Probs, Probs], Probs],
) -> Verdict:
    assert q is not None
    before = len(known) - len(candidates)
    for i, token in enumerate(candidates.tolist()):
        p = sampler.distribution(np.zeros(0, np.float32), known[: before + i]).dense(q.shape[1])
        if sampler.rng.random() >= p[token] / q[i, token]:
            left = residual(p, q[i])
            last = sampler.rng.choice(len(left), p=left / left.sum())
            return Verdict(i, np.append(candidates[:i], last))
    last = sampler(np.zeros(0, np.float32), known)
    return Verdict(len(candidates), np.append(candidates, last))


TABLES = {"two tokens": (P2, Q2), "three tokens": (P3, Q3), "five, one impossible": (P5, Q5)}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("rule", "greedy"),
    [
        pytest.param(verify, False, id="drawn candidates, rejection"),
        pytest.param(match, False, id="drawn candidates, match"),
        pytest.param(match, True, id="likeliest candidates, match"),
    ],
)
def test_texts_follow_the_targets_distribution(name: str, rule: Rule, greedy: bool) -> None:
    p, q = TABLES[name]
    assert follows(rounds(p, q, rule, count=5000, greedy=greedy), exact(p))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("rule", "greedy"),
    [
        pytest.param(verify, True, id="the likeliest judged as if drawn"),
        pytest.param(softmax_of_the_residual, False, id="softmax of the residual"),
        pytest.param(residual_of_p_alone, False, id="p in place of the residual"),
    ],
)
def test_the_check_notices_a_planted_fault(name: str, rule: Rule, greedy: bool) -> None:
    """huggingface/transformers#32867, #28508: what the test above would say of these."""
    p, q = TABLES[name]
    if rule is softmax_of_the_residual and name == "two tokens":
        q = one_step([0.2, 0.8])
    assert not follows(rounds(p, q, rule, count=5000, greedy=greedy), exact(p))


def test_a_draft_that_shares_the_targets_chance_is_noticed() -> None:
    logits = np.zeros((2, 3), np.float32)
    firsts = []
    for seed in range(5000):
        # The same seed for both: the chance that drew the candidate also judges it.
        draft = following(Q3, np.random.default_rng(seed))
        target = following(P3, np.random.default_rng(seed))
        known = np.array([0, draft(logits[0], np.array([0]))])
        firsts.append(int(verify(known, known[1:], Q3[:1], logits, target).tokens[0]))
    assert not follows(firsts, dict(enumerate(P3[0])))


@pytest.mark.parametrize(
    ("p", "q"),
    [pytest.param(P2, Q2, id="two tokens"), pytest.param(P3, Q3, id="three tokens")],
)
def test_the_first_token_is_as_frequent_as_the_target_has_it(p: Probs, q: Probs) -> None:
    """huggingface/transformers#32867, jaymody/speculative-sampling#3."""
    texts = rounds(p, q, verify, count=20_000, length=2)
    shares = np.bincount([text[0] for text in texts]) / len(texts)
    assert shares == pytest.approx(p[0], abs=0.02)


def judged(p: Probs, q: Probs, token: int, rng: np.random.Generator) -> Verdict:
    logits = np.zeros((2, len(p)), np.float32)
    return verify(np.array([0, token]), np.array([token]), q[:1], logits, following(p, rng))


def test_a_refused_token_is_replaced_from_what_the_draft_gave_too_little() -> None:
    """huggingface/transformers#28508: only token 0 has p > q."""
    rng = np.random.default_rng(0)
    verdicts = [judged(P3, Q3, 1, rng) for _ in range(2000)]
    refused = [verdict.tokens.tolist() for verdict in verdicts if not verdict.num_accepted]
    assert len(refused) / 2000 == pytest.approx(0.5, abs=0.05)  # 1 - p/q
    assert all(tokens == [0] for tokens in refused)


@pytest.mark.parametrize("p", [P2, P3, P5], ids=TABLES)
def test_what_the_target_would_have_drawn_itself_always_stands(p: Probs) -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        token = int(rng.choice(p.shape[1], p=p[0]))
        assert judged(p, p, token, rng).num_accepted == 1


def typical(p: list[float], token: int, threshold: float, drawn: bool = True) -> Verdict:
    table = one_step(p)
    sampler = replace(following(table, np.random.default_rng(0)), lossy_threshold=threshold)
    q = table[:1] if drawn else None
    known, logits = np.array([0, token]), np.zeros((2, len(p)), np.float32)
    return verify(known, np.array([token]), q, logits, sampler)


class TestLossyAcceptance:
    # H = ln 4: sqrt(0.09) * exp(-H) = 0.075 is less than 0.09. H = 0.33: 0.216 is more.
    @pytest.mark.parametrize(
        ("p", "token", "stands"),
        [
            ([0.25, 0.25, 0.25, 0.25], 3, True),
            ([0.9, 0.1], 1, True),
            ([0.92, 0.08], 1, False),
            ([0.92, 0.08], 0, True),
            ([1.0, 0.0], 1, False),
        ],
        ids=["unsure", "likely enough", "too unlikely", "the likeliest", "impossible"],
    )
    @pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "certain"])
    def test_what_is_typical_of_the_target_stands(
        self, p: list[float], token: int, stands: bool, drawn: bool
    ) -> None:
        assert typical(p, token, 0.09, drawn).num_accepted == int(stands)

    def test_an_unsure_target_asks_for_less(self) -> None:
        even = [1 / 32] * 32  # exp(-H) is 1/32
        assert typical(even, 3, 0.81).num_accepted == 1  # 0.9 / 32 is less than 1 / 32
        assert typical([0.3, 0.7], 0, 0.81).num_accepted == 0

    def test_it_is_not_the_targets_distribution(self) -> None:
        def lossy(
            known: TokenIds, drafted: TokenIds, q: Probs | None, logits: Logits, sampler: Sampler
        ) -> Verdict:
            return verify(known, drafted, q, logits, replace(sampler, lossy_threshold=0.09))

        assert not follows(rounds(P3, Q3, lossy, count=5000), exact(P3))


class Unlucky(np.random.Generator):
    """Draws the highest number there is."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def random(self, *args: Any, **kwargs: Any) -> Any:
        return np.nextafter(1.0, 0.0)


def test_where_nothing_is_left_the_target_draws_anew() -> None:
    """A q that claims more than it drew with leaves no residual; no NaN comes of it."""
    with np.errstate(all="raise"):
        verdict = judged(P2, np.minimum(P2 * 1.5, 1.0), 1, Unlucky())
    assert (verdict.num_accepted, verdict.tokens.tolist()) == (0, [1])
    assert judged(P3, P3, 2, Unlucky()).num_accepted == 1


@pytest.mark.parametrize("width", [2, 7])
def test_rows_of_draft_and_target_may_be_of_different_width(width: int) -> None:
    """huggingface/transformers#45307: vocabularies are padded differently."""
    q = np.zeros((3, width))
    q[:, :2] = (0.3, 0.7)
    if width > 3:
        q[:, [1, 5]] = (0.4, 0.3)  # and of ids that the target lacks
    rng = np.random.default_rng(0)
    firsts = []
    for _ in range(5000):
        token = int(rng.choice(width, p=q[0]))
        known = np.array([0, token])
        verdict = verify(known, known[1:], q[:1], np.zeros((2, 3), np.float32), following(P3, rng))
        firsts.append(int(verdict.tokens[0]))
    assert follows(firsts, dict(enumerate(P3[0])))


def test_greedy_text_is_matched_whatever_the_draft_drew_from() -> None:
    logits = np.eye(3, dtype=np.float32)[[1, 2]]
    verdict = verify(
        np.array([0, 1]), np.array([1]), np.array([[0.0, 0.1, 0.9]]), logits, pick_greedy
    )
    assert (verdict.num_accepted, verdict.tokens.tolist()) == (1, [1, 2])


def test_rows_behind_a_refused_candidate_are_not_looked_at() -> None:
    seen = []

    def distribution(row: NDArray[np.float32], prefix: TokenIds) -> Distribution:
        seen.append(prefix.tolist())
        return Distribution(np.array([0]), np.array([1.0]))

    q = np.array([[0.5, 0.5, 0.0]] * 3)
    sampler = Sampler(distribution, np.random.default_rng(0))
    verdict = verify(
        np.array([7, 0, 1, 0]), np.array([0, 1, 0]), q, np.zeros((4, 3), np.float32), sampler
    )
    assert (verdict.num_accepted, verdict.tokens.tolist()) == (1, [0, 0])
    assert seen == [[7], [7, 0]]


def dropping(proposed: list[int], surprise: int) -> list[int]:
    """What a budget must not do: leave out a candidate because of what it is."""
    return [] if proposed[0] == surprise else proposed


def test_a_candidate_left_out_for_what_it_is_would_be_noticed() -> None:
    rng, target = np.random.default_rng(0), following(P3, np.random.default_rng(1))
    firsts: dict[bool, list[int]] = {False: [], True: []}
    logits = np.zeros((2, 3), np.float32)
    for faulty in firsts:
        for _ in range(5000):
            proposed = [int(rng.choice(3, p=P3[0]))]
            kept = dropping(proposed, 2) if faulty else proposed
            known = np.array([0, *kept])
            verdict = verify(known, known[1:], P3[: len(kept)], logits, target)
            firsts[faulty].append(int(verdict.tokens[0]))
    assert follows(firsts[False], dict(enumerate(P3[0])))
    assert not follows(firsts[True], dict(enumerate(P3[0])))
