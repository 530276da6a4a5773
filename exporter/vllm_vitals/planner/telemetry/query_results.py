"""Collects the results of one signal's queries, and adds them to the telemetry when all have arrived.

Input: series as the API wrote them. Output: per engine one value a window. Invariant: two sources of one number (HA
replicas, both producers) are folded by their maximum, counters after they were differenced, never before.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import Any

from vllm_vitals.core.states import State
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.queries import Signal
from vllm_vitals.planner.telemetry.telemetry import (
    UNKNOWN,
    EngineId,
    Setting,
    Telemetry,
    WindowedHistogram,
    falls,
    fold_max,
    increases,
    known,
    unknown,
)
from vllm_vitals.prometheus.promapi import Series

Edges = dict[tuple[EngineId, str, frozenset[tuple[str, str]]], "array[float]"]
_CODES = {state.value: state.rank for state in State}


class Intake:
    """One signal's answers. ``add`` takes an answer, ``finish`` files everything (a second call does nothing)."""

    def __init__(self, signal: Signal, grid: Grid, labels: Sequence[str]) -> None:
        self.grid = grid
        self._signal, self._labels = signal, labels
        self._gauges: dict[EngineId, array[float]] = {}
        self._edges: Edges = {}
        self._sums: Edges = {}
        self._states: dict[EngineId, bytearray] = {}
        self._facts: dict[tuple[str, str], list[tuple[float, str]]] = {}
        self._logs: Edges = {}

    def add(self, answer: Sequence[Series], kind: str = "") -> None:
        """Take one answer."""
        form = self._signal.form
        for series in answer:
            if form in ("mean", "max", "now"):
                self._add_gauge(series)
            elif form == "state":
                self._add_state(series)
            elif form in ("setting", "version"):
                self._add_fact(series)
            elif form == "log":
                self._add_edges(self._logs, series, "")
            elif kind == "sum":
                self._add_edges(self._sums, series, "")
            else:
                self._add_edges(self._edges, series, "le" if kind == "bucket" else self._signal.split)

    def finish(self, telemetry: Telemetry) -> None:
        """File what has come. Engines that discovery did not list are left out."""
        form = self._signal.form
        if form == "histogram":
            self._file_histograms(telemetry)
        elif form == "counter":
            self._file_counters(telemetry)
        elif form == "log":
            self._file_logs(telemetry)
        for engine, values in self._gauges.items():
            series = telemetry.engines.get(engine)
            if series is not None:
                (series.slow if form == "now" else series.gauges)[self._signal.called] = values
        for engine, codes in self._states.items():
            if engine in telemetry.engines:
                telemetry.engines[engine].states = codes
        telemetry.settings.extend(
            Setting(target, name, value, at)
            for (target, name), values in self._facts.items()
            for at, value in _changes(values)
        )
        for store in (self._gauges, self._edges, self._sums, self._states, self._facts, self._logs):
            store.clear()

    def _engine(self, labels: Mapping[str, str]) -> EngineId:
        place = ",".join(f"{name}={labels.get(name, '')}" for name in self._labels)
        target = labels.get("target") or labels.get("instance", "")
        return EngineId(labels.get("model_name", ""), target, labels.get("engine") or "0", place)

    def _add_gauge(self, series: Series) -> None:
        values = self._gauges.setdefault(self._engine(series.labels), unknown(self.grid.windows))
        for first, run in _runs(series, self.grid.start + self.grid.step, self.grid):
            fresh = array("d", [float(text) for _, text in run])
            if isfinite(sum(fresh)) and not known(values[first : first + len(fresh)]):
                values[first : first + len(fresh)] = fresh
                continue
            for index, value in enumerate(fresh, first):
                if isfinite(value) and not values[index] >= value:
                    values[index] = value

    def _add_state(self, series: Series) -> None:
        code = _CODES.get(series.labels.get("state", ""))
        if code is None:
            return
        codes = self._states.setdefault(self._engine(series.labels), bytearray([UNKNOWN]) * self.grid.windows)
        for first, run in _runs(series, self.grid.start + self.grid.step, self.grid):
            last = first + len(run)
            # Of two replicas the worse state counts.
            codes[first:last] = bytes(min(code, before) for before in codes[first:last])

    def _add_edges(self, into: Edges, series: Series, split: str) -> None:
        labels = series.labels
        value = labels.get(split, "") if split else ""
        rest = frozenset(item for item in labels.items() if item[0] not in ("le", split))
        key = (self._engine(labels), str(float(value)) if split == "le" else value, rest)
        edges = into.get(key)
        if edges is None:
            edges = into[key] = unknown(self.grid.windows + 1)
        for first, run in _runs(series, self.grid.start, self.grid):
            edges[first : first + len(run)] = array("d", [float(text) for _, text in run])

    def _add_fact(self, series: Series) -> None:
        target = series.labels.get("target", "")
        if self._signal.form == "setting":
            known_as = self._facts.setdefault((target, series.labels.get("name", "")), [])
            known_as.extend((at, _plain(value)) for at, value in series.points)
            return
        for name in ("version", "dialect"):
            text = series.labels.get(name, "")
            if text:
                self._facts.setdefault((target, name), []).extend((at, text) for at, _ in series.points)

    def _file_counters(self, telemetry: Telemetry) -> None:
        for (engine, value, _), edges in self._edges.items():
            series = telemetry.engines.get(engine)
            if series is not None:
                _fold(series.counters, (self._signal.called, value), increases(edges))
                if self._signal.called == "generation_tokens_total":
                    series.restarts = max(series.restarts, falls(edges))

    def _file_logs(self, telemetry: Telemetry) -> None:
        """Totals of the period by every label that is the log's own."""
        found: dict[tuple[str, ...], float] = {}
        for (_, _, rest), edges in self._logs.items():
            labels = dict(rest)
            total = sum(known(increases(edges)))
            key = (self._signal.name, *(labels.get(name, "") for name in ("model_name", "route", "source", "cap")))
            found[key] = max(found.get(key, 0.0), total)
        telemetry.logs.update(found)

    def _file_histograms(self, telemetry: Telemetry) -> None:
        """Buckets of one source belong together; of two sources of one engine, the one with more observations stays."""
        sources: dict[tuple[EngineId, frozenset[tuple[str, str]]], dict[float, array[float]]] = {}
        for (engine, le, rest), edges in self._edges.items():
            sources.setdefault((engine, _source(rest)), {})[float(le)] = edges
        sums = {(engine, _source(rest)): edges for (engine, _, rest), edges in self._sums.items()}
        best: dict[EngineId, float] = {}
        for key, buckets in sources.items():
            series = telemetry.engines.get(key[0])
            histogram = _windowed(self.grid, buckets, sums.get(key)) if series is not None else None
            if series is None or histogram is None:
                continue
            count = sum(known(histogram.columns[-1]))
            if count > best.get(key[0], -1.0):
                best[key[0]] = count
                series.histograms[self._signal.called] = histogram


