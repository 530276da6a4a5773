"""Throughput and latency against the concurrency that was really observed, the knee, and what one step more would do.

Input: one model's engines. Output: `Knee`. A step that decodes r requests takes about a + b r seconds, so throughput
is r / (a + b r): that line is fitted to the bands and gives the way beyond what was seen, with its error. Invariant: a
band is judged only with enough windows behind it, and what was not observed is called a prediction.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, sqrt

from vllm_vitals.planner.review.latency import Tail, tail, within
from vllm_vitals.planner.review.load import Engines, completions, useful
from vllm_vitals.planner.telemetry.telemetry import EngineSeries, WindowedHistogram, mean, merged

EDGES = (
    0.5,
    1.5,
    2.5,
    3.5,
    5.5,
    7.5,
    11.5,
    15.5,
    23.5,
    31.5,
    47.5,
    63.5,
    95.5,
    127.5,
    191.5,
    255.5,
    383.5,
    511.5,
    1023.5,
)
MIN_WINDOWS = 5
NEAR_PEAK = 0.9  # the knee is where this share of the best band's throughput is reached
STEP = 1.25  # one careful step of max_num_seqs


@dataclass(frozen=True, slots=True)
class Band:
    """Windows of engines while ``low`` to ``high`` requests ran; rates are an engine's, a second."""

    low: int
    high: int
    windows: int
    running: float
    useful: float
    generated: float
    completed: float
    kv: float | None
    waiting: float | None
    preemptions: float
    ttft: Tail
    tpot: Tail

    @property
    def judged(self) -> bool:
        """Whether enough windows are behind it."""
        return self.windows >= MIN_WINDOWS


@dataclass(frozen=True, slots=True)
class Curve:
    """Throughput r / (a + b r) in useful tokens/s; ``error`` is the typical relative miss over the bands."""

    a: float
    b: float
    error: float
    seen: float

    def useful(self, running: float) -> float:
        """Return useful tokens/s at a concurrency."""
        return running / (self.a + self.b * running)


@dataclass(frozen=True, slots=True)
class Step:
    """What going from one concurrency to another does, as relative changes. ``observed``: both were seen."""

    start: float
    end: float
    observed: bool
    throughput: float
    ttft: float | None
    tpot: float | None
    token_speed: float | None
    error: float | None
    kv_then: float | None


@dataclass(frozen=True, slots=True)
class Knee:
    """``at`` is the concurrency of the knee; None where throughput still grew in the highest band (``why`` says so)."""

    bands: tuple[Band, ...]
    at: float | None
    band: Band | None
    why: str
    curve: Curve | None
    last_doubling: Step | None
    next_step: Step | None


def knee(engines: Engines, step: int, slots: float | None) -> Knee:
    """See `Knee`. ``step`` is the windows' length in s, ``slots`` max_num_seqs where known."""
    bands = tuple(_bands(engines, step))
    judged = [band for band in bands if band.judged]
    curve = _curve(judged)
    if len(judged) < 2:
        return Knee(bands, None, None, "too few concurrencies were seen long enough to compare", curve, None, None)
    best = max(band.useful for band in judged)
    bend = next(band for band in judged if band.useful >= NEAR_PEAK * best)
    found = bend is not judged[-1]
    why = "" if found else f"throughput still grew at the highest concurrency seen ({judged[-1].running:.0f} running)"
    return Knee(
        bands,
        bend.running if found else None,
        bend if found else None,
        why,
        curve,
        _last_doubling(judged),
        _next_step(judged, curve, slots),
    )


@dataclass(slots=True)
class _Sum:
    windows: int = 0
    running: float = 0.0
    useful: float = 0.0
    generated: float = 0.0
    completed: float = 0.0
    kv: float = 0.0
    kv_windows: int = 0
    waiting: float = 0.0
    preemptions: float = 0.0


def _bands(engines: Engines, step: int) -> list[Band]:
    sums = [_Sum() for _ in EDGES]
    for series in engines.values():
        _add(sums, series)
    ttft, tpot = _tails(engines, "ttft_seconds", step), _tails(engines, "tpot_seconds", step)
    found = []
    for index, each in enumerate(sums):
        if each.windows:
            seconds = each.windows * step
            high = EDGES[index + 1] if index + 1 < len(EDGES) else None
            found.append(
                Band(
                    low=int(EDGES[index] + 0.5),
                    high=int(high - 0.5) if high else 10**9,
                    windows=each.windows,
                    running=each.running / each.windows,
                    useful=each.useful / seconds,
                    generated=each.generated / seconds,
                    completed=each.completed / seconds,
                    kv=each.kv / each.kv_windows if each.kv_windows else None,
                    waiting=each.waiting / each.windows,
                    preemptions=each.preemptions / seconds,
                    ttft=ttft.of(index),
                    tpot=tpot.of(index),
                )
            )
    return found


