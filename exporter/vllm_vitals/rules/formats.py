"""The same rules and routes as each system takes them: rule files, operators' objects, Mimir's, Grafana's own.

Input: groups by file name, and the whole alertmanager.yml. Output: documents by file name. Invariant: an expression, a
label and a hold are the same in every format.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_vitals.rules import grafana_managed
from vllm_vitals.rules.model import Group, groups_dict

Documents = dict[str, dict[str, Any]]
Files = Mapping[str, tuple[Group, ...]]
OPERATOR_API, VICTORIA_API = "monitoring.coreos.com/v1", "operator.victoriametrics.com/v1beta1"
LABELS = {"app.kubernetes.io/name": "vllm-vitals"}


def object_of(api: str, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of an operator."""
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": dict(LABELS)}, "spec": spec}


def _plain(files: Files, routes: dict[str, Any]) -> Documents:
    return {**{f"{name}.yml": groups_dict(groups) for name, groups in files.items()}, "alertmanager.yml": routes}


def _named(file: str) -> str:
    """Return the name of an object for a file, which may be a shard's."""
    return "vllm-vitals-" + file.lower().replace("_", "-").replace(".", "-")


def _operator(files: Files, routes: dict[str, Any]) -> Documents:
    rules = {name: groups_dict(groups) for name, groups in files.items()}
    objects = {f"{k}.yml": object_of(OPERATOR_API, "PrometheusRule", _named(k), v) for k, v in rules.items()}
    return {**objects, "alertmanager.yml": routes}


def _victoria(files: Files, routes: dict[str, Any]) -> Documents:
    rules = {name: groups_dict(groups) for name, groups in files.items()}
    objects = {f"{k}.yml": object_of(VICTORIA_API, "VMRule", _named(k), v) for k, v in rules.items()}
    return {**objects, "vmalertmanagerconfig.yml": victoria_routes(routes)}


def victoria_routes(routes: dict[str, Any]) -> dict[str, Any]:
    """Return the routes as an object; its receivers are names alone, as secrets are no files there."""
    receivers = [{"name": receiver["name"]} for receiver in routes["receivers"]]
    return object_of(VICTORIA_API, "VMAlertmanagerConfig", "vllm-vitals", {**routes, "receivers": receivers})


def _mimir(files: Files, routes: dict[str, Any]) -> Documents:
    rules = {
        f"{name}.yml": {"namespace": f"vllm-vitals-{name}", **groups_dict(groups)} for name, groups in files.items()
    }
    return {**rules, "alertmanager.yml": routes}


def _grafana(files: Files, routes: dict[str, Any]) -> Documents:
    recordings = {name: groups for name, groups in files.items() if name != "alerts"}
    plain = _plain(recordings, routes)
    return {**plain, "grafana-alerts.yml": grafana_managed.document(files["alerts"])}


FORMATS: dict[str, Callable[[Files, dict[str, Any]], Documents]] = {
    "prometheus": _plain,
    "operator": _operator,
    "victoria-metrics": _victoria,
    "mimir": _mimir,
    "grafana": _grafana,
}