def _runs(series: Series, start: float, grid: Grid) -> Iterator[tuple[int, list[list[Any]]]]:
    """Stretches of points without a hole, with the index of the first; what lies off the grid is left out.

    A result is nearly always contiguous: placing it at once is what makes millions of points affordable.
    """
    points, step, length = series.points, grid.step, grid.windows + (start == grid.start)
    first = 0
    while first < len(points):
        at = int((points[first][0] - start) / step + 0.5)
        last = len(points)
        if int((points[-1][0] - start) / step + 0.5) - at != last - first - 1:
            last = first + 1
            while last < len(points) and int((points[last][0] - start) / step + 0.5) - at == last - first:
                last += 1
        low, high = max(0, -at), min(last - first, length - at)
        if low < high:
            yield at + low, points[first + low : first + high]
        first = last


def _source(labels: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Return what the buckets and the sum of one histogram have in common: all labels but the name."""
    return frozenset(item for item in labels if item[0] != "__name__")


def _windowed(
    grid: Grid, buckets: Mapping[float, "array[float]"], sums: "array[float] | None"
) -> WindowedHistogram | None:
    """Increases by window; None where there is no +Inf bucket, without which nothing can be counted."""
    if inf not in buckets:
        return None
    bounds = sorted(buckets)
    amount = increases(sums) if sums is not None else unknown(grid.windows)
    return WindowedHistogram(grid, tuple(bounds[:-1]), [increases(buckets[bound]) for bound in bounds], amount)


def _fold(counters: dict[tuple[str, str], "array[float]"], key: tuple[str, str], values: "array[float]") -> None:
    if key in counters:
        fold_max(counters[key], values)
    else:
        counters[key] = values


def _changes(values: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the first value, and every later one that differs from the one before it."""
    found: list[tuple[float, str]] = []
    for at, value in sorted(values):
        if not found or found[-1][1] != value:
            found.append((at, value))
    return found


def _plain(text: Any) -> str:
    number = float(text)
    return str(int(number)) if number.is_integer() else f"{number:g}"
