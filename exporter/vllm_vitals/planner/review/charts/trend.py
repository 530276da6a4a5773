"""Daily values over weeks, the growth of the busiest weekday and the limit it runs into."""

from typing import Any

from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts import style
from vllm_vitals.planner.review.charts.style import BLUE, ORANGE, RED, Chart
from vllm_vitals.planner.review.report import ModelReview
from vllm_vitals.planner.review.trend import FALLS, GROWS, NO_VERDICT, TOO_FEW, Trend
from vllm_vitals.planner.telemetry.grid import DAY

AHEAD = 28 * DAY


def draw(model: ModelReview, salt: str) -> Chart | None:
    """None where there are too few days."""
    every = [*model.trends, *([model.forecast.trend] if model.forecast else [])]
    trends = [trend for trend in every if len(trend.days) >= 2]
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
        label="day",
    )
    first, last = trend.days[0][0], trend.days[-1][0] + AHEAD
    if fitted := trend.fitted:
        ends = [first + (last - first) * k / 20 for k in range(21)]
        axis.plot(
            [style.moment(x) for x in ends],
            [factor * fitted.at(x) for x in ends],
            color=ORANGE,
            linewidth=1.2,
            label="busiest weekday",
        )
        bands = [[factor * fitted.at(x, rate) for rate in (fitted.growth.low, fitted.growth.high)] for x in ends]
        axis.fill_between(
            [style.moment(x) for x in ends], [min(band) for band in bands], [max(band) for band in bands],
            color=ORANGE, alpha=0.18, linewidth=0, label="90 % range",
        )  # fmt: skip
    if trend.limit is not None:
        axis.axhline(trend.limit * factor, color=RED, linewidth=1.2, linestyle="--", label="limit")
    axis.set_ylim(0, 125 if trend.unit == "share" else None)
    style.times(axis, first - DAY / 2, last)
    style.labels(axis, "%" if trend.unit == "share" else trend.unit, title=trend.what.split(",")[0])
    axis.set_xlabel("day (UTC), four weeks ahead", fontsize=9.5, color=style.INK, loc="left")
    style.legend(axis, loc="best")


def _sentence(trend: Trend) -> str:
    name = trend.what.split(",")[0]
    if trend.verdict == TOO_FEW:
        return f"{name}: only {len(trend.days)} days, too few to separate growth from weekdays."
    if trend.verdict == NO_VERDICT:
        return f"{name}: {words.growth(trend)} a week; the noise allows no verdict."
    if trend.verdict != GROWS:
        return f"{name} {trend.verdict if trend.verdict == FALLS else 'neither grows nor falls'}."
    said = f"{name} grows by {words.growth(trend)} a week"
    if trend.limit is None:
        return f"{said}."
    if trend.reached is None:
        return f"{said}, but does not reach its limit within a year."
    return f"{said} and reaches its limit about {words.until(trend.reached, trend.earliest, trend.latest)}."
