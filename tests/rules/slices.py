"""Of the rules under test, those that a promtool test asks about: the others are evaluated for nothing.

What a test asks decides: the names in its queries, the alerts in its selectors of ``ALERTS``, and what those read in
turn, in expressions and texts. Where a query names no alert and no series, every rule stays.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
ALERTS = re.compile(r"\bALERTS(?:_FOR_STATE)?\b(?:\{([^}]*)\})?")
ALERT = re.compile(r'alertname="([^"]+)"')

Group = Mapping[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@lru_cache(maxsize=64)
def _groups(text: str) -> Sequence[Group]:
    groups: Sequence[Group] = yaml.load(text, LOADER)["groups"]  # a safe loader, either of them
    return groups


def _name(rule: Mapping[str, Any]) -> str:
    return rule.get("record") or rule["alert"]


def _asked(test: Mapping[str, Any]) -> Iterator[str | None]:
    """Names that a test asks about; None where it asks about whatever there is."""
    yield from (asked["alertname"] for asked in test.get("alert_rule_test", ()))
    for asked in test.get("promql_expr_test", ()):
        yield from _read(asked["expr"])


def _read(text: str) -> Iterator[str | None]:
    """Names in a query or a text."""
    if "__name__" in text:
        yield None
    for selector in ALERTS.finditer(text):
        alert = ALERT.search(selector[1] or "")
        yield alert[1] if alert else None
    yield from NAME.findall(text)


@lru_cache(maxsize=64)
def _reads(texts: Sequence[str]) -> Mapping[str, frozenset[str | None]]:
    """Of each rule what it reads: by name, of all rules of that name."""
    found: dict[str, frozenset[str | None]] = {}
    for rule in (rule for text in texts for group in _groups(text) for rule in group["rules"]):
        written = " ".join([rule["expr"], *rule.get("annotations", {}).values()])
        found[_name(rule)] = found.get(_name(rule), frozenset()) | frozenset(_read(written))
    return found


def apart(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A promtool test file as several, each with the tests that ask about the same rules.

    In place of the paths in ``rule_files`` stand the files' contents, without the rules that nothing asks about. Rules
    keep their order and groups theirs; a group or file of none is left out.
    """
    texts = tuple(Path(name).read_text(encoding="utf-8") for name in document["rule_files"])
    reads, tests = _reads(texts), dict[frozenset[str], list[Mapping[str, Any]]]()
    for test in document["tests"]:
        tests.setdefault(_wanted(test, reads), []).append(test)
    for wanted, some in tests.items():
        files = [{"groups": groups} for text in texts if (groups := list(_without(_groups(text), wanted)))]
        there = {group["name"] for file in files for group in file["groups"]}
        order = [name for name in document.get("group_eval_order", ()) if name in there]
        yield {**document, "rule_files": files, "group_eval_order": order, "tests": some}


def _wanted(test: Mapping[str, Any], reads: Mapping[str, frozenset[str | None]]) -> frozenset[str]:
    wanted, ahead = set[str](), list(_asked(test))
    while ahead:
        name = ahead.pop()
        if name is None:
            return frozenset(reads)
        if name in reads and name not in wanted:
            wanted.add(name)
            ahead += reads[name]
    return frozenset(wanted)


def _without(groups: Iterable[Group], wanted: frozenset[str]) -> Iterator[Group]:
    for group in groups:
        if kept := [rule for rule in group["rules"] if _name(rule) in wanted]:
            yield {**group, "rules": kept}
