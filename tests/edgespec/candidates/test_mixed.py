import time

import numpy as np
import pytest

from edgespec.arrays import TokenIds
from edgespec.candidates.base import NO_CANDIDATES, Candidates
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator


class Ahead:
    """Says how the count goes on, after ``pause_s``; wrong in every place if ``lies``."""

    def __init__(self, *, lies: bool = False, pause_s: float = 0.0, most: int = 99) -> None:
        self.lies, self.pause_s, self.most = lies, pause_s, most
        self.asked: list[int] = []
        self.told: list[int] = []
        self.begun = 0

    def begin(self, input_ids: TokenIds) -> None:
        self.begun += 1

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        self.asked.append(max_candidates)
        count = min(max_candidates, self.most)
        time.sleep(self.pause_s * count)
        first = int(input_ids[-1]) + (2 if self.lies else 1)
        return Candidates(np.arange(first, first + count))

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None:
        self.told.append(num_matches)


class Silent:
    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        return NO_CANDIDATES

    def update_candidate_strategy(self, input_ids: TokenIds, num_matches: int) -> None: ...


def count_on(
    mixed: MixedCandidateGenerator, rounds: int, round_s: float = 0.002
) -> list[str | None]:
    """Write 0, 1, 2, ... with ``mixed`` proposing; the sources of the rounds."""
    text = np.array([0])
    mixed.begin(text)
    sources = []
    for _ in range(rounds):
        candidates = mixed.get_candidates(text, 4)
        sources.append(candidates.source)
        time.sleep(round_s)
        right = 0
        for token in candidates.tokens.tolist():
            if token != text[-1] + 1:
                break
            text, right = np.append(text, token), right + 1
        text = np.append(text, text[-1] + 1)
        mixed.update_candidate_strategy(text, right)
    return sources


def test_the_source_that_is_right_is_soon_the_one_that_is_passed_on() -> None:
    liar, honest = Ahead(lies=True), Ahead()
    sources = count_on(MixedCandidateGenerator([liar, honest]), 40)
    assert sources[0] == "Ahead"
    assert sources[-10:] == ["Ahead#2"] * 10


def test_only_the_source_of_a_proposal_is_told_what_it_brought() -> None:
    liar, honest = Ahead(lies=True), Ahead()
    sources = count_on(MixedCandidateGenerator([liar, honest]), 20)
    assert len(liar.told) == sources.count("Ahead")
    assert len(honest.told) == sources.count("Ahead#2")
    assert set(liar.told) == {0}
    assert min(honest.told) > 0  # a busy machine may ask for fewer than four


def test_who_has_nothing_to_propose_is_passed_over() -> None:
    assert set(count_on(MixedCandidateGenerator([Silent(), Ahead()]), 5)) == {"Ahead"}
    nothing = MixedCandidateGenerator([Silent(), Silent()])
    assert count_on(nothing, 3) == [None] * 3


def test_a_slow_source_that_is_never_right_is_asked_less_and_less() -> None:
    slow = Ahead(lies=True, pause_s=0.002)
    count_on(MixedCandidateGenerator([slow, Ahead(most=1)]), 60)
    assert len(slow.asked) < 30
    assert slow.asked[-1] == 1


def test_a_new_request_tells_all_sources_and_forgets_what_they_achieved() -> None:
    liar, honest = Ahead(lies=True), Ahead()
    mixed = MixedCandidateGenerator([liar, honest])
    first = count_on(mixed, 30)
    assert count_on(mixed, 30) == first
    assert (liar.begun, honest.begun) == (2, 2)


def test_a_match_length_is_passed_on() -> None:
    mixed = MixedCandidateGenerator([PromptLookupCandidateGenerator(), Silent()])
    candidates = mixed.get_candidates(np.array([1, 2, 3, 1, 2]), 3)
    assert (candidates.match_length, candidates.source) == (2, "PromptLookupCandidateGenerator")


def test_one_generator_is_no_mixture() -> None:
    with pytest.raises(ValueError, match=r"^generators must be at least 2, got 1$"):
        MixedCandidateGenerator([Silent()])


class Drawn(Ahead):
    """The same with the distribution that it drew from: nobody may look at two such proposals."""

    def get_candidates(self, input_ids: TokenIds, max_candidates: int) -> Candidates:
        tokens = super().get_candidates(input_ids, max_candidates).tokens
        return Candidates(tokens, np.eye(int(tokens.max()) + 1)[tokens])


def test_of_two_that_draw_the_one_that_is_right_comes_to_propose() -> None:
    liar, honest = Drawn(lies=True, pause_s=0.001), Drawn(pause_s=0.001)
    sources = count_on(MixedCandidateGenerator([liar, honest]), 30)
    assert sources[-20:].count("Drawn#2") >= 15
    assert len(liar.asked) + len(honest.asked) == 30
