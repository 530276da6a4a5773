"""The look of every dashboard, and the only module that knows grafanalib.

Input: panels described in our own nouns. Output: a dashboard as plain JSON types, through `modernise`. Invariant: no panel
leaves here without a title, a description, a unit, and words that say why it may be empty.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from dashboards import links
from dashboards.modernise import DATASOURCE, modernise
from dashboards.promql import metric
from dashboards.site import Levels

COLUMNS = 24
GREEN, YELLOW, RED = "#37872D", "#F2CC0C", "#E02F44"
QUIET = "#8E8E8E"
PLAIN = "#464C54"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and how its series are called. ``instant`` asks for the last value only."""

    expr: str
    legend: str = "__auto"
    instant: bool = False
    format: str = "time_series"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel in our nouns: what it shows, why one looks at it, and what it says when there is nothing to show."""

    kind: str
    title: str
    why: str
    queries: tuple[Query, ...]
    unit: str
    empty: str
    width: int
    height: int
    options: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[dict[str, Any], ...] = ()
    transformations: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A titled band of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the field's name, its header, and how it looks."""

    field: str
    header: str
    unit: str = "none"
    width: int | None = None
    levels: Levels | None = None
    mappings: Sequence[dict[str, Any]] = ()
    decimals: int | None = None
    links: Sequence[dict[str, Any]] = ()


