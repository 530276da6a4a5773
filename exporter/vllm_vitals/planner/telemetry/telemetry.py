"""What a review is made from: per engine, one value a window of each gauge, counter and histogram, and its states.

Built by `collect` (a Prometheus API) or `recorded` (a recording). Invariant: nan is "not known", never 0; counters are
increases within their window, resets already taken out.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf, isnan, nan
from operator import itemgetter

from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.states import State
from vllm_vitals.planner.telemetry.grid import Grid

UNKNOWN = 255  # the state code of an instant without any
STATES = tuple(State)


def unknown(length: int) -> "array[float]":
    """``length`` values that are not known."""
    return array("d", [nan]) * length


@dataclass(frozen=True, slots=True, order=True)
class EngineId:
    """The identity of what is judged; ``place`` holds configured identity labels as ``cluster=a,namespace=b``."""

    model_name: str
    target: str
    engine: str
    place: str = ""

    def __str__(self) -> str:
        where = f"{self.place}/" if self.place else ""
        return f"{where}{self.target} engine {self.engine}" if self.engine not in ("", "0") else f"{where}{self.target}"


@dataclass(slots=True)
class WindowedHistogram:
    """Observations in each window of ``grid``: one column a bucket (cumulative over ``bounds``, the last is +Inf).

    A window whose +Inf count is nan is not known.
    """

    grid: Grid
    bounds: tuple[float, ...]
    columns: list["array[float]"]
    sums: "array[float]"

    def total(self, windows: Iterable[int] | None = None) -> Histogram | None:
        """Return the observations of the given windows (all by default) together; None where nothing is known."""
        every = self.columns[-1]
        chosen = [w for w in (range(len(every)) if windows is None else windows) if not isnan(every[w])]
        if not chosen:
            return None
        pick = itemgetter(*chosen) if len(chosen) > 1 else lambda column: (column[chosen[0]],)
        # A bucket that was read a moment before another must not make a negative count.
        counts = array("d", accumulate((_added(pick(column)) for column in self.columns), max))
        return Histogram(self.bounds, counts, _added(pick(self.sums)))


def _added(values: Sequence[float]) -> float:
    """Sum of the known values; one pass where all are."""
    total = sum(values)
    return total if total == total else sum(known(values))  # noqa: PLR0124


@dataclass(slots=True)
class EngineSeries:
    """One engine. ``gauges`` and ``counters`` are on the telemetry's grid; counters are keyed by (name, label value).

    ``slow`` holds gauges read at the coarse grid's instants. ``states`` has one code (index in `STATES`, or `UNKNOWN`)
    an instant of the state grid. ``restarts`` are falls of the token counter: what came between the last reading and
    the restart is in no counter.
    """

    gauges: dict[str, "array[float]"] = field(default_factory=dict)
    counters: dict[tuple[str, str], "array[float]"] = field(default_factory=dict)
    histograms: dict[str, WindowedHistogram] = field(default_factory=dict)
    slow: dict[str, "array[float]"] = field(default_factory=dict)
    states: bytearray = field(default_factory=bytearray)
    restarts: int = 0

    def gauge(self, name: str) -> "array[float] | None":
        """Return one value a window, or None where the engine has no such gauge."""
        return self.gauges.get(name)

    def counter(self, name: str, value: str = "") -> "array[float] | None":
        """Return one increase a window, or None."""
        return self.counters.get((name, value))

    def split(self, name: str) -> dict[str, "array[float]"]:
        """Return a counter with a label: increases by label value."""
        return {value: increases for (key, value), increases in self.counters.items() if key == name}


@dataclass(frozen=True, slots=True)
class Missing:
    """What could not be read, between when and when (epoch s), and why."""

    what: str
    start: float
    end: float
    why: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A server's setting or version as it was from ``at`` on (epoch s)."""

    target: str
    name: str
    value: str
    at: float


