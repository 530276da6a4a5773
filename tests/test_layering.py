"""Who may import whom. The core is pure; the program never needs what only builds dashboards, rules or charts."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
IMPURE = {
    "aiohttp", "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "requests",
    "select", "selectors", "shutil", "signal", "socket", "ssl", "structlog", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib",
}  # fmt: skip
BUILD_TIME = {"alerts", "dashboards", "grafanalib", "promql_parser", "tests", "bench"}
CORE = sorted((ROOT / "exporter" / "core").glob("*.py"))
PROGRAM = sorted((ROOT / "exporter").rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, and whether it does so when it is itself imported."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from ((f"{node.module}.{alias.name}", id(node) not in inside) for alias in node.names)


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_knows_no_clock_socket_file_thread_or_logger(path: Path) -> None:
    for module, _ in imports(path):
        assert top(module) not in IMPURE, module
        if top(module) == "exporter":
            assert module.startswith(("exporter.core", "exporter.catalog")), module


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_opens_and_prints_nothing(path: Path) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__", "globals"}


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_program_never_imports_what_only_builds(path: Path) -> None:
    for module, at_import in imports(path):
        assert top(module) not in BUILD_TIME, module
        if top(module) == "matplotlib":
            assert "review" in path.parts, f"{module}: only the review draws charts"
            assert not at_import, f"{module}: charts load when they are drawn"


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_but_the_entry_point_imports_the_command_line(path: Path) -> None:
    if path.name == "__main__.py":
        return
    for module, _ in imports(path):
        assert not module.startswith("exporter.cli"), module


@pytest.mark.parametrize(
    "path", [*PROGRAM, *sorted((ROOT / "alerts").rglob("*.py"))], ids=lambda path: str(path.relative_to(ROOT))
)
def test_modules_are_named_after_an_idea(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "common", "misc", "types", "constants", "manager"}


def test_a_running_daemon_has_loaded_neither_charts_nor_generators() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import exporter.daemon, exporter.commands.run, sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    names = {top(module) for module in loaded}
    assert "aiohttp" in names
    assert not names & (BUILD_TIME | {"matplotlib", "numpy", "pandas"})


def test_the_check_of_imports_sees_an_import() -> None:
    seen = dict(imports(ROOT / "exporter" / "fetch.py"))
    assert seen["aiohttp"] is True
    assert "exporter.target.Target" in seen
