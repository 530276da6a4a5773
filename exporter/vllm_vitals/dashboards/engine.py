"""Engine: one engine's vital signs, the evidence for its state, and which knob to turn first."""

from dataclasses import replace
from typing import Any

from vllm_vitals.dashboards import beside, canary, details, field_config, links, panels, recorded, states, tail, theme
from vllm_vitals.dashboards.annotations import incidents, state_changes
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import (
    BY_ENGINE,
    ENGINE_BRIEFLY,
    ENGINE_LEGEND,
    MOST,
    folded_target,
    gauge,
    of_engine,
    quantile,
    rate,
)
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Site
from vllm_vitals.dashboards.theme import Row
from vllm_vitals.rules.promql import number
from vllm_vitals.rules.text import duration_words

# Lines that an engine has in a chart, where they are more than its queries.
LINES = {
    "Running and waiting": 4, "Tail ratio p99 / p50, with bounds": 3, "Accepted by position in the draft": 8,
    "Cached prompt tokens per second, by tier": 5, "Requests whose KV is being fetched": 4,
    "KV bytes moved per second": 4, "Time a KV transfer takes": 4, "KV transfer failures per second": 4,
    "Blocks in CPU memory": 6, "Offloading memory held by transfers": 2, "Faults and marks of requests": 5,
}  # fmt: skip


def build(site: Site) -> dict[str, Any]:
    """Return the dashboard's JSON."""
    rows = (
        Row("Five vital signs, worst of the engines chosen", _signs(site)),
        Row("State, its evidence, and what to do", _verdict(site)),
        Row("Load against room", _load(site)),
        Row("Preemption: how much work is redone", _preemption(site)),
        Row("What users feel", _latency(site)),
        Row("Does it answer?", canary.row()),
        *details.rows(site),
    )
    few = tuple(replace(row, panels=tuple(_few(panel) for panel in row.panels)) for row in rows)
    return theme.dashboard(
        links.ENGINE,
        "Why is this engine slow, and which knob first? Opens with the worst server of the models chosen; with several "
        "engines, tiles show the worst.",
        (*few, *beside.rows()),
        variables=("model_name", "worst target", "engine"),
        hidden=beside.hidden(),
        annotations=(incidents(), state_changes(shown=True)),
    )


