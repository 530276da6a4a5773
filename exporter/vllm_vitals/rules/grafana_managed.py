"""Alerts that Grafana itself evaluates, as one file for its provisioning folder.

Input: groups of alerts. Output: a document of `apiVersion: 1`. Invariant: what any answer of an expression means is
kept (each series is an alert, whatever its value), and no text asks what Grafana's templates cannot answer: they know
no `query`, so numbers stand on the dashboard that an alert links to.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from vllm_vitals.rules.model import Alert, Group, rule_dict

DATASOURCE = "prometheus"  # the uid of the data source that holds the series
FOLDER = "vLLM"
_TICK_S = 10  # Grafana's scheduler: an interval that is no multiple is refused
_SINCE_S = 600
_TOKEN = re.compile(r"""(\{\{(?:`[^`]*`|"(?:[^"\\]|\\.)*"|(?!\}\}).)*\}\})""", re.DOTALL)
_OPENS = ("with", "range", "if")
_ANY_VALUE = "is_number($A) || is_nan($A) || is_inf($A)"
# What our texts say where Prometheus gives no answer, and what is said where it cannot be asked.
_UNANSWERED = {
    "No number is at hand: Prometheus answers nothing.": "The numbers stand on the dashboard.",
    "Worst first: not known any more.\n": "",
}
_DEFINES = re.compile(r"\{\{ (\$[emt]) := [^}]*?(?:`[^`]*`[^}]*?)*\}\}")


def document(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the file's content. Recording rules are left out: Prometheus keeps them."""
    made, seen = [], Counter[str]()
    for group in groups:
        rules = []
        for alert in (rule for rule in group.rules if isinstance(rule, Alert)):
            seen[alert.name] += 1
            rules.append(_rule(alert, seen[alert.name]))
        interval = f"{_TICK_S * ceil(group.interval / _TICK_S)}s"
        made.append({"orgId": 1, "name": group.name, "folder": FOLDER, "interval": interval, "rules": rules})
    return {"apiVersion": 1, "groups": made}


def _rule(alert: Alert, number: int) -> dict[str, Any]:
    """Return one rule. A folder holds a title once: the second of a name, such as a page's ticket, has its number."""
    plain = rule_dict(alert)
    rule = {
        "uid": alert.name + (f"-{number}" if number > 1 else ""),
        "title": alert.name + (f" {number}" if number > 1 else ""),
        "condition": "C",
        "data": [
            _query("A", DATASOURCE, {"expr": plain["expr"], "instant": True, "range": False}),
            _query("B", "__expr__", {"type": "math", "expression": _ANY_VALUE}),
            _query("C", "__expr__", {
                "type": "threshold", "expression": "B",
                "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
            }),
        ],
        # a Prometheus that is gone is no incident of vLLM: it has an alert of its own
        "noDataState": "OK",
        "execErrState": "Error",
        "missing_series_evals_to_resolve": 1,
        "for": plain.get("for", "0s"),
    }  # fmt: skip
    if "keep_firing_for" in plain:
        rule["keepFiringFor"] = plain["keep_firing_for"]
    return rule | {
        "labels": plain["labels"],
        "annotations": {name: text(words) for name, words in plain["annotations"].items()},
    }


def _query(ref: str, datasource: str, model: dict[str, Any]) -> dict[str, Any]:
    # Grafana fills variables of its environment into a model, and into nothing else here: $$ is a dollar sign
    escaped = {key: value.replace("$", "$$") if isinstance(value, str) else value for key, value in model.items()}
    return {
        "refId": ref,
        "datasourceUid": datasource,
        "relativeTimeRange": {"from": _SINCE_S if datasource == DATASOURCE else 0, "to": 0},
        "model": {"refId": ref, **escaped},
    }


def text(template: str) -> str:
    """Return a template of Prometheus as Grafana's: without questions, and with the value that is a number there."""
    kept = "".join(_kept(iter(_TOKEN.split(template)))[0]).replace("$value", "$values.A.Value")
    for said, instead in _UNANSWERED.items():
        kept = kept.replace(said, instead)
    unused = [m for m in _DEFINES.finditer(kept) if kept.count(m[1]) == 1]
    for match in reversed(unused):
        kept = kept[: match.start()] + kept[match.end() :]
    return kept


def _kept(tokens: Iterator[str]) -> tuple[list[str], str]:
    """Return what is left of a block and the token that ended it; of a block that asks, what stands after `else`."""
    out: list[str] = []
    for token in tokens:
        words = token[2:-2].split(maxsplit=1) if token.startswith("{{") else []
        if words and words[0] in _OPENS:
            body, end = _kept(tokens)
            if not token.endswith("| query }}"):
                out += [token, *body, end]
                while "else" in end:
                    body, end = _kept(tokens)
                    out += [*body, end]
            elif "else" in end:
                body, _ = _kept(tokens)
                out += body
        elif words and words[0] in ("else", "end"):
            return out, token
        else:
            out.append(token)
    return out, ""
