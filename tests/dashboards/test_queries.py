"""Every query of every panel runs on a real Prometheus that holds real recordings, for every value of every variable.

A panel that shows nothing there must be named here with the reason, and say so itself in its noValue.
"""

import json
import re
from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any

import pytest

from tests.dashboards import lint
from tests.dashboards.conftest import NAMES
from tests.dashboards.history import SPAN, STEP, Server
from vllm_vitals.core.states import State
from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.no_data import why_not_native
from vllm_vitals.dashboards.promql import drawn
from vllm_vitals.dashboards.site import Site

RIGHTLY_EMPTY = {
    "Samples dropped as impossible": "vLLM said nothing impossible",
    "Groups and silences of Alertmanager": "it has no query: Grafana asks that data source itself",
}
# Options of vLLM that none of the recorded servers had on.
OFF = {"Look-ups in the offloading store", "Residency of KV blocks, median"}
# A query that breaks does so at any moment: a few in the range will do.
FEW = SPAN / 5
PROCESS = {"Memory of the daemon", "CPU of the daemon", "Replicas and versions"}


@pytest.fixture(params=links.TITLES)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(build(Site())[f"{request.param}.json"])
    return built


def run(server: Server, target: dict[str, Any], values: dict[str, str], step: float = STEP) -> list[dict[str, Any]]:
    """The series of a panel's query, as Grafana would ask for them."""
    expr = fill(target["expr"], values, server)
    if target["instant"]:
        return server.ask("query", query=expr, time=server.end)
    return server.ask("query_range", query=expr, start=server.start, end=server.end, step=step)


def fill(expr: str, values: dict[str, str], server: Server) -> str:
    span = int(server.end - server.start)
    built_in = {
        "__rate_interval": f"{4 * STEP}s",
        "__interval": f"{STEP}s",
        "__range_s": str(span),
        "__range": f"{span}s",
    }
    known = built_in | dict.fromkeys(("target", "model_name", "engine", "host", "pod"), ".+") | values
    return re.sub(r"\$([a-z_]\w*)", lambda found: known[found[1]], expr)


