"""Throughput, first token and speed against the concurrency that was observed, with the knee."""

from collections.abc import Callable, Sequence
from typing import Any

from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts import style
from vllm_vitals.planner.review.charts.style import BLUE, GREEN, GREY, ORANGE, RED, Chart
from vllm_vitals.planner.review.knee import Band
from vllm_vitals.planner.review.report import ModelReview


def draw(model: ModelReview, salt: str) -> Chart | None:
    """None where no request ever ran."""
    bands = [band for band in model.knee.bands if band.judged]
    if len(bands) < 2:
        return None
    drawing, axes = style.figure(3.5, 1, 3)
    _throughput(axes[0], model, bands)
    _tails(axes[1], bands, lambda band: (band.ttft.p50, band.ttft.p99), "Time to first token")
    _tails(axes[2], bands, lambda band: (band.tpot.p50, band.tpot.p99), "Time per output token")
    for slo_axis, indicator in ((axes[1], "ttft"), (axes[2], "tpot")):
        for promise in model.promises:
            if promise.slo.indicator == indicator:
                slo_axis.axhline(promise.slo.seconds, color=RED, linewidth=1, linestyle="--", label="objective")
        style.legend(slo_axis, loc="best")
    for axis in axes:
        style.labels(axis, x="requests running on an engine")
        axis.set_xlim(left=0)
        if model.knee.at is not None:
            axis.axvline(model.knee.at, color=GREEN, linewidth=1.4, linestyle="-.")
        if model.headroom.slots and model.headroom.slots <= 1.6 * bands[-1].running:
            axis.axvline(model.headroom.slots, color=GREY, linewidth=1, linestyle="--")
    return Chart("knee", "What concurrency buys and costs", style.svg(drawing, salt), _sentence(model, bands))


def _throughput(axis: Any, model: ModelReview, bands: Sequence[Band]) -> None:
    axis.plot(
        [band.running for band in bands],
        [band.useful for band in bands],
        "o-",
        color=BLUE,
        markersize=5,
        label="observed",
    )
    curve = model.knee.curve
    if curve is not None:
        top = 1.25 * bands[-1].running
        points = [top * i / 60 for i in range(1, 61)]
        middle = [curve.useful(x) for x in points]
        axis.plot(points, middle, color=ORANGE, linewidth=1, linestyle=":", label=f"fit, ±{words.share(curve.error)}")
        axis.fill_between(
            points,
            [y * (1 - curve.error) for y in middle],
            [y * (1 + curve.error) for y in middle],
            color=ORANGE,
            alpha=0.12,
            linewidth=0,
        )
    axis.set_ylim(bottom=0)
    style.labels(axis, "useful tokens/s, one engine", title="Throughput")
    style.legend(axis, loc="best")


def _tails(axis: Any, bands: Sequence[Band], pick: Callable[[Band], tuple[Reading, Reading]], title: str) -> None:
    """Draw both quantiles with their buckets as bars; without an estimate, only the bar."""
    for index, (name, colour) in enumerate((("p50", BLUE), ("p99", ORANGE))):
        known = [(band.running, pick(band)[index]) for band in bands]
        points = [(x, r.value) for x, r in known if r.value is not None]
        axis.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, markersize=4, label=name)
        for x, reading in known:
            if reading.lower is not None and reading.upper is not None and reading.upper < 1e9:
                axis.vlines(
                    x, max(reading.lower, reading.upper / 10), reading.upper, color=colour, alpha=0.35, linewidth=4
                )
    style.log_seconds(axis)
    style.labels(axis, "time, log scale", title=title)


def _sentence(model: ModelReview, bands: Sequence[Band]) -> str:
    knee = model.knee
    if knee.at is not None:
        text = f"Throughput stops growing at about {words.number(knee.at)} running (green line). "
    else:
        text = f"No knee was reached: {knee.why}. "
    step = knee.last_doubling
    if step is not None:
        text += (
            f"From {words.number(step.start)} to {words.number(step.end)} running, throughput changed by "
            f"{words.change(step.throughput)}, the wait for the first token by {words.change(step.ttft)}, "
            f"the speed of each answer by {words.change(step.token_speed)}. "
        )
    return text + "Thick bars are the histogram's buckets: the truth lies inside them."
