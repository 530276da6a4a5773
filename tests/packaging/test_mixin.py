"""The Jsonnet mixin, rendered by go-jsonnet: nothing but what was generated, in a site's words."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import missing
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.rules.build import rules
from vllm_vitals.rules.model import groups_dict

ROOT = Path(__file__).parents[2]
MIXIN = ROOT / "deploy" / "mixin" / "mixin.libsonnet"
Document = dict[str, Any]


@lru_cache
def rendered(config: str = "{}", dashboards: bool = False) -> Document:
    """Alerts, rules and, where wanted, dashboards."""
    try:
        import _gojsonnet
    except ImportError:
        missing("go-jsonnet as a library is not here: pip install gojsonnet (x86-64 Linux)")
    more = "+ { dashboards: m.grafanaDashboards }" if dashboards else ""
    mixin = f"local m = (import '{MIXIN}') + {{ _config+:: {config} }};"
    text = f"{mixin} {{ a: m.prometheusAlerts, r: m.prometheusRules }} {more}"
    return json.loads(_gojsonnet.evaluate_snippet("test", text))  # type: ignore[no-any-return]


def read(name: str) -> Document:
    document: Document = yaml.load((ROOT / name).read_text(), yaml.CSafeLoader)
    return document


def test_as_it_is_it_holds_what_was_generated() -> None:
    made = rendered(dashboards=True)
    assert made["a"] == read("alerts/alerts.yml")
    assert made["r"] == read("alerts/recording.yml")
    files = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
    assert made["dashboards"] == files


def test_without_a_daemon_it_records_the_series_and_leaves_out_what_needs_one() -> None:
    made = rendered("{ mode: 'native' }")
    assert made["a"] == read("deploy/kubernetes/chart/alerts-native.yml")
    assert made["r"]["groups"] == read("alerts/native.yml")["groups"] + read("alerts/recording.yml")["groups"]


def test_its_keys_mean_what_they_mean_in_a_config_file() -> None:
    said = {
        "grafana_url": "https://grafana.example/", "runbook_base": "https://runbooks.example/vllm/",
        "severity_labels": {"page": "critical", "ticket": "warning"}, "team": "serving",
    }  # fmt: skip
    config = parse_alerts({"alerts": said})
    built = groups_dict(rules(config, frozenset({"daemon"}))["alerts"])
    assert rendered(json.dumps(said))["a"] == built
    assert built != read("alerts/alerts.yml")


def test_alerts_are_left_out_by_name_and_files_of_ones_own_take_the_place_of_ours() -> None:
    made = rendered("{ without_alerts: ['VLLMOverload'] }")
    names = [rule["alert"] for group in made["a"]["groups"] for rule in group["rules"]]
    assert "VLLMOverload" not in names
    assert "VLLMDeathSpiral" in names
    own = "{ sources+: { recording: 'groups: [{name: own, rules: []}]' } }"
    assert [group["name"] for group in rendered(own)["r"]["groups"]] == ["own"]


def test_a_mode_that_there_is_not_is_named() -> None:
    with pytest.raises(RuntimeError, match="expected daemon, native or both, got nativ"):
        rendered("{ mode: 'nativ' }")
