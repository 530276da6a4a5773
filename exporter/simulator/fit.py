"""Fits the step-time line to a recording of a real server.

Input: scrapes as (t, exposition text). Output: a `StepTime`. Between two scrapes the sum of inter-token latencies over
their count is the mean step time that decoding requests saw; it is explained by the batch, the context and the prompt
tokens computed. Invariant: nothing after the first preemption is read, because recomputation is in no counter and the
preemption counter itself comes late.
"""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from prometheus_client.parser import text_string_to_metric_families

from exporter.simulator.steptime import StepTime


class FitError(ValueError):
    """The recording does not say enough."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What one scrape interval says about a step: mean seconds, and per step its tokens, batch and context."""

    at: float
    seconds: float
    prefill: float
    decoding: float
    context: float
    weight: float


_READ = {
    "vllm:inter_token_latency_seconds_sum": "latency",
    "vllm:inter_token_latency_seconds_count": "outputs",
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:prompt_tokens_total": "prompt",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:kv_cache_usage_perc": "usage",
}


def scrapes(recording: Path) -> Iterator[tuple[float, str]]:
    """The good scrapes of a recording (.jsonl.gz), as (epoch seconds, exposition text)."""
    with gzip.open(recording) as lines:
        for line in lines:
            scrape = orjson.loads(line)
            if scrape["status"] == 200:
                yield scrape["t"], scrape["text"]


def intervals(texts: Iterable[tuple[float, str]], engine: str = "0") -> list[Interval]:
    """The intervals between consecutive scrapes, up to the first preemption, that show the step time plainly."""
    found = []
    before: dict[str, float] = {}
    for at, text in texts:
        now = _read(text, engine) | {"at": at}
        if now.get("preemptions"):
            break
        interval = _interval(before, now) if before else None
        if interval is not None:
            found.append(interval)
        before = now
    return found


def fit(observed: Sequence[Interval]) -> StepTime:
    """Weighted least squares with no negative coefficient; the term that would be negative is left out.

    Raises `FitError` when there are fewer than eight intervals.
    """
    if len(observed) < 8:
        raise FitError(f"only {len(observed)} intervals under load without preemptions: record a longer stretch")
    rows = [(1.0, item.prefill, item.decoding, item.context) for item in observed]
    # Relative residuals: a slow interval must not outweigh ten fast ones.
    weights = [item.weight / item.seconds**2 for item in observed]
    used = [column for column in range(4) if len({row[column] for row in rows}) > 1 or column == 0]
    while True:
        solution = _least_squares([[row[c] for c in used] for row in rows], [i.seconds for i in observed], weights)
        negative = min(range(len(used)), key=solution.__getitem__)
        if solution[negative] >= 0 or len(used) == 1:
            break
        del used[negative]
    terms = [0.0] * 4
    for column, value in zip(used, solution, strict=True):
        terms[column] = value
    return StepTime(*terms)


def slowness(model: StepTime, observed: Sequence[Interval]) -> float:
    """How many times as long as `model` says the steps took: a busier or slower machine, the same server."""
    if not observed:
        raise FitError("no interval under load without preemptions to measure the machine by")
    weight = sum(item.weight for item in observed)
    ratios = (i.weight * i.seconds / model.seconds(i.prefill, i.decoding, i.context) for i in observed)
    return sum(ratios) / weight


def _read(text: str, engine: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _READ and sample.labels.get("engine", engine) == engine:
                values[_READ[sample.name]] = sample.value
            elif sample.name == "vllm:cache_config_info":
                values["capacity"] = float(sample.labels["kv_cache_size_tokens"])
                values["block"] = float(sample.labels["block_size"])
    return values


def _interval(before: dict[str, float], now: dict[str, float]) -> Interval | None:
    if before.keys() != now.keys() or "usage" not in now:
        return None
    change = {name: now[name] - before[name] for name in now}
    if change["steps"] < 20 or change["outputs"] < 20 or min(before["usage"], now["usage"]) <= 0:
        return None
    steps = change["steps"]
    decoding = change["outputs"] / steps
    held = (before["usage"] + now["usage"]) / 2 * (now["capacity"] - now["block"])
    return Interval(
        at=now["at"],
        seconds=change["latency"] / change["outputs"],
        prefill=change["prompt"] / steps,
        decoding=decoding,
        context=max(0.0, held - decoding * now["block"] / 2),  # the last block of each is half empty on average
        weight=steps,
    )


def _least_squares(rows: list[list[float]], values: list[float], weights: list[float]) -> list[float]:
    """Solve the normal equations by Gaussian elimination; columns are scaled first, they differ by 10^4."""
    size = len(rows[0])
    scale = [max(abs(row[c]) for row in rows) or 1.0 for c in range(size)]
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row, value, weight in zip(rows, values, weights, strict=True):
        scaled = [cell / by for cell, by in zip(row, scale, strict=True)]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += weight * scaled[i] * scaled[j]
            matrix[i][size] += weight * scaled[i] * value
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda r: abs(matrix[r][pivot]))
        matrix[pivot], matrix[best] = matrix[best], matrix[pivot]
        if abs(matrix[pivot][pivot]) < 1e-12:
            raise FitError("the recording never varies its load: the terms cannot be told apart")
        for row_index in range(size):
            if row_index != pivot:
                factor = matrix[row_index][pivot] / matrix[pivot][pivot]
                for column in range(pivot, size + 1):
                    matrix[row_index][column] -= factor * matrix[pivot][column]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]
