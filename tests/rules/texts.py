"""What each alert says when it fires in its case: kept in texts.yml, compared word for word, and read by people.

After a change of wording run `python -m tests.rules.texts`, and read the difference as if woken by it.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.rules import rulesets
from tests.rules.cases import CASES
from tests.rules.scenario import Case, document, simulate, trouble, values
from tests.rules.tools import promtool_test

FILE = Path(__file__).with_name("texts.yml")


def key(case: Case) -> str:
    """How a text is filed."""
    return f"{case.alert} {case.severity}"


def at(case: Case) -> int:
    """When it is read: shortly after it fires."""
    return case.lead + case.after + 60


Text = dict[str, dict[str, str]]  # labels and annotations of one alert


def firing_test(case: Case, expected: Sequence[Text]) -> dict[str, Any]:
    """One promtool test of all alerts of the case's name, word for word."""
    when = at(case)
    rows = [(s, values(s, trouble(case, 10**9), when, case.lead)) for s in case.series]
    one = simulate(f"{key(case)} says what it must", rows, [])
    alerts = [{"exp_labels": e["labels"], "exp_annotations": e["annotations"]} for e in expected]
    alert = {"eval_time": f"{when}s", "alertname": case.alert, "exp_alerts": alerts}
    return {**one, "promql_expr_test": [], "alert_rule_test": [alert]}


def observed(case: Case, rules: Sequence[str], folder: Path) -> list[Text]:
    """Every firing alert of the case's name, from what promtool says when it expected none."""
    said = promtool_test(document([firing_test(case, [])], rules), folder, "text")
    lines = said.partition("  got:[")[2].splitlines()
    labels = [_pairs(line) for line in lines if line.strip().startswith("Labels:{")]
    annotations = [_pairs(line) for line in lines if line.strip().startswith("Annotations:{")]
    named = [{k: v for k, v in one.items() if k != "alertname"} for one in labels]
    return [{"labels": one, "annotations": text} for one, text in zip(named, annotations, strict=True)]


def _pairs(text: str) -> dict[str, str]:
    found = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', text)
    return {name: json.loads(quoted) for name, quoted in found}


def collect() -> dict[str, list[Text]]:
    """What all alerts say now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules = {"default": rulesets.DAEMON, "slo": rulesets.build(rulesets.WITH_SLO, folder)}
        return {key(case): observed(case, rules[case.ruleset], folder) for case in CASES}


class _Dumper(yaml.SafeDumper):
    """Long text as blocks."""


_Dumper.add_representer(
    str, lambda d, v: d.represent_scalar("tag:yaml.org,2002:str", v, style="|" if "\n" in v else None)
)

if __name__ == "__main__":
    FILE.write_text(
        yaml.dump(collect(), Dumper=_Dumper, sort_keys=True, width=10**6, allow_unicode=True), encoding="utf-8"
    )
