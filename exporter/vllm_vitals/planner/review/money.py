"""What it costs and what to buy: GPU-hours, price a million tokens, engines needed at the peak, hours to give back.

Input: one model's engines, its knee, its SLOs and prices. Output: `Money`. Invariant: capacity is what a
simulated server fitted to this one carries within its objectives; without one it is an observed band that met them,
never an average, and where no band was loaded enough it is called a lower bound.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isnan

from vllm_vitals.config.objectives import Slo
from vllm_vitals.core.sample import Histogram
from vllm_vitals.planner.review import load
from vllm_vitals.planner.review.knee import Band, Knee
from vllm_vitals.planner.review.load import HOUR, Engines, Traffic
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import added, known, mean, share_within
from vllm_vitals.planner.whatif.engine_capacity import Carries

GROWTH, LAUNCH = 1.3, 2.0  # how much more traffic is looked ahead to
SPARE = 1  # engines beyond the need, so that one may be lost


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one engine carries: requests/s, by the simulated server, or as seen at ``running`` concurrent requests.

    ``bound``: it may carry more. ``lower`` and ``upper`` are the interval, None where it was seen.
    """

    requests_per_second: float
    running: float | None
    generated_per_second: float
    useful_per_second: float
    bound: bool
    why: str
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Money:
    """Costs are in the config's currency, None without a price. Ranges are (least, greatest)."""

    gpus: float
    gpu_hours: float
    cost: float | None
    cost_per_million_generated: float | None
    cost_per_million_computed: float | None
    knee_cost_per_million_generated: float | None
    knee_cost_per_million_computed: float | None
    capacity: Capacity | None
    no_capacity: str
    engines: float
    engines_needed: int | None
    engines_for_peak: int | None
    engines_for_growth: int | None
    engines_for_launch: int | None
    idle_cost: float | None
    headroom_requests_per_hour: float | None
    headroom_users: float | None
    spare_engine_hours: float | None
    lost_gpu_hours: tuple[float, float, float] | None


def money(
    engines: Engines, grid: Grid, traffic: Traffic, knee: Knee, slos: Sequence[Slo], gpus: float, price: float | None,
    twin: Carries | str = "", kept: bool | None = None,
) -> Money:  # fmt: skip
    """See `Money`. ``twin`` is what the simulated server carries; ``kept``: whether every objective was met."""
    hours = traffic.engine_hours * gpus
    cost = None if price is None else hours * price
    found, why = capacity(traffic, knee, slos, twin)
    per_second = None if price is None else price * gpus / HOUR
    there = _engines_there(engines)
    peak = _peak_engines(there, grid, traffic)
    for_peak, growth, launch = (_engines_for(traffic.demand_p99, found, more) for more in (1.0, GROWTH, LAUNCH))
    if for_peak is not None and kept and peak is not None:
        for_peak = min(for_peak, ceil(peak))  # so many met the objectives: they suffice
    needed = None if for_peak is None else for_peak + SPARE
    spare = _spare(engines, grid, there, found)
    running = None if found is None else found.running
    return Money(
        gpus=gpus,
        gpu_hours=hours,
        cost=cost,
        cost_per_million_generated=_per_million(cost, traffic.generated_tokens),
        cost_per_million_computed=_per_million(cost, traffic.generated_tokens + traffic.computed_prompt_tokens),
        knee_cost_per_million_generated=_per_million(per_second, knee.band.generated) if knee.band else None,
        knee_cost_per_million_computed=_per_million(per_second, knee.band.useful) if knee.band else None,
        capacity=found,
        no_capacity=why,
        engines=peak or 0.0,
        engines_needed=needed,
        engines_for_peak=for_peak,
        engines_for_growth=growth,
        engines_for_launch=launch,
        idle_cost=None if price is None or spare is None else spare * gpus * price,
        headroom_requests_per_hour=(
            peak * found.requests_per_second * HOUR - traffic.peak_hour_requests
            if found is not None and peak is not None and traffic.peak_hour_requests is not None
            else None
        ),
        headroom_users=(
            peak * running - traffic.peak_hour_in_flight
            if running is not None and peak is not None and traffic.peak_hour_in_flight is not None
            else None
        ),
        spare_engine_hours=spare,
        lost_gpu_hours=_lost(engines, grid, gpus),
    )


def _engines_for(demand: float | None, carries: Capacity | None, more: float) -> int | None:
    return None if demand is None or carries is None else ceil(more * demand / carries.requests_per_second - 1e-9)


