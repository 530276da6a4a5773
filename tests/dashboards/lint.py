"""What every dashboard must hold to, as functions from a dashboard to the list of its faults.

The rules of Grafana's dashboard-linter, with target / model / engine in the place of job / instance, and our own.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import promql_parser

from vllm_vitals.catalog import METRICS, Kind
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.dashboards import links
from vllm_vitals.rules.build import rules
from vllm_vitals.rules.model import Recording
from vllm_vitals.vllm.families import FAMILIES

Json = dict[str, Any]
ELSEWHERE = {"ALERTS", "ALERTS_FOR_STATE", "process_resident_memory_bytes", "process_cpu_seconds_total"}
# DCGM's exporter and kube-state-metrics, as their own lists of metrics have them.
BESIDE = {
    *(f"DCGM_FI_{name}" for name in ("DEV_GPU_UTIL", "DEV_FB_USED", "DEV_FB_FREE", "DEV_POWER_USAGE", "DEV_GPU_TEMP",
      "DEV_SM_CLOCK", "DEV_XID_ERRORS", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE")),
    *(f"kube_pod_{name}" for name in ("info", "status_ready", "container_status_restarts_total",
      "container_status_last_terminated_reason", "container_status_waiting_reason")),
}  # fmt: skip
ALERTMANAGERS = {"alertGroups"}  # they ask a data source of another kind, by its name
# A config with a promise, whose records dashboards may read.
PROMISED = parse_alerts(
    {"alerts": {"slos": [{"name": "quick", "indicator": "ttft", "threshold": "10s", "share": 0.99}]}}
)
DEAD_TYPES = {"graph", "singlestat", "grafana-piechart-panel", "grafana-worldmap-panel", "natel-discrete-panel",
              "flant-statusmap-panel", "marcuscalidus-svg-panel", "table-old"}  # fmt: skip
MAX_PANELS = 22  # what a person scrolls through while paged
_COUNTERS = {metric.full_name for metric in METRICS if metric.kind is Kind.COUNTER} | {"process_cpu_seconds_total"}
_SCOPES = {metric.full_name: metric.all_labels for metric in METRICS}


def panels(dashboard: Json) -> list[Json]:
    """Every panel that is not a row's header, those of closed rows too."""
    every = [one for panel in dashboard["panels"] for one in (panel, *panel.get("panels", ()))]
    return [panel for panel in every if panel["type"] != "row"]


def opened(dashboard: Json) -> list[Json]:
    """Every panel that is seen before somebody opens a row."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: Json) -> Iterator[tuple[Json, Json]]:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel, target


def expressions(dashboard: Json) -> Iterator[tuple[str, str]]:
    """(where, PromQL) of panels and annotations."""
    for panel, target in queries(dashboard):
        yield f"{panel['title']} {target['refId']}", target["expr"]
    for mark in dashboard["annotations"]["list"]:
        yield f"annotation {mark['name']}", mark["expr"]


def plain(expr: str) -> str:
    """PromQL with Grafana's variables replaced, so that a parser can read it."""
    for name, value in (("$__rate_interval", "1m"), ("$__range_s", "3600"), ("$__range", "1h"), ("$__interval", "15s")):
        expr = expr.replace(name, value)
    return re.sub(r"\$\w+", ".+", expr)


def identity_faults(uid: str, dashboard: Json) -> list[str]:
    faults = []
    if dashboard["uid"] != uid:
        faults.append(f"uid {dashboard['uid']} is not its file's name")
    if dashboard["title"] != links.TITLES[uid]:
        faults.append("title is not the one that links name")
    if dashboard["editable"]:
        faults.append("editable in the UI")
    if not dashboard["description"]:
        faults.append("no description")
    return faults


