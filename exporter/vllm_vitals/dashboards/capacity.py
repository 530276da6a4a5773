"""Capacity: how much room is left, where the knee is, and where the trend goes; a row a model and size of KV cache."""

from typing import Any

from vllm_vitals.dashboards import field_config, links, panels, pools, recorded, theme
from vllm_vitals.dashboards.annotations import models_in_trouble
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import MOST, ratio
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Site
from vllm_vitals.dashboards.theme import Row
from vllm_vitals.rules import boards
from vllm_vitals.rules.text import percent

_NONE = f"Nothing to show: {recorded.NOT_LOADED}."
_SIZE = "Engines of one model that hold about as many tokens of KV cache are one row: same GPUs, same settings."


def build(site: Site) -> dict[str, Any]:
    """Return the dashboard's JSON."""
    rows = (
        Row("How much room is left, at the peak of the range", (*_tiles(site), _headroom(site), *_distribution())),
        Row("Where is the knee? Choose one model", _knee(site)),
        Row("Where does it go?", _trend(site)),
        Row("Cost of incidents", _cost(site)),
    )
    return theme.dashboard(
        links.CAPACITY,
        "How much room is left at the peak, what more concurrency would buy, and where the trend goes, by model and "
        "hardware. Shows a week; the review reports the same in words.",
        rows,
        variables=("model_name",),
        annotations=(models_in_trouble(),),
        since="now-7d",
        refresh="5m",
    )


def _tiles(site: Site) -> tuple[Panel, ...]:
    return (
        panels.stat(
            "KV cache left",
            "What was free at the fullest minute of the range, on the fullest engine. At "
            f"{percent(1 - site.config.thresholds.kv_pressure_ratio)} and less, the next burst evicts.",
            [Query(f"min(1 - {pools.peak(boards.USED)})", instant=True)],
            "percentunit",
            "not recorded",
            levels=site.scale.kv_left,
            decimals=0,
        ),
        panels.stat(
            "Slots left",
            "Free share of max_num_seqs at the busiest minute. None left with KV to spare: raise max_num_seqs. None "
            "left and KV full: add replicas.",
            [Query(f"min(1 - {pools.peak(boards.SLOTS)})", instant=True)],
            "percentunit",
            "cap not known",
            levels=site.scale.slots_left,
            decimals=0,
        ),
        panels.stat(
            "KV demand, peak",
            "What KV usage would have been if everything that waited ran too. Above 100 % the cache is too small for "
            "the peak.",
            [Query(f"max({pools.peak(boards.DEMAND)})", instant=True)],
            "percentunit",
            "not known",
            levels=site.scale.kv_demand,
            decimals=0,
        ),
        panels.stat(
            "Time nearly full",
            "Of all engine-minutes of the range, the share with at most a tenth of the KV cache left, in the pool that "
            "has most. Full without preemption is only well used; full all day has no room for a burst.",
            [Query(f"max({pools.nearly_full()})", instant=True)],
            "percentunit",
            "not recorded",
            decimals=1,
        ),
        panels.stat(
            "Peak requests/s",
            "Most finished requests per second over five minutes, all models chosen together: what the next size "
            "must carry, plus one replica.",
            [Query(f"max_over_time(({_finished()})[$__range:1m])", instant=True)],
            "reqps",
            "no responses",
            decimals=2,
        ),
        panels.stat(
            "Peak useful tokens/s",
            "Most useful tokens per second of all models chosen together.",
            [Query(f"max_over_time(({_useful()})[$__range:1m])", instant=True)],
            "short",
            "no tokens",
            decimals=0,
        ),
    )


def _finished() -> str:
    return f"sum({recorded.of_model(boards.of_model(boards.BY_REASON, 'rate5m'))})"


def _useful() -> str:
    return f"sum({recorded.of_model(boards.USEFUL)})"


def _headroom(site: Site) -> Panel:
    # Narrow, so that there is room for a model's name.
    share: dict[str, Any] = {"unit": "percentunit", "decimals": 0, "width": 105}
    shown: tuple[tuple[str, str, dict[str, Any]], ...] = (
        (pools.engines(), "Engines", {"decimals": 0, "width": 70}),
        (f"1 - {pools.peak(boards.USED)}", "Least KV left", share | {"levels": site.scale.kv_left, "width": 115}),
        (pools.left(0.05), "KV left, p5", share | {"width": 90}),
        (pools.left(0.5), "KV left, p50", share | {"width": 95}),
        (pools.nearly_full(), "Above 90 %", share | {"decimals": 1, "width": 95}),
        (pools.peak(boards.DEMAND), "Peak demand", share | {"levels": site.scale.kv_demand}),
        (pools.peak(boards.SLOTS), "Peak slots", share | {"width": 90}),
        (pools.knee(), "Knee from", {"decimals": 0, "width": 85}),
        (pools.middle(boards.USEFUL), "Tokens/s, p50", {"unit": "short", "width": 110}),
        (pools.peak(boards.USEFUL), "Tokens/s, peak", {"unit": "short", "width": 115}),
    )  # fmt: skip
    names = [Column("model_name", "Model"), Column(boards.SIZE, "KV tokens", width=85)]
    values = [Column(f"Value #{chr(ord('A') + at)}", name, **look) for at, (_, name, look) in enumerate(shown)]
    return panels.table(
        "Room by model and hardware",
        f"{_SIZE} KV left: over all its engines and minutes, p5 is what the fullest twentieth had. Knee from: the "
        "concurrency of an engine from which more requests bring less than a tenth more tokens.",
        [expr for expr, _, _ in shown],
        [*names, *values],
        _NONE,
        sort="Least KV left",
        height=7,
    )


