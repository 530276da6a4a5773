"""The nouns that dashboards are written in: a chart, a tile, a table, a timeline, bars, a heatmap.

Input: a title, its purpose, queries, a unit, words for "nothing to show", levels. Output: `Panel` values in the
JSON of today's Grafana. Invariant: a limit is always drawn the same way, and colour always means a limit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_vitals.dashboards.field_config import by_name
from vllm_vitals.dashboards.levels import GREEN, RED, in_words, lines, quiet, steps
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Levels

COLUMNS = 24
# The field of a table that holds the lines of its `trend`.
TREND = "Trend"
# A value mapping for yes/no columns.
YES_NO = {
    "type": "value",
    "options": {"0": {"text": "no", "color": RED, "index": 0}, "1": {"text": "yes", "color": GREEN, "index": 1}},
}
# The same where neither answer is good or bad.
YES_IS_NEWS = {
    "type": "value",
    "options": {"0": {"text": "no", "index": 0}, "1": {"text": "yes", "index": 1}},
}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: what it shows, what for, and its text when there is no data."""

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
class Column:
    """One column of a table: the field's name, its header, how it looks, and what a cell without a value says."""

    field: str
    header: str
    unit: str = "none"
    width: int | None = None
    levels: Levels | None = None
    mappings: Sequence[dict[str, Any]] = ()
    decimals: int | None = None
    links: Sequence[dict[str, Any]] = ()
    empty: str = "–"
    spark: bool = False


