"""All pictures of a review: of every model, as many as a page can hold.

Input: telemetry and its review. Output: charts by model name. Invariant: the models that need action come first, so
what a bound leaves out is what matters least; a chart that cannot be drawn costs itself, and says so in its place.
"""

from collections.abc import Callable, Mapping
from functools import partial

from vllm_vitals.planner.review.charts import knee, lengths, states, tails, timeline, trend
from vllm_vitals.planner.review.charts.style import Chart, ChartsMissingError
from vllm_vitals.planner.review.report import Review
from vllm_vitals.planner.telemetry.telemetry import Telemetry

MAX_MODELS = 12


def draw(telemetry: Telemetry, review: Review) -> Mapping[str, tuple[Chart, ...]]:
    """Return the charts of the first `MAX_MODELS` models, in reading order."""
    found: dict[str, tuple[Chart, ...]] = {}
    for number, model in enumerate(review.models[:MAX_MODELS]):
        drawn = (
            _drawn("traffic", partial(timeline.draw, telemetry, model, f"{number}-timeline")),
            _drawn("incidents", partial(states.draw, telemetry, model, f"{number}-states")),
            _drawn("latency", partial(tails.draw, telemetry, model, f"{number}-tails")),
            _drawn("knee", partial(knee.draw, model, f"{number}-knee")),
            _drawn("lengths", partial(lengths.draw, model, f"{number}-lengths")),
            _drawn("trend", partial(trend.draw, model, f"{number}-trend")),
        )
        found[model.model_name] = tuple(chart for chart in drawn if chart is not None)
    return found


def _drawn(topic: str, draw: Callable[[], Chart | None]) -> Chart | None:
    """Return a chart, none where there is nothing to draw, or in its place why it could not be."""
    try:
        return draw()
    except ChartsMissingError:
        raise
    except Exception as error:  # names and numbers are others'; a review is more than one picture
        why = f"a bug in vllm-vitals ({type(error).__name__}): the numbers are in the tables"
        return Chart(topic, "This chart could not be drawn", "", why)