def _few(panel: Panel) -> Panel:
    """Return a chart of no more than the engines whose lines somebody can read."""
    if panel.kind != "timeseries":
        return panel
    count = max(1, MOST // LINES.get(panel.title, len(panel.queries)))
    # What is of a server has no engine to be worse than another.
    drawn = tuple(
        replace(one, expr=recorded.few(one.expr, count)) if "$engine" in one.expr else one for one in panel.queries
    )
    if drawn == panel.queries:
        return panel
    said = f" Of the engines chosen, the {count} worst." if count > 1 else " Of the engines chosen, the worst."
    return replace(panel, queries=drawn, why=panel.why + said)


def _finishes(site: Site) -> str:
    return number(site.config.thresholds.min_completions)


def _signs(site: Site) -> tuple[Panel, ...]:
    return (
        panels.stat(
            "1 · R, preemptions per finish",
            " finishes. Yellow: a preemption/recompute loop. Red, with a high recompute tax: a death spiral. Absent "
            "while too little has finished to judge.",
            [Query(f"max({gauge('preemptions_per_completion')})", instant=True)],
            "none",
            "too few finishes",
            levels=site.scale.preemptions_per_completion,
            decimals=2,
            width=5,
        ),
        panels.stat(
            "2 · KV cache, max",
            "Largest KV cache usage over the window. Above the limit a burst evicts. Full without preemption is only "
            "well used.",
            [Query(f"max({gauge('kv_cache_usage_max_ratio')})", instant=True)],
            "percentunit",
            "not reported",
            levels=site.scale.kv_usage,
            decimals=0,
            width=5,
        ),
        panels.stat(
            "3 · Tail ratio p99 / p50",
            "How much slower than the median the slowest 1 % of requests get their tokens, as far as buckets can tell. "
            "At least, above the limit: some users stall while the median is fine. At most, below it: none does. Grey: "
            "the limit lies between the bounds, so neither is proven.",
            tail.queries(site),
            "none",
            "not resolvable",
            named=True,
            levels=site.scale.tail_ratio,
            overrides=tail.colours(),
            decimals=1,
            width=5,
        ),
        panels.stat(
            "4 · Truncated at the cap",
            "Share of responses that end by length over the slow window. Users get half an answer; Workload shows "
            "which cap.",
            [Query(f"max({gauge('truncated_ratio')})", instant=True)],
            "percentunit",
            "no responses",
            levels=site.scale.truncated,
            decimals=0,
            width=5,
        ),
        panels.stat(
            "5 · State",
            "The state of the worst engine chosen. Its evidence and advice are below; the runbook of its alert has "
            "the steps.",
            [Query(states.worst_rank(by=""), instant=True)],
            "none",
            "no engine seen",
            mappings=states.mappings(),
        ),
    )


def _verdict(site: Site) -> tuple[Panel, ...]:
    setting = folded_target("server_setting", keep=("name",))
    confirmed = folded_target("server_setting_overridden", keep=("name",))
    advice = gauge("advice", keep=("knob", "direction")) + " == 1"
    return (
        panels.state_timeline(
            "State over time",
            "Which state held when. The blue marks on every chart are the same changes; line them up with the curves "
            "below to see the cause.",
            [Query(states.worst_rank(), ENGINE_LEGEND)],
            "No engine has been seen in this range.",
            states.mappings(),
            height=6,
        ),
        panels.table(
            "Advice in force",
            "The knob to turn, from the state and its numbers. 'Now' items need no restart. Turn one knob at a time "
            "and compare; the status page and the alert give its size and cost.",
            [advice],
            [
                Column("knob", "Knob", width=200),
                Column("direction", "Direction", width=85),
                Column("model_name", "Model"),
                Column("engine", "Engine", width=70),
            ],
            "No advice: nothing needs a knob now.",
            width=9,
            height=7,
            sort="Knob",
        ),
        panels.timeseries(
            "Expected wait",
            "Waiting requests over the completion rate: how long a new request will queue. Above the objective (the "
            f"line) and rising for {duration_words(site.config.limits.thrash_rise_seconds)}, it turns thrashing into "
            "a page.",
            [Query(gauge("expected_wait_seconds"), ENGINE_BRIEFLY)],
            "s",
            "Nothing finished, so no rate to expect from.",
            levels=site.scale.expected_wait,
            width=8,
            height=7,
        ),
        panels.table(
            "Settings of the server",
            "Effective settings, from the server's metrics and start-up log. Kept: whether the log confirms a "
            "configured default; no means that the server dropped it silently.",
            [setting, confirmed],
            [
                Column("name", "Setting"),
                Column("Value #A", "Value", width=75),
                Column("Value #B", "Kept", width=60, mappings=[panels.YES_NO]),
                Column("target", "Server", width=100),
            ],
            "The server's metrics carry no settings and no start-up log is read.",
            width=7,
            height=7,
            sort="Setting",
        ),
    )


def _load(site: Site) -> tuple[Panel, ...]:
    waiting = gauge("requests_waiting", keep=("reason",))
    slots = folded_target("server_setting", 'name="max_num_seqs"')
    return (
        panels.timeseries(
            "Running and waiting",
            "Requests in the batch and in the queue, by why they wait: capacity is slots or KV; deferred is remote "
            "KV, LoRA or grammar. Running at the dashed max_num_seqs with free KV means that slots are the limit.",
            [
                Query(gauge("requests_running"), of_engine("running")),
                Query(waiting, of_engine("waiting: {{reason}}")),
                Query(slots, "max_num_seqs · {{target}}"),
            ],
            "short",
            "No engine has been seen in this range.",
            overrides=[field_config.reference_line("max_num_seqs")],
        ),
        panels.timeseries(
            "KV cache: usage and demand",
            "Maximum usage over the window, and what usage would be if everything that waits ran too. Demand above "
            "100 % means that the cache is too small for this load: expect preemption, not just a queue.",
            [
                Query(gauge("kv_cache_usage_max_ratio"), of_engine("usage, max")),
                Query(gauge("kv_cache_usage_ratio"), of_engine("usage, at the scrape")),
                Query(gauge("kv_cache_demand_ratio"), of_engine("demand")),
            ],
            "percentunit",
            "The server reports no KV usage.",
            levels=site.scale.kv_demand,
        ),
        panels.timeseries(
            "Tokens per second",
            "What is generated, what prompts need, and the useful sum of both without recomputation. Useful well "
            "below its usual level (dashed: the median at this concurrency and length, last day) is harm; prompt "
            "work far above generation starves decode.",
            [
                Query(gauge("useful_tokens_per_second"), of_engine("useful")),
                Query(rate("generation_tokens_total"), of_engine("generation")),
                Query(rate("prompt_tokens_computed_total"), of_engine("prompt, computed")),
                Query(gauge("useful_tokens_baseline_per_second"), of_engine("usual")),
            ],
            "short",
            "No tokens were produced in this range.",
            overrides=[field_config.reference_line("usual")],
        ),
    )


def _preemption(site: Site) -> tuple[Panel, ...]:
    return (
        panels.timeseries(
            "R, preemptions per finished request",
            "Healthy engines were measured at 0.07 to 0.24, thrashing from 0.66, spirals above 10. Lines are the "
            "levels of thrashing and of a spiral.",
            [Query(gauge("preemptions_per_completion"), ENGINE_BRIEFLY)],
            "none",
            f"Fewer than {_finishes(site)} finishes in ten minutes: R is not known.",
            levels=site.scale.preemptions_per_completion,
            width=6,
        ),
        panels.timeseries(
            "Preemptions and stall gaps",
            "Evictions per second, and gaps over one second between two tokens of a request: where users see the "
            "evictions.",
            [
                Query(gauge("preemptions_per_second"), of_engine("preemptions")),
                Query(gauge("stall_gaps_per_second"), of_engine("gaps over 1 s")),
            ],
            "ops",
            "The server reports neither preemptions nor token gaps.",
            width=6,
        ),
        panels.timeseries(
            "Requests preempted twice or more",
            "Share of finished requests evicted at least twice. Evicting the same request again is what makes a "
            "loop; healthy engines stay under 6 %.",
            [Query(gauge("repeat_preemption_ratio"), ENGINE_BRIEFLY)],
            "percentunit",
            "Nothing finished, or vLLM is older than 0.30.",
            levels=site.scale.repeat_share,
            width=6,
        ),
        panels.timeseries(
            "Recompute tax, with bounds",
            "Estimated share of work that is recomputation, between its lower and upper bound. vLLM's own counters "
            "leave it out.",
            [
                Query(gauge("recompute_tax_ratio"), of_engine("estimate")),
                Query(gauge("recompute_tax_lower_ratio"), of_engine("lower bound")),
                Query(gauge("recompute_tax_upper_ratio"), of_engine("upper bound")),
            ],
            "percentunit",
            "No work was done in this range.",
            levels=site.scale.recompute_tax,
            width=6,
            overrides=[field_config.reference_line("lower bound"), field_config.reference_line("upper bound")],
        ),
    )


def _latency(site: Site) -> tuple[Panel, ...]:
    return (
        panels.timeseries(
            "Time to first token",
            "From arrival to the first token, queueing included. The line is the objective. p99 far above p50 with a "
            "queue: slots or KV are short.",
            [Query(quantile(q, "ttft_seconds", site, BY_ENGINE), of_engine(f"p{q * 100:g}")) for q in (0.5, 0.99)],
            "s",
            "No request got its first token in this range.",
            levels=site.scale.ttft,
            width=6,
        ),
        panels.timeseries(
            "Time per output token",
            "Per finished request: what a reader sees as speed. Interpolated inside vLLM's buckets, so small changes "
            "may be rounding. Single gaps are in the closed rows.",
            [Query(quantile(q, "tpot_seconds", site, BY_ENGINE), of_engine(f"p{q * 100:g}")) for q in (0.5, 0.99)],
            "s",
            "No token was made in this range.",
            levels=site.scale.tpot,
            width=6,
        ),
        panels.timeseries(
            "Tail ratio p99 / p50, with bounds",
            "How much slower the slowest 1 % of requests get their tokens. Only the lower bound is proof: alerts use "
            "it.",
            [
                Query(gauge("tpot_p99_p50_ratio", 'source="request"', keep=("bound",)), of_engine("{{bound}}")),
            ],
            "none",
            "Too few requests, or both quantiles lie in the same bucket.",
            levels=site.scale.tail_ratio,
            width=6,
            overrides=[field_config.reference_line("upper")],
        ),
        panels.timeseries(
            "In flight and abandoned",
            "Tokens since the last finish, shared out among the requests present or begun since: some request has made "
            "that many or more, so a runaway shows here before it ends. Gave up (right axis): clients that left, a "
            "second.",
            [
                Query(gauge("inflight_output_tokens_estimate"), of_engine("tokens")),
                Query(gauge("abandoned_requests_per_second"), of_engine("gave up")),
            ],
            "short",
            "Nothing was in flight in this range.",
            width=6,
            overrides=[
                field_config.by_regex("^gave up", unit="reqps", custom__axisPlacement="right", custom__axisSoftMax=1)
            ],
        ),
    )
