"""Fits the step-time line to a recording of a real server.

Input: a recording of any vLLM version. Output: a `StepTime`. Between two scrapes the sum of inter-token latencies over
their count is the mean step time that decoding requests saw; it is explained by the batch, the context and the prompt
tokens computed. Invariant: nothing after the first preemption is read, because recomputation is in no counter and the
preemption counter itself comes late.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise, takewhile
from pathlib import Path

from vllm_vitals.core.dialect import normalise
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.series_index import Layout
from vllm_vitals.recordings import recording
from vllm_vitals.simulator.steptime import StepTime

# An interval with fewer steps or outputs says more about chance than about the server.
_MIN_STEPS = 20
_GUESSED = 0.6  # recomputation, as a multiple of the tokens counted, from which an interval rests on a guess


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


@dataclass(frozen=True, slots=True)
class Observation:
    """One scrape of one engine, and the block size it reports."""

    at: float
    sample: EngineSample
    block_size: float


def observations(recorded: Path, engine: str = "0") -> Iterator[Observation]:
    """Yield the good scrapes of one engine in a recording, in order. Raises `RecordingError`."""
    layout = Layout()
    for scrape in recording.read(recorded):
        if scrape.body is None:
            continue
        target = normalise(scrape.body, layout)
        for (_, rank), sample in target.engines.items():
            if rank == engine:
                yield Observation(scrape.at, sample, float(target.settings.get("block_size", 1)))


def intervals(seen: Iterable[Observation]) -> list[Interval]:
    """Return the intervals between scrapes, up to the first preemption, that show the step time plainly."""
    calm = takewhile(lambda each: not each.sample.preemptions, seen)
    found = (_interval(before, now) for before, now in pairwise(calm))
    return [interval for interval in found if interval is not None]


def loaded(seen: Iterable[Observation], lost: float) -> list[Interval]:
    """Return the intervals from the first preemption on in which the server stepped all the time.

    A gap between two tokens of a victim is no step, so the steps themselves are counted. What a victim computes again
    is in no counter: ``lost`` is the share of its context, taken as the mean of those running.
    """
    pressed = dropwhile(lambda each: not each.sample.preemptions, seen)
    found = (_stepping(before, now, lost) for before, now in pairwise(pressed))
    return [interval for interval in found if interval is not None]


def fit(observed: Sequence[Interval]) -> StepTime:
    """Weighted least squares with no negative coefficient; the term that would be negative is left out.

    Raises `FitError` when there are fewer than eight intervals.
    """
    if len(observed) < 8:
        raise FitError(f"only {len(observed)} intervals under load without preemptions: record for longer")
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
    """Return how many times as long as `model` says the steps took: a busier or slower machine, the same server."""
    if not observed:
        raise FitError("no interval under load without preemptions to measure the machine by")
    weight = sum(item.weight for item in observed)
    ratios = (i.weight * i.seconds / model.seconds(i.prefill, i.decoding, i.context) for i in observed)
    return sum(ratios) / weight


def _interval(before: Observation, now: Observation) -> Interval | None:
    old, new = before.sample, now.sample
    if old.steps is None or new.steps is None or not old.kv_usage or not new.kv_usage or not new.kv_capacity_tokens:
        return None
    latency, latency_before = (each.histograms.get("inter_token_latency_seconds") for each in (new, old))
    if latency is None or latency_before is None:
        return None
    steps, outputs = new.steps - old.steps, latency.count - latency_before.count
    if steps < _MIN_STEPS or outputs < _MIN_STEPS:
        return None
    decoding = outputs / steps
    held = (old.kv_usage + new.kv_usage) / 2 * (new.kv_capacity_tokens - now.block_size)
    return Interval(
        at=now.at,
        seconds=(latency.sum - latency_before.sum) / outputs,
        prefill=((new.prompt_tokens or 0.0) - (old.prompt_tokens or 0.0)) / steps,
        decoding=decoding,
        context=max(0.0, held - decoding * now.block_size / 2),  # the last block of each is half empty on average
        weight=steps,
    )


def _stepping(before: Observation, now: Observation, lost: float) -> Interval | None:
    old, new = before.sample, now.sample
    if old.steps is None or new.steps is None or not new.kv_capacity_tokens:
        return None
    running = ((old.running or 0.0) + (new.running or 0.0)) / 2
    busy = all(each.running and each.waiting for each in (old, new))
    steps, outputs = new.steps - old.steps, (new.generation_tokens or 0.0) - (old.generation_tokens or 0.0)
    if not busy or steps < _MIN_STEPS or outputs < _MIN_STEPS:
        return None
    held = ((old.kv_usage or 0.0) + (new.kv_usage or 0.0)) / 2 * (new.kv_capacity_tokens - now.block_size)
    again = ((new.preemptions or 0.0) - (old.preemptions or 0.0)) * lost * held / max(1.0, running)
    prompts = [each.prompt_tokens_computed for each in (new, old)]
    if None in prompts:
        prompts = [(each.prompt_tokens or 0.0) - (each.prefix_cache_hits or 0.0) for each in (new, old)]
    computed = (prompts[0] or 0.0) - (prompts[1] or 0.0)
    if again > _GUESSED * (computed + outputs):
        return None
    return Interval(
        at=now.at,
        seconds=(now.at - before.at) / steps,
        prefill=max(0.0, computed + again) / steps,
        decoding=outputs / steps,
        context=max(0.0, held - outputs / steps * now.block_size / 2),
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
            raise FitError("the recording never varies its load: the terms cannot be separated")
        for row_index in range(size):
            if row_index != pivot:
                factor = matrix[row_index][pivot] / matrix[pivot][pivot]
                for column in range(pivot, size + 1):
                    matrix[row_index][column] -= factor * matrix[pivot][column]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]