def timeseries(
    title: str, why: str, queries: Iterable[Query], unit: str, empty: str, *,
    width: int = 8, height: int = 8, levels: Levels | None = None, high: float | None = None,
    stack: bool = False, overrides: Iterable[dict[str, Any]] = (), low_is_bad: bool = False,
) -> Panel:  # fmt: skip
    """Draw lines over time; limits are dashed lines, so that the distance to them shows.

    ``low_is_bad``: a share near 1, of which the lowest come first, and whose axis begins where the lowest is.
    """
    custom: dict[str, Any] = {
        "drawStyle": "line", "lineWidth": 1, "fillOpacity": 25 if stack else 6, "showPoints": "never",
        "spanNulls": False, "lineInterpolation": "linear", "axisSoftMax": _room(unit, levels),
        "thresholdsStyle": {"mode": "dashed" if levels else "off"},
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }  # fmt: skip
    shown = ("lastNotNull", "max") if width > 6 else ("lastNotNull",)
    if low_is_bad:
        custom |= {"axisSoftMin": 0.9, "axisSoftMax": 1, "fillOpacity": 0}
    least = {} if low_is_bad else {"min": 0}
    defaults = _defaults(None, color={"mode": "palette-classic"}, custom=custom, **least) | {
        "thresholds": lines(levels)
    }
    if high is not None:
        defaults["max"] = high
    options = {
        "legend": {
            "showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": list(shown),
            "sortBy": "Last *", "sortDesc": not low_is_bad,
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }  # fmt: skip
    return Panel(
        "timeseries", title, why, tuple(queries), unit, empty, width, height, options, defaults, tuple(overrides),
        (_shortened(width),),
    )  # fmt: skip


def _shortened(width: int) -> dict[str, Any]:
    """Shorten long names in their middle, where a legend would cut off its numbers."""
    first, last = {6: (13, 13), 8: (17, 15)}.get(width, (24, 20))
    renamed = {"regex": f"^(.{{{first}}}).{{3,}}(.{{{last}}})$", "renamePattern": "$1…$2"}
    return {"id": "renameByRegex", "options": renamed}


def _room(unit: str, levels: Levels | None) -> float:
    """Return the least maximum of an axis, so that a flat zero is no cliff and a share shows its limit."""
    limits = [limit for limit in (levels.warn, levels.bad) if limit is not None] if levels else []
    if limits and unit in ("percentunit", "none"):
        return max(limits) * 1.1
    return {"percentunit": 0.1, "s": 0.1, "short": 10}.get(unit, 1)


def stat(
    title: str, why: str, queries: Iterable[Query], unit: str, empty: str, *,
    width: int = 4, height: int = 4, levels: Levels | None = None, mappings: Sequence[dict[str, Any]] = (),
    named: bool = False, decimals: int | None = None, spark: bool = False, overrides: Iterable[dict[str, Any]] = (),
    worded: bool = True,
) -> Panel:  # fmt: skip
    """Draw one number now, coloured only where a limit judges it, and beside the colour its word.

    ``worded=False``: where the number takes long to compute, once must do.
    """
    judged, queries, overrides = bool(levels or mappings), tuple(queries), tuple(overrides)
    if levels and worded and not overrides:
        queries, named = tuple(one for query in queries for one in in_words(query, levels)), True
    defaults = _defaults(levels, mappings=list(mappings))
    defaults["color"] = {"mode": "thresholds"} if judged else {"mode": "fixed", "fixedColor": "text"}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "colorMode": "background_solid" if judged else "value", "graphMode": "area" if spark else "none",
        "justifyMode": "center", "orientation": "auto", "textMode": "value_and_name" if named else "value",
        "wideLayout": not named, "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }  # fmt: skip
    return Panel("stat", title, why, queries, unit, empty, width, height, options, defaults, overrides)


def state_timeline(
    title: str, why: str, queries: Iterable[Query], empty: str, mappings: Sequence[dict[str, Any]], *,
    width: int = COLUMNS, height: int = 8, links: Sequence[dict[str, Any]] = (),
) -> Panel:  # fmt: skip
    """Draw which state held when, a row an engine."""
    defaults = {
        "color": {"mode": "thresholds"}, "thresholds": steps(None), "mappings": list(mappings), "links": list(links),
        "custom": {"lineWidth": 0, "fillOpacity": 90},
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
    # Named even when there is but one, which Grafana would leave without a name.
    defaults = _defaults(levels, min=0, mappings=list(mappings), displayName="${__series.name}")
    defaults["color"] = {"mode": "thresholds"} if levels else {"mode": "fixed", "fixedColor": "blue"}
    if high is not None:
        defaults["max"] = high
    options = {
        "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True, "valueMode": "color",
        "namePlacement": "auto", "sizing": "manual", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 40,
        "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }  # fmt: skip
    return Panel(
        "bargauge", title, why, tuple(queries), unit, empty, width, height, options, defaults, tuple(overrides)
    )


def heatmap(
    title: str, why: str, query: Query, unit: str, empty: str, *, width: int = 8, height: int = 8, cells: str = "reqps"
) -> Panel:
    """Draw how a distribution moves: a column a step, a row a bucket of a histogram; ``cells``: what is counted."""
    options = {
        "calculate": False, "cellGap": 1, "yAxis": {"axisPlacement": "left", "unit": unit},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "reverse": False},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "legend": {"show": True}, "rowsFrame": {"layout": "auto"}, "showValue": "never", "filterValues": {"le": 1e-9},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    }  # fmt: skip
    heat = replace(query, format="heatmap", legend="{{le}}")
    return Panel("heatmap", title, why, (heat,), cells, empty, width, height, options)


def table(
    title: str, why: str, queries: Iterable[str], columns: Sequence[Column], empty: str, *,
    width: int = COLUMNS, height: int = 8, sort: str = "", then: str = "", trend: str = "",
) -> Panel:  # fmt: skip
    """Instant values joined by their labels; only the columns named are shown, in their order.

    ``sort``, ``then``: headers to sort by.
    ``trend``: an expression over the range, a small line a row, in the column whose field is ``TREND``.
    """
    asked = [Query(expr, legend="", instant=True, format="table") for expr in queries]
    made: list[dict[str, Any]] = []
    drawn = ""
    if trend:
        ref = chr(ord("A") + len(asked))
        drawn = f"{TREND} #{ref}"
        asked.append(Query(trend, legend=""))
        # Without the filter, a table of one row would be taken for a line of one point.
        one = {"id": "byRefId", "options": ref}
        made.append({"id": "timeSeriesTable", "options": {ref: {"stat": "lastNotNull"}}, "filter": one})
    fields = [
        (drawn if column.field == TREND else column.field, column.header, place) for place, column in enumerate(columns)
    ]
    # Where only one query has an answer, Grafana calls its values "Value"; the first query is the one that always has.
    fields += [("Value", header, place) for field, header, place in fields if field == "Value #A"]
    organise = {
        "includeByName": {field: True for field, _, _ in fields},
        "indexByName": {field: place for field, _, place in fields},
        "renameByName": {field: header for field, header, _ in fields},
        "excludeByName": {"Time": True},
    }
    options = {
        "showHeader": True, "cellHeight": "sm",
        "sortBy": [{"displayName": header, "desc": False} for header in (sort, then) if header],
    }  # fmt: skip
    defaults = {
        "custom": {"align": "auto", "minWidth": 60, "cellOptions": {"type": "auto"}, "inspect": False},
        "thresholds": steps(None),
    }
    made += [{"id": "merge", "options": {}}, {"id": "organize", "options": organise}]
    looks = tuple(_column(column) for column in columns)
    return Panel("table", title, why, tuple(asked), "none", empty, width, height, options, defaults, looks, tuple(made))


def alert_groups(title: str, why: str, alertmanager: str, matchers: str) -> Panel:
    """Alertmanager's groups of alerts: Grafana asks that data source itself, by its name, so there is no query."""
    options = {"alertmanager": alertmanager, "labels": matchers, "expandAll": False}
    return Panel("alertGroups", title, why, (), "none", "No alerts.", COLUMNS, 10, options, _defaults(None))


def _column(column: Column) -> dict[str, Any]:
    look: dict[str, Any] = {"unit": column.unit, "noValue": column.empty}
    if column.width:
        look["custom__width"] = column.width
    if column.decimals is not None:
        look["decimals"] = column.decimals
    if column.links:
        look["links"] = list(column.links)
    if column.mappings:
        look["mappings"] = list(column.mappings)
        if _coloured(column.mappings):
            look["custom__cellOptions"] = {"type": "color-background", "mode": "basic"}
    if column.spark:
        look["custom__cellOptions"] = {
            "type": "sparkline", "drawStyle": "line", "lineWidth": 1, "fillOpacity": 15, "hideValue": False,
        }  # fmt: skip
        look["color"] = {"mode": "fixed", "fixedColor": "blue"}
        look["min"] = 0
    elif column.levels:
        look |= {
            "thresholds": quiet(column.levels),
            "custom__cellOptions": {"type": "color-background", "mode": "basic"},
            "color": {"mode": "thresholds"},
        }
    return by_name(column.header, **look)


def _coloured(mappings: Sequence[dict[str, Any]]) -> bool:
    """Return whether a mapping gives a value a colour; a cell filled without one is as white as its text."""
    values = (mapping for mapping in mappings if mapping["type"] == "value")
    return any("color" in shown for mapping in values for shown in mapping["options"].values())


def _defaults(levels: Levels | None, **more: Any) -> dict[str, Any]:
    return {"thresholds": steps(levels)} | {key: value for key, value in more.items() if value not in ([], ())}
