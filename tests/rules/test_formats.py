"""`rules build --format`: the same rules for every system that takes them."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.typed import typed
from vllm_vitals.config.alerts import Config
from vllm_vitals.rules import readme
from vllm_vitals.rules.build import outputs
from vllm_vitals.rules.formats import FORMATS
from vllm_vitals.rules.grafana_managed import text

SCHEMAS = Path(__file__).parents[1] / "data" / "kubernetes"
Document = dict[str, Any]


@cache
def built(form: str) -> dict[str, Document]:
    files = {name: words for name, words in outputs(Config(), form=form).items() if name.endswith(".yml")}
    return {name: yaml.load(words, yaml.CSafeLoader) for name, words in files.items()}


def rules(document: Document) -> list[Document]:
    groups = document["spec"]["groups"] if "spec" in document else document["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("form", ["operator", "victoria-metrics", "mimir"])
def test_rules_are_the_same_in_every_wrapping(form: str) -> None:
    for name in ("recording.yml", "alerts.yml", "native.yml"):
        document = built(form)[name]
        assert document.get("spec", document)["groups"] == built("prometheus")[name]["groups"]
        if (schema := SCHEMAS / f"{document.get('kind')}.json").exists():
            jsonschema.validate(document, json.loads(schema.read_text()))


def test_mimir_gets_a_namespace_a_file_and_groups_within_its_default_limit() -> None:
    names = [built("mimir")[name]["namespace"] for name in ("recording.yml", "alerts.yml", "native.yml")]
    assert names == ["vllm-vitals-recording", "vllm-vitals-alerts", "vllm-vitals-native"]
    for name in ("recording.yml", "alerts.yml", "native.yml"):
        groups = built("mimir")[name]["groups"]
        assert all(len(group["rules"]) <= 20 for group in groups)
        assert len({group["name"] for group in groups}) == len(groups)


def grafana() -> list[Document]:
    return rules(built("grafana")["grafana-alerts.yml"])


def test_grafana_takes_the_file_and_each_alert_once() -> None:
    jsonschema.validate(
        built("grafana")["grafana-alerts.yml"], json.loads((SCHEMAS / "GrafanaAlertRules.json").read_text())
    )
    assert "alerts.yml" not in built("grafana")
    for key in ("uid", "title"):
        assert len({rule[key] for rule in grafana()}) == len(grafana())


def test_grafana_judges_the_same_expression_and_any_answer_of_it_is_an_alert() -> None:
    for ours, theirs in zip(rules(built("prometheus")["alerts.yml"]), grafana(), strict=True):
        asked, any_value, fires = (query["model"] for query in theirs["data"])
        assert asked["expr"].replace("$$", "$") == ours["expr"]
        assert any_value["expression"] == "is_number($$A) || is_nan($$A) || is_inf($$A)"
        assert (theirs["condition"], fires["expression"]) == ("C", "B")
        assert (theirs["for"], theirs.get("keepFiringFor")) == (ours.get("for", "0s"), ours.get("keep_firing_for"))
        assert theirs["labels"] == ours["labels"]


def test_no_text_for_grafana_asks_and_every_block_ends() -> None:
    for rule in grafana():
        for name, words in rule["annotations"].items():
            actions = re.findall(r"\{\{-?\s*(\w+)?", words)
            opened = sum(action in ("with", "range", "if") for action in actions)
            assert opened == actions.count("end"), (rule["title"], name, words)
            assert not re.search(r"\| (query|first)\b|sortByLabel|\$value\b|No number is at hand", words), words
        assert rule["annotations"]["dashboard_url"].startswith("http")
        assert len(rule["annotations"]["summary"]) > 10


@pytest.mark.parametrize(
    ("prometheus", "expected"),
    [
        ("{{ with `up` | query }}a {{ . | first | value }}{{ else }}b{{ end }}.", "b."),
        ("x{{ with `up{a=\"}}\"}` | query }}{{ range . }}{{ .Value }}{{ end }}{{ end }}y", "xy"),
        ("{{ if $labels.a }}1{{ else if $labels.b }}2{{ else }}3{{ end }}", None),
        ("{{ with $labels.a }}{{ with `q` | query }}n{{ else }}m{{ end }}{{ end }}", "{{ with $labels.a }}m{{ end }}"),
        ("{{ $e := printf `a=%q` $labels.a }}{{ $value | humanize }}", "{{ $values.A.Value | humanize }}"),
        ("{{ $e := `` }}{{ $e }}", None),
        ("plain", None),
    ],
)  # fmt: skip
def test_questions_give_way_to_what_stands_for_no_answer(prometheus: str, expected: str | None) -> None:
    assert text(prometheus) == (prometheus if expected is None else expected)


@pytest.mark.parametrize("form", FORMATS)
def test_the_readme_names_the_files_that_are_there(form: str) -> None:
    words = readme.render(built(form), form)
    assert {name for name in built(form) if f"`{name}`" in words} == set(built(form))
    assert not [name for name in re.findall(r"\| `([\w-]+\.yml)`", words) if name not in built(form)]


def test_the_option_is_typed_and_a_format_that_there_is_not_is_one_line(tmp_path: Path) -> None:
    assert typed("rules", "build", "--format", "grafana", "-o", tmp_path).exit_code == 0
    assert (tmp_path / "grafana-alerts.yml").exists()
    assert typed("rules", "check", "--format", "grafana", "-o", tmp_path).exit_code == 0
    done = typed("rules", "build", "--format", "nagios", "-o", tmp_path)
    assert done.exit_code == 2
    assert "'nagios' is not one of" in done.stderr