def _add(sums: Sequence[_Sum], series: EngineSeries) -> None:
    running, work = series.gauge("requests_running"), useful(series)
    generated, done = series.counter("generation_tokens_total"), completions(series)
    kv, waiting = series.gauge("kv_cache_usage_ratio"), series.gauge("requests_waiting")
    evicted = series.counter("preemptions_total")
    if running is None or work is None or generated is None:
        return
    for window, count in enumerate(running):
        index = band_of(count)
        if index is None or isnan(work[window]):
            continue
        into = sums[index]
        into.windows += 1
        into.running += count
        into.useful += work[window]
        into.generated += generated[window]
        into.completed += _or_zero(done[window]) if done is not None else 0.0
        into.waiting += _or_zero(waiting[window]) if waiting is not None else 0.0
        into.preemptions += _or_zero(evicted[window]) if evicted is not None else 0.0
        if kv is not None and not isnan(kv[window]):
            into.kv += kv[window]
            into.kv_windows += 1


def _or_zero(value: float) -> float:
    return 0.0 if isnan(value) else value


def band_of(running: float) -> int | None:
    """Index in `EDGES` of the band, or None where nothing ran."""
    if not running >= EDGES[0]:
        return None
    return bisect_right(EDGES, running) - 1


@dataclass(frozen=True, slots=True)
class _Tails:
    """One histogram of all engines, its windows sorted into bands once."""

    parts: list[tuple[WindowedHistogram, dict[int, list[int]]]]

    def of(self, index: int) -> Tail:
        """Return the band's value."""
        return tail(merged(histogram.total(windows[index]) for histogram, windows in self.parts if index in windows))


def _tails(engines: Engines, name: str, step: int) -> _Tails:
    parts = []
    for series in engines.values():
        histogram, running = series.histograms.get(name), series.gauge("requests_running")
        if histogram is not None and running is not None:
            windows: dict[int, list[int]] = {}
            for window in range(histogram.grid.windows):
                centre = mean(running[w] for w in within(histogram, window, step, len(running)))
                index = None if centre is None else band_of(centre)
                if index is not None:
                    windows.setdefault(index, []).append(window)
            parts.append((histogram, windows))
    return _Tails(parts)


def _curve(bands: Sequence[Band]) -> Curve | None:
    """r / useful is a line in r; weighted by windows. None with fewer than three bands, or if it does not rise."""
    points = [(band.running, band.running / band.useful, band.windows) for band in bands if band.useful > 0]
    if len(points) < 3:
        return None
    weight = sum(w for _, _, w in points)
    x0, y0 = sum(x * w for x, _, w in points) / weight, sum(y * w for _, y, w in points) / weight
    spread = sum(w * (x - x0) ** 2 for x, _, w in points)
    slope = sum(w * (x - x0) * (y - y0) for x, y, w in points) / spread if spread else 0.0
    start = y0 - slope * x0
    if slope < 0 or start <= 0:
        return None
    misses = [w * (x / (start + slope * x) / (x / y) - 1) ** 2 for x, y, w in points]
    return Curve(start, slope, sqrt(sum(misses) / weight), max(x for x, _, _ in points))


def _last_doubling(bands: Sequence[Band]) -> Step | None:
    """Return the highest band against the one nearest to half its concurrency."""
    top = bands[-1]
    half = min(bands[:-1], key=lambda band: abs(band.running - top.running / 2))
    if half.useful <= 0 or not 1.4 <= top.running / half.running <= 3:
        return None
    tpot = _change(half.tpot.mean, top.tpot.mean)
    return Step(
        start=half.running,
        end=top.running,
        observed=True,
        throughput=top.useful / half.useful - 1,
        ttft=_change(half.ttft.mean, top.ttft.mean),
        tpot=tpot,
        token_speed=None if tpot is None else 1 / (1 + tpot) - 1,
        error=None,
        kv_then=top.kv,
    )


def _change(before: float | None, after: float | None) -> float | None:
    return after / before - 1 if before and after is not None else None


def _next_step(bands: Sequence[Band], curve: Curve | None, slots: float | None) -> Step | None:
    """25 % more than the cap, or than the highest concurrency seen where the cap is unknown or never reached."""
    if curve is None:
        return None
    top = bands[-1]
    start = slots if slots is not None and top.running >= 0.9 * slots else top.running
    end = start * STEP
    speed = (curve.a + curve.b * end) / (curve.a + curve.b * start)
    return Step(
        start=start,
        end=end,
        observed=False,
        throughput=curve.useful(end) / curve.useful(start) - 1,
        ttft=None,
        tpot=speed - 1,
        token_speed=1 / speed - 1,
        error=curve.error,
        kv_then=None if top.kv is None or not top.running else top.kv * end / top.running,
    )
