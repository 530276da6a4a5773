"""How much work there was, when its peak was, and how much room was left.

Input: one model's engines. Output: `Traffic` and `Headroom`. Invariant: room is judged at the peak (five-minute
windows, the busiest hour), never from an average over the week.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import EngineId, EngineSeries, added, known, mean, ranked, unknown

HOUR = 3600.0
FULL = Thresholds().kv_pressure_ratio  # KV usage from which the next burst evicts
Engines = Mapping[EngineId, EngineSeries]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of five-minute windows: the median, the 95th percentile and the largest."""

    p50: float | None
    p95: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests received and answered. Demand is in requests/s over a window: answered, abandoned, and queue growth."""

    requests: float
    by_reason: Mapping[str, float]
    generated_tokens: float
    prompt_tokens: float
    computed_prompt_tokens: float
    engine_hours: float
    demand_p99: float | None
    demand_max: float | None
    peak_hour_at: float | None
    peak_hour_requests: float | None
    peak_hour_in_flight: float | None
    prefix_hit_ratio: float | None


@dataclass(frozen=True, slots=True)
class Headroom:
    """KV and slots. ``fit`` is how many average requests one engine's cache holds at 90 % of it.

    ``context`` is the mean number of tokens that a running request holds. ``running_when_full`` is the mean number of
    running requests in windows that saw KV usage at 90 % and more.
    """

    kv: Spread
    demand: Spread
    capacity_tokens: float | None
    full_windows: float | None
    running: Spread
    waiting: Spread
    slots: float | None
    slots_used: Spread
    context: float | None
    fit: float | None
    running_when_full: float | None


def completions(series: EngineSeries) -> "array[float] | None":
    """Finished responses by window, of every reason."""
    return added(list(series.split("responses_total").values()))


def computed_prompts(series: EngineSeries) -> "array[float] | None":
    """Return prompt tokens computed by window; where vLLM does not say (before 0.16), prompts less cache hits."""
    exact = series.counter("prompt_tokens_computed_total")
    prompts, hits = series.counter("prompt_tokens_total"), series.counter("prefix_cache_hits_total")
    if exact is not None or prompts is None:
        return exact
    if hits is None:
        return prompts
    return array("d", [max(0.0, p - (0.0 if isnan(h) else h)) for p, h in zip(prompts, hits, strict=True)])


def useful(series: EngineSeries) -> "array[float] | None":
    """Return generated and computed prompt tokens by window, recomputation not counted."""
    generated, prompts = series.counter("generation_tokens_total"), computed_prompts(series)
    if generated is None:
        return None
    return generated if prompts is None else array("d", [g + p for g, p in zip(generated, prompts, strict=True)])


def in_flight(series: EngineSeries) -> "array[float] | None":
    """Return running and waiting requests, the mean of each window."""
    running, waiting = series.gauge("requests_running"), series.gauge("requests_waiting")
    if running is None:
        return None
    return running if waiting is None else array("d", map(sum, zip(running, waiting, strict=True)))


def up(series: EngineSeries) -> "array[float] | None":
    """Return the gauge that tells whether an engine was there in a window."""
    return series.gauge("requests_running")


def demand(series: EngineSeries, grid: Grid) -> "array[float] | None":
    """Return requests/s that came in each window: answered, refused, abandoned, and the growth of what is in flight."""
    answered, present = completions(series), in_flight(series)
    if answered is None:
        return None
    abandoned, refused = series.gauge("abandoned_requests_per_second"), series.counter("rejected_requests_total")
    rates = unknown(grid.windows)
    for window, count in enumerate(answered):
        if isnan(count):
            continue
        left = 0.0 if abandoned is None or isnan(abandoned[window]) else abandoned[window]
        turned_away = 0.0 if refused is None or isnan(refused[window]) else refused[window]
        rates[window] = max(0.0, (count + turned_away + _growth(present, window)) / grid.step + left)
    return rates


def _growth(present: "array[float] | None", window: int) -> float:
    """By how much more was in flight at a window's end than at its start, from the means of its neighbours."""
    if present is None or not 0 < window < len(present) - 1:
        return 0.0
    growth = (present[window + 1] - present[window - 1]) / 2
    return 0.0 if isnan(growth) else growth


