"""Two witnesses of truncation: the engine's metrics and the logs of one target, side by side.

Inputs: a `LogSnapshot` and the metrics' truncated ratio by model. Output: one view a (source, model).
Invariant: the two are shown and compared, never averaged: where they differ, one of them does not see something.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.logs.snapshot import LogSnapshot, SeriesView
from vllm_vitals.logs.window import MIN_COUNT

# The windows do not begin at the same instant, and a gateway may drop or retry a few.
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class TruncationView:
    """Share of responses cut at a cap, as the metrics and as a log source say it; ``disagree`` None: not comparable."""

    source: str
    model: str
    metric: Reading
    log: Reading
    disagree: bool | None
    text: str


def truncation_views(snapshot: LogSnapshot, target: str, metric: Mapping[str, Reading]) -> tuple[TruncationView, ...]:
    """Compare every log source of ``target`` with its metrics. ``metric`` is keyed by model_name.

    A log that names no model is compared where the metrics know only one.
    """
    groups: dict[tuple[str, str], list[SeriesView]] = {}
    for one in snapshot.series:
        if snapshot.targets.get(one.source) == target:
            groups.setdefault((one.source, one.model), []).append(one)
    only = next(iter(metric.values())) if len(metric) == 1 else None
    views = []
    for (source, model), series in groups.items():
        said = metric.get(model, only if not model and only is not None else absent("no metric for this model"))
        views.append(_view(source, model, said, series))
    return tuple(views)


def _view(source: str, model: str, metric: Reading, series: list[SeriesView]) -> TruncationView:
    log, count = _pooled(series)
    if metric.value is None or log.value is None:
        why = metric.why if metric.value is None else log.why
        return TruncationView(source, model, metric, log, None, f"not comparable: {why}")
    spread = 3 * math.sqrt(max(metric.value * (1 - metric.value), log.value * (1 - log.value)) / count)
    disagree = abs(metric.value - log.value) > TOLERANCE + spread
    shares = f"truncated at cap: {metric.value:.0%} by metrics, {log.value:.0%} of {count} by {source}"
    if not disagree:
        return TruncationView(source, model, metric, log, False, f"{shares}: they agree")
    hint = (
        "a finish reason hides a cap, or the log holds only part of the traffic"
        if log.value > metric.value
        else "the log lacks truncated responses, or holds only part of the traffic"
    )
    return TruncationView(source, model, metric, log, True, f"{shares}: they disagree; {hint}")


def _pooled(series: list[SeriesView]) -> tuple[Reading, int]:
    counted = [(one.truncated.value, one.recent) for one in series if one.truncated.value is not None]
    count = sum(recent for _, recent in counted)
    if not count:
        return absent(f"fewer than {MIN_COUNT} responses in the window"), 0
    return Reading(sum(share * recent for share, recent in counted) / count), count
