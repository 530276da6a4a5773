"""Says in a panel's own words why it is empty without the daemon, or with a daemon that passes no histograms through.

Input: a finished dashboard and who feeds the Prometheus. Output: the same with longer ``noValue`` texts. Invariant: a
panel with at least one query that can be answered all the same keeps its text.
"""

import re
from typing import Any

from vllm_vitals.catalog import METRICS, NAMESPACE, NORMALISED, Kind
from vllm_vitals.config.alerts import Config
from vllm_vitals.dashboards.promql import drawn
from vllm_vitals.dashboards.site import Site
from vllm_vitals.rules import boards

# What rules have recorded is as absent as what they read.
_BEHIND = {rule.record: rule.expr for rule in boards.every(Config())}
_RECORD = re.compile(r"\b(?:model|pool|engine|target|fleet):\w+:\w+")
_OURS = {metric.full_name: metric for metric in METRICS}
_NAME = re.compile(rf"\b{NAMESPACE}\w+")
_PART = re.compile(r"_(?:bucket|sum|count)$")


def explain_absent(dashboard: dict[str, Any], site: Site) -> dict[str, Any]:
    """Return the dashboard with the reasons why a panel may have no data here. Tiles are too small for them."""
    return dashboard | {"panels": [_explained(panel, site) for panel in dashboard["panels"]]}


def _explained(panel: dict[str, Any], site: Site) -> dict[str, Any]:
    if "panels" in panel:
        return panel | {"panels": [_explained(inner, site) for inner in panel["panels"]]}
    queries = [drawn(target["expr"]) for target in panel.get("targets", ())]
    if not queries or panel["type"] == "stat":
        return panel
    defaults = panel["fieldConfig"]["defaults"]
    said = defaults["noValue"]
    if site.native and all(reasons := [why_not_native(expr) for expr in queries]):
        said += f" (Without the daemon it is not known: {reasons[0]}.)"
    if site.daemon and all(settings := [why_not_passed(expr) for expr in queries]):
        said += f" (Or the daemon runs with histograms: {settings[0]}.)"
    return panel | {"fieldConfig": panel["fieldConfig"] | {"defaults": defaults | {"noValue": said}}}


def why_not_native(expr: str) -> str:
    """Return the catalogue's reason why recording rules cannot answer this query, or nothing where they can."""
    read = _RECORD.sub(lambda record: _BEHIND.get(record[0], ""), expr)
    named = [_OURS[name] for name in _NAME.findall(read) if name in _OURS]
    return next((metric.why_not_native for metric in named if not metric.native), "")


def why_not_passed(expr: str) -> str:
    """Return the values of the daemon's ``histograms`` that leave this query no data; "" where none does."""
    read = [_OURS.get(_PART.sub("", name)) for name in _NAME.findall(expr)]
    if not read or any(metric is None or metric.kind is not Kind.HISTOGRAM for metric in read):
        return ""
    judged = all(metric in NORMALISED and metric.name.endswith("_seconds") for metric in read if metric)
    return "none" if judged else "latency or none"
