"""Pod, node and team describe a victim: they travel into texts and routes, and never decide who the victim is."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rules import rulesets
from tests.rules.cases import V
from tests.rules.courses import Row, row, states, text_of
from tests.rules.scenario import STEP, document
from tests.rules.tools import promtool_test
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.core.states import State
from vllm_vitals.kubernetes.build import in_cluster

CONFIG = in_cluster(parse_alerts({"alerts": {"routing_labels": ["team"]}}))
SECONDS = 1200


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return rulesets.build(CONFIG, tmp_path_factory.mktemp("described"))


def pod(name: str, address: str, course: Callable[[int], float | None] = lambda at: 1.0) -> Row:
    """What kube-state-metrics says of a pod."""
    cells = ("stale" if (c := course(at)) is None else f"{c:g}" for at in range(0, SECONDS + STEP, STEP))
    labels = f'pod="{name}",node="gpu-{name}",pod_ip="{address}",namespace="models",host_network="false"'
    return {
        "series": f"kube_pod_info{{{labels}}}",
        "values": " ".join(cells),
    }


def engine(address: str, state: State, namespace: str = "models", team: str = "chat") -> list[Row]:
    where = {**V, "target": f"{address}:8000", "namespace": namespace}
    server = {"target": f"{address}:8000", "namespace": namespace, "team": team}
    return [
        *states(lambda at: state if at >= 300 else State.HEALTHY, SECONDS, where),
        row("target_up", lambda at: 1.0, SECONDS, server),
        row("requests_running", lambda at: 9.0 - int(address[-1]), SECONDS, where),
        row("requests_waiting", lambda at: 0.0, SECONDS, where, reason="capacity"),
    ]


def firing(alert: str, severity: str, by: str, at: int, *found: str) -> Mapping[str, Any]:
    """At ``at`` exactly these label sets fire."""
    which = f'ALERTS{{alertname="{alert}",severity="{severity}",alertstate="firing"}}'
    samples = [{"labels": labels, "value": 1} for labels in found]
    return {"expr": f"count by ({by}) ({which})", "eval_time": f"{at}s", "exp_samples": samples}


def verdict(rows: Sequence[Row], checks: Sequence[Mapping[str, Any]], rules: Sequence[str], folder: Path) -> str:
    test = {"interval": f"{STEP}s", "input_series": list(rows), "promql_expr_test": list(checks)}
    return promtool_test(document([test], rules), folder, "described")


def test_a_ticket_carries_pod_and_node_and_its_page_the_team_alone(built: list[str], tmp_path: Path) -> None:
    # the lookup falls silent at 600 s: what it said counts on
    gone = pod("a", "10.0.0.1", lambda at: 1.0 if at < 600 else None)
    rows = [*engine("10.0.0.1", State.STALLED), *engine("10.0.0.2", State.STALLED), gone]
    # two pods of one address: neither is said, and the alert fires all the same
    rows += [pod("b", "10.0.0.2"), pod("c", "10.0.0.2")]
    tickets = '{pod="a",node="gpu-a",team="chat"}', '{team="chat"}'
    checks = [firing("VLLMStalled", "ticket", "pod, node, team", at, *tickets) for at in (540, 1140)]
    page = '{model_name="llama",namespace="models",team="chat"}'
    checks += [firing("VLLMStalled", "page", "model_name, namespace, team, pod", at, page) for at in (540, 1140)]
    assert not verdict(rows, checks, built, tmp_path)
    text = text_of(rows, "VLLMStalled", 540, tmp_path, severity="page", rules=built)
    assert "10.0.0.1:8000 engine 0, pod a, node gpu-a (stalled, 8 requests), 10.0.0.2:8000 engine 0 (stalled" in text


def test_two_namespaces_with_one_model_name_are_two_models(built: list[str], tmp_path: Path) -> None:
    rows = [*engine("10.0.0.1", State.STALLED), *engine("10.0.0.2", State.HEALTHY, "other", "search")]
    page = '{model_name="llama",namespace="models",team="chat"}'
    assert not verdict(rows, [firing("VLLMStalled", "page", "model_name, namespace, team", 540, page)], built, tmp_path)


def test_teams_that_disagree_route_no_page(built: list[str], tmp_path: Path) -> None:
    rows = [*engine("10.0.0.1", State.STALLED), *engine("10.0.0.2", State.STALLED, team="search")]
    assert not verdict(rows, [firing("VLLMStalled", "page", "team", 540, "{}")], built, tmp_path)


def test_one_of_three_pods_that_dies_is_a_ticket(built: list[str], tmp_path: Path) -> None:
    rows = [r for n in range(3) for r in engine(f"10.0.0.{n}", State.DOWN if n == 0 else State.HEALTHY)]
    rows += [pod(str(n), f"10.0.0.{n}") for n in range(3)]
    checks = [
        firing("VLLMEngineDown", "ticket", "pod, node", 1200, '{pod="0",node="gpu-0"}'),
        {"expr": 'ALERTS{severity="page",alertstate="firing"}', "eval_time": "1200s", "exp_samples": []},
    ]
    assert not verdict(rows, checks, built, tmp_path)


def test_a_label_that_has_a_meaning_of_its_own_describes_nothing() -> None:
    with pytest.raises(ConfigError, match=r"alerts.description_labels: instance has a meaning of its own here"):
        parse_alerts({"alerts": {"description_labels": ["pod", "instance"]}})
