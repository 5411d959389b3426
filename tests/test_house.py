"""The house keeps its shape: what may import what, and what a caller may lean on."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec

ROOT = Path(__file__).parent.parent
RUNTIME = ROOT / "edgespec"
SOURCES = sorted(
    path
    for folder in ("edgespec", "export", "models")
    for path in (ROOT / folder).rglob("*.py")
    if not {".venv", "build"} & set(path.parts)
)

FLOORS = (
    "arrays errors files machine",
    "logit_rules manifest threads sampling ngram_store acceptance prefix cost_file",
    "session tokenizer chat_template model_folder verify candidates.base candidates.remembering",
    "cache.base candidates.assisted candidates.prompt_lookup candidates.* stopping budget guided",
    "cache.* inputs candidates.universal candidates.mixed logits",
    "candidates.grammar cache.static",
    "model options decode prompt speech.features speech.vocabulary",
    "encoder stats drafting exact constraint defaults budgeting speech.resample speech.options",
    "encoder_decoder stream choosing prefixes probe shortlist",
    "loading speech.audio speech.segments speech.rules",
    "speech.window generator",
    "seq2seq speech.transcriber",
    "speech.subtitles",
    "bench.prompts bench.peer_process bench.report",
    "bench.engines bench.chart",
    "bench.measure",
    "cli.generate",
    "cli.*",
    "__main__",
)
"""From the ground up: a file imports from floors below, or from ``*.base`` on its own."""

ONLY_IN = {
    "onnxruntime": {
        *("session", "threads", "inputs", "model"),
        *("cache.base", "cache.growing", "cache.in_place", "encoder"),
    },
    "tokenizers": {"tokenizer"},
    "jinja2": {"chat_template"},
    "llguidance": {"guided"},
    "matplotlib": {"bench.chart"},
    # Run by the interpreter of a peer, never by ours.
    "onnxruntime_genai": {"bench.peer_process"},
    "llama_cpp": {"bench.peer_process"},
    "openvino_genai": {"bench.peer_process"},
    "transformers": {"bench.peer_process"},
    "torch": {"bench.peer_process"},
    "soundfile": {"speech.audio"},
    "click": {"cli.main", "cli.transcribe", "cli.generate", "cli.info", "cli.ngrams", "cli.bench"},
    "rich": {"cli.transcribe", "cli.info", "cli.generate", "cli.ngrams", "cli.bench"},
}
"""Where each dependency is known."""


def name_of(path: Path) -> str:
    """``cache.base`` for ``edgespec/cache/base.py``."""
    parts = path.relative_to(RUNTIME).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "__init__"


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports when it runs, wherever in it."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
            continue
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        todo += ast.iter_child_nodes(node)


def floor_of(name: str) -> int:
    for floor, names in enumerate(FLOORS):
        if name in names.split():
            return floor
    wild = name.split(".")[0] + ".*"
    found = [floor for floor, names in enumerate(FLOORS) if wild in names.split()]
    assert found, f"{name} has no floor: say in FLOORS what it may import"
    return found[0]


MODULES = [path for path in sorted(RUNTIME.rglob("*.py")) if name_of(path) != "__init__"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    own = name_of(path)
    for module in imports(path):
        if module.startswith("edgespec."):
            other = module.removeprefix("edgespec.")
            assert other == "cli.main" or floor_of(other) < floor_of(own), (own, other)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_each_dependency_is_known_in_one_place(path: Path) -> None:
    known = {package for package, names in ONLY_IN.items() if name_of(path) in names}
    allowed = known | {"numpy", "edgespec"} | set(sys.stdlib_module_names)
    assert {module.split(".")[0] for module in imports(path)} <= allowed


def test_the_runtime_names_the_exporter_in_one_line_only() -> None:
    """The command line knows where ``edgespec export`` is, and imports it when it is called."""
    lines = [
        (path.name, line.strip())
        for path in RUNTIME.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "edgespec_export" in line
    ]
    assert [name for name, _ in lines] == ["main.py"]
    assert lines[0][1].startswith('"export": ("edgespec_export.command"')


@pytest.mark.parametrize(
    "unwanted",
    [
        ["torch", "transformers", "optimum", "onnx", "onnxscript", "onnx_ir", "edgespec_export"],
        ["click", "rich", "jinja2", "llguidance"],
    ],
    ids=["nothing of the exporter", "nothing that most calls do without"],
)
def test_import_loads(unwanted: list[str]) -> None:
    code = f"import edgespec, sys; print(*set({unwanted}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", edgespec.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    found = getattr(edgespec, name)
    assert inspect.getdoc(found)
    parts = inspect.getmembers(found, inspect.isroutine) if inspect.isclass(found) else []
    own = [part for part, member in parts if getattr(member, "__module__", "") == found.__module__]
    silent = [part for part in own if not part.startswith("_") and not getattr(found, part).__doc__]
    assert silent == []


def test_all_is_complete_and_in_order() -> None:
    assert edgespec.__all__ == sorted(edgespec.__all__)
    assert all(hasattr(edgespec, name) for name in edgespec.__all__)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_can_be_read_at_one_sitting(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text)), "the first line says why the file exists"


# Put together here, so that this file does not say them either.
UNSAID = ["/".join(("", "work", "")), ".".join(("pypi", "org"))]
UNSAID += [".".join(("pythonhosted", "org")), "/".join(("", "root", ""))]


def texts() -> Iterator[tuple[Path, str]]:
    """All text of the repository, what git and the tools keep there left out."""
    todo = [ROOT]
    while todo:
        for path in todo.pop().iterdir():
            if path.is_dir():
                is_ours = not path.name.startswith(".") or path.name in (".ci", ".github")
                if is_ours and path.name not in ("__pycache__", "build", "dist"):
                    todo.append(path)
            elif path.name != ".git" and path.stat().st_size < 2_000_000:
                try:
                    yield path, path.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    continue


@pytest.mark.parametrize("unsaid", UNSAID, ids=lambda unsaid: unsaid.strip("/-").replace(".", " "))
def test_nothing_of_the_place_where_it_was_made_is_named(unsaid: str) -> None:
    assert [str(path.relative_to(ROOT)) for path, text in texts() if unsaid in text] == []


PACKAGES = {"The runtime, `edgespec/`": "edgespec", "The exporter, ": "export/edgespec_export"}
"""Heading of each table of files, and the folder that it lists."""


def listed(heading: str) -> Iterator[str]:
    """The files in a table of ARCHITECTURE.md; one without a folder lies beside the one before."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}")[1].split("\n## ")[0]
    for row in re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            folder = name.rpartition("/")[0] + "/" if "/" in name else folder
            yield name if "/" in name else folder + name


@pytest.mark.parametrize(("heading", "package"), PACKAGES.items())
def test_the_architecture_lists_each_file_once(heading: str, package: str) -> None:
    files = sorted(path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*.py"))
    # A folder's own __init__.py says only what the folder is.
    expected = [f.as_posix() for f in files if len(f.parts) == 1 or f.name != "__init__.py"]
    assert sorted(name for name in listed(heading) if name.endswith(".py")) == sorted(expected)


@pytest.mark.parametrize(("heading", "package"), PACKAGES.items())
def test_what_the_architecture_lists_is_there(heading: str, package: str) -> None:
    assert [name for name in listed(heading) if not list((ROOT / package).glob(name))] == []
