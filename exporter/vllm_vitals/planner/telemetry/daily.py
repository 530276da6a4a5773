"""Daily peaks over weeks, for the trend: three queries, each answered by the server with one value a day.

Input: an API client, the period's end. Output: peaks by model name and measure. Invariant: a day of which nothing
is known has no value.
"""

from collections.abc import Sequence
from math import isfinite

from vllm_vitals.catalog import NAMESPACE
from vllm_vitals.planner.telemetry.collect import Ask
from vllm_vitals.planner.telemetry.grid import DAY
from vllm_vitals.planner.telemetry.promapi import PromError
from vllm_vitals.planner.telemetry.queries import identity
from vllm_vitals.planner.telemetry.telemetry import Missing

Peaks = dict[str, dict[str, list[tuple[float, float]]]]
_CHUNK_DAYS = 7


def queries(labels: Sequence[str], matchers: str) -> dict[str, str]:
    """PromQL by measure; every one folds the engines first."""
    ids = ", ".join(identity(labels))

    def series(name: str) -> str:
        return f"{NAMESPACE}{name}{{{matchers}}}"

    answered = f"sum by (model_name) (max by ({ids}, finished_reason) (rate({series('responses_total')}[5m])))"
    return {
        "kv": f"max by (model_name) (max_over_time({series('kv_cache_usage_max_ratio')}[1d]))",
        "running": f"max by (model_name) (max_over_time({series('requests_running')}[1d]))",
        "demand": f"max_over_time(({answered})[1d:5m])",
    }


def peaks(
    ask: Ask, end: float, days: int, labels: Sequence[str] = (), matchers: str = ""
) -> tuple[Peaks, list[Missing]]:
    """Peaks of the ``days`` days up to ``end``."""
    found: Peaks = {}
    missing: list[Missing] = []
    for measure, query in queries(labels, matchers).items():
        for first in range(days - 1, -1, -_CHUNK_DAYS):
            start, stop = end - first * DAY, end - max(0, first - _CHUNK_DAYS + 1) * DAY
            try:
                answer = ask.range(query, start, stop, DAY)
            except PromError as error:
                missing.append(Missing(f"trend of {measure}", start - DAY, stop, str(error)))
                continue
            for series in answer:
                into = found.setdefault(series.labels.get("model_name", ""), {}).setdefault(measure, [])
                into.extend((float(at), value) for at, text in series.points if isfinite(value := float(text)))
    return found, missing