class _Modern(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    """A panel of any type of today's Grafana, given whole as ``extraJson``; grafanalib's own classes stop at Grafana 8."""

    def to_json_data(self) -> dict[str, Any]:
        body: dict[str, Any] = self.panel_json({})
        return body


def timeseries(
    title: str, why: str, queries: Iterable[Query], unit: str, empty: str, *,
    width: int = 8, height: int = 8, levels: Levels | None = None, low: float | None = 0, high: float | None = None,
    stack: bool = False, overrides: Iterable[dict[str, Any]] = (), calcs: tuple[str, ...] = ("lastNotNull", "max"),
    links: Sequence[dict[str, Any]] = (), step: bool = False,
) -> Panel:  # fmt: skip
    """Lines over time; limits are dashed lines, so that the eye sees how far away they are."""
    custom: dict[str, Any] = {
        "drawStyle": "line", "lineWidth": 1, "fillOpacity": 25 if stack else 6, "showPoints": "never",
        "spanNulls": False, "lineInterpolation": "stepAfter" if step else "linear",
        "thresholdsStyle": {"mode": "dashed" if levels else "off"},
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }  # fmt: skip
    defaults = _defaults(levels, color={"mode": "palette-classic"}, custom=custom, links=list(links))
    if low is not None:
        defaults["min"] = low
    if high is not None:
        defaults["max"] = high
    options = {
        "legend": {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": list(calcs)},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel("timeseries", title, why, tuple(queries), unit, empty, width, height, options, defaults, tuple(overrides))


def stat(
    title: str, why: str, queries: Iterable[Query], unit: str, empty: str, *,
    width: int = 4, height: int = 4, levels: Levels | None = None, mappings: Sequence[dict[str, Any]] = (),
    named: bool = False, decimals: int | None = None, spark: bool = False, overrides: Iterable[dict[str, Any]] = (),
) -> Panel:  # fmt: skip
    """One number now. Coloured only where there is a limit to judge it by."""
    judged = bool(levels or mappings)
    defaults = _defaults(levels, mappings=list(mappings))
    defaults["color"] = {"mode": "thresholds"} if judged else {"mode": "fixed", "fixedColor": "text"}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "colorMode": "background_solid" if judged else "value", "graphMode": "area" if spark else "none",
        "justifyMode": "center", "orientation": "auto", "textMode": "value_and_name" if named else "value",
        "wideLayout": True, "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }  # fmt: skip
    return Panel("stat", title, why, tuple(queries), unit, empty, width, height, options, defaults, tuple(overrides))


def state_timeline(
    title: str, why: str, queries: Iterable[Query], empty: str, mappings: Sequence[dict[str, Any]], *,
    width: int = COLUMNS, height: int = 8, links: Sequence[dict[str, Any]] = (),
) -> Panel:  # fmt: skip
    """Which state held when, a row an engine."""
    defaults = {
        "color": {"mode": "thresholds"}, "thresholds": steps(None), "mappings": list(mappings), "links": list(links),
        "custom": {"lineWidth": 0, "fillOpacity": 90, "spanNulls": False},
    }  # fmt: skip
    options = {
        "mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.85,
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "single", "sort": "none"},
    }  # fmt: skip
    return Panel("state-timeline", title, why, tuple(queries), "none", empty, width, height, options, defaults)


def bars(
    title: str, why: str, queries: Iterable[Query], unit: str, empty: str, *,
    width: int = 8, height: int = 8, levels: Levels | None = None, high: float | None = None,
    mappings: Sequence[dict[str, Any]] = (), overrides: Iterable[dict[str, Any]] = (),
) -> Panel:  # fmt: skip
    """Numbers side by side, as horizontal bars."""
    defaults = _defaults(levels, min=0, mappings=list(mappings))
    defaults["color"] = {"mode": "thresholds"} if levels else {"mode": "fixed", "fixedColor": "blue"}
    if high is not None:
        defaults["max"] = high
    options = {
        "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True, "valueMode": "color",
        "namePlacement": "auto", "sizing": "manual", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 40,
        "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }  # fmt: skip
    return Panel("bargauge", title, why, tuple(queries), unit, empty, width, height, options, defaults, tuple(overrides))


def heatmap(
    title: str, why: str, query: Query, unit: str, empty: str, *, width: int = 8, height: int = 8
) -> Panel:
    """How a distribution moves: a column a step, a row a bucket of the server's own histogram."""
    options = {
        "calculate": False, "cellGap": 1, "yAxis": {"axisPlacement": "left", "unit": unit},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "reverse": False},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "legend": {"show": True}, "rowsFrame": {"layout": "auto"}, "showValue": "never", "filterValues": {"le": 1e-9},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    }  # fmt: skip
    heat = replace(query, format="heatmap", legend="{{le}}")
    return Panel("heatmap", title, why, (heat,), "reqps", empty, width, height, options)


def table(
    title: str, why: str, queries: Iterable[str], columns: Sequence[Column], empty: str, *,
    width: int = COLUMNS, height: int = 8, sort: str = "", descending: bool = False,
) -> Panel:  # fmt: skip
    """Instant values joined by their labels; only the columns named are shown, in their order."""
    asked = tuple(Query(expr, legend="", instant=True, format="table") for expr in queries)
    organise = {
        "includeByName": {column.field: True for column in columns},
        "indexByName": {column.field: place for place, column in enumerate(columns)},
        "renameByName": {column.field: column.header for column in columns},
        "excludeByName": {"Time": True},
    }
    options = {
        "showHeader": True, "cellHeight": "sm",
        "sortBy": [{"displayName": sort, "desc": descending}] if sort else [],
    }  # fmt: skip
    defaults = {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}, "thresholds": steps(None)}
    joined = ({"id": "merge", "options": {}}, {"id": "organize", "options": organise})
    looks = tuple(_column(column) for column in columns)
    return Panel("table", title, why, asked, "none", empty, width, height, options, defaults, looks, joined)


def text(title: str, why: str, markdown: str, *, width: int = 8, height: int = 8) -> Panel:
    """Words, for what a number cannot say."""
    return Panel("text", title, why, (), "none", "", width, height, {"mode": "markdown", "content": markdown})


def by_name(name: str, **properties: Any) -> dict[str, Any]:
    """An override for the series of this name; ``custom__x`` is custom.x, ``colour`` a fixed colour."""
    return _override({"id": "byName", "options": name}, properties)


def by_regex(pattern: str, **properties: Any) -> dict[str, Any]:
    """An override for every series whose name matches."""
    return _override({"id": "byRegexp", "options": f"/{pattern}/"}, properties)


def reference_line(pattern: str, colour: str = QUIET) -> dict[str, Any]:
    """A limit or a usual value: dashed, without fill, in a quiet colour."""
    dash = {"fill": "dash", "dash": [8, 8]}
    return by_regex(f"^{pattern}", colour=colour, custom__lineStyle=dash, custom__fillOpacity=0)


def finish_colours() -> list[dict[str, Any]]:
    """Reasons why a response finished: whole answers green, cut ones yellow, failed ones red."""
    colours = {"stop": GREEN, "length": YELLOW, "error": RED, "abort": QUIET}
    return [by_regex(f"^{reason}", colour=colour) for reason, colour in colours.items()]


def _override(matcher: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    def one(key: str, value: Any) -> dict[str, Any]:
        if key == "colour":
            return {"id": "color", "value": {"mode": "fixed", "fixedColor": value}}
        return {"id": key.replace("__", "."), "value": value}

    return {"matcher": matcher, "properties": [one(key, value) for key, value in properties.items()]}


def _column(column: Column) -> dict[str, Any]:
    look: dict[str, Any] = {"unit": column.unit, "noValue": "–"}
    if column.width:
        look["custom__width"] = column.width
    if column.decimals is not None:
        look["decimals"] = column.decimals
    if column.links:
        look["links"] = list(column.links)
    if column.mappings:
        look |= {"mappings": list(column.mappings), "custom__cellOptions": {"type": "color-background", "mode": "basic"}}
    if column.levels:
        look |= {"thresholds": steps(column.levels), "custom__cellOptions": {"type": "color-text"}, "color": {"mode": "thresholds"}}
    return by_name(column.header, **look)


def _defaults(levels: Levels | None, **more: Any) -> dict[str, Any]:
    return {"thresholds": steps(levels)} | {key: value for key, value in more.items() if value not in ([], ())}


def steps(levels: Levels | None) -> dict[str, Any]:
    """Threshold steps: base colour, then warn and bad in the order of their values."""
    if levels is None:
        return {"mode": "absolute", "steps": [{"color": "text", "value": None}]}
    limits = [(value, colour) for value, colour in ((levels.warn, YELLOW), (levels.bad, RED)) if value is not None]
    values: list[float | None] = [None, *sorted(value for value, _ in limits)]
    colours = [GREEN, *(colour for _, colour in limits)]
    if levels.low_is_bad:
        colours.reverse()
    pairs = zip(values, colours, strict=True)
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for value, colour in pairs]}


