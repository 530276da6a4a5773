"""Alerts about the exporters themselves: in Kubernetes, when all of them are gone, and for how long that is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rules import rulesets
from tests.rules.courses import firing, text_of, verdict
from tests.rules.scenario import STEP, document
from tests.rules.tools import promtool_test
from vllm_vitals.config.alerts import Config
from vllm_vitals.kubernetes.objects import Site, everything

INFO = 'vllm_vitals_build_info{job="vllm-vitals",instance="NAME",version="0.1.0",python="3.11"}'
DOWN = ("VLLMExporterDown", "ticket")


def test_the_job_that_kubernetes_gives_the_exporters_is_the_one_that_the_rules_ask_for() -> None:
    objects = everything(Site("", shards=2, replicas=2))
    (monitor,) = (one["spec"] for one in objects if one["kind"] == "PodMonitor")
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in objects if one["kind"] == "Deployment"]
    assert len(pods) == 2
    assert {labels[monitor["jobLabel"]] for labels in pods} == {Config().exporter_job}


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_exporters_that_prometheus_no_longer_knows_are_told_by_their_number(names: list[str], tmp_path: Path) -> None:
    rows = [{"series": INFO.replace("NAME", name), "values": "1x40 stale"} for name in names]
    checks = [firing(*DOWN, at, at >= 615 + 300) for at in range(0, 1800, STEP)]
    assert not verdict(rows, checks, tmp_path)
    text = text_of(rows, "VLLMExporterDown", 1800, tmp_path, severity="ticket")
    assert f"exporters within 30 days, where none is left: {len(names)}." in text
    assert "unknown" not in text


def test_exporters_that_all_refuse_are_counted(tmp_path: Path) -> None:
    up = [{"series": f'up{{job="vllm-vitals",instance="{name}"}}', "values": "1x40 0x80"} for name in "ab"]
    assert "exporters that answer: 0.\nexporters that do not answer: 2." in text_of(
        up, "VLLMExporterDown", 1500, tmp_path
    )


def test_that_no_exporter_is_left_is_said_for_days_and_where_none_ever_ran_never(tmp_path: Path) -> None:
    slow = rulesets.build(replace(Config(), evaluation_seconds=300), tmp_path)
    for row, hours, fires in ((INFO, (1, 25, 96), True), ('up{job="vllm"}', (25,), False)):
        checks = [firing(*DOWN, 3600 * hour, fires) for hour in hours]
        rows = [{"series": row, "values": "1 1 1 stale"}]
        test = {"interval": "300s", "input_series": rows, "promql_expr_test": checks}
        assert not promtool_test(document([test], slow, 300), tmp_path, "days")
