"""Capacity: how much room is left, where the knee is, and where the trend goes."""

from typing import Any

from vllm_vitals.core.states import State
from vllm_vitals.dashboards import field_config, links, panels, recorded, theme
from vllm_vitals.dashboards.annotations import incidents
from vllm_vitals.dashboards.panels import Panel
from vllm_vitals.dashboards.promql import (
    BY_ENGINE,
    ENGINE_BRIEFLY,
    bounded,
    folded_target,
    gauge,
    highest,
    in_words,
    rate,
    ratio,
    total,
    worst,
)
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Site
from vllm_vitals.dashboards.theme import Row
from vllm_vitals.rules.text import percent

_BANDS = (1, 5, 9, 17, 25, 33, 49, 65, 97, 129, 257)
# Counts and peaks are evaluated each minute, however long the range: rates and states are over a minute, so none
# falls between two evaluations. A mean is content with Grafana's own steps.
_MINUTES = "$__range:1m"
_STEPS = "$__range:$__interval"


def build(site: Site) -> dict[str, Any]:
    """Return the dashboard's JSON."""
    rows = (
        Row("How much room is left, at the peak of the range", _headroom(site)),
        Row("Where is the knee?", _knee(site)),
        Row("Where does it go?", _trend(site)),
        Row("Cost of incidents", _cost(site)),
    )
    return theme.dashboard(
        links.CAPACITY,
        "How much room is left at the peak, what more concurrency would buy, and where the trend goes. Choose a week;"
        " the review reports the same in words.",
        rows,
        annotations=(incidents(),),
        since="now-6h",
        refresh="1m",
    )


def _slots_used() -> str:
    return f"{gauge('requests_running')} / on (target) group_left () ({_slots()} > 0)"


def _slots() -> str:
    return folded_target("server_setting", 'name="max_num_seqs"')


def _headroom(site: Site) -> tuple[Panel, ...]:
    kv = f"min(1 - {highest('kv_cache_usage_max_ratio')})"
    slots = f"min(1 - max_over_time(({_slots_used()})[{_MINUTES}]))"
    return (
        panels.stat(
            "KV cache left",
            "What was free at the fullest moment of the range, on the fullest engine. At "
            f"{percent(1 - site.config.thresholds.kv_pressure_ratio)} and less, the next burst evicts.",
            [Query(kv, instant=True)],
            "percentunit",
            "not reported",
            levels=site.scale.kv_left,
            worded=False,
            decimals=0,
        ),
        panels.stat(
            "Slots left",
            "Free share of max_num_seqs at the busiest moment. None left with KV to spare: raise max_num_seqs. None "
            "left and KV full: add replicas.",
            [Query(slots, instant=True)],
            "percentunit",
            "cap not known",
            levels=site.scale.slots_left,
            worded=False,
            decimals=0,
        ),
        panels.stat(
            "KV demand, peak",
            "What KV usage would have been if everything that waited ran too. Above 100 % the cache is too small for "
            "the peak.",
            [Query(f"max({highest('kv_cache_demand_ratio')})", instant=True)],
            "percentunit",
            "not known",
            levels=site.scale.kv_demand,
            worded=False,
            decimals=0,
        ),
        panels.stat(
            "Full-length requests",
            "How many requests of max_model_len the smallest KV cache holds at once. Below max_num_seqs, long "
            "requests can evict each other.",
            [Query(f"min({gauge('kv_cache_full_windows')})", instant=True)],
            "none",
            "not known",
            decimals=1,
        ),
        panels.stat(
            "Peak requests/s",
            "Most finished requests per second over five minutes, all engines chosen together: what the next size "
            "must carry, plus one replica.",
            [
                Query(
                    f"max_over_time(sum({rate('responses_total', over='5m', keep=('finished_reason',))})[{_MINUTES}])",
                    instant=True,
                )
            ],
            "reqps",
            "no responses",
            decimals=2,
        ),
        panels.stat(
            "Peak useful tokens/s",
            "Most useful tokens per second of all engines chosen together.",
            [Query(f"max_over_time(sum({gauge('useful_tokens_per_second')})[{_MINUTES}])", instant=True)],
            "short",
            "no tokens",
            decimals=0,
        ),
    )


def _banded(value: str, by: str = "") -> list[Query]:
    """Return the mean of a value while so many requests ran, a query a band of concurrency; apart by a label's words.

    Engines are averaged at each step, not each over its own time: one that passed through a band counts as it lasted.
    """
    running = gauge("requests_running")
    queries = []
    for place, (low, high) in enumerate(zip(_BANDS, (*_BANDS[1:], None), strict=True)):
        within = f"{running} >= {low}" + (f" < {high}" if high else "")
        fold = f"avg by ({by})" if by else "avg"
        average = f"avg_over_time({fold} (({value}) and on ({BY_ENGINE}) ({within}))[{_STEPS}])"
        name = f"{low}-{high - 1}" if high else f"{low}+"
        # Grafana makes room for the longest name, not for the widest: hair spaces make the last one the longest.
        queries.append(Query(average, name + (f" {{{{{by}}}}}" if by else "") + "\u200a" * place, instant=True))
    return queries


