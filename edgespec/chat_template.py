"""Chat messages to a prompt, as the model's own template lays them out."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from edgespec.errors import ModelFolderError
from edgespec.manifest import read_json

Message = Mapping[str, Any]
"""``{"role": "user", "content": "..."}``, and what else the model's template knows."""


class ChatTemplate:
    """The template of a model folder.

    It comes with the model and so is not trusted: it is rendered in jinja2's immutable sandbox.
    """

    def __init__(self, folder: Path) -> None:
        """Find ``folder``'s template; whether there is one shows only when it is rendered."""
        self.folder = folder
        config = folder / "tokenizer_config.json"
        self._config = read_json(config) if config.is_file() else {}

    @property
    def exists(self) -> bool:
        """Whether the folder has a template."""
        return self._found() is not None

    def _found(self) -> str | None:
        """The template's text, if there is one."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        path = self.folder / "chat_template.json"
        said = (read_json(path) if path.is_file() else self._config).get("chat_template")
        if isinstance(said, list):  # several named ones
            by_name = {entry.get("name"): entry.get("template") for entry in said}
            said = by_name.get("default")
        return said if isinstance(said, str) else None

    def _source(self) -> str:
        """The template's text."""
        found = self._found()
        if found is None:
            raise ModelFolderError(
                f"{self.folder} has no chat template (chat_template.jinja); "
                "pass the whole prompt to generate() instead"
            )
        return found

    def _special(self, name: str) -> str:
        """The string of a special token such as ``bos_token``."""
        said = self._config.get(name)
        if isinstance(said, Mapping):
            said = said.get("content")
        return said if isinstance(said, str) else ""

    def render(self, messages: Sequence[Message], **variables: object) -> str:
        """Lay out ``messages`` as a prompt that the assistant is to continue.

        Args:
            messages: The conversation, oldest first; at least one message.
            **variables: What else the template reads, such as ``tools``; with
                ``add_generation_prompt=False`` the prompt ends behind the last message.

        Raises:
            ValueError: If a message lacks its role, or the template refuses the conversation.
            ModelFolderError: If the folder has no template or it is broken.
        """
        if not messages:
            raise ValueError("messages must hold at least one message, got none")
        for message in messages:
            if not isinstance(message, Mapping) or "role" not in message:
                raise ValueError(
                    f"a message must be a mapping with 'role' and 'content', got {message!r}"
                )
        # jinja2 takes 30 ms to import, and most calls need no template.
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            template = environment.from_string(self._source())
            return template.render(
                messages=messages,
                **{f"{n}_token": self._special(f"{n}_token") for n in ("bos", "eos", "pad", "unk")},
                **{"add_generation_prompt": True, **variables},
            )
        except (ValueError, ModelFolderError):
            raise
        except Exception as error:  # a template is a program and may fail in any way
            raise ModelFolderError(
                f"{self.folder}'s chat template cannot lay out these messages: {error}"
            ) from None


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"the chat template refuses these messages: {message}")
