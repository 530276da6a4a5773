"""What promtool does not check, over the parsed PromQL of every rule: each finding is one line naming rule and mend.

Invariant: an exclusion stands in `EXCLUDED` with its reason; everything else must be clean.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import promql_parser as pq

from vllm_vitals.catalog import METRICS, Kind
from vllm_vitals.config.alerts import Config
from vllm_vitals.rules import boards, fleet, scale
from vllm_vitals.rules.description import labels_of
from vllm_vitals.rules.model import Alert, Group, Recording, Severity
from vllm_vitals.rules.text import scope_labels
from vllm_vitals.vllm.lookup import is_known, stem
from vllm_vitals.vllm.routes import HTTP_REQUESTS

# (rule, check): reason.
EXCLUDED = {
    ("VLLMVitalsWatchdog", "comparison"): "it must always fire",
    ("VLLMExporterDown", "job"): "the only way to see one of several exporters gone; its output carries no job",
}
REQUIRED_ANNOTATIONS = ("summary", "description", "runbook_url", "dashboard_url")
_RATES = {"rate", "increase", "irate", "resets"}
_COMPARISONS = {">", "<", ">=", "<=", "==", "!="}
# Functions after which a series keeps its name in VictoriaMetrics.
_KEEPS = {f"{how}_over_time" for how in ("avg", "last", "max", "min", "quantile")} | {"clamp_max", "clamp_min"}
_EVENTS = {"last_over_time", "resets", "absent", "timestamp", "count_over_time", "changes"}
_COUNTERS = {m.full_name for m in METRICS if m.kind is Kind.COUNTER}
_HISTOGRAMS = {m.full_name for m in METRICS if m.kind is Kind.HISTOGRAM}
_GAUGES = {m.full_name for m in METRICS if m.kind is Kind.GAUGE}
_LABELS = {m.full_name: set(m.all_labels) for m in METRICS}
_MAX_INTERVAL = 300
MOST = 20  # rules a group, as Mimir has it by default
_MOST_QUERIES = 3
# Neither ours nor vLLM's engines': what Prometheus and the HTTP server say.
_OTHERS = {"up", f"{HTTP_REQUESTS}_total"} | {
    f"{ruler}_rule_{name}_total"
    for ruler in ("prometheus", "cortex_prometheus")
    for name in ("evaluation_failures", "group_iterations_missed")
}


@dataclass(frozen=True, slots=True)
class Finding:
    """``rule`` breaks ``check``; ``text`` says how to mend it."""

    rule: str
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.check}: {self.text}"


def lint(config: Config, groups: tuple[Group, ...], runbooks: frozenset[str]) -> list[Finding]:
    """Return every finding over all groups; empty when the rules are fit to ship."""
    found = [f for g in groups for f in _group(g)] + list(_duplicates(groups)) + list(_circles(groups))
    recorded = {r.record for g in groups for r in g.rules if isinstance(r, Recording)}
    read: set[str] = set()
    for rule in (r for g in groups for r in g.rules):
        faults = _rule(config, rule, recorded)
        found += faults
        if any(fault.check == "syntax" for fault in faults):
            continue
        read |= metrics_of(rule.expr)
        if isinstance(rule, Alert):
            read |= {m for text in _texts(rule) for m in recorded if m in text}
            found += _alert(config, rule, runbooks)
    served = {m.full_name for m in METRICS} | fleet.SHOWN | scale.SHOWN | {rule.record for rule in boards.every(config)}
    found += [Finding(r, "unused", "nothing reads this recording: delete it") for r in sorted(recorded - read - served)]
    return [f for f in found if (f.rule, f.check) not in EXCLUDED]


def nodes(expr: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every node of a parsed expression, with its ancestors."""
    stack: list[tuple[Any, tuple[Any, ...]]] = [(pq.parse(expr), ())]
    while stack:
        node, parents = stack.pop()
        yield node, parents
        children = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector", "param")]
        children += list(getattr(node, "args", None) or [])
        stack += [(child, (*parents, node)) for child in children if isinstance(child, pq.Expr | pq.VectorSelector)]


def metrics_of(expr: str) -> set[str]:
    """Return names of all series that an expression selects."""
    return {node.name for node, _ in nodes(expr) if isinstance(node, pq.VectorSelector) and node.name}


def matchers_of(selector: Any) -> list[tuple[str, str, str]]:
    """(label, operator, value) of a selector."""
    return [(m.name, str(m.op).removeprefix("MatchOp."), m.value) for m in selector.matchers.matchers]


def _group(group: Group) -> Iterator[Finding]:
    if group.interval > _MAX_INTERVAL:
        yield Finding(group.name, "interval", "above 5 minutes series go stale between evaluations: shorten it")
    if len(group.rules) > MOST:
        yield Finding(group.name, "size", f"{len(group.rules)} rules: rulers hold {MOST} a group, cut it")