def _per_million(cost: float | None, tokens: float) -> float | None:
    return cost / tokens * 1e6 if cost is not None and tokens > 0 else None


def capacity(
    traffic: Traffic, knee: Knee, slos: Sequence[Slo], twin: Carries | str = ""
) -> tuple[Capacity | None, str]:
    """Return what the simulated server carries; without one, what was seen; or None, and why."""
    seen, why = _seen(traffic, knee, slos)
    if isinstance(twin, str):
        return seen, f"{why}; {twin}" if twin and why else why
    per_request = (traffic.generated_tokens + traffic.computed_prompt_tokens) / max(1.0, traffic.requests)
    rate = twin.requests_per_second
    return Capacity(
        rate, None, twin.generated, rate * per_request, bound=False, why=f"by the simulated server: {twin.why}",
        lower=twin.lower, upper=twin.upper,
    ), ""  # fmt: skip


def _seen(traffic: Traffic, knee: Knee, slos: Sequence[Slo]) -> tuple[Capacity | None, str]:
    """Return the highest judged band that met every latency objective, else the knee; or None, and why."""
    tokens = traffic.generated_tokens + traffic.computed_prompt_tokens
    if traffic.requests <= 0 or tokens <= 0:
        return None, "no request was finished"
    judged = [band for band in knee.bands if band.judged and band.useful > 0]
    if not judged:
        return None, "no concurrency was seen for long enough"
    checked = [slo for slo in slos if slo.indicator in ("ttft", "tpot")]
    if checked:
        good = [band for band in judged if all(_meets(band, slo) for slo in checked)]
        if not good:
            return None, "no observed concurrency met every objective"
        best, why = max(good, key=lambda band: band.useful), "the best band of concurrency that met every objective"
    elif knee.band is not None:
        best, why = knee.band, "the knee (no objectives are configured)"
    else:
        best, why = (
            max(judged, key=lambda band: band.useful),
            "the best band of concurrency seen (no objectives, no knee)",
        )
    bound = best is max(judged, key=lambda band: band.running)
    per_request = tokens / traffic.requests
    return Capacity(best.useful / per_request, best.running, best.generated, best.useful, bound, why), ""


def _meets(band: Band, slo: Slo) -> bool:
    histogram: Histogram | None = (band.ttft if slo.indicator == "ttft" else band.tpot).histogram
    return histogram is not None and histogram.count > 0 and share_within(histogram, slo.seconds)[0] >= slo.share


def _engines_there(engines: Engines) -> "array[float] | None":
    """Return how many engines were there, by window."""
    marks = [
        array("d", [value if isnan(value) else 1.0 for value in running])
        for series in engines.values()
        if (running := load.up(series)) is not None
    ]
    return added(marks)


def _peak_engines(there: "array[float] | None", grid: Grid, traffic: Traffic) -> float | None:
    """Return the mean number of engines in the peak hour."""
    if there is None or traffic.peak_hour_at is None:
        return None
    hour = next(h for h in load.hours(grid) if grid.at(h.start) == traffic.peak_hour_at)
    return mean(there[w] for w in hour)


def _spare(engines: Engines, grid: Grid, there: "array[float] | None", carries: Capacity | None) -> float | None:
    """Engine-hours beyond the need of each hour's busiest window, and one spare."""
    wanted = added([rate for series in engines.values() if (rate := load.demand(series, grid)) is not None])
    if there is None or wanted is None or carries is None:
        return None
    spare = 0.0
    for hour in load.hours(grid):
        present = mean(there[w] for w in hour)
        peak = max(known(wanted[w] for w in hour), default=0.0)
        if present is not None:
            need = ceil(peak / carries.requests_per_second - 1e-9) + SPARE
            spare += max(0.0, present - need) * len(known(there[w] for w in hour)) * grid.step / HOUR
    return spare


def _lost(engines: Engines, grid: Grid, gpus: float) -> tuple[float, float, float] | None:
    """GPU-hours of work done twice: (least, estimate, greatest); None where the tax was never known."""
    sums = []
    for name in ("recompute_tax_lower_ratio", "recompute_tax_ratio", "recompute_tax_upper_ratio"):
        values = [tax for series in engines.values() for tax in known(series.gauge(name) or ())]
        if not values:
            return None
        sums.append(sum(values) * grid.step / HOUR * gpus)
    return sums[0], sums[1], sums[2]
