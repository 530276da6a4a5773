"""Rules of very large fleets, cut by one identity label: each shard reads the series of its own servers alone.

Input: groups by file name, a label and values of it. Output: files ``<name>.<value>`` for each value, ``<name>.rest``
for every other, and under the plain name what is about the whole fleet. Invariants: each series is in exactly one
shard, since the label is on all of them and in every identity; a model is never cut, as its label is part of its name.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from vllm_vitals.catalog import METRICS
from vllm_vitals.config.alerts import Config
from vllm_vitals.rules.lint import metrics_of
from vllm_vitals.rules.model import Alert, Group, Recording, Scope
from vllm_vitals.vllm.lookup import is_known, stem
from vllm_vitals.vllm.routes import HTTP_REQUESTS

Files = Mapping[str, tuple[Group, ...]]
REST = "rest"
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# Prometheus' own, which carry the labels of the server that it scrapes.
_SCRAPED = {"up", f"{HTTP_REQUESTS}_total"}
_OURS = {metric.full_name for metric in METRICS if "target" in metric.all_labels}


class ShardError(ValueError):
    """Shards that cannot be: one line that names the mend."""


def asked(config: Config, given: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the label and its values from ``LABEL=VALUE``, ...; ("", ()) where none is given. Raises ShardError."""
    pairs = [one.partition("=") for one in given]
    labels = {label for label, _, _ in pairs}
    for label, _, value in pairs:
        if not _VALUE.fullmatch(value) or value == REST:
            raise ShardError(f"--shard {label}={value}: give LABEL=VALUE of letters, digits, '.', '_', '-'; not {REST}")
        if label not in config.identity_labels:
            raise ShardError(f"--shard {label}={value}: {label} is none of alerts.identity_labels: add it there first")
    if len(labels) > 1:
        raise ShardError(f"--shard: one label cuts a fleet, got {', '.join(sorted(labels))}")
    if len(set(given)) < len(given):
        raise ShardError("--shard: the same value twice")
    return (next(iter(labels), ""), tuple(value for _, _, value in pairs))


def cut(config: Config, files: Files, label: str, values: Sequence[str]) -> dict[str, tuple[Group, ...]]:
    """Return the files of every shard, and those of the whole fleet."""
    matchers = {value: f"{label}={json.dumps(value)}" for value in values}
    # every other value, and none
    others = "|".join(re.escape(value) for value in values)
    matchers[REST] = f"{label}!~{json.dumps(others)}" if len(values) > 1 else f"{label}!={json.dumps(values[0])}"
    wide = _only(files, _of_the_fleet)
    found = {name: groups for name, groups in wide.items() if groups}
    narrow = _only(files, lambda rule: not _of_the_fleet(rule))
    recorded = {r.record for groups in files.values() for g in groups for r in g.rules if isinstance(r, Recording)}
    for value, matcher in matchers.items():
        for name, groups in narrow.items():
            found[f"{name}.{value}"] = tuple(_shard(config, group, value, matcher, recorded) for group in groups)
    return found


def _of_the_fleet(rule: Alert | Recording) -> bool:
    """Whether a rule's output belongs to no model and no server."""
    return rule.scope is Scope.FLEET if isinstance(rule, Alert) else rule.record.startswith("fleet:")


def _only(files: Files, wanted: Callable[[Alert | Recording], bool]) -> dict[str, tuple[Group, ...]]:
    """Return the rules that are wanted, without groups that have none."""
    kept = {
        name: tuple(replace(group, rules=tuple(filter(wanted, group.rules))) for group in groups)
        for name, groups in files.items()
    }
    return {name: tuple(group for group in groups if group.rules) for name, groups in kept.items()}


def _shard(config: Config, group: Group, value: str, matcher: str, recorded: set[str]) -> Group:
    def labelled(name: str) -> bool:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        raw = name.startswith(config.spellings) and is_known(stem(name))
        ours = name in _OURS or base in _OURS or (name in recorded and not name.startswith("fleet:"))
        return ours or raw or name in _SCRAPED

    def narrowed(expr: str) -> str:
        names = set[str]()
        with suppress(ValueError):
            names = {name for name in metrics_of(expr) if labelled(name)}
        for name in names:
            plain = re.compile(rf"(?<![\w:\"]){re.escape(name)}(?![\w:\"])(\{{)?")
            expr = plain.sub(lambda found: f"{found[0].rstrip('{')}{{{matcher}{',' if found[1] else '}'}", expr)
        return expr

    rules = tuple(replace(rule, expr=narrowed(rule.expr)) for rule in group.rules)
    return replace(group, name=f"{group.name}.{value}", rules=rules)
