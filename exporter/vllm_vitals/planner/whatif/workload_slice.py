"""The part of a period that is worth simulating: its load, and how the server handled it.

Input: one engine's series. Output: a `Situation`, and intervals for the fit of the step time. Clients who wait for
their answers keep the number in flight level while a queue stands; then the load is closed, else it is open. Invariant:
what is measured here is what a simulation must reproduce; only lengths and arrivals are fed back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, isnan
from statistics import median
from typing import Literal

from vllm_vitals.core.distribution import fit
from vllm_vitals.core.quantile import edges
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.planner.review.load import completions, computed_prompts, demand, in_flight, useful
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import EngineSeries, WindowedHistogram, known, mean
from vllm_vitals.simulator.fit import Interval
from vllm_vitals.simulator.workload import Lengths, Load

Focus = Literal["worst", "peak"]
HOUR = 3600
LEVEL, MOSTLY = 0.07, 0.7  # a closed load: in flight within 7 % of its median in 70 % of the windows
THINK_S = 0.05
METRICS = (
    "generated", "completed", "per_completion", "truncated", "ttft_mean", "ttft_p50", "ttft_p99", "tpot_mean",
    "tpot_p50", "tpot_p99",
)  # fmt: skip
GROWING = 0.1  # an open load outruns the server when this share of what came is left in flight at the end


class SituationError(Exception):
    """The period does not say enough to be simulated."""


@dataclass(frozen=True, slots=True)
class Situation:
    """``windows`` of the grid; ``observed`` is by `METRICS`, rates a second of one engine.

    ``backlog`` is what stood in flight at the start where an open load outruns the server: such a part has no
    steady state, so it must be simulated as long as it was, from there.
    """

    windows: range
    start: float
    seconds: float
    closed: bool
    backlog: int | None
    load: Load
    observed: dict[str, Reading]

    @property
    def clients(self) -> str:
        """The load in words."""
        return (
            f"{self.load.clients} clients that wait for their answers"
            if self.closed
            else f"{self.load.rate:.3g} requests/s"
        )


def situation(
    series: EngineSeries, grid: Grid, focus: Focus = "worst", between: tuple[float, float] | None = None
) -> Situation:
    """Choose a part and describe it. ``between`` (epoch s) sets it by hand. Raises `SituationError`."""
    windows = _between(grid, between) if between else _longest_pressed(series, grid) if focus == "worst" else None
    windows = windows or _busiest(series, grid, focus)
    windows, closed = _level(series, windows)
    seconds = float(len(windows) * grid.step)
    load = _load(series, grid, windows, closed)
    backlog = None if closed else _backlog(series, windows, load.rate * seconds, by_hand=between is not None)
    observed = _observed(series, grid, windows)
    return Situation(windows, grid.at(windows.start), seconds, closed, backlog, load, observed)


def _backlog(series: EngineSeries, windows: range, came: float, by_hand: bool) -> int | None:
    """Return what was in flight at the start, where much more is at the end.

    A stretch chosen by hand stands for itself: what another load left behind does not come with it.
    """
    present = in_flight(series)
    if present is None or isnan(present[windows.stop - 1]):
        return None
    before = present[windows.start - 1] if windows.start > 0 else present[windows.start]
    before = 0.0 if isnan(before) else before
    if present[windows.stop - 1] - before <= max(5.0, GROWING * came):
        return None
    return 0 if by_hand else round(before)


def _between(grid: Grid, between: tuple[float, float]) -> range:
    first = max(0, int((between[0] - grid.start) // grid.step))
    last = min(grid.windows, int(-((grid.start - between[1]) // grid.step)))
    if last <= first:
        began = datetime.fromtimestamp(grid.start, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise SituationError(f"the requested period is outside the data: {grid.windows * grid.step} s from {began} on")
    return range(first, last)


def _longest_pressed(series: EngineSeries, grid: Grid) -> range | None:
    """Return the longest run of windows with preemptions (one calm one may lie between); None below three."""
    counts = series.counter("preemptions_total")
    best, first, last = range(0), -1, -2
    for window in range(grid.windows):
        if counts is None or not counts[window] > 0:
            continue
        first = first if window - last <= 2 and first >= 0 else window
        last = window
        if last + 1 - first > len(best):
            best = range(first, last + 1)
    return best if len(best) >= 3 else None


def _busiest(series: EngineSeries, grid: Grid, focus: Focus) -> range:
    """Return the hour with most work done (``peak``) or most in flight; of a short period its busiest third."""
    measure = useful(series) if focus == "peak" else in_flight(series)
    if measure is None:
        raise SituationError("the number of running requests, or of tokens, is not known")
    long = grid.windows * grid.step >= 3 * HOUR
    length = min(grid.windows, HOUR // grid.step if long else max(3, grid.windows // 3))
    values = [0.0 if isnan(value) else value for value in measure]
    total = sum(values[:length])
    best, at = total, 0
    for first in range(1, grid.windows - length + 1):
        total += values[first + length - 1] - values[first - 1]
        if total > best:
            best, at = total, first
    first = at
    while focus == "worst" and first > 0 and values[first - 1] < values[first] and at - first < length:
        first -= 1  # a queue that grew is simulated from where it began
    return range(first, at + length)


def _level(series: EngineSeries, windows: range) -> tuple[range, bool]:
    """Return whether the load is closed, and then the longest run in which the number in flight is level."""
    present, waiting = in_flight(series), series.gauge("requests_waiting")
    if present is None:
        return windows, False
    values = known(present[w] for w in windows)
    if not values or (mean(waiting[w] for w in windows) if waiting is not None else None or 0.0) in (None, 0.0):
        return windows, False
    centre = median(values)
    level = [abs(present[w] - centre) <= max(1.0, LEVEL * centre) for w in windows]
    if centre < 2 or sum(level) < MOSTLY * len(level):
        return windows, False
    best, first = range(0), None
    for window, flat in zip(windows, level, strict=True):
        first = (window if first is None else first) if flat else None
        if first is not None and window + 1 - first > len(best):
            best = range(first, window + 1)
    return (best if len(best) >= 3 else windows), True


def _load(series: EngineSeries, grid: Grid, windows: range, closed: bool) -> Load:
    prompts = _lengths(_within(series, "request_prompt_tokens", grid, windows), "prompt")
    outputs = _lengths(_within(series, "request_output_tokens", grid, windows), "output")
    hits = _hits(series, windows)
    shared = int(hits * prompts.mean) if hits >= 0.02 else 0
    own = (
        Lengths(max(1.0, prompts.mean - shared), prompts.cv, max(1, prompts.low - shared), prompts.high)
        if shared
        else prompts
    )
    common = {
        "prompt": own,
        "output": outputs,
        "max_tokens": None,
        "system_prompts": 1 if shared else 0,
        "system_tokens": shared,
    }
    if closed:
        present = in_flight(series)
        clients = round(median(known(present[w] for w in windows))) if present is not None else 1
        return Load(clients=clients, think_s=THINK_S, **common)  # type: ignore[arg-type]
    wanted = demand(series, grid)
    rate = mean(wanted[w] for w in windows) if wanted is not None else None
    if not rate:
        raise SituationError("no request arrived in the period")
    return Load(rate=rate, **common)  # type: ignore[arg-type]


def _hits(series: EngineSeries, windows: range) -> float:
    looked, found = series.counter("prefix_cache_queries_total"), series.counter("prefix_cache_hits_total")
    if looked is None or found is None:
        return 0.0
    total = sum(known(looked[w] for w in windows))
    return min(0.95, sum(known(found[w] for w in windows)) / total) if total > 0 else 0.0


def _lengths(histogram: Histogram | None, what: str) -> Lengths:
    shown = fit(histogram)
    centre, spread = shown.mean().value, shown.cv()
    if histogram is None or centre is None or centre <= 0:
        raise SituationError(f"no {what} lengths in the period: no request finished in it, or the histogram is missing")
    filled = [i for i, count in enumerate(histogram.counts) if count > (histogram.counts[i - 1] if i else 0)]
    low, high = edges(histogram, filled[0])[0], edges(histogram, filled[-1])[1]
    cv = spread.value if spread.value is not None else spread.lower or 0.0
    return Lengths(centre, cv, max(1, int(low)), int(high) if high < inf else 10**7)


def _within(series: EngineSeries, name: str, grid: Grid, windows: range) -> Histogram | None:
    """Return what a histogram observed in the part, in the whole windows of its own that touch it."""
    histogram = series.histograms.get(name)
    return None if histogram is None else histogram.total(_touching(histogram, grid, windows))


def _touching(histogram: WindowedHistogram, grid: Grid, windows: range) -> range:
    every = histogram.grid.step // grid.step
    return range(windows.start // every, min(histogram.grid.windows, (windows.stop - 1) // every + 1))


def _observed(series: EngineSeries, grid: Grid, windows: range) -> dict[str, Reading]:
    seconds = len(windows) * grid.step

    def count(values: "Sequence[float] | None") -> float | None:
        return None if values is None else sum(known(values[w] for w in windows))

    generated, finished = count(series.counter("generation_tokens_total")), count(completions(series))
    evicted, cut = count(series.counter("preemptions_total")), count(series.counter("responses_total", "length"))
    found = {
        "generated": _rate(generated, seconds),
        "completed": _rate(finished, seconds),
        "per_completion": _share(evicted, finished),
        "truncated": _share(cut, finished),
    }
    for name in ("ttft", "tpot"):
        shown = fit(_within(series, f"{name}_seconds", grid, windows))
        found[f"{name}_mean"] = shown.mean()
        found[f"{name}_p50"], found[f"{name}_p99"] = (shown.quantile(q) for q in (0.5, 0.99))
    return found


def _share(part: float | None, whole: float | None) -> Reading:
    return Reading(part / whole) if part is not None and whole else absent("nothing finished")


def _rate(count: float | None, seconds: float) -> Reading:
    return absent("not counted") if count is None else Reading(count / seconds)


def intervals(series: EngineSeries, grid: Grid, capacity: float) -> list[Interval]:
    """Windows without preemption, as the fit of the step time wants them; no step counter is needed."""
    return list(_intervals(series, grid, capacity))


def _intervals(series: EngineSeries, grid: Grid, capacity: float) -> Iterator[Interval]:
    running, usage = series.gauge("requests_running"), series.gauge("kv_cache_usage_ratio")
    evicted, generated = series.counter("preemptions_total"), series.counter("generation_tokens_total")
    prompts = computed_prompts(series)
    sums, counts = (
        series.counter("inter_token_latency_seconds_sum"),
        series.counter("inter_token_latency_seconds_count"),
    )
    if running is None or usage is None or generated is None or prompts is None:
        return
    for window in range(grid.windows):
        calm = evicted is None or (not evicted[window] > 0 and not (window and evicted[window - 1] > 0))
        # Below one running request the engine was idle in between, and a step's share of the time is not known.
        if not calm or not running[window] >= 1 or not generated[window] > 20 or isnan(usage[window] + prompts[window]):
            continue
        if sums is not None and counts is not None and counts[window] > 20:
            seconds, outputs = sums[window] / counts[window], counts[window]
        else:
            seconds, outputs = running[window] * grid.step / generated[window], generated[window]
        steps = grid.step / seconds
        yield Interval(
            grid.at(window + 1), seconds, prompts[window] / steps, outputs / steps, usage[window] * capacity, steps
        )
