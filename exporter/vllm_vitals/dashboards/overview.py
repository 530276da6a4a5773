"""Overview: are users hurt, which model, which engine, worst first."""

from dataclasses import replace
from typing import Any

from vllm_vitals.dashboards import field_config, fleet_overview, levels, links, panels, recorded, states, theme, wait
from vllm_vitals.dashboards.annotations import models_in_trouble
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import (
    BY_ENGINE,
    ENGINE_BRIEFLY,
    MOST,
    age,
    bounded,
    gauge,
    in_words,
    metric,
    most,
    overall,
    quantile,
    rate,
    selector,
    total,
)
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import ANY_IS_BAD, ANY_IS_ODD, Site
from vllm_vitals.dashboards.theme import Row
from vllm_vitals.rules.text import duration_words

_ALERT = "target, model_name, engine, alertname, severity"
# An alert of a model or of a whole fleet names no server: it is of every one.
_ALERTS = (
    'ALERTS{alertstate="firing", alertname=~"VLLM.*", '
    'target=~"$target|", model_name=~"$model_name|", engine=~"$engine|"}'
)


def build(site: Site) -> dict[str, Any]:
    """Return the dashboard's JSON."""
    rows = (
        Row("Are users affected?", _tiles(site)),
        Row("Which model", (fleet_overview.models(site),)),
        Row("Which engine", _who(site)),
        Row("Promises to users", fleet_overview.promises(site)),
        Row("Since when", _when(site)),
        Row("The vital signs, worst engine of each model", _signs(site)),
        *((_silenced(site),) if site.alertmanager else ()),
    )
    return theme.dashboard(
        links.OVERVIEW,
        "Are users affected? Which model, which engine, since when. Start here; every row links to its engine.",
        rows,
        annotations=(models_in_trouble(),),
        since="now-1h",
    )


def _tiles(site: Site) -> tuple[Panel, ...]:
    hurting = states.matcher(*states.HURTING)
    costly = states.matcher(*states.COSTLY)
    return (
        panels.stat(
            "Worst model",
            "The worst state that a third of some model's engines are in. Red, pink or purple: its users are affected, "
            "open it now. Orange and yellow: work is lost, read its advice. Blue: full, no harm. One engine of many is "
            "in the next tile.",
            [Query(recorded.worst_model(), "{{model}}", instant=True)],
            "none",
            "not recorded",
            mappings=states.mappings(),
            named=True,
        ),
        panels.stat(
            "Engines in trouble",
            "Engines whose state affects users, engines whose state wastes work, and all engines in view. The first "
            "must be 0.",
            [
                Query(f"sum({gauge('state', hurting)})", "hurting", instant=True),
                Query(f"sum({gauge('state', costly)})", "wasteful", instant=True),
                Query(f"count({gauge('state')})", "all", instant=True),
            ],
            "none",
            "no engine seen",
            named=True,
            levels=ANY_IS_BAD,
            overrides=[
                field_config.by_name("all", colour=levels.GREY),
                field_config.by_name("wasteful", thresholds=levels.steps(ANY_IS_ODD)),
            ],
        ),
        panels.stat(
            "Alerts firing",
            "Alerts of what is chosen that fire now, by severity. A page needs a person; a ticket can wait for the "
            "morning.",
            [
                Query(
                    f"count by (severity) (max by (alertname, severity, target, model_name, engine) ({_ALERTS}))",
                    "{{severity}}",
                    instant=True,
                )
            ],
            "none",
            "none, or no rules",
            named=True,
            width=3,
            levels=ANY_IS_ODD,
            overrides=[field_config.by_name("page", thresholds=levels.steps(ANY_IS_BAD))],
        ),
        panels.stat(
            "First token, p99",
            "The slowest engine's p99 over the slow window. Users feel this first. Yellow and red come from the "
            "service objective; if it is high with a queue, see Expected wait.",
            [_slowest(_p99(site, bounded("ttft_p99_seconds"), "ttft_seconds"))],
            "s",
            "no first token",
            named=True,
            levels=site.scale.ttft,
            decimals=2,
        ),
        panels.stat(
            "Time per token, p99",
            "The slowest engine's p99 time per output token; at most or at least where buckets bound it. High "
            "while the median is low: some requests stall, see the tail ratio. vLLM before 0.11 measures only gaps: "
            "see Engine.",
            [_slowest(_p99(site, bounded("tpot_p99_seconds", 'source="request"'), "tpot_seconds"))],
            "s",
            "not measured",
            named=True,
            levels=site.scale.tpot,
        ),
        panels.stat(
            "Expected wait",
            "Waiting requests over the completion rate, of the engine where it is longest: about how long a new "
            f"request will queue. Rising for {duration_words(site.config.limits.thrash_rise_seconds)} above the "
            "objective is when thrashing does harm. Nothing finishes: an engine is stalled, or its queue waits and "
            "none leaves, so the wait has no end.",
            [Query(wait.longest(), instant=True)],
            "s",
            "no engine answers",
            mappings=[wait.endless()],
            levels=site.scale.expected_wait,
            decimals=1,
            width=3,
        ),
        panels.stat(
            "Age",
            "How old the newest sample is, of the engine where it is oldest. Tiles and tables show the last sample of "
            "two minutes, so that a missed scrape changes nothing; when this one is yellow, they show the past: see "
            "Self-monitoring.",
            [Query(f"max({_age(BY_ENGINE)})", instant=True)],
            "s",
            "no engine seen",
            levels=site.scale.sample_age,
            decimals=0,
            width=2,
        ),
    )


