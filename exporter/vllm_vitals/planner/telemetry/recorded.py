"""A recording of scrapes as `Telemetry`: the same value that a Prometheus API gives, without one.

Input: a recording. Output: `Telemetry` whose windows hold several scrapes each. The judge is the daemon's own.
Invariant: the same windows of the same data say the same, whichever way they were read.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import median

from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.snapshot import EngineSnapshot
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.planner.telemetry.grid import Grid, step_at_least
from vllm_vitals.planner.telemetry.queries import COUNTERS, FAST_HISTOGRAMS, GAUGES, SLOW_HISTOGRAMS
from vllm_vitals.planner.telemetry.telemetry import (
    UNKNOWN,
    EngineId,
    EngineSeries,
    Missing,
    Setting,
    Telemetry,
    WindowedHistogram,
    falls,
    increases,
    unknown,
)
from vllm_vitals.recordings import recording

SCRAPES_A_WINDOW = 4
_FIELDS = {
    "generation_tokens_total": "generation_tokens", "prompt_tokens_total": "prompt_tokens",
    "prompt_tokens_computed_total": "prompt_tokens_computed", "preemptions_total": "preemptions",
    "prefix_cache_queries_total": "prefix_cache_queries", "prefix_cache_hits_total": "prefix_cache_hits",
    "rejected_requests_total": "rejections",
    "requests_running": "running", "requests_waiting": "waiting", "kv_cache_usage_ratio": "kv_usage",
}  # fmt: skip


class NothingRecordedError(Exception):
    """The recording holds no engine."""


@dataclass(slots=True)
class _Track:
    """One engine, scrape by scrape; a sample is None where the scrape failed."""

    at: list[float] = field(default_factory=list)
    polls: list[EngineSnapshot] = field(default_factory=list)


def telemetry(
    path: Path, settings: Mapping[str, str] | None = None, between: tuple[float, float] | None = None
) -> Telemetry:
    """Read and judge a recording. ``settings``: those not exposed as metrics; ``between`` (s from its start): a part.

    A recording that breaks off is read up to the break, which is then among what is missing. Raises `RecordingError` or
    `NothingRecordedError`.
    """
    judge = TargetEvaluator(recording.target_name(path))
    judge.learn(settings or {})
    tracks: dict[EngineId, _Track] = {}
    known: list[Setting] = []
    missing: list[Missing] = []
    began: float | None = None
    last = 0.0
    try:
        for scrape in recording.read(path):
            poll = judge.observe(scrape)
            began, last = scrape.at if began is None else began, scrape.at
            if between is not None and not between[0] <= scrape.at - began <= between[1]:
                continue
            for engine in poll.engines:
                if engine.key.engine:
                    identity = EngineId(engine.key.model_name, engine.key.target, engine.key.engine)
                    track = tracks.setdefault(identity, _Track())
                    track.at.append(scrape.at)
                    track.polls.append(engine)
            known = known or [Setting(poll.target, *item, scrape.at) for item in poll.settings.items()]
    except recording.RecordingError as error:
        if began is None:
            raise
        missing.append(Missing("the rest of the recording", last, last, str(error)))
    if not tracks:
        part = f" between {between[0]:g} s and {between[1]:g} s" if between else ""
        raise NothingRecordedError(f"{path}: no vLLM engine{part} in {last - (began or last):.0f} s of recording")
    grid, states = _grids(tracks)
    engines = {key: _engine(track, grid, states) for key, track in tracks.items()}
    for key in sorted(engines)[1:]:
        # One number a server, which every engine's sample repeats.
        engines[key].counters.pop(("rejected_requests_total", ""), None)
    return Telemetry(grid, states, grid, engines, known, missing=missing)


def _grids(tracks: Mapping[EngineId, _Track]) -> tuple[Grid, Grid]:
    times = sorted({at for track in tracks.values() for at in track.at})
    apart = median(b - a for a, b in pairwise(times)) if len(times) > 1 else 1.0
    span = times[-1] - times[0]
    step = step_at_least(max(SCRAPES_A_WINDOW * apart, span / 400))
    return Grid(times[0], step, max(1, int(span // step))), Grid(times[0], 1, max(1, int(span)))


def _engine(track: _Track, grid: Grid, states: Grid) -> EngineSeries:
    good = [(at, poll.sample) for at, poll in zip(track.at, track.polls, strict=True) if poll.sample is not None]
    series = EngineSeries()
    for signal in GAUGES:
        values = _window(track, grid, lambda poll, s=signal: _gauge(poll, s.name), signal.form)  # type: ignore[misc]
        if any(value == value for value in values):  # noqa: PLR0124 - nan
            series.gauges[signal.called] = values
    for signal in COUNTERS:
        for value, read in _readers(signal.name, signal.suffix, good):
            edges = _edges(good, grid, read)
            series.counters[signal.called, value] = increases(edges)
            if signal.called == "generation_tokens_total":
                series.restarts = falls(edges)
    for signal in (*FAST_HISTOGRAMS, *SLOW_HISTOGRAMS):
        histogram = _histogram(good, grid, signal.name)
        if histogram is not None:
            series.histograms[signal.name] = histogram
    capacity = next((s.kv_capacity_tokens for _, s in reversed(good) if s.kv_capacity_tokens is not None), None)
    if capacity is not None:
        series.slow["kv_cache_capacity_tokens"] = array("d", [capacity]) * grid.windows
    series.states = _states(track, states)
    return series


def _gauge(poll: EngineSnapshot, name: str) -> float:
    if name in _FIELDS:
        value = None if poll.sample is None else getattr(poll.sample, _FIELDS[name])
        return nan if value is None else float(value)
    tax = {"recompute_tax_lower_ratio": "lower", "recompute_tax_upper_ratio": "upper"}.get(name)
    reading = poll.readings.get("recompute_tax_ratio" if tax else name)
    value = None if reading is None else getattr(reading, tax or "value")
    return nan if value is None else float(value)


def _window(track: _Track, grid: Grid, read: Callable[[EngineSnapshot], float], form: str) -> "array[float]":
    """Return mean or maximum of the scrapes in each window (start, end]; the first also holds the first scrape."""
    parts: list[list[float]] = [[] for _ in range(grid.windows)]
    for at, poll in zip(track.at, track.polls, strict=True):
        index = max(0, int(-(-(at - grid.start) // grid.step)) - 1)
        value = read(poll)
        if index < grid.windows and value == value:  # noqa: PLR0124 - nan
            parts[index].append(value)
    return array("d", [(max(p) if form == "max" else sum(p) / len(p)) if p else nan for p in parts])


def _edges(good: list[tuple[float, EngineSample]], grid: Grid, read: Callable[[EngineSample], float]) -> "array[float]":
    """Return the last value at or before each edge of the grid."""
    edges, position = unknown(grid.windows + 1), 0
    value = nan
    for index in range(grid.windows + 1):
        while position < len(good) and good[position][0] <= grid.at(index) + 1e-6:
            value = read(good[position][1])
            position += 1
        edges[index] = value
    return edges


def _readers(
    name: str, suffix: str, good: list[tuple[float, EngineSample]]
) -> Iterator[tuple[str, Callable[[EngineSample], float]]]:
    """Yield how to read a counter, by label value; nothing where no scrape has it."""
    if name == "responses_total":
        for reason in sorted({reason for _, sample in good for reason in sample.responses or ()}):
            yield reason, lambda sample, r=reason: (sample.responses or {}).get(r, nan)  # type: ignore[misc]
    elif suffix:
        if any(name in sample.histograms for _, sample in good):
            yield "", lambda sample: _moment(sample.histograms.get(name), suffix)
    elif any(getattr(sample, _FIELDS[name]) is not None for _, sample in good):
        yield "", lambda sample: _or_nan(getattr(sample, _FIELDS[name]))


def _moment(histogram: Histogram | None, suffix: str) -> float:
    return nan if histogram is None else histogram.sum if suffix == "_sum" else histogram.count


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _histogram(good: list[tuple[float, EngineSample]], grid: Grid, name: str) -> WindowedHistogram | None:
    bounds = next((sample.histograms[name].bounds for _, sample in good if name in sample.histograms), None)
    if bounds is None:
        return None

    def bucket(sample: EngineSample, index: int) -> float:
        histogram = sample.histograms.get(name)
        return nan if histogram is None or histogram.bounds != bounds else histogram.counts[index]

    columns = [
        increases(_edges(good, grid, lambda sample, i=index: bucket(sample, i)))  # type: ignore[misc]
        for index in range(len(bounds) + 1)
    ]
    sums = increases(_edges(good, grid, lambda sample: _moment(sample.histograms.get(name), "_sum")))
    return WindowedHistogram(grid, bounds, columns, sums)


def _states(track: _Track, grid: Grid) -> bytearray:
    """Return the state at the end of each second."""
    codes, position, code = bytearray([UNKNOWN]) * grid.windows, 0, UNKNOWN
    for index in range(grid.windows):
        while position < len(track.at) and track.at[position] <= grid.at(index + 1) + 1e-6:
            code = track.polls[position].state.rank
            position += 1
        codes[index] = code
    return codes