def _knee(site: Site) -> tuple[Panel, ...]:
    return (
        panels.bars(
            "Useful tokens per second, by concurrency",
            "Mean useful rate of an engine while so many requests ran. Where the bars stop growing is the knee: more "
            "sequences than that only add waiting. If the last bar still grows, max_num_seqs may go up.",
            _banded(gauge("useful_tokens_per_second")),
            "short",
            "No request ran in this range.",
            width=8,
            height=9,
        ),
        panels.bars(
            "Time per token p99, by concurrency",
            "What more concurrency costs each user, at the same counts. Choose the highest band whose bar is within "
            "your objective. At most: all in the first bucket; at least: beyond the last.",
            _banded(in_words(bounded("tpot_p99_seconds", 'source="request"'), estimate=""), by="bound"),
            "s",
            "No request finished in this range.",
            width=8,
            height=9,
            levels=site.scale.tpot,
        ),
        panels.bars(
            "Preemptions per second, by concurrency",
            "Where evictions begin is the most that this KV cache carries with these lengths.",
            _banded(gauge("preemptions_per_second")),
            "ops",
            "No request ran in this range.",
            width=8,
            height=9,
        ),
    )


def _trend(site: Site) -> tuple[Panel, ...]:
    def peak(of: str, ago: str = "") -> str:
        return f"max_over_time({of}[1h:1m]{ago and f' offset {ago}'})"

    kv = worst(gauge("kv_cache_usage_max_ratio"))
    throughput = total(gauge("useful_tokens_per_second"))
    return (
        panels.timeseries(
            "KV cache, hourly peak",
            "The fullest engine of each model over the hour before, and the same a week ago (dashed). Compare peaks "
            "from week to week, not single hours.",
            [Query(peak(kv), "{{model_name}}"), Query(peak(kv, "1w"), "a week ago: {{model_name}}")],
            "percentunit",
            "No engine reports KV usage.",
            levels=site.scale.kv_usage,
            high=1,
            overrides=[_past()],
        ),
        panels.timeseries(
            "Slots used, hourly peak",
            "Largest share of max_num_seqs in use over the hour before. At 100 % requests queue, whatever the KV "
            "usage.",
            [Query(peak(f"({worst(_slots_used())})"), "{{model_name}}")],
            "percentunit",
            "max_num_seqs is not known: give the start-up log or set it in the config.",
            high=1,
        ),
        panels.timeseries(
            "Useful tokens per second, hourly peak",
            "All engines of each model together, and the same a week ago (dashed). The growth of this line is what "
            "you plan for.",
            [Query(peak(throughput), "{{model_name}}"), Query(peak(throughput, "1w"), "a week ago: {{model_name}}")],
            "short",
            "No tokens were produced in this range.",
            overrides=[_past()],
        ),
    )


def _past() -> dict[str, Any]:
    return field_config.by_regex(
        "^a week ago", custom__lineStyle={"fill": "dash", "dash": [8, 8]}, custom__fillOpacity=0
    )


def _cost(site: Site) -> tuple[Panel, ...]:
    return (
        panels.bars(
            "Engine time in each troubled state",
            "Time that engines of the models chosen spent in each state that is not healthy, counted at every "
            "evaluation of the rules, so that the shortest spell is in it.",
            [Query(recorded.minutes(site.config.evaluation_seconds), "{{state}}", instant=True)],
            "s",
            f"Every engine was healthy in this range; or {recorded.NOT_LOADED}.",
            height=7,
            overrides=[
                field_config.by_name(state.value, colour=state.spec.colour, displayName=state.spec.label)
                for state in State
            ],
        ),
        panels.bars(
            "Work lost to recomputation",
            "Of all the tokens that the engines computed in the range, the share that had been computed before and was "
            "thrown away: the recompute tax, weighed by work. Multiply by the GPUs' price.",
            [Query(f"sort_desc({_lost_share()})", "{{model_name}}", instant=True)],
            "percentunit",
            "No work was done in this range.",
            height=7,
            high=1,
            levels=site.scale.recompute_tax,
        ),
        panels.timeseries(
            "KV capacity in tokens",
            "What each engine's cache holds. It falls when a model, a length limit or gpu_memory_utilization "
            "changes: a step here explains a step above.",
            [Query(gauge("kv_cache_capacity_tokens"), ENGINE_BRIEFLY)],
            "short",
            "The server does not expose its cache size.",
            height=7,
        ),
    )


def _lost_share() -> str:
    """Lost / (lost + useful) by model. Useful is 1 - tax of all that was computed; idle time weighs nothing."""
    # At a tax of 1 there is no useful work to scale by; such a moment is left out.
    tax, useful = f"({gauge('recompute_tax_ratio')} < 1)", gauge("useful_tokens_per_second")
    computed = f"{useful} / on ({BY_ENGINE}) (1 - {tax})"
    lost = f"({computed}) * on ({BY_ENGINE}) {tax}"
    return ratio(*(total(f"sum_over_time(({part})[{_MINUTES}])") for part in (lost, computed)))
