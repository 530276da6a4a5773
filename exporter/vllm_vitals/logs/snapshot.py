"""What the logs say at one moment: immutable values for metrics, pages and JSON.

Input: a judge's state. Output: `LogSnapshot`. Invariant: a figure that cannot be known is an absent `Reading`, never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_vitals.logs.response_figures import Figures
from vllm_vitals.logs.server import Override
from vllm_vitals.logs.server_complaints import Complaint
from vllm_vitals.logs.tally import SeriesCounts

# Routes are worth splitting where mixing them at least doubles the spread, and the mix is spread at all.
SPLIT_MIN_CV = 0.5
SPLIT_GAIN = 0.5


@dataclass(frozen=True, slots=True)
class SeriesView(Figures):
    """One (source, model, route): counts since ever, beside the figures over the window."""

    source: str
    model: str
    route: str
    counts: SeriesCounts


@dataclass(frozen=True, slots=True)
class ServerView:
    """One server: settings by vLLM's argument names, and the audit of its configured defaults."""

    settings: Mapping[str, Any]
    overrides: Mapping[str, Override]


@dataclass(frozen=True, slots=True)
class RouteSplit:
    """Whether serving a model's routes apart would make its batches more even. CVs are of output length."""

    source: str
    model: str
    helps: bool
    mixed_cv: float
    within_cv: float
    text: str


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """Everything that the logs have said so far. ``mixed`` are all routes of a model as one, with ``route`` "".

    ``complaints``: by target its newest errors, read since we started, the oldest first.
    """

    at: float
    targets: Mapping[str, str]
    records: Mapping[str, Mapping[str, int]]
    errors: Mapping[str, Mapping[str, int]]
    stats_lines: Mapping[str, int]
    series: tuple[SeriesView, ...]
    mixed: tuple[SeriesView, ...]
    servers: Mapping[str, ServerView]
    splits: tuple[RouteSplit, ...]
    complaints: Mapping[str, tuple[Complaint, ...]]


def split_of(mixed: SeriesView, series: Sequence[SeriesView]) -> RouteSplit | None:
    """Compare a model's routes apart with mixed; None where fewer than two routes have a CV."""
    routes = [
        (one.output_cv.value, one.recent)
        for one in series
        if (one.source, one.model) == (mixed.source, mixed.model) and one.output_cv.value is not None
    ]
    if mixed.output_cv.value is None or len(routes) < 2:
        return None
    within = sum(cv * count for cv, count in routes) / sum(count for _, count in routes)
    helps = mixed.output_cv.value >= SPLIT_MIN_CV and within <= SPLIT_GAIN * mixed.output_cv.value
    figures = f"output-length CV is {mixed.output_cv.value:.2f} mixed and {within:.2f} within its {len(routes)} routes"
    verdict = "serving the routes apart would help" if helps else "serving the routes apart would change little"
    return RouteSplit(mixed.source, mixed.model, helps, mixed.output_cv.value, within, f"{figures}: {verdict}")
