from pathlib import Path

import pytest

from edgespec.bench.prompts import PROMPTS, BenchPrompt, read_prompts


def test_there_is_something_to_copy_and_nothing_to_copy() -> None:
    assert list(dict.fromkeys(p.kind for p in PROMPTS)) == ["copying", "code edit", "chat", "JSON"]
    assert len({p.name for p in PROMPTS}) == len(PROMPTS)


def test_a_file_of_prompts_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('[{"name": "b", "prompt": "B"}, {"name": "a", "kind": "k", "prompt": "A"}]')
    assert read_prompts(path) == (BenchPrompt("b", "b", "B"), BenchPrompt("a", "k", "A"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "holds no prompts"),
        ("{}", "holds no prompts"),
        ('["text"]', 'holds "text"'),
        ('[{"name": "a"}]', 'holds {"name": "a"}'),
        ('[{"name": "a", "prompt": ""}]', "holds"),
    ],
)
def test_another_file_is_refused_with_the_form_that_is_expected(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"mine\.json .*; expected a list like \[\{") as error:
        read_prompts(path)
    assert said in str(error.value)