def by_hour(engines: Engines, grid: Grid) -> list[tuple[float, float]]:
    """Return the mean demand of each whole hour that is known, by the hour's end (epoch s)."""
    rates = added([rate for series in engines.values() if (rate := demand(series, grid)) is not None])
    found: list[tuple[float, float]] = []
    if rates is None:
        return found
    for windows in hours(grid):
        here = known(rates[w] for w in windows)
        if here and len(here) * grid.step >= HOUR - grid.step:
            found.append(((grid.at(windows.start) // HOUR + 1) * HOUR, sum(here) / len(here)))
    return found


def total(engines: Engines, name: str, value: str = "") -> float:
    """Return the increase of a counter over the period, all engines together."""
    return sum(sum(known(series.counter(name, value) or ())) for series in engines.values())


def traffic(engines: Engines, grid: Grid) -> Traffic:
    """See `Traffic`."""
    by_reason: dict[str, float] = {}
    for series in engines.values():
        for reason, counts in series.split("responses_total").items():
            by_reason[reason] = by_reason.get(reason, 0.0) + sum(known(counts))
    rates = added([rate for series in engines.values() if (rate := demand(series, grid)) is not None])
    prompts = [found for series in engines.values() if (found := computed_prompts(series)) is not None]
    looked, hit = total(engines, "prefix_cache_queries_total"), total(engines, "prefix_cache_hits_total")
    at, requests, flying = _peak_hour(engines, grid, rates)
    return Traffic(
        requests=sum(by_reason.values()),
        by_reason={reason: count for reason, count in sorted(by_reason.items()) if count},
        generated_tokens=total(engines, "generation_tokens_total"),
        prompt_tokens=total(engines, "prompt_tokens_total"),
        computed_prompt_tokens=sum(sum(known(values)) for values in prompts),
        engine_hours=engine_hours(engines, grid),
        demand_p99=ranked(rates or (), 0.99),
        demand_max=ranked(rates or (), 1.0),
        peak_hour_at=at,
        peak_hour_requests=requests,
        peak_hour_in_flight=flying,
        prefix_hit_ratio=min(1.0, hit / looked) if looked > 0 else None,
    )


def engine_hours(engines: Engines, grid: Grid) -> float:
    """Hours that engines were there, added up."""
    seen = (len(known(up(series) or ())) for series in engines.values())
    return sum(seen) * grid.step / HOUR


def hours(grid: Grid) -> list[range]:
    """Return the windows of each hour of the clock (UTC) that the period touches."""
    found: list[range] = []
    first = 0
    for window in range(1, grid.windows + 1):
        if window == grid.windows or grid.at(window) // HOUR != grid.at(first) // HOUR:
            found.append(range(first, window))
            first = window
    return found


def _peak_hour(
    engines: Engines, grid: Grid, rates: "array[float] | None"
) -> tuple[float | None, float | None, float | None]:
    """Return the clock hour with most demand: when it began, its requests, and the mean number in flight."""
    if rates is None:
        return None, None, None
    requests = {hour: sum(known(rates[w] for w in hour)) * grid.step for hour in hours(grid)}
    best = max(requests, key=requests.__getitem__)
    if not known(rates[w] for w in best):
        return None, None, None
    present = added([values for series in engines.values() if (values := in_flight(series)) is not None])
    flying = mean(present[w] for w in best) if present is not None else None
    return grid.at(best.start), requests[best], flying


def spread(series: Sequence["array[float] | None"]) -> Spread:
    """Over all windows of all engines."""
    values = sorted(value for each in series if each is not None for value in known(each))
    return Spread(ranked(values, 0.5), ranked(values, 0.95), values[-1] if values else None)


def headroom(engines: Engines, slots: float | None) -> Headroom:
    """See `Headroom`. ``slots`` is max_num_seqs where known (the smallest of the engines)."""
    all_of = list(engines.values())
    running_max = [series.gauge("requests_running_max") for series in all_of]
    context, fit = _contexts(engines)
    return Headroom(
        kv=spread([series.gauge("kv_cache_usage_max_ratio") for series in all_of]),
        demand=spread([series.gauge("kv_cache_demand_ratio") for series in all_of]),
        capacity_tokens=min((c for c in (_last(s, "kv_cache_capacity_tokens") for s in all_of) if c), default=None),
        full_windows=min((c for c in (_last(s, "kv_cache_full_windows") for s in all_of) if c), default=None),
        running=spread(running_max),
        waiting=spread([series.gauge("requests_waiting") for series in all_of]),
        slots=slots,
        slots_used=spread([array("d", [r / slots for r in each]) for each in running_max if each])
        if slots
        else Spread(None, None, None),
        context=context,
        fit=fit,
        running_when_full=_running_when_full(engines),
    )


def _last(series: EngineSeries, name: str) -> float | None:
    values = known(series.slow.get(name) or ())
    return values[-1] if values else None


def _contexts(engines: Engines) -> tuple[float | None, float | None]:
    """Return tokens that a running request holds, and how many such fit in 90 % of the smallest cache."""
    held, present, fits = 0.0, 0.0, []
    for series in engines.values():
        usage, running = series.gauge("kv_cache_usage_ratio"), series.gauge("requests_running")
        capacity = _last(series, "kv_cache_capacity_tokens")
        if usage is None or running is None or capacity is None:
            continue
        pairs = [(u, r) for u, r in zip(usage, running, strict=True) if r >= 1 and not isnan(u)]
        own, requests = sum(u * capacity for u, _ in pairs), sum(r for _, r in pairs)
        if own > 0:
            fits.append(FULL * capacity * requests / own)
        held, present = held + own, present + requests
    return (held / present if present else None), min(fits, default=None)


def _running_when_full(engines: Engines) -> float | None:
    running = [
        r
        for series in engines.values()
        for r, kv in zip(
            series.gauge("requests_running") or (), series.gauge("kv_cache_usage_max_ratio") or (), strict=False
        )
        if kv >= FULL
    ]
    return mean(running)


def rates(increments: "array[float] | None", step: float, length: int) -> "array[float]":
    """Return a counter's increases as a rate a second; all unknown where there is none."""
    return array("d", [nan]) * length if increments is None else array("d", [value / step for value in increments])
