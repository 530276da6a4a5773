"""A pass for fleets where host:port and model alone name no engine: adds the config's identity labels everywhere.

Input: a finished dashboard and labels such as ``("cluster",)``. Output: the same with each label in every fold,
selector, legend, table, link and as a variable. Invariant: without labels the dashboard is unchanged.
"""

import re
from collections.abc import Sequence
from typing import Any

_FOLD = re.compile(r"\b(by|on) \((?=target\b|model_name\b)")
_SELECTOR = re.compile(r"\{(?=[^{}]*\$(?:target|model_name)\b)")


def widen(dashboard: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Return the dashboard for engines that these labels identify too."""
    if not labels:
        return dashboard
    variables = dashboard["templating"]["list"]
    source, *rest, filters = variables
    added = [_variable(rest[0], label) for label in labels]
    return dashboard | {
        "panels": [_panel(panel, labels) for panel in dashboard["panels"]],
        "templating": {"list": [source, *added, *(_narrowed(variable, labels) for variable in rest), filters]},
        "annotations": {"list": [_annotation(mark, labels) for mark in dashboard["annotations"]["list"]]},
    }


def expression(expr: str, labels: Sequence[str]) -> str:
    """PromQL whose folds keep the labels and whose selectors obey their variables."""
    matchers = "".join(f'{label}=~"${label}", ' for label in labels)
    folded = _FOLD.sub(lambda found: f"{found[1]} ({', '.join(labels)}, ", expr)
    return _SELECTOR.sub(lambda _: "{" + matchers, folded)


def legend(text: str, labels: Sequence[str]) -> str:
    """Return the labels before the server or, where none is named, before the model."""
    names = " ".join(f"{{{{{label}}}}}" for label in labels)
    first = "{{target}}" if "{{target}}" in text else "{{model_name}}"
    return text.replace(first, f"{names} {first}")


def _variable(template: dict[str, Any], label: str) -> dict[str, Any]:
    query = re.sub(r", \w+\)$", f", {label})", template["query"]["query"])
    return template | {
        "name": label,
        "label": label.capitalize(),
        "query": {"query": query, "refId": f"Variable-{label}"},
    }


def _narrowed(variable: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    query = variable["query"]["query"]
    if query.startswith("query_result("):
        return variable | {"query": variable["query"] | {"query": expression(query, labels)}}
    matchers = ", ".join(f'{label}=~"${label}"' for label in labels)
    narrowed = query.replace("{", f"{{{matchers}, ", 1) if "{" in query else query.replace(",", f"{{{matchers}}},", 1)
    return variable | {"query": variable["query"] | {"query": narrowed}}


def _annotation(mark: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    return mark | {"expr": expression(mark["expr"], labels), "textFormat": legend(mark["textFormat"], labels)}


def _panel(panel: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    if "targets" not in panel:
        return panel | {"panels": [_panel(inner, labels) for inner in panel.get("panels", ())]}
    widened: dict[str, Any] = _links(panel, labels)
    return widened | {
        "targets": [
            target
            | {"expr": expression(target["expr"], labels), "legendFormat": legend(target["legendFormat"], labels)}
            for target in panel["targets"]
        ],
        "transformations": [_columns(step, labels) for step in panel["transformations"]],
    }


def _columns(step: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    options = step["options"]
    if step["id"] != "organize" or not {"target", "model_name"} & set(options["includeByName"]):
        return step
    included = options["includeByName"] | dict.fromkeys(labels, True)
    placed = options["indexByName"] | {label: place - len(labels) for place, label in enumerate(labels)}
    return step | {"options": options | {"includeByName": included, "indexByName": placed}}


def _links(value: Any, labels: Sequence[str]) -> Any:
    """Carry the labels on in data links: from a series' labels, or from the row's cells."""
    if isinstance(value, dict):
        return {key: _links(inner, labels) for key, inner in value.items()}
    if isinstance(value, list):
        return [_links(inner, labels) for inner in value]
    if not isinstance(value, str) or "&var-target=" not in value:
        return value
    source = "__data.fields" if "__data.fields" in value else "__field.labels"
    added = "".join(f"&var-{label}=${{{source}.{label}}}" for label in labels)
    return value.replace("&var-target=", f"{added}&var-target=")