def variable_faults(dashboard: Json) -> list[str]:
    source, *rest = dashboard["templating"]["list"]
    faults = []
    if (source["name"], source["type"], source["label"]) != ("datasource", "datasource", "Data source"):
        faults.append("the first variable is not the data source")
    if rest[-1] != {**rest[-1], "type": "adhoc", "filters": [], "label": "Filters"}:
        faults.append("the last variable is no ad hoc filter")
    del rest[-1]
    for variable in rest:
        if variable["hide"] == 2 and "query_result(" in variable["query"]["query"] and variable["refresh"] == 2:
            continue  # nobody chooses it
        # Engine chooses one server, the worst; everything else shows all.
        whole = variable["includeAll"] and variable["allValue"] == ".+"
        worst = variable["name"] == "target" and "query_result(sort(" in variable["query"]["query"]
        right = variable["multi"] and (whole or worst) and variable["refresh"] == 2
        if not right or variable["type"] != "query" or not variable["label"]:
            faults.append(
                f"variable {variable['name']}: a labelled query, multi, All as .+, refreshed with the time range"
            )
    if {"job", "instance"} & {variable["name"] for variable in rest}:
        faults.append("a variable over the exporter's own job or instance")
    used = {name for _, expr in expressions(dashboard) for name in re.findall(r"\$([a-z]\w*)", expr)}
    used |= {name for panel in dashboard["panels"] for name in re.findall(r"\$([a-z]\w*)", panel["title"])}
    used |= {name for variable in rest for name in re.findall(r"\$([a-z]\w*)", variable["query"]["query"])}
    faults += [f"variable {name} is used and not there" for name in sorted(used - {v["name"] for v in rest})]
    return faults + [f"variable {v['name']} is not used" for v in rest if v["name"] not in used]


