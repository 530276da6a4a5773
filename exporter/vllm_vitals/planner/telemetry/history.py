"""Weeks of history, for trend and forecast: daily peaks, and demand by the hour; the server answers with few points.

Input: an API client, the period's end. Output: by model name and measure, values by time. Invariant: a day or an hour
of which nothing is known has no value.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from vllm_vitals.catalog import NAMESPACE
from vllm_vitals.planner.telemetry.collect import Ask
from vllm_vitals.planner.telemetry.grid import DAY
from vllm_vitals.planner.telemetry.queries import identity
from vllm_vitals.planner.telemetry.telemetry import Missing
from vllm_vitals.prometheus.promapi import PromError

History = dict[str, dict[str, list[tuple[float, float]]]]  # measures: kv, running (daily peaks), demand (requests/s)
HOUR = 3600
_CHUNK_DAYS = 7


def daily(labels: Sequence[str], matchers: str) -> dict[str, str]:
    """Return PromQL by measure; every one folds the engines first."""
    return {
        measure: f"max by (model_name) (max_over_time({NAMESPACE}{name}{{{matchers}}}[1d]))"
        for measure, name in (("kv", "kv_cache_usage_max_ratio"), ("running", "requests_running"))
    }


def hourly(labels: Sequence[str], matchers: str) -> dict[str, str]:
    """Return PromQL by part of the demand: answered, refused, abandoned, and held, which is running or waiting."""
    ids = ", ".join(identity(labels))

    def folded(expression: str, name: str, split: str = "") -> str:
        series = f"{NAMESPACE}{name}{{{matchers}}}"
        return f"sum by (model_name) (max by ({ids}{split and f', {split}'}) ({expression.format(series)}))"

    return {
        "answered": folded("rate({}[1h])", "responses_total", "finished_reason"),
        "refused": folded("rate({}[1h])", "rejected_requests_total"),
        "left": folded("avg_over_time({}[1h])", "abandoned_requests_per_second"),
        "running": folded("{}", "requests_running"),
        "waiting": folded("{}", "requests_waiting", "reason"),
    }


def history(
    ask: Ask, end: float, days: int, labels: Sequence[str] = (), matchers: str = ""
) -> tuple[History, list[Missing]]:
    """Return the ``days`` days up to ``end``."""
    found: History = {}
    missing: list[Missing] = []
    for measure, query in daily(labels, matchers).items():
        for model, points in _read(ask, measure, query, end - (days - 1) * DAY, end, DAY, missing):
            found.setdefault(model, {}).setdefault(measure, []).extend(points)
    parts: dict[str, dict[str, dict[float, float]]] = {}
    for part, query in hourly(labels, matchers).items():
        for model, points in _read(ask, f"{part} by the hour", query, end - days * DAY, end, HOUR, missing):
            parts.setdefault(model, {}).setdefault(part, {}).update(points)
    for model, own in parts.items():
        if own.get("answered"):
            found.setdefault(model, {})["demand"] = _demand(own, end - days * DAY)
    return found, missing


def _read(
    ask: Ask, what: str, query: str, start: float, end: float, step: float, missing: list[Missing]
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield what a query says of each model, a week at a time."""
    at = start
    while at <= end + step / 2:
        stop = min(end, at + _CHUNK_DAYS * DAY - step)
        try:
            answer = ask.range(query, at, stop, step)
        except PromError as error:
            missing.append(Missing(f"history of {what}", at - step, stop, str(error)))
            answer = []
        for series in answer:
            points = [(float(t), value) for t, text in series.points if isfinite(value := float(text))]
            yield series.labels.get("model_name", ""), points
        at = stop + step


def _demand(parts: Mapping[str, Mapping[float, float]], start: float) -> list[tuple[float, float]]:
    """Return requests/s that came in each hour: answered, refused, abandoned, and by how much more are inside after
    it.
    """
    held: dict[float, float] = {}
    for part in ("running", "waiting"):
        for at, value in parts.get(part, {}).items():
            held[at] = held.get(at, 0.0) + value
    found = []
    for at, answered in sorted(parts["answered"].items()):
        if at <= start:
            continue  # the hour before the first
        grown = (held[at] - held[at - HOUR]) / HOUR if at in held and at - HOUR in held else 0.0
        other = sum(parts.get(part, {}).get(at, 0.0) for part in ("refused", "left"))
        found.append((at, max(0.0, answered + other + grown)))
    return found