def _duplicates(groups: tuple[Group, ...]) -> Iterator[Finding]:
    seen: set[tuple[str, ...]] = set()
    for rule in (r for g in groups for r in g.rules):
        if isinstance(rule, Alert):
            key: tuple[str, ...] = (rule.name, str(rule.severity), *sorted(map(str, rule.labels.items())))
        else:
            key = (rule.record, *sorted(map(str, rule.labels.items())))
        if key in seen:
            yield Finding(key[0], "duplicate", "the same rule twice: delete one")
        seen.add(key)


def _circles(groups: tuple[Group, ...]) -> Iterator[Finding]:
    """Find records that read themselves, directly or through others."""
    reads: dict[str, set[str]] = {}
    for rule in (r for g in groups for r in g.rules):
        if isinstance(rule, Recording):
            with suppress(ValueError):  # `_rule` says what is wrong with its syntax
                reads.setdefault(rule.record, set()).update(metrics_of(rule.expr))
    for record, direct in reads.items():
        seen: set[str] = set()
        ahead = set(direct)
        while ahead:
            seen |= ahead
            ahead = {name for one in ahead for name in reads.get(one, ())} - seen
        if record in seen:
            yield Finding(record, "circle", "it reads itself, which no replay can follow: write events, read the last")


def _names(node: Any) -> set[str]:
    """Return the names that an expression's series may have over time in VictoriaMetrics, which keeps more of them."""
    if isinstance(node, pq.ParenExpr):
        return _names(node.expr)
    if isinstance(node, pq.VectorSelector):
        return {node.name or ""}
    if isinstance(node, pq.MatrixSelector):
        return {node.vector_selector.name or ""}
    if isinstance(node, pq.Call) and node.args and (node.func.name in _KEEPS or node.func.name.startswith("label_")):
        return _names(node.args[0])
    if isinstance(node, pq.BinaryExpr):
        if str(node.op) == "or":
            return _names(node.lhs) | _names(node.rhs)
        if str(node.op) in {"and", "unless"} or (str(node.op) in _COMPARISONS and not _bool(node)):
            return _names(node.lhs)
    return {""}


def _bool(node: Any) -> bool:
    return node.modifier is not None and node.modifier.return_bool


def _renamed(tree: list[tuple[Any, tuple[Any, ...]]]) -> Iterator[Any]:
    """Expressions whose series lose their names, and may have had several."""
    for node, _ in tree:
        if isinstance(node, pq.BinaryExpr) and str(node.op) in {"+", "-", "*", "/"}:
            yield from (side for side in (node.lhs, node.rhs) if len(_names(side)) > 1)
    if len(_names(tree[0][0])) > 1:
        yield tree[0][0]


def _rule(config: Config, rule: Alert | Recording, recorded: set[str]) -> list[Finding]:
    name = rule.name if isinstance(rule, Alert) else rule.record
    try:
        tree = list(nodes(rule.expr))
    except ValueError as error:
        return [Finding(name, "syntax", str(error).splitlines()[0])]
    found = [
        Finding(
            name, "names", f"{' or '.join(sorted(map(repr, _names(node))))}: two series over time, fold them by max"
        )
        for node in _renamed(tree)
    ]
    for node, parents in tree:
        if isinstance(node, pq.VectorSelector):
            found += [Finding(name, check, text) for check, text in _selector(config, node, parents, recorded)]
        if isinstance(node, pq.AggregateExpr) and str(node.op) in {"topk", "bottomk"}:
            found.append(Finding(name, "topk", "its members change from one evaluation to the next: compare instead"))
    return found


def _calls(parents: tuple[Any, ...]) -> list[str]:
    return [p.func.name for p in parents if isinstance(p, pq.Call)]


