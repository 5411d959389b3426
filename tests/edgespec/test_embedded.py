"""The model that comes with the package: it runs, and candidates leave its text as it is."""

from pathlib import Path

import pytest

from edgespec import EdgeGenerator
from edgespec.model_folder import embedded_model

pytestmark = pytest.mark.onnx

PROMPTS = [
    "def read_csv(path):\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def put(self, item):\n",
    "for i in range(10):\n    print(i)\n\nfor i in range(10):\n    print(i)\n",
]


@pytest.fixture(scope="module")
def embedded() -> EdgeGenerator:
    return EdgeGenerator()


def test_target_and_draft_fit_in_16_megabytes() -> None:
    folders = [embedded_model("tiny-code"), embedded_model("tiny-code-draft")]
    assert sum(p.stat().st_size for f in folders for p in Path(f).iterdir()) < 16e6


def test_it_says_where_it_comes_from_and_that_it_was_checked(embedded: EdgeGenerator) -> None:
    manifest = embedded.folder.manifest
    assert (manifest.architecture, manifest.max_length) == ("llama", 1024)
    assert manifest.weights_dtype == "float16"
    assert manifest.parity["greedy_equal"] == manifest.parity["greedy_tokens"] == 32


@pytest.mark.parametrize("prompt", PROMPTS)
def test_candidates_leave_its_text_as_it_is(embedded: EdgeGenerator, prompt: str) -> None:
    plain = embedded.generate(prompt, max_new_tokens=80)
    for candidates in ({"lookup": True}, {"draft": True}):
        for count in (1, 4, 10):
            faster = embedded.generate(
                prompt,
                max_new_tokens=80,
                num_assistant_tokens=count,
                lookup=candidates.get("lookup"),
                draft=candidates.get("draft"),
            )
            assert faster.tokens.tolist() == plain.tokens.tolist()


def test_a_seed_gives_the_same_sampled_text_with_and_without_lookup(
    embedded: EdgeGenerator,
) -> None:
    texts = {
        embedded.generate(PROMPTS[3], do_sample=True, seed=3, max_new_tokens=60, lookup=lookup).text
        for lookup in (False, True)
    }
    assert len(texts) == 1


def test_its_draft_is_right_often_enough_to_save_forwards(embedded: EdgeGenerator) -> None:
    stats = [
        embedded.generate(prompt, max_new_tokens=80, draft=True, num_assistant_tokens=4).stats
        for prompt in PROMPTS
    ]
    assert sum(s.accepted for s in stats) > 0.2 * sum(s.evaluated for s in stats)
    assert sum(s.rounds for s in stats) < 0.8 * sum(s.emitted for s in stats)