@dataclass(slots=True)
class Telemetry:
    """A period of a fleet."""

    grid: Grid
    states: Grid
    slow: Grid
    engines: dict[EngineId, EngineSeries] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    logs: dict[tuple[str, ...], float] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    def models(self) -> list[str]:
        """Return the models, by name."""
        return sorted({engine.model_name for engine in self.engines})

    def of(self, model_name: str) -> dict[EngineId, EngineSeries]:
        """Return the engines that serve a model."""
        return {key: series for key, series in sorted(self.engines.items()) if key.model_name == model_name}


def increases(edges: "array[float]") -> "array[float]":
    """Increase in each window of a cumulative counter read at its edges; one value fewer than ``edges``.

    A fall is a restart: the new value is the increase, as in PromQL. What fell into a gap counts in the window that
    ends it. The first sight of a counter says nothing about the time before.
    """
    found = unknown(len(edges) - 1)
    last = edges[0]
    for index, now in enumerate(edges):
        if now == now:  # noqa: PLR0124 - not nan; a call would double the time, and this runs for millions of points
            if index and last == last:  # noqa: PLR0124
                found[index - 1] = now - last if now >= last else now
            last = now
    return found


def falls(edges: "array[float]") -> int:
    """Return how often a cumulative counter began anew."""
    seen = known(edges)
    return sum(1 for before, now in pairwise(seen) if now < before)


def fold_max(into: "array[float]", values: "array[float]") -> None:
    """Keep the larger of two readings of the same thing (replicas, two producers), never their sum."""
    for index, value in enumerate(values):
        if not isnan(value) and not into[index] >= value:
            into[index] = value


def known(values: Iterable[float]) -> list[float]:
    """Return the values that are known."""
    return [value for value in values if value == value]  # noqa: PLR0124 - not nan


def added(series: Sequence["array[float]"]) -> "array[float] | None":
    """Element-wise sum; a window is known where any of them is."""
    if not series:
        return None
    total = unknown(len(series[0]))
    for values in series:
        for index, value in enumerate(values):
            if not isnan(value):
                total[index] = value + (0.0 if isnan(total[index]) else total[index])
    return total


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of the known values."""
    numbers = known(values)
    return sum(numbers) / len(numbers) if numbers else None


def ranked(values: Iterable[float], share: float) -> float | None:
    """Return the value that ``share`` of the known values do not exceed (nearest rank, so one that occurred)."""
    numbers = sorted(known(values))
    return numbers[max(0, min(len(numbers) - 1, _ceil(share * len(numbers)) - 1))] if numbers else None


def _ceil(value: float) -> int:
    return int(-(-(value - 1e-9) // 1))


def merged(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """Histograms with the same bounds, together. Of several bounds the ones that hold most observations are kept."""
    by_bounds: dict[tuple[float, ...], Histogram] = {}
    for each in histograms:
        if each is None:
            continue
        so_far = by_bounds.get(each.bounds)
        counts = each.counts if so_far is None else array("d", map(sum, zip(so_far.counts, each.counts, strict=True)))
        by_bounds[each.bounds] = Histogram(each.bounds, counts, each.sum + (0.0 if so_far is None else so_far.sum))
    return max(by_bounds.values(), key=lambda histogram: histogram.count, default=None)


def share_within(histogram: Histogram, limit: float) -> tuple[float, float]:
    """Least and greatest share of observations that can be <= ``limit``; equal where it is a bucket's edge."""
    if histogram.count <= 0:
        return nan, nan
    above = bisect_right(histogram.bounds, limit)
    low = histogram.counts[above - 1] if above else 0.0
    exact = above > 0 and histogram.bounds[above - 1] == limit
    top = histogram.bounds[above] if above < len(histogram.bounds) else inf
    high = low if exact else histogram.counts[above] if top < inf else histogram.count
    return low / histogram.count, high / histogram.count


def state_seconds(codes: Sequence[int], step: float) -> Mapping[State | None, float]:
    """Return seconds by state; None for the instants at which none is known."""
    counts = [0] * 256
    for code in codes:
        counts[code] += 1
    found: dict[State | None, float] = {state: counts[i] * step for i, state in enumerate(STATES) if counts[i]}
    if counts[UNKNOWN]:
        found[None] = counts[UNKNOWN] * step
    return found
