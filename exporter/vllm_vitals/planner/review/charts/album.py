"""All pictures of a review: of every model, as many as a page can hold.

Input: telemetry and its review. Output: charts by model name. Invariant: the models that need action come first, so
what a bound leaves out is what matters least.
"""

from collections.abc import Mapping

from vllm_vitals.planner.review.charts import knee, lengths, states, tails, timeline, trend
from vllm_vitals.planner.review.charts.style import Chart
from vllm_vitals.planner.review.report import Review
from vllm_vitals.planner.telemetry.telemetry import Telemetry

MAX_MODELS = 12


def draw(telemetry: Telemetry, review: Review) -> Mapping[str, tuple[Chart, ...]]:
    """Return the charts of the first `MAX_MODELS` models, in reading order."""
    found: dict[str, tuple[Chart, ...]] = {}
    for number, model in enumerate(review.models[:MAX_MODELS]):
        drawn = (
            timeline.draw(telemetry, model, f"{number}-timeline"),
            states.draw(telemetry, model, f"{number}-states"),
            tails.draw(telemetry, model, f"{number}-tails"),
            knee.draw(model, f"{number}-knee"),
            lengths.draw(model, f"{number}-lengths"),
            trend.draw(model, f"{number}-trend"),
        )
        found[model.model_name] = tuple(chart for chart in drawn if chart is not None)
    return found
