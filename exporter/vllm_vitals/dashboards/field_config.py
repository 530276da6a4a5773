"""Overrides and data links, as Grafana's field configuration spells them.

Input: names, property values. Output: pieces of JSON. Invariant: green, yellow and red are those of `levels`.
"""

from typing import Any

from vllm_vitals.core.states import State
from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.levels import GREEN, RED, YELLOW

QUIET = "#8E8E8E"


def by_name(name: str, **properties: Any) -> dict[str, Any]:
    """Return an override for the series of this name; ``custom__x`` is custom.x, ``colour`` a fixed colour."""
    return _override({"id": "byName", "options": name}, properties)


def by_regex(pattern: str, **properties: Any) -> dict[str, Any]:
    """Return an override for every series whose name matches."""
    return _override({"id": "byRegexp", "options": f"/{pattern}/"}, properties)


def reference_line(pattern: str, colour: str = QUIET) -> dict[str, Any]:
    """Return a limit or a usual value: dashed, without fill, in a quiet colour."""
    dash = {"fill": "dash", "dash": [8, 8]}
    return by_regex(f"^{pattern}", colour=colour, custom__lineStyle=dash, custom__fillOpacity=0)


def finish_colours() -> list[dict[str, Any]]:
    """Reasons why a response finished: whole answers green, cut ones yellow, failed ones red."""
    colours = {"stop": GREEN, "length": YELLOW, "error": RED, "abort": QUIET}
    return [by_regex(f"^{reason}", colour=colour) for reason, colour in colours.items()]


def state_colours() -> list[dict[str, Any]]:
    """Return each state's colour and label, for series that are called by their state."""
    return [by_name(state.value, colour=state.spec.colour, displayName=state.spec.label) for state in State]


def outcome_colours() -> list[dict[str, Any]]:
    """Return what became of a canary: an answer green, silence red, a refusal yellow."""
    colours = {"ok": GREEN, "timeout": RED, "error": YELLOW}
    return [by_regex(f"^{outcome}", colour=colour) for outcome, colour in colours.items()]


def _override(matcher: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    def one(key: str, value: Any) -> dict[str, Any]:
        if key == "colour":
            return {"id": "color", "value": {"mode": "fixed", "fixedColor": value}}
        return {"id": key.replace("__", "."), "value": value}

    return {"matcher": matcher, "properties": [one(key, value) for key, value in properties.items()]}


def to_engine() -> dict[str, Any]:
    """Return a data link from a series of one engine to its page, at the same time."""
    labels = "&".join(f"var-{name}=${{__field.labels.{name}}}" for name in ("target", "model_name", "engine"))
    return {
        "title": "Open this engine",
        "url": f"/d/{links.ENGINE}?${{__url_time_range}}&${{datasource:queryparam}}&{labels}",
    }


def row_to_engine() -> dict[str, Any]:
    """Return the same from a table's row whose columns are Server, Model and Engine."""
    fields = (("target", "Server"), ("model_name", "Model"), ("engine", "Engine"))
    labels = "&".join(f"var-{name}=${{__data.fields.{header}}}" for name, header in fields)
    return {
        "title": "Open this engine",
        "url": f"/d/{links.ENGINE}?${{__url_time_range}}&${{datasource:queryparam}}&{labels}",
    }
