"""First token and time per token over the period: median, p95 and p99."""

from math import nan
from typing import Any

from vllm_vitals.core.distribution import fit
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts import style
from vllm_vitals.planner.review.charts.style import BLUE, ORANGE, RED, Chart
from vllm_vitals.planner.review.report import ModelReview
from vllm_vitals.planner.telemetry.telemetry import Telemetry, merged

POINTS = 170  # a quantile needs requests behind it: windows are joined to about so many


def draw(telemetry: Telemetry, model: ModelReview, salt: str) -> Chart | None:
    """None where nothing was observed."""
    if not model.tails["ttft_seconds"].count:
        return None
    drawing, axes = style.figure(4.6, 2, 1, sharex=True)
    for axis, name, title, indicator in (
        (axes[0], "ttft_seconds", "Time to first token", "ttft"),
        (axes[1], "tpot_seconds", "Time per output token", "tpot"),
    ):
        _plot(axis, telemetry, model.model_name, name)
        for promise in model.promises:
            if promise.slo.indicator == indicator:
                axis.axhline(
                    promise.slo.seconds, color=RED, linewidth=1, linestyle="--", label=f"objective {promise.slo.name}"
                )
        style.log_seconds(axis)
        style.labels(axis, "time, log scale", title=title)
        style.times(axis, telemetry.grid.start, telemetry.grid.end)
        style.legend(axis)
        for incident in model.incidents:
            axis.axvspan(
                style.moment(incident.start),
                style.moment(incident.end),
                color=style.STATE_COLOURS[incident.worst],
                alpha=0.2,
                linewidth=0,
            )
    style.labels(axes[-1], x="time (UTC)")
    return Chart("latency", "How long people waited", style.svg(drawing, salt), _sentence(model))


def _plot(axis: Any, telemetry: Telemetry, model_name: str, name: str) -> None:
    histograms = [h for series in telemetry.of(model_name).values() if (h := series.histograms.get(name)) is not None]
    if not histograms:
        return
    grid = histograms[0].grid
    every = max(1, -(-grid.windows // POINTS))
    at: list[Any] = []
    lines: dict[float, list[float]] = {0.5: [], 0.95: [], 0.99: []}
    for first in range(0, grid.windows, every):
        whole = merged(h.total(range(first, min(grid.windows, first + every))) for h in histograms)
        found = fit(whole)
        at.append(style.moment(grid.at(first + every / 2)))
        for q, values in lines.items():
            value = found.quantile(q).value if found.count >= 1 else None
            values.append(nan if value is None else value)
    for q, colour, width in ((0.99, ORANGE, 1.1), (0.95, style.PURPLE, 0.9), (0.5, BLUE, 1.1)):
        axis.plot(
            at, lines[q], color=colour, linewidth=width, label=f"p{q * 100:.0f}", marker="." if len(at) < 40 else None
        )


def _sentence(model: ModelReview) -> str:
    ttft, tpot, gap = model.tails["ttft_seconds"], model.tails["tpot_seconds"], model.gap.share
    text = (
        f"One request in a hundred waited more than {words.reading(ttft.p99)} for its first token, and got its tokens "
        f"slower than one in {words.reading(tpot.p99)}."
    )
    if gap.value is not None:
        text += f" Of the distance from p50 to p99, {words.gone(gap)} goes away in windows without preemption."
    return text + " Flat parts are a bucket's edge: histograms have no finer resolution."
