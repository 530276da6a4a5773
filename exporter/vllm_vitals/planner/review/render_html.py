"""The review as one HTML file: no script, no network, charts inside as SVG; it prints on A4.

Input: a `Review` and its charts. Output: text. Invariant: everything foreign is escaped; only our own SVG is not.
"""

from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts.style import Chart
from vllm_vitals.planner.review.report import Review


def html(review: Review, charts: Mapping[str, tuple[Chart, ...]]) -> str:
    """Return the whole page."""
    environment = Environment(
        loader=PackageLoader("vllm_vitals.planner"), undefined=StrictUndefined, autoescape=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(
        words.FILTERS, prediction=lambda p, name: words.prediction(p.value, p.error, name), drawing=_drawing
    )
    return environment.get_template("report.html.j2").render(review=review, charts=charts)


def _drawing(chart: Chart) -> Markup:
    """Return our own SVG: matplotlib has escaped every text in it."""
    return Markup(chart.svg)  # noqa: S704