def offering(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """The variables that ask which labels there are."""
    return [
        variable
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query" and "label_values" in variable["query"]["query"]
    ]


def choices(server: Server, dashboard: dict[str, Any]) -> Iterator[list[dict[str, str]]]:
    """Without end: All and a value of each variable; in turn, so that the queries of a dashboard see every value."""
    turns = []
    for variable in offering(dashboard):
        query = fill(variable["query"]["query"], {}, server)
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        values = _values(server, series, label)
        assert values, f"variable {variable['name']} offers nothing"
        turns.append(cycle({variable["name"]: re.escape(value).replace("\\", "\\\\")} for value in values))
    while True:
        yield [{}, *(next(turn) for turn in turns)]


def _values(server: Server, series: str, label: str) -> list[str]:
    kept = server.ask("query", query=f"group by ({label}) (last_over_time({series}[10m]))", time=server.end)
    return sorted(one["metric"][label] for one in kept if label in one["metric"])  # type: ignore[index]


def empty_panels(server: Server, dashboard: dict[str, Any]) -> set[str]:
    return {
        panel["title"]
        for panel in lint.panels(dashboard)
        if not any(run(server, target, {}) for target in panel["targets"])
    }


def test_every_panel_shows_something_when_the_daemon_feeds_it(daemon: Server, dashboard: dict[str, Any]) -> None:
    here = {panel["title"] for panel in lint.panels(dashboard)}
    assert empty_panels(daemon, dashboard) == here & set(RIGHTLY_EMPTY)


def test_every_column_of_the_routes_is_filled_where_logs_say_all(daemon: Server) -> None:
    workload = json.loads(build(Site())[f"{links.WORKLOAD}.json"])
    table = next(panel for panel in workload["panels"] if panel["title"] == "Routes at a glance")
    routes = {"natural stop", "cap 64"}
    for target in table["targets"]:
        rows = run(daemon, target, {"model_name": "truncation_mix"})
        assert routes <= {row["metric"].get("route", "") for row in rows}, target["expr"]


def test_without_the_daemon_a_panel_shows_something_or_says_why_not(native: Server, dashboard: dict[str, Any]) -> None:
    empty = empty_panels(native, dashboard) - PROCESS - OFF - set(RIGHTLY_EMPTY)
    unexplained = [
        panel["title"]
        for panel in lint.panels(dashboard)
        if panel["title"] in empty and not any(why_not_native(target["expr"]) for target in panel["targets"])
    ]
    assert unexplained == []


@pytest.mark.parametrize("producer", ["daemon", "native"])
def test_no_value_of_any_variable_breaks_a_query(
    producer: str, dashboard: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(producer)
    marks = (({}, mark | {"instant": False}) for mark in dashboard["annotations"]["list"])
    for (_, target), chosen in zip(chain(lint.queries(dashboard), marks), choices(server, dashboard), strict=False):
        for values in chosen:
            run(server, target, values, FEW)


def test_more_producers_of_the_same_change_no_number(
    daemon: Server, redundant: Server, dashboard: dict[str, Any]
) -> None:
    # Not while a server restarts: there one producer rightly fills a hole of another.
    names = [name for name in NAMES if name != "restart_under_load"]
    # What rules recorded of a model knows no server.
    steady = {"target": "|".join(f"{name}:8000" for name in names), "model_name": "|".join(names)}
    for panel, target in lint.queries(dashboard):
        # What rules recorded was folded by the rules, and is tested there; a chart may only leave engines out by it.
        of_rules = re.search(r"\b(engine|model|pool|target|fleet):", drawn(target["expr"]))
        if panel["title"] not in PROCESS and not of_rules:
            one, many = points(run(daemon, target, steady)), points(run(redundant, target, steady))
            assert one == pytest.approx(many, rel=1e-9, nan_ok=True), f"{panel['title']} {target['refId']}"


def points(series: list[dict[str, Any]]) -> dict[tuple[str, float], float]:
    """Every value by its labels and time."""
    return {
        (json.dumps(one["metric"], sort_keys=True), float(at)): float(value)
        for one in series
        for at, value in one.get("values") or [one["value"]]
    }


@pytest.mark.parametrize("chosen", [{}, {"model_name": "truncation_mix", "engine": "0"}])
def test_a_server_that_never_answered_is_seen_whatever_model_is_chosen(daemon: Server, chosen: dict[str, str]) -> None:
    overview = json.loads(build(Site())[f"{links.OVERVIEW}.json"])
    table = next(panel for panel in overview["panels"] if panel["title"] == "Engines, worst first")
    states = {row["metric"]["target"]: float(row["value"][1]) for row in run(daemon, table["targets"][0], chosen)}
    assert states["silent:8000"] == State.DOWN.rank


def test_a_chosen_engine_is_the_only_one_shown(daemon: Server) -> None:
    engine = json.loads(build(Site())[f"{links.ENGINE}.json"])
    chosen = {"model_name": "dp2_pressure", "engine": "1"}
    shown = {
        (series["metric"].get("model_name", "dp2_pressure"), series["metric"].get("engine", "1"))
        for _, target in lint.queries(engine)
        for series in run(daemon, target, chosen)
        if "model_name" in series["metric"]
    }
    assert shown == {("dp2_pressure", "1")}


def test_marks_tell_when_the_spiral_began(daemon: Server) -> None:
    engine = json.loads(build(Site())[f"{links.ENGINE}.json"])
    marks = {mark["name"]: run(daemon, mark | {"instant": False}, {}) for mark in engine["annotations"]["list"]}
    of_spiral = [one for one in marks["Incidents"] if one["metric"].get("model_name") == "spiral_chunked"]
    assert "death_spiral" in {one["metric"]["state"] for one in of_spiral}
    [change] = [
        one for one in marks["State changes"]
        if one["metric"].get("model_name") == "spiral_chunked" and one["metric"]["state"] == "death_spiral"
    ]  # fmt: skip
    assert all(daemon.start < float(value) / 1000 < daemon.end for _, value in change["values"])