def _age(by: str) -> str:
    """Return how old (s) the newest sample of each engine is."""
    of = metric("state_since_timestamp_seconds")
    return age(f"{of.full_name}{selector(of)}", by)


def _slowest(p99: str) -> Query:
    """Return the largest of the engines' p99, and whether it is about that, at most or at least."""
    return Query(in_words(f"topk(1, {p99})"), "{{bound}}", instant=True)


def _p99(site: Site, derived: str, histogram: str) -> str:
    """Return the daemon's own figure per engine or, without a daemon, one from vLLM's buckets."""
    # Without traffic a quantile is NaN, which is no number to show.
    raw = f"({quantile(0.99, histogram, replace(site, daemon=False, native=True), BY_ENGINE)} >= 0)"
    return f" or on ({BY_ENGINE}) ".join([derived] * site.daemon + [raw] * site.native)


def _who(site: Site) -> tuple[Panel, ...]:
    scale = site.scale
    waiting = total(gauge("requests_waiting", keep=("reason",)), BY_ENGINE)
    share = {"unit": "percentunit", "decimals": 0}
    shown: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("State", states.worst_rank(), {"mappings": states.mappings(), "width": 105}),
        ("For", f"time() - {gauge('state_since_timestamp_seconds')}", {"unit": "dtdurations", "width": 85}),
        ("Running", gauge("requests_running"), {"decimals": 0, "width": 70}),
        ("Waiting", waiting, {"decimals": 0, "width": 70}),
        ("KV max", gauge("kv_cache_usage_max_ratio"), share | {"levels": scale.kv_usage, "width": 65}),
        ("R", gauge("preemptions_per_completion"),
         {"levels": scale.preemptions_per_completion, "decimals": 2, "width": 50}),
        ("Recompute tax", gauge("recompute_tax_ratio"), share | {"levels": scale.recompute_tax, "width": 110}),
        ("Tokens/s", gauge("useful_tokens_per_second"), {"unit": "short", "width": 75}),
        ("Truncated", gauge("truncated_ratio"), share | {"levels": scale.truncated, "width": 80}),
        ("Expected wait", wait.of_each(),
         {"unit": "s", "levels": scale.expected_wait, "mappings": [wait.endless()], "width": 115}),
        ("Age", _age(BY_ENGINE), {"unit": "s", "levels": scale.sample_age, "decimals": 0, "width": 60}),
    )  # fmt: skip
    link = [field_config.row_to_engine()]
    names = [
        Column("model_name", "Model", links=link),
        Column("target", "Server", links=link),
        Column("engine", "Engine", links=link, width=60),
    ]
    values = [Column(f"Value #{chr(ord('A') + i)}", name, **look) for i, (name, _, look) in enumerate(shown)]
    return (
        panels.table(
            "Engines, worst first",
            "One row an engine. Click a row's model, server or engine to open its page at this time. R is "
            "preemptions per finished request; the recompute tax is the share of work that redoes what preemption "
            "threw away.",
            [expr for _, expr, _ in shown],
            [values[0], *names, *values[1:]],
            "No engine has been seen: check the targets on the dashboard of vllm-vitals itself.",
            sort="State",
            width=24,
            height=7,
        ),
    )