def _distribution() -> tuple[Panel, ...]:
    within = recorded.over("avg", recorded.of_model(boards.LEFT))
    return (
        panels.heatmap(
            "KV left, engines over time",
            "How many engines had how much of their KV cache left, of the models chosen. A dark band at the bottom is "
            "a fleet that the next burst tips over; two bands are two kinds of engines.",
            Query(f"sum by (le) ({within})"),
            "percentunit",
            _NONE,
            width=12,
            height=7,
            cells="short",
        ),
        panels.timeseries(
            "Engines by model and hardware",
            f"{_SIZE} A new line explains a step in the lines below: a model, a length limit or gpu_memory_utilization "
            "changed.",
            [Query(pools.drawn(boards.ENGINES), pools.LEGEND)],
            "short",
            _NONE,
            width=12,
            height=7,
        ),
    )


def _banded(part: str, whole: str) -> list[Query]:
    """Return a value's mean, a query a band of concurrency; of the first model where several are chosen."""
    one = f"topk(1, count by (model_name) ({recorded.of_model(boards.IN_BAND)}))"
    return [
        Query(
            pools.banded(part, whole, pools.BY, f'{boards.BAND}="{name}"') + f" and on (model_name) {one}",
            # Grafana makes room for the longest name, not for the widest: hair spaces make the last one the longest.
            f"{name} {pools.LEGEND}" + "\u200a" * place,
            instant=True,
        )
        for place, (name, low, _) in enumerate(boards.bands())
        if low
    ]


def _knee(site: Site) -> tuple[Panel, ...]:
    return (
        panels.bars(
            "Useful tokens per second, by concurrency",
            "Mean useful rate of an engine while so many requests ran. Where the bars stop growing is the knee: more "
            "sequences than that only add waiting. If the last bar still grows, max_num_seqs may go up.",
            _banded(boards.BAND_USEFUL, boards.IN_BAND),
            "short",
            "No request ran in this range.",
            width=8,
            height=10,
        ),
        panels.bars(
            "Time per token p99, by concurrency",
            "What more concurrency costs each user, at the same counts; where buckets only bound it, that bound. "
            "Choose the highest band whose bar is within your objective.",
            _banded(boards.BAND_TPOT, boards.BAND_TIMED),
            "s",
            "No request finished in this range.",
            width=8,
            height=10,
            levels=site.scale.tpot,
        ),
        panels.bars(
            "Preemptions per second, by concurrency",
            "Where evictions begin is the most that this KV cache carries with these lengths.",
            _banded(boards.BAND_PREEMPTIONS, boards.IN_BAND),
            "ops",
            "No request ran in this range.",
            width=8,
            height=10,
        ),
    )


def _trend(site: Site) -> tuple[Panel, ...]:
    half = MOST // 2  # the same pools a week ago are the other
    return (
        panels.timeseries(
            "KV cache, hourly peak",
            "The fullest engine of each pool over the hour before, and the same a week ago (dashed). Compare peaks "
            "from week to week, not single hours.",
            [
                Query(pools.hourly(boards.USED, half), pools.LEGEND),
                Query(pools.hourly(boards.USED, half, "1w"), f"a week ago: {pools.LEGEND}"),
            ],
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
            [Query(pools.hourly(boards.SLOTS, MOST), pools.LEGEND)],
            "percentunit",
            "max_num_seqs is not known: give the start-up log or set it in the config.",
            high=1,
        ),
        panels.timeseries(
            "Useful tokens per second, hourly peak",
            "All engines of each pool together, and the same a week ago (dashed). The growth of this line is what "
            "you plan for.",
            [
                Query(pools.hourly(boards.USEFUL, half), pools.LEGEND),
                Query(pools.hourly(boards.USEFUL, half, "1w"), f"a week ago: {pools.LEGEND}"),
            ],
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
            width=12,
            height=7,
            overrides=field_config.state_colours(),
        ),
        panels.bars(
            "Work lost to recomputation",
            "Of all the tokens that the engines computed in the range, the share that had been computed before and was "
            "thrown away: the recompute tax, weighed by work. Multiply by the GPUs' price.",
            [Query(f"sort_desc(topk({MOST}, {_lost_share()}))", "{{model_name}}", instant=True)],
            "percentunit",
            "No work was done in this range.",
            width=12,
            height=7,
            high=1,
            levels=site.scale.recompute_tax,
        ),
    )


def _lost_share() -> str:
    """Lost / (lost + useful) by model. Useful is 1 - tax of all that was computed; idle time weighs nothing."""
    parts = (recorded.of_model(record) for record in (boards.LOST, boards.COMPUTED))
    return ratio(*(f"sum by (model_name) (sum_over_time({part}[$__range]))" for part in parts))