def to_engine() -> dict[str, Any]:
    """A data link from a series of one engine to its page, at the same time."""
    labels = "&".join(f"var-{name}=${{__field.labels.{name}:percentencode}}" for name in ("target", "model_name", "engine"))
    return {"title": "Open this engine", "url": f"/d/{links.ENGINE}?${{__url_time_range}}&${{datasource:queryparam}}&{labels}"}


def row_to_engine() -> dict[str, Any]:
    """The same from a table's row whose columns are Server, Model and Engine."""
    fields = (("target", "Server"), ("model_name", "Model"), ("engine", "Engine"))
    labels = "&".join(f"var-{name}=${{__data.fields.{header}:percentencode}}" for name, header in fields)
    return {"title": "Open this engine", "url": f"/d/{links.ENGINE}?${{__url_time_range}}&${{datasource:queryparam}}&{labels}"}


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
) -> dict[str, Any]:  # fmt: skip
    """The finished dashboard, as plain JSON types."""
    body = core.Dashboard(
        title=links.TITLES[uid],
        uid=uid,
        description=description,
        editable=False,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        tags=["vllm-vitals"],
        timezone="browser",
        time=core.Time(since, "now"),
        refresh=refresh,
        annotations=core.Annotations([_annotation(each) for each in annotations]),
        templating=core.Templating([_datasource(), *(_variable(name) for name in variables)]),
        links=[core.DashboardLink(title="vLLM vitals", tags=["vllm-vitals"], includeVars=True, keepTime=True)],
        panels=_flow(rows),
    )
    return modernise(json.loads(json.dumps(body, cls=DashboardEncoder, sort_keys=True)))


def _datasource() -> core.Template:
    return core.Template(name="datasource", label="Data source", type="datasource", query="prometheus")


def _variable(name: str) -> core.Template:
    labels = {"target": "Server", "model_name": "Model", "engine": "Engine"}
    if name == "target":
        query = f"label_values({metric('target_up').full_name}, target)"
    else:
        chosen = {"model_name": 'target=~"$target"', "engine": 'target=~"$target", model_name=~"$model_name"'}[name]
        query = f"label_values({metric('state').full_name}{{{chosen}}}, {name})"
    return core.Template(
        name=name, label=labels[name], query=query, includeAll=True, multi=True, allValue=".+",
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )  # fmt: skip


def _annotation(mark: Annotation) -> dict[str, Any]:
    return {
        "name": mark.name, "iconColor": mark.colour, "enable": mark.shown, "hide": False, "datasource": DATASOURCE,
        "target": {"expr": mark.expr, "interval": "10s", "refId": "Anno"},
        "titleFormat": mark.title, "textFormat": mark.text, "tagKeys": "state", "useValueForTime": mark.at_value,
    }  # fmt: skip


def _flow(rows: Iterable[Row]) -> list[core.Panel]:
    """Rows and panels laid onto the 24-column grid from left to right; a band is as high as its highest panel."""
    placed, y = [], 0
    for row in rows:
        placed.append(core.RowPanel(id=links.panel_id(f"row {row.title}"), title=row.title, gridPos=core.GridPos(1, COLUMNS, 0, y)))
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                y, x, height = y + height, 0, 0
            placed.append(_place(panel, x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return placed


def _place(panel: Panel, x: int, y: int) -> core.Panel:
    targets = [
        core.Target(
            expr=query.expr, legendFormat=query.legend, refId=chr(ord("A") + place), instant=query.instant, format=query.format
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
