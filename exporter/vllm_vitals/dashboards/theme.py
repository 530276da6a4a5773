"""The frame of every dashboard, and the only module that knows grafanalib.

Input: rows of panels in our own nouns. Output: a dashboard as plain JSON types, through `grafana_schema`. Invariant:
every dashboard has the same variables, links and grid, and cannot be edited in the UI.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from vllm_vitals.dashboards import links, states
from vllm_vitals.dashboards.grafana_schema import DATASOURCE, modernise
from vllm_vitals.dashboards.panels import COLUMNS, Panel
from vllm_vitals.dashboards.promql import looking_back, metric


@dataclass(frozen=True, slots=True)
class Row:
    """A titled band of panels. ``closed``: its panels ask nothing until somebody opens it."""

    title: str
    panels: tuple[Panel, ...]
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Hidden:
    """A variable that nobody chooses: its name, its query, what of its answer is a value, whether all are taken."""

    name: str
    query: str
    regex: str
    several: bool = False


class _Modern(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    """A panel of any type, given whole as ``extraJson``; grafanalib's own classes stop at Grafana 8."""

    def to_json_data(self) -> dict[str, Any]:
        body: dict[str, Any] = self.panel_json({})
        return body


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on every chart. ``at_value`` means that the sample's value is the time (ms) of the mark."""

    name: str
    expr: str
    colour: str
    title: str
    text: str
    shown: bool = True
    at_value: bool = False


def dashboard(
    uid: str, description: str, rows: Iterable[Row], *, variables: Sequence[str] = ("target", "model_name", "engine"),
    annotations: Iterable[Annotation] = (), since: str = "now-30m", refresh: str = "10s",
    hidden: Iterable[Hidden] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the finished dashboard, as plain JSON types."""
    chosen = [_variable(name, scoped=variables[0] == "target") for name in variables]
    chosen += [_hidden(one) for one in hidden]
    filters = [core.Template(name="filters", label="Filters", type="adhoc", query="")]
    body = core.Dashboard(
        title=links.TITLES[uid],
        uid=uid,
        description=description,
        editable=False,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        tags=["vllm-vitals"],
        timezone="utc",  # as alerts, runbooks and reports: who is woken compares them
        time=core.Time(since, "now"),
        refresh=refresh,
        annotations=core.Annotations([_annotation(each) for each in annotations]),
        templating=core.Templating([_datasource(), *chosen, *filters]),
        links=[_link(other) for other in links.TITLES if other != uid],
        panels=_flow(rows),
    )
    return modernise(json.loads(json.dumps(body, cls=DashboardEncoder, sort_keys=True)))


def _datasource() -> core.Template:
    return core.Template(name="datasource", label="Data source", type="datasource", query="prometheus")


def _link(uid: str) -> core.DashboardLink:
    """Return a link that takes time and choices along; but Engine chooses a server by itself: the worst."""
    path, whole = f"/d/{uid}", uid != links.ENGINE
    if not whole:
        path += "?${datasource:queryparam}&${model_name:queryparam}"
    title = links.TITLES[uid].rpartition(" · ")[2]
    return core.DashboardLink(title=title, type="link", uri=path, includeVars=whole, keepTime=True, icon="dashboard")


def _worst_first() -> core.Template:
    """Return the servers of the models chosen, worst first; one is chosen, since every chart is a line an engine."""
    ranks = looking_back(states.of_servers())
    return core.Template(
        name="target", label="Server", query=f"query_result(sort({ranks}))", sort=core.SORT_DISABLED,
        regex='/target="([^"]+)"/', includeAll=False, multi=True, refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )  # fmt: skip


def _hidden(of: Hidden) -> core.Template:
    """Return a variable that nobody sees; all that its query finds, or the one number for a title."""
    return core.Template(
        name=of.name, label=of.name, query=f"query_result({of.query})", regex=of.regex, includeAll=of.several,
        multi=of.several, refresh=core.REFRESH_ON_TIME_RANGE_CHANGE, hide=core.HIDE_VARIABLE,
    )  # fmt: skip


def _variable(name: str, *, scoped: bool) -> core.Template:
    """Return a variable; ``scoped``: models are those of the servers chosen."""
    labels = {"target": "Server", "model_name": "Model", "engine": "Engine"}
    if name == "worst target":
        return _worst_first()
    if name == "target":
        query = f"label_values({metric('target_up').full_name}, target)"
    else:
        chosen = 'target=~"$target"' if name == "engine" or scoped else ""
        chosen += ', model_name=~"$model_name"' if name == "engine" else ""
        query = f"label_values({metric('state').full_name}{{{chosen}}}, {name})".replace("{}", "")
    return core.Template(
        name=name, label=labels[name], query=query, includeAll=True, multi=True, allValue=".+",
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )  # fmt: skip


def _annotation(mark: Annotation) -> dict[str, Any]:
    return {
        "name": mark.name, "iconColor": mark.colour, "enable": mark.shown, "hide": False, "datasource": DATASOURCE,
        "expr": mark.expr, "step": "10s",
        "titleFormat": mark.title, "textFormat": mark.text, "tagKeys": "state", "useValueForTime": mark.at_value,
    }  # fmt: skip


def _flow(rows: Iterable[Row]) -> list[core.Panel]:
    """Lay rows and panels onto the 24-column grid from left to right; a band is as high as its highest panel."""
    placed, y = [], 0
    for row in rows:
        inner, height = _band(row.panels, y + 1)
        placed.append(
            core.RowPanel(
                id=links.panel_id(f"row {row.title}"), title=row.title, gridPos=core.GridPos(1, COLUMNS, 0, y),
                collapsed=row.closed, panels=inner if row.closed else [],
            )
        )  # fmt: skip
        placed += [] if row.closed else inner
        y += 1 if row.closed else 1 + height
    return placed


def _band(panels: Iterable[Panel], top: int) -> tuple[list[core.Panel], int]:
    """Return a row's panels from ``top`` on, and how high they are together."""
    placed, y, x, height = [], top, 0, 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            y, x, height = y + height, 0, 0
        placed.append(_place(panel, x, y))
        x, height = x + panel.width, max(height, panel.height)
    return placed, y + height - top


def _place(panel: Panel, x: int, y: int) -> core.Panel:
    targets = [
        core.Target(
            expr=looking_back(query.expr) if query.instant else query.expr,
            legendFormat=query.legend,
            refId=chr(ord("A") + place),
            instant=query.instant,
            format=query.format,
        )
        for place, query in enumerate(panel.queries)
    ]
    return _Modern(
        id=links.panel_id(panel.title), title=panel.title, description=panel.why, targets=targets,
        gridPos=core.GridPos(panel.height, panel.width, x, y), transformations=list(panel.transformations),
        extraJson={
            "type": panel.kind, "options": panel.options,
            "fieldConfig": {
                "defaults": {"unit": panel.unit, "noValue": panel.empty} | panel.defaults,
                "overrides": list(panel.overrides),
            },
        },
    )  # fmt: skip
