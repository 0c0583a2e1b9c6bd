"""The house keeps its shape: who may import whom, how long files and functions may be, what loads when."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from malmoi.native.library import source_files

SOURCE = Path(__file__).parents[2] / "src" / "malmoi"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(path.relative_to(SOURCE)) for path in FILES]

ORDER = (
    "errors",
    "log",
    "files",
    "config",
    "card",
    "settings",
    "presets",
    "device",
    "native",
    "text",
    "stored",
    "data",
    "models",
    "checkpoint",
    "training",
    "decoding",
    "engine",
    "wishes",
    "translate",
    "bulk",
    "evaluation",
    "explain",
    "report",
    "export",
    "serving",
    "commands",
    "__main__",
)
"""Rooms from left to right: each imports only what stands to its left."""

FRONT_DOORS = ("malmoi", "malmoi.explain")
"""Packages that hold a function which imports what it calls, when it is called: they stand outside the order."""

LONGEST_FILE = 400
LONGEST_FUNCTION = 80
USUAL_FUNCTION = 40


def module_name(path: Path) -> str:
    parts = list(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


MODULES = {module_name(path) for path in FILES}


def imports(path: Path) -> Iterator[str]:
    """Modules of malmoi that a file names in imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "malmoi")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module.split(".")[0] == "malmoi":
                inner = [f"{module}.{alias.name}" for alias in node.names]
                yield from (name if name in MODULES else module for name in inner)


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 20
    assert {room(module) for module in MODULES} - {""} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_room_imports_only_what_stands_to_its_left(path: Path) -> None:
    here = room(module_name(path))
    for module in imports(path):
        if module_name(path) in FRONT_DOORS:
            assert room(module) in ORDER
        elif room(module) != here:
            assert ORDER.index(room(module)) < ORDER.index(here), f"{path.name} imports {module}"


def test_only_commands_import_what_stands_right_of_training() -> None:
    right = ORDER[ORDER.index("training") + 1 :]
    for path in FILES:
        if room(module_name(path)) == "training":
            assert not [module for module in imports(path) if room(module) in right]


def test_search_and_evaluation_do_not_need_training() -> None:
    for path in FILES:
        if room(module_name(path)) in ("decoding", "translate", "evaluation", "explain", "report"):
            assert not [module for module in imports(path) if room(module) == "training"], path


def test_no_import_goes_round_in_a_circle() -> None:
    graph = {module_name(path): set(imports(path)) - {module_name(path)} for path in FILES if path.stem != "__init__"}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module not in done:
            for below in sorted(graph.get(module, ())):
                visit(below, (*above, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").split("\n")) - 1 <= LONGEST_FILE
    assert not [(name, lines) for name, lines in functions(path) if lines > LONGEST_FUNCTION]


def test_tests_and_benchmarks_are_short() -> None:
    files = [path for room in ("tests", "benchmarks") for path in (SOURCE.parents[1] / room).rglob("*.py")]
    ours = [path for path in files if "node_modules" not in path.parts]
    assert len(ours) > 100
    assert not [path.name for path in ours if len(path.read_text(encoding="utf-8").split("\n")) - 1 > LONGEST_FILE]


def test_native_files_are_short() -> None:
    native = [path for path in SOURCE.rglob("*") if path.suffix in {".cpp", ".h"}]
    assert {path.name for path in native} == {path.name for path in source_files()}
    assert not [path.name for path in native if len(path.read_text(encoding="utf-8").split("\n")) - 1 > LONGEST_FILE]


def test_most_functions_are_shorter() -> None:
    lengths = sorted(lines for path in FILES for _, lines in functions(path))
    assert lengths[len(lengths) * 9 // 10] <= USUAL_FUNCTION


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_no_drawer_for_odds_and_ends() -> None:
    words = {part for module in MODULES for part in module.replace("_", ".").split(".")}
    assert not words & {"utils", "util", "helpers", "misc", "common", "manager", "registry", "base"}


def test_rooms_are_entered_by_their_files() -> None:
    for path in FILES:
        if path.name == "__init__.py" and module_name(path) not in FRONT_DOORS:
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert len(body) == 1 and isinstance(body[0], ast.Expr), f"{path} holds more than a docstring"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nothing_is_unpickled(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not names & {"pickle", "cPickle", "dill", "joblib", "shelve"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("torch", "load"), ("torch", "save")}


def loaded(statement: str) -> set[str]:
    """Top-level names of all modules that a statement loads in a fresh interpreter."""
    code = f"import sys\n{statement}\nsys.stderr.write('\\n' + ' '.join(sorted(m.split('.')[0] for m in sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return set(result.stderr.split("\n")[-1].split())


HEAVY = {"torch", "numpy", "sacrebleu", "sentencepiece", "rich", "safetensors", "ctranslate2", "fastapi", "uvicorn"}


@pytest.mark.parametrize(
    "statement",
    [
        "import malmoi",
        "import malmoi.explain",
        "import malmoi.commands.main",
        "import malmoi.__main__",
        "from malmoi.commands.main import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass",
        "from malmoi.commands.main import VERBS, app\n"
        "for verb in VERBS:\n    try:\n        app([verb.__name__, '--help'])\n    except SystemExit:\n        pass",
    ],
)
def test_help_loads_nothing_heavy(statement: str) -> None:
    names = loaded(statement)
    assert "malmoi" in names
    assert not names & HEAVY
