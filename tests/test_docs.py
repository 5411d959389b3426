"""What the documents name can be found: pages, commands and their options."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgespec import EdgeGenerator
from edgespec.cli.main import commands
from edgespec.options import NAMES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("models/*.md")])


def anchors(page: Path) -> set[str]:
    """What a link may point at within a page, as GitHub names headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.stem)
def test_the_readme_leads_to_every_page(page: Path) -> None:
    assert f"](docs/{page.name})" in (ROOT / "README.md").read_text(encoding="utf-8")


def quoted(page: Path) -> Iterator[str]:
    """The commands that a page quotes, in blocks and in the middle of a sentence."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```(?:bash|console)\n(.*?)```", text, re.DOTALL):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        yield from (part for line in lines for part in re.split(r"\s+#|&&", line))
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def options_of(command: click.Command, words: list[str]) -> set[str]:
    """The options of the command that ``words`` begin with."""
    context = click.Context(command)
    if isinstance(command, click.Group) and words:
        below = command.get_command(context, words[0])
        assert below is not None, f"there is no command {words[0]}"
        return options_of(below, words[1:])
    names = (name for p in command.get_params(context) for name in (*p.opts, *p.secondary_opts))
    return set(names) | {"-h", "--help"}


def flags(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}


def unknown_options(line: str) -> set[str]:
    """Options in a command of ours that it does not have."""
    words = re.sub(r'"[^"]*"', "TEXT", line).split()
    if words[:1] == ["edgespec"]:
        return flags(words) - options_of(commands, words[1:])
    if words[:1] == ["python"] and words[1].endswith(".py"):
        script = (ROOT / words[1]).read_text(encoding="utf-8")
        return {flag for flag in flags(words) if f'"{flag}"' not in script}
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_commands_exist(page: Path) -> None:
    assert {line: unknown for line in quoted(page) if (unknown := unknown_options(line))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_named_alone_exist(page: Path) -> None:
    below = [name for name in commands.list_commands(click.Context(commands)) if name != "ngrams"]
    known = set().union(*(options_of(commands, [name]) for name in below))
    for name in ("build", "merge"):
        known |= options_of(commands, ["ngrams", name])
    named = {line.split()[0] for line in quoted(page) if re.match(r"--[a-z]", line)}
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_of_calls_exist(page: Path) -> None:
    named = {found[1] for line in quoted(page) if (found := re.match(r"(\w+)=", line))}
    for call in re.findall(r"generator\.(?:generate|stream|chat)\((.*)\)", page.read_text("utf-8")):
        named |= set(re.findall(r"(\w+)=", call))
    assert named <= {*NAMES, *inspect.signature(EdgeGenerator).parameters}
