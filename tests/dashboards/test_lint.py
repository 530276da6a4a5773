"""Every dashboard, as committed and as built for each kind of Prometheus, holds to the rules of `lint`."""

import json
from typing import Any

import pytest

from tests.dashboards import lint
from vllm_vitals.config.alerts import Config
from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site

SITES = {
    "daemon and native": Site(),
    "daemon alone": Site(native=False),
    "native alone": Site(daemon=False),
    "wider identity": Site(config=Config(identity_labels=("cluster", "namespace"))),
}


@pytest.fixture(params=SITES, scope="module")
def site(request: pytest.FixtureRequest) -> Site:
    return SITES[request.param]


@pytest.fixture(params=links.TITLES, scope="module")
def uid(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def dashboard(site: Site, uid: str) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(build(site)[f"{uid}.json"])
    return built


def test_the_dashboard_says_who_it_is_and_cannot_be_edited(uid: str, dashboard: dict[str, Any]) -> None:
    assert lint.identity_faults(uid, dashboard) == []


def test_variables_are_whole_and_used(dashboard: dict[str, Any]) -> None:
    assert lint.variable_faults(dashboard) == []


def test_every_panel_explains_itself(dashboard: dict[str, Any]) -> None:
    assert [fault for panel in lint.panels(dashboard) for fault in lint.panel_faults(panel)] == []


def test_panels_lie_side_by_side_and_keep_their_ids(dashboard: dict[str, Any]) -> None:
    assert lint.layout_faults(dashboard) == []


def test_every_query_parses_and_reads_only_what_is_served(dashboard: dict[str, Any]) -> None:
    assert [fault for where, expr in lint.expressions(dashboard) for fault in lint.query_faults(where, expr)] == []


def test_legends_name_labels_that_the_query_keeps(dashboard: dict[str, Any]) -> None:
    assert [fault for panel, target in lint.queries(dashboard) for fault in lint.legend_faults(panel, target)] == []


def test_the_first_row_asks_the_question_of_the_dashboard(dashboard: dict[str, Any]) -> None:
    first = dashboard["panels"][0]
    assert first["type"] == "row"
    if dashboard["uid"] == links.OVERVIEW:
        assert first["title"] == "Are users affected?"


def test_dashboards_link_to_each_other(dashboard: dict[str, Any]) -> None:
    led = {link["url"].removeprefix("/d/").partition("?")[0]: link for link in dashboard["links"]}
    assert set(led) == set(links.TITLES) - {dashboard["uid"]}
    assert all(link["keepTime"] for link in led.values())
    # Engine opens with the worst server of the model, so it is not told of All.
    assert {uid for uid, link in led.items() if not link["includeVars"]} == {links.ENGINE} - {dashboard["uid"]}


@pytest.mark.parametrize("fault", [
    "sum(vllm_vitals_requests_running{target=~\"$target\", model_name=~\"$model_name\", engine=~\"$engine\"})",
    "max by (target) (vllm_vitals_no_such_thing)",
    "max by (target) (vllm_vitals_requests_running)  and (",
    "max by (target) (vllm_vitals_requests_running{target=~\"$target\"})",
    "max by (target) (rate(vllm_vitals_preemptions_total{target=~\"$target\", model_name=~\"$model_name\", "
    "engine=~\"$engine\"}[$__interval]))",
    "max by (target) (vllm_vitals_preemptions_total{target=~\"$target\", model_name=~\"$model_name\", "
    "engine=~\"$engine\"})",
])  # fmt: skip
def test_the_linter_finds_what_it_is_for(fault: str) -> None:
    assert lint.query_faults("here", fault)
