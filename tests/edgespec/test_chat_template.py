from pathlib import Path

import pytest

from edgespec.chat_template import ChatTemplate
from edgespec.errors import ModelFolderError
from tests.folders import write_json

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
HELLO = [{"role": "user", "content": "Hi"}]


def folder_with(tmp_path: Path, template: str) -> Path:
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": {"content": "<s>"}})
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return tmp_path


def test_messages_are_laid_out_for_an_answer(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, TEMPLATE)
    said = ChatTemplate(folder).render(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "\u00e9"}]
    )
    assert said == "<s>[system]S[user]\u00e9[assistant]"


@pytest.mark.parametrize(
    "said",
    [
        {"chat_template": TEMPLATE, "bos_token": "<s>"},
        {
            "chat_template": [
                {"name": "tool_use", "template": "no"},
                {"name": "default", "template": TEMPLATE},
            ],
            "bos_token": {"content": "<s>"},
        },
    ],
    ids=["one", "several named ones"],
)
def test_a_template_within_the_tokenizer_config_is_found(
    tmp_path: Path, said: dict[str, object]
) -> None:
    write_json(tmp_path / "tokenizer_config.json", said)
    assert ChatTemplate(tmp_path).render(HELLO) == "<s>[user]Hi[assistant]"


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "old"})
    write_json(tmp_path / "chat_template.json", {"chat_template": "newer"})
    assert ChatTemplate(tmp_path).render(HELLO) == "newer"
    (tmp_path / "chat_template.jinja").write_text("newest")
    assert ChatTemplate(tmp_path).render(HELLO) == "newest"


def test_variables_of_the_caller_reach_the_template(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "{{ tools | tojson }}{{ strftime_now('%%') }}")
    assert ChatTemplate(folder).render(HELLO, tools=["<\u00e9>"]) == '["<\u00e9>"]%'


def test_whitespace_is_trimmed_as_in_transformers(tmp_path: Path) -> None:
    template = "{% for m in messages %}\n    {{ m.content }}\n    {% continue %}\n{% endfor %}\n"
    assert ChatTemplate(folder_with(tmp_path, template)).render(HELLO) == "    Hi\n"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages[0].update(role='x') }}",
    ],
    ids=["classes", "changes the messages", "globals", "changes a message"],
)
def test_a_template_that_reaches_out_of_its_sandbox_is_refused(
    tmp_path: Path, template: str
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ModelFolderError) as raised:
        ChatTemplate(folder_with(tmp_path, template)).render(messages)
    assert "chat template cannot lay out these messages: " in str(raised.value)
    assert "unsafe" in str(raised.value)
    assert messages == HELLO


@pytest.mark.parametrize(
    "template",
    ["{% if %}", "{{ messages[0]['content'] + 1 }}", "{{ 1 // 0 }}", "{{ nothing.at.all }}"],
    ids=["syntax", "types", "arithmetic", "undefined"],
)
def test_a_template_that_fails_is_named(tmp_path: Path, template: str) -> None:
    with pytest.raises(ModelFolderError) as raised:
        ChatTemplate(folder_with(tmp_path, template)).render(HELLO)
    said = f"{tmp_path}'s chat template cannot lay out these messages: "
    assert str(raised.value).startswith(said)


def test_a_template_may_refuse_the_conversation(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "{{ raise_exception('roles must alternate') }}")
    said = "^the chat template refuses these messages: roles must alternate$"
    with pytest.raises(ValueError, match=said):
        ChatTemplate(folder).render(HELLO)


def test_a_folder_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError) as raised:
        ChatTemplate(tmp_path).render(HELLO)
    assert str(raised.value) == (
        f"{tmp_path} has no chat template (chat_template.jinja); "
        "pass the whole prompt to generate() instead"
    )


def test_a_template_file_that_holds_none_says_so(tmp_path: Path) -> None:
    write_json(tmp_path / "chat_template.json", {"other": 1})
    with pytest.raises(ModelFolderError, match="has no chat template"):
        ChatTemplate(tmp_path).render(HELLO)


@pytest.mark.parametrize("message", [{"content": "Hi"}, "Hi"], ids=["no role", "no mapping"])
def test_a_message_without_a_role_is_refused(tmp_path: Path, message: object) -> None:
    folder = folder_with(tmp_path, TEMPLATE)
    with pytest.raises(ValueError, match="a message") as raised:
        ChatTemplate(folder).render([message])  # type: ignore[list-item]
    assert str(raised.value) == (
        f"a message must be a mapping with 'role' and 'content', got {message!r}"
    )


def test_an_empty_conversation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^messages must hold at least one message, got none$"):
        ChatTemplate(folder_with(tmp_path, TEMPLATE)).render([])
