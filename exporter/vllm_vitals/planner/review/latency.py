"""How long people waited: quantiles with the bounds of their buckets, and how much of the tail preemption made.

Input: one model's engines. Output: `Tail`s. Invariant: a quantile is never given without the bucket that holds it, and
a difference that buckets cannot show is absent.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isnan

from vllm_vitals.core import quantile
from vllm_vitals.core.distribution import fit, is_sure
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.planner.review.load import Engines, completions
from vllm_vitals.planner.telemetry.telemetry import EngineSeries, WindowedHistogram, known, merged

CLASSES = (0.0, 1_000.0, 4_000.0, 8_000.0, 32_000.0)  # mean prompt tokens of a window, from


@dataclass(frozen=True, slots=True)
class Tail:
    """Seconds. ``ratio`` is p99 over p50; ``histogram`` is what they were read from."""

    count: float
    mean: float | None
    p50: Reading
    p95: Reading
    p99: Reading
    ratio: Reading
    histogram: Histogram | None


@dataclass(frozen=True, slots=True)
class Gap:
    """The distance from p50 to p99 of TPOT, in seconds: over all windows, and over those without preemption.

    ``share`` of it goes away with preemption; absent where buckets cannot resolve it or there was none.
    """

    all: Reading
    calm: Reading
    share: Reading


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Windows whose finished requests had a mean prompt of ``low`` to ``high`` tokens: not single requests."""

    low: float
    high: float | None
    requests: float
    preemptions: float
    ttft: Tail
    tpot: Tail


def tail(histogram: Histogram | None) -> Tail:
    """Quantiles of one histogram."""
    found = fit(histogram)
    p50, p99 = found.quantile(0.5), found.quantile(0.99)
    return Tail(
        found.count,
        found.mean().value,
        p50,
        found.quantile(0.95),
        p99,
        quantile.ratio(p99, p50),
        histogram,
    )


def whole(engines: Engines, name: str) -> Histogram | None:
    """Everything that a histogram of all engines observed in the period."""
    return merged(h.total() for series in engines.values() if (h := series.histograms.get(name)) is not None)


def chosen(
    engines: Engines, name: str, windows: Callable[[EngineSeries, WindowedHistogram], Iterable[int]]
) -> Histogram | None:
    """Return what a histogram observed in the windows that ``windows`` picks for each engine."""
    return merged(
        h.total(windows(series, h)) for series in engines.values() if (h := series.histograms.get(name)) is not None
    )


def within(histogram: WindowedHistogram, window: int, step: int, length: int) -> range:
    """Return the telemetry's windows that one of the histogram's windows covers."""
    every = histogram.grid.step // step
    return range(window * every, min(length, (window + 1) * every))


def calm(series: EngineSeries, histogram: WindowedHistogram, step: int) -> list[int]:
    """Windows without preemption, in them and in the one before: a victim finishes later than it was preempted."""
    preempted = series.counter("preemptions_total")
    if preempted is None:
        return []
    quiet = [
        not any(count > 0 for count in known(preempted[w] for w in within(histogram, window, step, len(preempted))))
        for window in range(histogram.grid.windows)
    ]
    return [window for window, now in enumerate(quiet) if now and (window == 0 or quiet[window - 1])]


def gap(engines: Engines, step: int) -> Gap:
    """See `Gap`."""
    everything = _distance(whole(engines, "tpot_seconds"))
    quiet = _distance(chosen(engines, "tpot_seconds", lambda series, h: calm(series, h, step)))
    if everything.value is None or quiet.value is None:
        return Gap(everything, quiet, absent(everything.why or quiet.why))
    if not any(count > 0 for s in engines.values() for count in known(s.counter("preemptions_total") or ())):
        return Gap(everything, quiet, absent("nothing was preempted"))
    if everything.value <= 0:
        return Gap(everything, quiet, absent("p50 and p99 are the same"))
    return Gap(everything, quiet, Reading(1 - quiet.value / everything.value))


def _distance(histogram: Histogram | None) -> Reading:
    found = fit(histogram)
    low, high = found.quantile(0.5), found.quantile(0.99)
    if low.value is None or high.value is None or not is_sure(high):
        return absent(high.why or low.why)
    return Reading(high.value - low.value)


def by_length(engines: Engines, step: int) -> list[LengthClass]:
    """Latency and preemptions by the mean prompt length of a window, for the classes that occurred."""
    sorted_in = {engine: _classes(series, step) for engine, series in engines.items()}
    found = []
    for index, (low, high) in enumerate(zip(CLASSES, (*CLASSES[1:], None), strict=True)):
        ttft, tpot = (
            merged(_of_class(series, name, sorted_in[engine], index, step) for engine, series in engines.items())
            for name in ("ttft_seconds", "tpot_seconds")
        )
        requests = evicted = 0.0
        for engine, series in engines.items():
            own = [w for w, each in enumerate(sorted_in[engine]) if each == index]
            requests += _added(completions(series), own)
            evicted += _added(series.counter("preemptions_total"), own)
        if requests > 0:
            found.append(LengthClass(low, high, requests, evicted, tail(ttft), tail(tpot)))
    return found


def _classes(series: EngineSeries, step: int) -> list[int | None]:
    """Return the class of each window. All windows that one of the latency histogram's covers are in one class."""
    tokens, requests = series.counter("request_prompt_tokens_sum"), series.counter("request_prompt_tokens_count")
    histogram = series.histograms.get("ttft_seconds") or series.histograms.get("tpot_seconds")
    if tokens is None or requests is None or histogram is None:
        return []
    found: list[int | None] = []
    for window in range(histogram.grid.windows):
        covered = within(histogram, window, step, len(tokens))
        pairs = [(tokens[w], requests[w]) for w in covered if not isnan(tokens[w] + requests[w])]
        count = sum(number for _, number in pairs)
        index = bisect_right(CLASSES, sum(total for total, _ in pairs) / count) - 1 if count > 0 else None
        found.extend([index] * len(covered))
    return found


def _of_class(series: EngineSeries, name: str, classes: list[int | None], index: int, step: int) -> Histogram | None:
    histogram = series.histograms.get(name)
    if histogram is None or not classes:
        return None
    every = histogram.grid.step // step
    return histogram.total(
        w for w in range(histogram.grid.windows) if w * every < len(classes) and classes[w * every] == index
    )


def _added(counts: "array[float] | None", windows: list[int]) -> float:
    return 0.0 if counts is None else sum(known(counts[w] for w in windows))
