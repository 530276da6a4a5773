"""What people read keeps to the field's words; the glossary explains those that are ours.

Banned are words that made texts read as a tale, or hid who does what: a reader at 03:00 wants a quantity, a value and a
threshold. Ordinary English in comments and docstrings is not looked at.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.edges.test_help import commands
from vllm_vitals.catalog import METRICS
from vllm_vitals.core.states import SPECS
from vllm_vitals.simulator.scenarios import SCENARIOS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "exporter" / "vllm_vitals"
# word -> what to write instead
BANNED = {
    r"told": "configured, reported, known from",
    r"nobody|somebody|everybody|anybody|whoever": "users, requests, clients, or no subject at all",
    r"brewing": "pending",
    r"eases|it eases": "recovering",
    r"last in line": "estimated queue wait",
    r"at a stretch|stretch(es)?": "period, part, continuously",
    r"mishaps?": "fault, error",
    r"foretells?|foretold": "predicts, predicted",
    r"fits? alike": "fits equally well",
    r"in vain": "without response",
    r"hears?": "receives, counts",
    r"the worst engine speaks": "reflects the worst engine",
    r"(a|one|this|last|each) look": "a check, one read, the last scrape",
    r"cut at (a|the) cap": "truncated at cap",
    r"say(s)? aloud": "log, print",
}
PATTERN = re.compile("|".join(rf"\b({word})\b" for word in BANNED), re.IGNORECASE)


def documents() -> Iterator[tuple[str, str]]:
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "config.example.yaml"]):
        yield str(path.relative_to(ROOT)), path.read_text()


def helps() -> Iterator[tuple[str, str]]:
    for path, command in commands():
        options = (option.help or "" for option in command.params if isinstance(option, click.Option))
        yield " ".join(("vllm-vitals", *path, "--help")), "\n".join((command.help or "", *options))


def metrics() -> Iterator[tuple[str, str]]:
    yield "HELP", "\n".join(f"{metric.help} {metric.why_not_native}" for metric in METRICS)


def states() -> Iterator[tuple[str, str]]:
    yield "states", "\n".join(f"{spec.label} {spec.headline}" for spec in SPECS.values())


def dashboards() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "dashboards").glob("*.json")):
        yield path.name, "\n".join(strings(json.loads(path.read_text())))


def strings(node: Any) -> Iterator[str]:
    """The titles, descriptions and labels in a dashboard, not its queries."""
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, str) and key in {"title", "description", "text", "noValue", "displayName", "label"}:
                yield value
            else:
                yield from strings(value)
    elif isinstance(node, list):
        for each in node:
            yield from strings(each)


def templates() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("templates/*")):
        yield (
            str(path.relative_to(PACKAGE)),
            re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", "", path.read_text(), flags=re.S),
        )


def scenarios() -> Iterator[tuple[str, str]]:
    yield "simulate --list", "\n".join(scenario.summary for scenario in SCENARIOS)


def literals() -> Iterator[tuple[str, str]]:
    """The texts in code that makes what people read: evidence, advice, unknowns, errors of a config, terminal."""
    for folder in (
        "cli",
        "config",
        "core",
        "kubernetes",
        "logs",
        "planner",
        "recordings",
        "scrape",
        "serve",
        "simulator",
    ):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            yield str(path.relative_to(PACKAGE)), "\n".join(texts(ast.parse(path.read_text())))


def texts(tree: ast.Module) -> Iterator[str]:
    """Every string of a module that is no docstring."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    docstrings = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


SOURCES = (documents, helps, metrics, states, dashboards, templates, scenarios, literals)
TEXTS = [text for source in SOURCES for text in source()]


@pytest.mark.parametrize(("name", "text"), TEXTS, ids=[name for name, _ in TEXTS])
def test_a_text_keeps_to_the_field_s_words(name: str, text: str) -> None:
    found = [f"{number}: {line.strip()}" for number, line in enumerate(text.split("\n"), 1) if PATTERN.search(line)]
    assert not found, f"{name}: say it as BANNED has it:\n" + "\n".join(found)


def test_the_list_finds_what_it_bans() -> None:
    for text in ("nobody was told", "it eases", "the last in line waits", "12% are cut at a cap", "a long stretch"):
        assert PATTERN.search(text), text
    for text in ("look at the queue", "the query says which", "a heartbeat", "stretched", "the looked-up tokens"):
        assert not PATTERN.search(text), text
