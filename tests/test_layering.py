"""Who may import whom. The core is pure; the program never needs what only builds dashboards, rules or charts."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import PATIENCE_S

ROOT = Path(__file__).parent.parent
IMPURE = {
    "aiohttp", "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "requests",
    "select", "selectors", "shutil", "signal", "socket", "ssl", "structlog", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib",
}  # fmt: skip
PACKAGE = ROOT / "exporter" / "vllm_vitals"
CORE = sorted((PACKAGE / "core").glob("*.py"))
PROGRAM = sorted(PACKAGE.rglob("*.py"))
# What is for people who build, plan or try: nothing that watches needs it. A command's module may load it when called.
APART = {"rules", "dashboards", "kubernetes", "planner", "simulator", "doctor"}
# Packages that only one part of the program may import; all of them are extras, or heavy.
EXTRAS = {"grafanalib": {"dashboards"}, "promql_parser": {"rules"}, "matplotlib": {"planner"}, "numpy": {"planner"}}


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
        if top(module) == "vllm_vitals":
            assert module.startswith(("vllm_vitals.core", "vllm_vitals.catalog", "vllm_vitals.vllm")), module


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_opens_and_prints_nothing(path: Path) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__", "globals"}


def part(path: Path) -> str:
    """The sub-package that a file is in, or its own name at the top."""
    return path.relative_to(PACKAGE).parts[0]


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_watches_imports_nothing_of_what_plans_builds_or_simulates(path: Path) -> None:
    for module, _ in imports(path):
        assert top(module) not in {"tests", "bench"}, module
        assert part(path) in EXTRAS.get(top(module), {part(path)}), module
        if part(path) not in APART and module.startswith("vllm_vitals."):
            assert module.split(".")[1] not in APART, module


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_charts_load_when_they_are_drawn(path: Path) -> None:
    assert not [module for module, at_import in imports(path) if at_import and top(module) == "matplotlib"]


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_but_the_entry_point_imports_the_command_line(path: Path) -> None:
    if path.name == "__main__.py":
        return
    for module, _ in imports(path):
        assert not module.startswith("vllm_vitals.cli.main"), module


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_named_after_an_idea(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "common", "misc", "types", "constants", "manager"}


def test_a_running_daemon_has_loaded_neither_charts_nor_generators() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import vllm_vitals.daemon, vllm_vitals.cli.run, sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    ).stdout.split()  # fmt: skip
    names = {top(module) for module in loaded}
    assert "aiohttp" in names
    assert not names & {*EXTRAS, "pandas"}
    assert not {module for module in loaded if module.split(".")[1:2] and module.split(".")[1] in APART}


# One process says what help had loaded, then what a whole check of a URL has (nobody answers there).
STARTED = """
import sys
from vllm_vitals.cli import main
for typed in (["check", "--help"], ["check", "http://127.0.0.1:9", "--interval", "50ms"]):
    try:
        main.main(typed)
    except SystemExit:
        print("loaded:", *sys.modules, file=sys.stderr)
"""


def test_help_comes_at_once_and_a_check_of_a_url_loads_nothing_that_it_can_do_without() -> None:
    """What reads a config file took as long as all the rest, of which aiohttp is half."""
    told = subprocess.run(
        [sys.executable, "-c", STARTED], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stderr.splitlines()
    of_help, of_check = ({*line.split()[1:]} for line in told if line.startswith("loaded:"))
    needed = {"aiohttp", "asyncio", "rich", "ssl", "vllm_vitals.core"}
    assert not of_help & {*needed, "orjson"}
    assert of_check >= needed
    files = {"pydantic", "pydantic_core", "yaml", "vllm_vitals.config.loader", "vllm_vitals.scrape.target_manager"}
    daemon = {"aiohttp.web", "jinja2", "prometheus_client", "bcrypt", "structlog", "vllm_vitals.daemon"}
    others = {"requests", "rich.progress", "vllm_vitals.recordings.replay", "vllm_vitals.scrape.fleet"}
    assert not of_check & {*files, *daemon, *others, *EXTRAS, "pandas", "jmespath"}
    assert not {module for module in of_check if module.startswith(("vllm_vitals.logs", "vllm_vitals.serve.page"))}
    assert not {module for module in of_check if module.split(".")[1:2] and module.split(".")[1] in APART}


def test_the_check_of_imports_sees_an_import() -> None:
    seen = dict(imports(PACKAGE / "scrape" / "fetch.py"))
    assert seen["aiohttp"] is True
    assert "vllm_vitals.scrape.target.Target" in seen