def panel_faults(panel: Json) -> list[str]:
    defaults, title = panel["fieldConfig"]["defaults"], panel["title"]
    faults = []
    if panel["type"] in DEAD_TYPES:
        faults.append(f"{title}: type {panel['type']} is gone from Grafana 12")
    if not title or len(title) > 48:
        faults.append(f"{title!r}: a title, and one that fits its panel")
    if len(panel.get("description", "").split()) < 8:
        faults.append(f"{title}: the description must say what it means and what to do")
    if panel["type"] in ALERTMANAGERS:
        return faults + [f"{title}: a query"] * bool(panel["targets"])
    if panel["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
        faults.append(f"{title}: not on ${{datasource}}")
    if not defaults.get("unit"):
        faults.append(f"{title}: no unit")
    if not panel["targets"] or any(not target["expr"].strip() for target in panel["targets"]):
        faults.append(f"{title}: no query")
    if len(defaults.get("noValue", "")) < 8:
        faults.append(f"{title}: noValue must say why it may be empty")
    faults += [f"{title}: {name} fills cells and names no colour" for name in _white_cells(panel)]
    refs = [target["refId"] for target in panel["targets"]]
    if len(set(refs)) < len(refs):
        faults.append(f"{title}: a refId twice")
    return faults + [
        f"{title}: a query without ${{datasource}}"
        for t in panel["targets"]
        if t["datasource"]["uid"] != "${datasource}"
    ]


def _white_cells(panel: Json) -> Iterator[str]:
    """Columns whose cells are filled and whose values have no colour: white on white."""
    for override in panel["fieldConfig"]["overrides"]:
        look = {each["id"]: each["value"] for each in override["properties"]}
        mappings = [mapping for mapping in look.get("mappings", ()) if mapping["type"] == "value"]
        shown = [one for mapping in mappings for one in mapping["options"].values()]
        filled = look.get("custom.cellOptions", {}).get("type") == "color-background"
        if filled and not all("color" in one for one in shown):
            yield override["matcher"]["options"]


def _apart(a: Json, b: Json) -> bool:
    return bool(
        a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    )


def layout_faults(dashboard: Json) -> list[str]:
    faults, boxes = [], [(panel["title"], panel["gridPos"]) for panel in dashboard["panels"]]
    for title, box in boxes:
        if box["x"] < 0 or box["x"] + box["w"] > 24:
            faults.append(f"{title}: off the grid")
    for (one, a), (other, b) in combinations(boxes, 2):
        if not _apart(a, b):
            faults.append(f"{one} overlaps {other}")
    for row in dashboard["panels"]:
        inner = [(panel["title"], panel["gridPos"]) for panel in row.get("panels", ())]
        faults += [f"{one} overlaps {other}" for (one, a), (other, b) in combinations(inner, 2) if not _apart(a, b)]
    ids = [panel["id"] for panel in [*dashboard["panels"], *panels(dashboard)] if panel not in opened(dashboard)]
    ids += [panel["id"] for panel in opened(dashboard)]
    if len(set(ids)) < len(ids):
        faults.append("a panel id twice")
    if len(opened(dashboard)) > MAX_PANELS:
        faults.append(f"{len(opened(dashboard))} panels: more than {MAX_PANELS}")
    return faults + [
        f"{p['title']}: its id is not its title's" for p in panels(dashboard) if p["id"] != links.panel_id(p["title"])
    ]


def names_in(expr: str) -> set[str]:
    """Metric names, also those selected by a regular expression over __name__ (without its prefixes)."""
    spelled = set(re.findall(r'__name__=~"\([^)]*\)(\w+)"', expr))
    return (
        spelled
        | set(re.findall(r"\b([a-zA-Z_:][\w:]*)\{", expr))
        | set(re.findall(r"(?<![:\w])(vllm_vitals_\w+)\b(?!:)", expr))
    )


def _known() -> set[str]:
    known = (
        ELSEWHERE
        | BESIDE
        | {rule.record for g in rules(PROMISED)["recording"] for rule in g.rules if isinstance(rule, Recording)}
    )
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        known |= {metric.full_name + suffix for suffix in suffixes}
    return known | {
        raw for row in FAMILIES for part in ("bucket", "sum", "count") if row.is_histogram for raw in row.wire(part)
    }


def query_faults(where: str, expr: str) -> list[str]:
    faults = [f"{where}: {name} is in no catalogue" for name in sorted(names_in(expr) - _known())]
    try:
        promql_parser.parse(plain(expr))
    except ValueError as error:
        return [*faults, f"{where}: {error}"]
    for function, selected, window in re.findall(r"\b(rate|increase|irate)\(\{?([^\[]*)\[([^\]]+)\]", expr):
        # Over the whole range it ranks lines, and is not drawn.
        whole = f"[{window}] @ end()" in expr and window == "$__range"
        if function == "irate" or (function == "rate" and window not in ("$__rate_interval", "5m") and not whole):
            faults.append(f"{where}: {function} over {window}, not $__rate_interval")
        name = selected.split("{")[0]
        if (
            name.startswith("vllm_vitals_")
            and name not in _COUNTERS
            and not name.endswith(("_bucket", "_sum", "_count"))
        ):
            faults.append(f"{where}: {function} of {name}, which is no counter")
    for name in _COUNTERS & names_in(expr):
        bare = len(re.findall(rf"\b{name}\b", expr)) - len(re.findall(rf"\b(?:rate|increase)\({name}\b", expr))
        if bare:
            faults.append(f"{where}: counter {name} without rate")
    return faults + _selector_faults(where, expr)


def _selector_faults(where: str, expr: str) -> list[str]:
    """Every selector of ours obeys the variables, and every one of them is folded by max, never summed as it is."""
    faults = []
    for name, matchers in re.findall(r"\b(vllm_vitals_\w+)\{([^}]*)\}", expr):
        base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in _SCOPES else name
        scope = [label for label in ("target", "model_name", "engine") if label in _SCOPES[base]]
        missing = [label for label in scope if not re.search(rf'{label}=~"\${label}\|?"', matchers)]
        faults += [f"{where}: {name} does not obey ${label}" for label in missing]
    folded = r"(?:max(?: by \([^)]*\))? \((?:\w+\()*|\d+ \* \((?:\w+\()?)$"
    for found in re.finditer(r"\bvllm_vitals_\w+\{", expr):
        if not re.search(folded, expr[: found.start()]):
            faults.append(f"{where}: {found[0][:-1]} is not folded by max over its identity")
    return faults


def legend_faults(panel: Json, target: Json) -> list[str]:
    """A legend names only labels that its query keeps or makes."""
    kept = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in group.split(",")}
    kept |= set(re.findall(r'\), "(\w+)", "[^"]*", "\w*", "[^"]*"\)', target["expr"]))  # what label_replace makes
    named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    missing = named - kept - {"instance"}
    return [
        f"{panel['title']} {target['refId']}: legend names {label}, which the query drops" for label in sorted(missing)
    ]
