"""Daily peaks over weeks, the line through them and the limit they run into."""

from typing import Any

from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts import style
from vllm_vitals.planner.review.charts.style import BLUE, ORANGE, RED, Chart
from vllm_vitals.planner.review.report import ModelReview
from vllm_vitals.planner.review.trend import Trend
from vllm_vitals.planner.telemetry.grid import DAY

AHEAD = 28 * DAY


def draw(model: ModelReview, salt: str) -> Chart | None:
    """None where there are too few days."""
    trends = [trend for trend in model.trends if len(trend.days) >= 2]
    if not trends:
        return None
    drawing, axes = style.figure(3.3, 1, len(trends), squeeze=False)
    for axis, trend in zip(axes[0], trends, strict=True):
        _plot(axis, trend)
    return Chart("trend", "Where it goes", style.svg(drawing, salt), " ".join(_sentence(trend) for trend in trends))


def _plot(axis: Any, trend: Trend) -> None:
    factor = 100 if trend.unit == "share" else 1
    axis.plot(
        [style.moment(at) for at, _ in trend.days],
        [value * factor for _, value in trend.days],
        "o",
        color=BLUE,
        markersize=4,
        label="daily peak",
    )
    first, last = trend.days[0][0], trend.days[-1][0] + AHEAD
    if trend.slope is not None and trend.centre is not None:
        x0, y0 = trend.centre
        ends = [first, x0, last]
        axis.plot(
            [style.moment(x) for x in ends],
            [factor * (trend.line(x) or 0.0) for x in ends],
            color=ORANGE,
            linewidth=1.2,
            label="line",
        )
        low = [
            factor * (y0 + min((trend.slope_low or 0) * (x - x0), (trend.slope_high or 0) * (x - x0)) / DAY)
            for x in ends
        ]
        high = [
            factor * (y0 + max((trend.slope_low or 0) * (x - x0), (trend.slope_high or 0) * (x - x0)) / DAY)
            for x in ends
        ]
        axis.fill_between(
            [style.moment(x) for x in ends], low, high, color=ORANGE, alpha=0.18, linewidth=0, label="90 % range"
        )
    if trend.limit is not None:
        axis.axhline(trend.limit * factor, color=RED, linewidth=1.2, linestyle="--", label="limit")
    axis.set_ylim(0, 125 if trend.unit == "share" else None)
    style.times(axis, first - DAY / 2, last)
    style.labels(axis, "%" if trend.unit == "share" else trend.unit, title=trend.what.split(",")[0])
    axis.set_xlabel("day (UTC), four weeks ahead", fontsize=9.5, color=style.INK, loc="left")
    style.legend(axis, loc="best")


def _sentence(trend: Trend) -> str:
    name = trend.what.split(",")[0]
    if trend.verdict == "too few days":
        return f"{name}: only {len(trend.days)} days, too few for a line."
    if trend.verdict == "no trend":
        return f"{name}: no trend that stands out of the noise."
    if trend.verdict == "falls":
        return f"{name} falls."
    if trend.reached is None:
        return (
            f"{name} grows, but does not reach its limit within a year."
            if trend.limit
            else f"{name} grows; its limit is not known."
        )
    latest = f"not later than {words.day(trend.latest)}" if trend.latest else "or not within a year"
    first = f"not before {words.day(trend.earliest)}"
    return f"{name} grows and reaches its limit about {words.day(trend.reached)} ({first}, {latest})."