def _selector(config: Config, node: Any, parents: tuple[Any, ...], recorded: set[str]) -> Iterator[tuple[str, str]]:
    series, calls = node.name or "", _calls(parents)
    base = re.sub(r"_(bucket|sum|count)$", "", series)
    ours = series in _LABELS or base in _HISTOGRAMS
    raw = series.startswith(config.spellings) and is_known(stem(series))
    given = config.desired_replicas + config.description_query
    if not (ours or raw or series in recorded or series in _OTHERS or series in given):
        yield "unknown", f"nothing records or serves {series}"
    if (
        (series in _COUNTERS or base in _HISTOGRAMS)
        and not (_RATES | _EVENTS) & set(calls)
        and not _scaled_to_zero(parents)
    ):
        yield "counter", f"{series} only grows: put it inside rate() or increase()"
    if series in _GAUGES and (_RATES - {"resets"}) & set(calls):
        yield "gauge", f"{series} is a gauge: rate() of it means nothing"
    labels = _LABELS.get(series) or (_LABELS[base] | {"le"} if base in _HISTOGRAMS else None)
    for label, op, value in matchers_of(node):
        if labels is not None and label not in labels | {*config.identity_labels, *config.describing, *config.routing}:
            yield "label", f"{series} has no label {label}"
        if op in {"Re", "NotRe"} and not re.search(r"[|.*+?()\[\]\\^$]", value):
            yield "regexp", f"{label}: {value} is no pattern: use = or !="
        if label in {"job", "instance"} and value not in {""}:
            yield "job", "an exporter's own job or instance must not decide anything"
    matrix = parents[-1] if parents and isinstance(parents[-1], pq.MatrixSelector) else None
    if matrix is not None and _RATES & set(calls) and matrix.range.total_seconds() < 2 * config.evaluation_seconds:
        yield "range", f"{matrix.range} holds too few samples: at least two evaluation intervals"


def _scaled_to_zero(parents: tuple[Any, ...]) -> bool:
    """``0 * counter`` and comparisons with 0 only ask whether it exists or ever moved."""
    return any(
        isinstance(p, pq.BinaryExpr) and (str(p.lhs.prettify()).strip() == "0" or str(p.rhs.prettify()).strip() == "0")
        for p in parents
    )


def _texts(alert: Alert) -> list[str]:
    return [alert.summary, alert.description, *alert.annotations.values()]


def _alert(config: Config, alert: Alert, runbooks: frozenset[str]) -> list[Finding]:
    found: list[Finding] = []

    def note(check: str, text: str) -> None:
        found.append(Finding(alert.name, check, text))

    if not any(_is_comparison(node) for node, _ in nodes(alert.expr)):
        note("comparison", "an expression without a comparison always fires")
    if not alert.hold and not alert.why_no_hold:
        note("for", "say how long it must hold, or why it need not")
    if alert.severity is Severity.PAGE and not alert.keep:
        note("keep", "a page must outlast a pause of its incident and a restart of the exporter")
    if any("$value" in str(v) for v in alert.labels.values()):
        note("labels", "$value in a label makes a new alert at each evaluation")
    if alert.labels.get("severity") not in {config.severity_label(s) for s in Severity}:
        note("severity", "nothing routes this severity")
    for name in REQUIRED_ANNOTATIONS:
        if name not in {"summary", "description", *alert.annotations}:
            note("annotations", f"{name} is missing")
    if not alert.summary.endswith("."):
        note("summary", "end it with a full stop")
    if alert.name not in runbooks:
        note("runbook", "write its runbook")
    for text in _texts(alert):
        if (asked := text.count("| query }}")) > _MOST_QUERIES:
            note("queries", f"{asked} queries in one annotation are asked at every evaluation: at most {_MOST_QUERIES}")
    allowed = {*scope_labels(config, alert.scope), *alert.labels, *_kept(alert), *labels_of(config, alert)}
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(_texts(alert))))
    found += [Finding(alert.name, "template", f"label {x} is not in the output") for x in sorted(used - allowed)]
    return found + list(_queries(alert))


def _kept(alert: Alert) -> set[str]:
    """Return labels that the outermost aggregation adds to the scope's."""
    outer = [
        n
        for n, parents in nodes(alert.expr)
        if isinstance(n, pq.AggregateExpr) and not any(isinstance(p, pq.AggregateExpr) for p in parents)
    ]
    return {label for node in outer if node.modifier for label in node.modifier.labels}


def _is_comparison(node: Any) -> bool:
    if isinstance(node, pq.Call) and node.func.name == "absent":
        return True
    return isinstance(node, pq.BinaryExpr) and str(node.op) in _COMPARISONS


def queries_of(alert: Alert) -> list[str]:
    """Return the PromQL inside an alert's templates, with a stand-in for every value."""
    found = []
    for text in _texts(alert):
        for query in re.findall(r"with (?:printf )?`([^`]*)`[^|}]*\| query", text):
            filled = re.sub(r"%(\[\d\])?q", '"v"', re.sub(r"%\[[123]\]s", 'target="t"', query))
            found.append(filled.replace("{,", "{"))
    return found


def _queries(alert: Alert) -> Iterator[Finding]:
    served = {m.full_name for m in METRICS} | fleet.SHOWN | scale.SHOWN
    for query in queries_of(alert):
        try:
            names = metrics_of(query)
        except ValueError as error:
            yield Finding(alert.name, "query", f"{query}: {str(error).splitlines()[0]}")
            continue
        for name in names:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            if name.startswith("vllm_vitals_") and name not in served and base not in served:
                yield Finding(alert.name, "query", f"{name} is not in the catalogue")