def _when(site: Site) -> tuple[Panel, ...]:
    link = [field_config.row_to_engine()]
    alert_columns = [
        Column("severity", "Severity", width=75),
        Column("alertname", "Alert"),
        Column("model_name", "Model", links=link),
        Column("target", "Server", links=link),
        Column("engine", "Engine", links=link, width=65),
        Column("Value", "For", "dtdurations", width=85),
    ]
    since = f"ALERTS_FOR_STATE and ignoring (alertstate) {_ALERTS}"
    return (
        panels.state_timeline(
            "State of each engine",
            f"What the worst engines of the range (at most {MOST}) were doing, and since when; each band is "
            "the worst state of its step, so that no spell is lost in a long range. Read it from the first colour that "
            "is not green: what came before a spiral is usually its cause. Click a band to open the engine.",
            [Query(recorded.rank_over_time(), ENGINE_BRIEFLY)],
            f"Nothing to show: {recorded.NOT_LOADED}.",
            states.mappings(),
            width=13,
            height=11,
            links=[field_config.to_engine()],
        ),
        panels.table(
            "Firing alerts",
            "Alerts of the servers, models and engines chosen that fire now; a click opens the engine. Each alert's "
            "own text carries the numbers and its runbook.",
            [f"time() - max by ({_ALERT}) ({since})"],
            alert_columns,
            "No alert fires, or no rules are loaded in this Prometheus.",
            width=11,
            height=11,
            sort="Severity",
        ),
        panels.timeseries(
            "Time to first token p99, by model",
            "p99 by model, queueing included. A climb with a flat time per token is a queue; a climb of both is an "
            "engine that redoes work.",
            [Query(recorded.late_first_token(), "{{model_name}}")],
            "s",
            "No request got its first token in this range.",
            levels=site.scale.ttft,
            width=6,
        ),
        panels.timeseries(
            "Useful tokens per second",
            "Generated plus computed prompt tokens, recomputation left out, by model. Falling while requests run and "
            "wait is the mark of a death spiral.",
            [Query(recorded.largest("useful_tokens_per_second"), "{{model_name}}")],
            "short",
            "No tokens were produced in this range.",
            width=6,
        ),
        panels.timeseries(
            "Requests waiting",
            "Queued requests by model. A steady queue without preemptions is a capacity problem; one that grows under"
            " preemption is not.",
            [Query(recorded.largest("requests_waiting"), "{{model_name}}")],
            "short",
            "No engine has been seen in this range.",
            width=6,
        ),
        panels.timeseries(
            "Engine errors in the logs",
            "How many in the five minutes before, by kind, from every log that is read (a log is called by its source, "
            "not by a server). engine_dead and out_of_memory end the engine; shm_broadcast_wait is often its only sign "
            "of a hang, or of a start-up that compiles.",
            [
                Query(
                    most(
                        f"round(300 * sum by (source, kind) ({rate('log_engine_errors_total', over='5m')})) > 0",
                        "source, kind",
                        overall("log_engine_errors_total", "source, kind"),
                    ),
                    "{{source}} {{kind}}",
                )
            ],
            "short",
            "No error was logged, or no logs are read: set logs in the config.",
            width=6,
        ),
    )


def _signs(site: Site) -> tuple[Panel, ...]:
    return (
        panels.timeseries(
            "Preemptions per second",
            "Evictions by model. Some are normal in a full cache; what counts is whether the same requests are "
            "evicted again (R, repeat share).",
            [Query(recorded.worst("preemptions_per_second"), "{{model_name}}")],
            "ops",
            "No engine reports preemptions.",
            width=6,
        ),
        panels.timeseries(
            "KV cache, maximum over the window",
            "The fullest engine of each model. Above the line a burst of long requests will cause preemptions. The "
            "maximum is shown because usage dips whenever a victim frees its blocks.",
            [Query(recorded.worst("kv_cache_usage_max_ratio"), "{{model_name}}")],
            "percentunit",
            "No engine reports KV usage.",
            levels=site.scale.kv_usage,
            high=1,
            width=6,
        ),
        panels.timeseries(
            "Tail ratio p99 / p50, lower bound",
            "How much slower than the median the slowest 1 % of requests get their tokens, at the least (buckets "
            "hide the rest). Above the line, preemption or prefill stalls some users.",
            [Query(recorded.worst("tpot_p99_p50_ratio"), "{{model_name}}")],
            "none",
            "Too few requests, or both quantiles lie in the same bucket.",
            levels=site.scale.tail_ratio,
            width=6,
        ),
        panels.timeseries(
            "Truncated at the cap",
            "Share of responses that end by length. A step up after a deploy is usually a new max_tokens or a lost "
            "default; see Workload for which cap.",
            [Query(recorded.worst("truncated_ratio"), "{{model_name}}")],
            "percentunit",
            "No response has finished in this range.",
            levels=site.scale.truncated,
            width=6,
        ),
    )


def _silenced(site: Site) -> Row:
    """Return what Prometheus does not know of alerts, from a data source of another kind; closed, since few have it."""
    name = site.alertmanager
    shown = panels.alert_groups(
        f"Groups and silences of {name}",
        f"What Alertmanager made of the alerts: how they are grouped, who was notified, what is silenced. It reads the "
        f"data source called {name}, and also says 'No alerts' where Grafana has none of this name: "
        "see Firing alerts then.",
        name,
        'alertname=~"VLLM.*"',
    )
    return Row(f"Details · Alertmanager, where Grafana has the data source {name}", (shown,), closed=True)
