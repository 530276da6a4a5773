"""From what grafanalib writes to what Grafana 11 to 13 read: one pure pass over the dashboard's JSON.

Input: a dashboard as plain JSON types, as grafanalib encodes it. Output: the same dashboard in schema 41, without the
fields that today's Grafana ignores or must migrate. Invariant: the input is not changed; a second pass changes nothing.
"""

from typing import Any

SCHEMA_VERSION = 41
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

_DEAD_DASHBOARD = ("__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style", "id", "version")
_DEAD_PANEL = (
    "cacheTimeout", "editable", "error", "height", "hideTimeOverride", "interval", "maxDataPoints", "minSpan", "span",
    "timeFrom", "timeShift", "repeat", "repeatDirection", "maxPerRow", "transparent",
)  # fmt: skip
_DEAD_TARGET = ("query", "target", "metric", "step", "intervalFactor", "hide", "interval")
_DEAD_VARIABLE = ("useTags", "tagsQuery", "tagValuesQuery", "auto", "auto_min", "auto_count")


def modernise(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard in the schema that Grafana 11 to 13 read without a migration."""
    kept = _without(dashboard, _DEAD_DASHBOARD)
    return kept | {
        "schemaVersion": SCHEMA_VERSION,
        "timepicker": {"refresh_intervals": dashboard["timepicker"]["refresh_intervals"]},
        "panels": [_panel(panel) for panel in dashboard["panels"]],
        "templating": {"list": [_variable(variable) for variable in dashboard["templating"]["list"]]},
    }


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    modern = _without(panel, _DEAD_PANEL)
    if panel["type"] == "row":
        return _without(modern, ("fieldConfig", "targets", "datasource", "description", "links", "transformations")) | {
            "panels": [_panel(inner) for inner in panel.get("panels", ())]
        }
    modern["targets"] = [_target(target) for target in panel["targets"]]
    modern["datasource"] = DATASOURCE
    return modern


def _target(target: dict[str, Any]) -> dict[str, Any]:
    instant = bool(target["instant"])
    return _without(target, _DEAD_TARGET) | {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "instant": instant,
        "range": not instant,
    }


def _variable(variable: dict[str, Any]) -> dict[str, Any]:
    modern = _without(variable, _DEAD_VARIABLE)
    if variable["type"] == "datasource":
        return _without(modern, ("datasource", "allValue", "sort")) | {
            "current": {"selected": False, "text": "Prometheus", "value": "prometheus"}
        }
    if variable["type"] == "adhoc":
        kept = {key: modern[key] for key in ("name", "label", "type", "hide")}
        return kept | {"datasource": DATASOURCE, "filters": []}
    query = variable["query"]
    if isinstance(query, str):
        modern["query"] = {"query": query, "refId": f"Variable-{variable['name']}"}
    if not variable["includeAll"]:
        return modern | {"datasource": DATASOURCE, "current": {}}
    return modern | {
        "datasource": DATASOURCE,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _without(mapping: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the mapping without dead keys, and without keys that say nothing."""
    return {key: value for key, value in mapping.items() if key not in keys and value is not None}
