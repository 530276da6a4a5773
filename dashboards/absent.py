"""Says in a panel's own words why it is empty without the daemon.

Input: a finished dashboard and who feeds the Prometheus. Output: the same with longer ``noValue`` texts. Invariant: a
panel with at least one query that recording rules can answer keeps its text.
"""

import re
from typing import Any

from dashboards.site import Site
from exporter.catalog import METRICS, NAMESPACE

_OURS = {metric.full_name: metric for metric in METRICS}
_NAME = re.compile(rf"\b{NAMESPACE}\w+")
_RAW = re.compile(r"\bvllm:\w+")


def explain_absent(dashboard: dict[str, Any], site: Site) -> dict[str, Any]:
    """The dashboard with the reason where native mode has no data for a panel. Tiles are too small for it."""
    if not site.native:
        return dashboard
    return dashboard | {"panels": [_explained(panel) for panel in dashboard["panels"]]}


def _explained(panel: dict[str, Any]) -> dict[str, Any]:
    reasons = [reason for target in panel.get("targets", ()) if (reason := why_not_native(target["expr"]))]
    if not reasons or len(reasons) < len(panel["targets"]) or panel["type"] == "stat":
        return panel
    defaults = panel["fieldConfig"]["defaults"]
    said = f"{defaults['noValue']} (Without the daemon it is not known: {reasons[0]}.)"
    return panel | {"fieldConfig": panel["fieldConfig"] | {"defaults": defaults | {"noValue": said}}}


def why_not_native(expr: str) -> str:
    """The catalogue's reason why recording rules cannot answer this query, or nothing where they can."""
    if _RAW.search(expr):
        return ""
    named = [_OURS[name] for name in _NAME.findall(expr) if name in _OURS]
    return next((metric.why_not_native for metric in named if not metric.native), "")
