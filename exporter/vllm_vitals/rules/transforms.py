"""What cuts across all rules, as functions from rules to rules, applied in the order of `PASSES`.

Each takes and returns groups and touches one thing: labels, description, links, producers, order.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from vllm_vitals.catalog import METRICS
from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.dashboards import links
from vllm_vitals.rules import description, fleet
from vllm_vitals.rules.baseline_rules import TROUBLE
from vllm_vitals.rules.lint import metrics_of
from vllm_vitals.rules.model import Alert, Group, Recording, Scope, Severity
from vllm_vitals.rules.promql import metric
from vllm_vitals.rules.text import scope_labels

Groups = tuple[Group, ...]
Pass = Callable[[Config, Groups], Groups]
_RANK = {Severity.PAGE: 0, Severity.TICKET: 1, Severity.NONE: 2}


def _each(groups: Groups, change: Callable[[Alert], Alert]) -> Groups:
    return tuple(replace(g, rules=tuple(change(r) if isinstance(r, Alert) else r for r in g.rules)) for g in groups)


def add_labels(config: Config, groups: Groups) -> Groups:
    """Severity, signal and team: what routes match on."""

    def change(alert: Alert) -> Alert:
        team = {"team": config.team} if config.team else {}
        severity = config.severity_label(alert.severity)
        return replace(alert, labels={"severity": severity, "signal": alert.signal, **team, **alert.labels})

    return _each(groups, change)


def add_description(config: Config, groups: Groups) -> Groups:
    """Say where the victim stands: labels to route by, and for one target its pod and node in the first line."""

    def change(alert: Alert) -> Alert:
        where = description.said(config, "$labels") if "target" in scope_labels(config, alert.scope) else ""
        summary = f"{alert.summary.removesuffix('.')}{where}." if where else alert.summary
        return replace(alert, expr=description.joined(config, alert), summary=summary)

    return _each(groups, change)


def add_runbook(config: Config, groups: Groups) -> Groups:
    """Return a link to the alert's runbook."""
    base = config.runbook_base.rstrip("/")
    return _each(groups, lambda a: replace(a, annotations={**a.annotations, "runbook_url": f"{base}/{a.name}.md"}))


def add_dashboard(config: Config, groups: Groups) -> Groups:
    """Return a link to the panel that shows it, for this victim, from half an hour before the state began."""

    def change(alert: Alert) -> Alert:
        uid, _, panel = alert.dashboard.partition(":")
        labels = scope_labels(config, alert.scope)
        shown = [name for name in ("target", "model_name", "engine") if name in labels]
        victim = "".join(f"&var-{name}={{{{ $labels.{name} | urlquery }}}}" for name in shown)
        link = links.url(config.grafana_url.rstrip("/"), uid, panel) + victim + _period(config, alert)
        return replace(alert, annotations={**alert.annotations, "dashboard_url": link})

    return _each(groups, change)


def _period(config: Config, alert: Alert) -> str:
    if alert.scope is not Scope.ENGINE:
        return "&from=now-1h&to=now"
    matchers = ",".join(f"{name}=%[{number}]q" for number, name in enumerate(config.identity, start=1))
    values = "".join(f" $labels.{name}" for name in config.identity)
    since = f"{metric('state_since_timestamp_seconds')}{{{matchers}}}"
    # Of two exporters that see the trouble, the one that has seen it longest knows when it began.
    seen = "|".join(state for state in TROUBLE if state not in (State.DOWN, State.BLIND))
    troubled = f'{metric("state")}{{{matchers},state=~"{seen}"}} == 1'
    start = f"((min({since} and ignoring (state) ({troubled})) or min({since})) - 1800) * 1000"
    shown = '{{ . | first | value | printf "%.0f" }}'
    return f"&from={{{{ with printf `{start}`{values} | query }}}}{shown}{{{{ else }}}}now-1h{{{{ end }}}}&to=now"


def only_native(_: Config, groups: Groups) -> Groups:
    """Without the exporter: leave out every alert that needs a series which PromQL cannot make."""
    exporters = {m.full_name for m in METRICS if not m.native}
    histograms = tuple(m.full_name for m in METRICS if m.kind == "histogram")

    def needs(alert: Alert) -> bool:
        return any(name in exporters or name.startswith(histograms) for name in metrics_of(alert.expr))

    return tuple(
        replace(g, rules=tuple(r for r in g.rules if isinstance(r, Recording) or not needs(r))) for g in groups
    )


# What both producers record, natively and of whatever there is: without the exporter one record is enough.
_TWICE = {
    "engine:vllm_work:requests": "engine:vllm_vitals_work:requests",
    "engine:vllm_waiting:requests": "engine:vllm_vitals_waiting:requests",
    "engine:vllm_state:rank": fleet.RANK,
}


def one_name(files: Mapping[str, Groups]) -> dict[str, Groups]:
    """Without the exporter: let the native rules record these under the names that the others read."""

    def renamed(text: str) -> str:
        for own, shared in _TWICE.items():
            text = text.replace(own, shared)
        return text

    def native(rule: Alert | Recording) -> Alert | Recording:
        return (
            replace(rule, record=renamed(rule.record), expr=renamed(rule.expr)) if isinstance(rule, Recording) else rule
        )

    shared = frozenset(_TWICE.values())

    def rest(group: Group) -> Group:
        return replace(group, rules=tuple(r for r in group.rules if isinstance(r, Alert) or r.record not in shared))

    return {
        name: tuple(replace(g, rules=tuple(map(native, g.rules))) if name == "native" else rest(g) for g in groups)
        for name, groups in files.items()
    }


def sort_alerts(_: Config, groups: Groups) -> Groups:
    """Pages first, then by name. Recordings keep their order: they read each other."""

    def key(rule: Alert | Recording) -> tuple[int, str]:
        return (_RANK[rule.severity], rule.name) if isinstance(rule, Alert) else (-1, "")

    return tuple(replace(g, rules=tuple(sorted(g.rules, key=key))) for g in groups)


PASSES: tuple[Pass, ...] = (add_labels, add_description, add_runbook, add_dashboard, sort_alerts)
