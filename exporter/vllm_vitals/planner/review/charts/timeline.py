"""Load, cache and evictions over the period, with incidents shaded and changes of settings marked."""

from typing import Any

from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts import style
from vllm_vitals.planner.review.charts.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Chart
from vllm_vitals.planner.review.load import Engines, demand, rates
from vllm_vitals.planner.review.report import ModelReview
from vllm_vitals.planner.telemetry.telemetry import Telemetry, added, fold_max, unknown


def draw(telemetry: Telemetry, model: ModelReview, salt: str) -> Chart:
    """Demand, requests in flight, KV usage and, where there were any, preemptions."""
    engines, grid = telemetry.of(model.model_name), telemetry.grid
    evictions = model.preemption.events > 0
    drawing, axes = style.figure(7.6 if evictions else 6.0, 4 if evictions else 3, 1, left=0.7, sharex=True)
    _demand(axes[0], engines, telemetry, model)
    _in_flight(axes[1], engines, telemetry, model)
    _cache(axes[2], engines, telemetry)
    if evictions:
        _evictions(axes[3], engines, telemetry)
    for axis in axes:
        _marks(axis, model)
        style.times(axis, grid.start, grid.end)
        axis.set_ylim(bottom=0)
        style.legend(axis)
    style.labels(axes[-1], x="time (UTC)")
    return Chart("traffic", "Load, cache and evictions", style.svg(drawing, salt), _sentence(model))


def _sentence(model: ModelReview) -> str:
    work, room = model.traffic, model.headroom
    text = (
        f"The busiest hour began {words.when(work.peak_hour_at)}: {words.number(work.peak_hour_requests)} requests. "
        f"The fullest cache reached {words.share(room.kv.max)}. "
    )
    harm = len(model.incidents)
    shaded = (
        f"The {harm} shaded period{'es are' if harm > 1 else ' is'} where service was harmed or hidden"
        if harm
        else "Nothing is shaded: no incident"
    )
    return text + shaded + ("; dotted lines are changes of settings." if model.changes else ".")


def _demand(axis: Any, engines: Engines, telemetry: Telemetry, model: ModelReview) -> None:
    grid = telemetry.grid
    wanted = added([rate for series in engines.values() if (rate := demand(series, grid)) is not None])
    at, peak = style.columns(wanted or unknown(grid.windows), grid.start, grid.step)
    axis.fill_between(at, peak, step="mid", color=BLUE, alpha=0.25, linewidth=0)
    axis.plot(at, peak, color=BLUE, linewidth=1, label="demand", drawstyle="steps-mid")
    carries = model.money.capacity
    if carries is not None and model.money.engines:
        at_least = "at least " if carries.bound else ""
        axis.axhline(
            carries.requests_per_second * model.money.engines,
            color=GREEN,
            linewidth=1.2,
            label=f"capacity ({at_least}seen)",
        )
    style.labels(axis, "requests/s", title="Demand, all engines")


def _in_flight(axis: Any, engines: Engines, telemetry: Telemetry, model: ModelReview) -> None:
    grid = telemetry.grid
    for name, colour, label in (("requests_waiting", ORANGE, "waiting"), ("requests_running", BLUE, "running")):
        total = added([values for series in engines.values() if (values := series.gauge(name)) is not None])
        at, peak = style.columns(total or unknown(grid.windows), grid.start, grid.step)
        axis.plot(at, peak, color=colour, linewidth=1.1, label=label, drawstyle="steps-mid")
    if model.headroom.slots:
        axis.axhline(
            model.headroom.slots * len(engines),
            color=GREY,
            linewidth=1,
            linestyle="--",
            label="all slots (max_num_seqs)",
        )
    style.labels(axis, "requests", title="In flight, all engines")


def _cache(axis: Any, engines: Engines, telemetry: Telemetry) -> None:
    grid = telemetry.grid
    worst = unknown(grid.windows)
    for series in engines.values():
        fold_max(worst, series.gauge("kv_cache_usage_max_ratio") or unknown(grid.windows))
    at, peak = style.columns([100 * value for value in worst], grid.start, grid.step)
    axis.fill_between(at, peak, step="mid", color=PURPLE, alpha=0.25, linewidth=0)
    axis.plot(at, peak, color=PURPLE, linewidth=1, label="fullest engine", drawstyle="steps-mid")
    axis.axhline(90, color=RED, linewidth=1, linestyle="--", label="90 %: the next burst evicts")
    axis.set_ylim(0, 108)
    style.labels(axis, "% of KV cache", title="KV cache, largest usage")


def _evictions(axis: Any, engines: Engines, telemetry: Telemetry) -> None:
    grid = telemetry.grid
    total = added([rates(series.counter("preemptions_total"), grid.step, grid.windows) for series in engines.values()])
    at, peak = style.columns(total or unknown(grid.windows), grid.start, grid.step)
    axis.fill_between(at, peak, step="mid", color=RED, alpha=0.5, linewidth=0)
    axis.plot(at, peak, color=RED, linewidth=0.8, label="preemptions", drawstyle="steps-mid")
    style.labels(axis, "events/s", title="Preemptions, all engines")


def _marks(axis: Any, model: ModelReview) -> None:
    for incident in model.incidents:
        axis.axvspan(
            style.moment(incident.start),
            style.moment(incident.end),
            color=style.STATE_COLOURS[incident.worst],
            alpha=0.22,
            linewidth=0,
        )
    for change in model.changes:
        axis.axvline(style.moment(change.at), color=style.INK, linewidth=1, linestyle=":")
