"""Which part of a period was scraped, and which of its repeats can be measured.

Input: one model's engines. Output: windows. A window was scraped where as many engines were seen as at any time in the
period; a single missed scrape is no hole. Invariant: time that was not scraped is absent, never a time without work.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import isnan
from statistics import median

from vllm_vitals.planner.review.load import Engines, up
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import EngineSeries

WHOLE = 0.9  # share of a repeat's windows that must have been scraped


def scraped(engines: Engines, grid: Grid) -> list[bool]:
    """By window, whether every engine that there was at any one time was scraped in it."""
    seen = [_seen(series, grid.windows) for series in engines.values()]
    counts = [sum(each) for each in zip(*seen, strict=True)]
    most = max(counts, default=0)
    return [count == most > 0 for count in counts]


def _seen(series: EngineSeries, windows: int) -> list[bool]:
    """Windows between two samples that are at most one missed scrape apart; without the time before the first edge."""
    gauge, counter = up(series), series.counter("generation_tokens_total")
    marks = gauge if gauge is not None else counter
    at = [w for w in range(windows) if marks is not None and not isnan(marks[w])]
    apart = median([later - earlier for earlier, later in pairwise(at)] or [1])
    found = [False] * windows
    for first, last in [*zip(at, at, strict=True), *pairwise(at)]:
        if last - first <= 2 * apart:
            found[first : last + 1] = [True] * (last + 1 - first)
    return [there and (counter is None or not isnan(counter[w])) for w, there in enumerate(found)]


def whole_repeats(there: Sequence[bool], repeats: int) -> list[range]:
    """Of so many parts of the period, equal to a window, those that were scraped throughout."""
    edges = [i * len(there) // repeats for i in range(repeats + 1)]
    parts = [range(first, last) for first, last in pairwise(edges)]
    return [part for part in parts if sum(there[w] for w in part) >= WHOLE * len(part)]


def longest(there: Sequence[bool]) -> range:
    """Return the longest run of scraped windows."""
    runs = [list(run) for yes, run in groupby(range(len(there)), key=there.__getitem__) if yes]
    best = max(runs, key=len, default=[])
    return range(best[0], best[-1] + 1) if best else range(0)
