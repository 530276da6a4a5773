"""The recent past of one engine: samples of one life (start to restart), and what changed between two of them.

A counter that falls, or another start time, begins a new life: everything older is dropped, so no increase is ever
taken across a restart. Ray's agent and the Rust frontend show a counter only once it is above 0
(vllm/v1/metrics/ray_wrappers.py skips ``inc(0)``): one that a life shows late was 0 until then. Samples older than the
fast window are thinned, so memory does not grow with the scrape rate.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

from vllm_vitals.core.quantile import delta
from vllm_vitals.core.sample import EngineSample, Histogram

_COUNTERS = ("generation_tokens", "prompt_tokens", "preemptions", "steps", "completions", "errors")
# Fields that may come late, by the family that `EngineSample.unusable` would name.
_LATE = {
    "generation_tokens": "generation_tokens_total",
    "prompt_tokens": "prompt_tokens_total",
    "prompt_tokens_computed": "prompt_tokens_computed_total",
    "preemptions": "preemptions_total",
    "steps": "steps_total",
    "responses": "responses_total",
    "prefix_cache_queries": "prefix_cache_queries_total",
    "prefix_cache_hits": "prefix_cache_hits_total",
    "rejections": "rejected_requests_total",
}


def increase(new: float | None, old: float | None) -> float | None:
    """Return new - old, or None where either is absent or the counter fell."""
    return None if new is None or old is None or new < old else new - old


def _began_at_zero(old: EngineSample, new: EngineSample, late: Set[str]) -> EngineSample:
    """Return the older sample, with zeros for the counters and histograms that ``new`` is the first to show.

    One that the older sample had, but dropped as impossible, is not known to have been 0.
    """
    fields = [name for name, family in _LATE.items() if name in late and family not in old.unusable]
    zeros: dict[str, Any] = {name: {} if name == "responses" else 0.0 for name in fields}
    if "prompt_tokens_computed" in zeros:  # until a cache is first hit, all prompt tokens are computed
        zeros["prompt_tokens_computed"] = zeros.get("prompt_tokens", old.prompt_tokens) or 0.0
    empty = {
        name: Histogram(shown.bounds, array("d", bytes(8 * len(shown.counts))), 0.0)
        for name, shown in new.histograms.items()
        if name in late and name not in old.unusable
    }
    return replace(old, histograms={**old.histograms, **empty}, **zeros)


@dataclass(frozen=True, slots=True)
class Span:
    """Two samples of one life and the time between them."""

    start: float
    end: float
    first: EngineSample
    last: EngineSample

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.end - self.start

    def increase(self, counter: str) -> float | None:
        """Return how far a counter of `EngineSample` rose, or None where it is absent."""
        new, old = getattr(self.last, counter), getattr(self.first, counter)
        return None if new is None or old is None or new < old else new - old

    def rate(self, counter: str) -> float | None:
        """Return the same a second."""
        risen = self.increase(counter)
        return None if risen is None or self.seconds <= 0 else risen / self.seconds

    def responses(self) -> dict[str, float] | None:
        """Finished responses by reason; a reason that appears late counted from 0."""
        if self.last.responses is None:
            return None
        before = self.first.responses or {}
        return {reason: max(0.0, n - before.get(reason, 0.0)) for reason, n in self.last.responses.items()}

    def histogram(self, name: str) -> Histogram | None:
        """Observations of a family within the span."""
        new, old = self._both(name)
        return None if new is None or old is None else delta(new, old)

    def observed(self, name: str) -> tuple[float, float] | None:
        """Return how many observations of a family the span holds, and their sum."""
        new, old = self.last.histograms.get(name), self.first.histograms.get(name)
        if new is None or old is None or not (new.bounds is old.bounds or new.bounds == old.bounds):
            return None
        count = new.counts[-1] - old.counts[-1]
        return None if count < 0 else (count, new.sum - old.sum)

    def observed_at_most(self, name: str, edge: float) -> float | None:
        """Return how many of them are at most ``edge``, exact; None where that is no bucket's bound."""
        new, old = self._both(name)
        if new is None or old is None or new.bounds != old.bounds:
            return None
        bucket = bisect_left(new.bounds, edge)
        if bucket == len(new.bounds) or new.bounds[bucket] != edge:
            return None
        return increase(new.counts[bucket], old.counts[bucket])

    def mean(self, name: str) -> float | None:
        """Return the mean of a family's observations within the span, None where there are none."""
        observed = self.observed(name)
        return observed[1] / observed[0] if observed is not None and observed[0] > 0 else None

    def _both(self, name: str) -> tuple[Histogram | None, Histogram | None]:
        return self.last.histograms.get(name), self.first.histograms.get(name)


class Window:
    """Samples of one engine, oldest first: ``fine`` seconds whole, then up to ``reach`` thinned to one a ``step``."""

    def __init__(self, fine: float, reach: float, step: float = 30.0) -> None:
        self._fine, self._reach, self._step = fine, reach, step
        self._times: list[float] = []
        self._samples: list[EngineSample] = []
        self._started_at: float | None = None
        self._counters: dict[str, float] = {}  # the newest value of each that this life has shown
        self._shown: set[str] = set()
        self._missing: Set[str] = _LATE.keys()
        self._asked: tuple[float, Span] | None = None  # the last span asked for since the newest sample

    def push(self, at: float, sample: EngineSample) -> bool:
        """Add a sample taken at ``at``; True when it begins a new life. A sample not later than the last is ignored."""
        counters = {name: value for name in _COUNTERS if (value := getattr(sample, name)) is not None}
        new_life = bool(self._samples) and self._restarted(sample, counters)
        if new_life:
            self._times, self._samples, self._started_at, self._counters = [], [], None, {}
            self._shown, self._missing = set(), _LATE.keys()
        elif self._times and at <= self._times[-1]:
            return False
        self._counters.update(counters)
        self._started_at = sample.started_at if sample.started_at is not None else self._started_at
        late = {name for name in self._missing if getattr(sample, name) is not None}
        if not self._shown >= sample.histograms.keys():
            late |= sample.histograms.keys() - self._shown
        if late:
            self._shown |= late
            self._missing = _LATE.keys() - self._shown
            self._samples = [_began_at_zero(old, sample, late) for old in self._samples]
        self._times.append(at)
        self._samples.append(sample)
        self._asked = None
        self._thin(at)
        return new_life

    def _restarted(self, new: EngineSample, counters: dict[str, float]) -> bool:
        """Return whether counters began anew: another start time, or any of them is below its last value."""
        if new.started_at is not None and self._started_at is not None and abs(new.started_at - self._started_at) > 1:
            return True
        return any(value < self._counters.get(name, 0.0) for name, value in counters.items())

    @property
    def previous(self) -> EngineSample | None:
        """The sample before the newest, or None at the start of a life."""
        return self._samples[-2] if len(self._samples) > 1 else None

    def span(self, seconds: float) -> Span | None:
        """From the newest sample at least ``seconds`` old (else the oldest) to the last; None with fewer than two."""
        times = self._times
        if len(times) < 2:
            return None
        if self._asked is not None and self._asked[0] == seconds:
            return self._asked[1]
        index = max(0, bisect_right(times, times[-1] - seconds) - 1)
        if index == len(times) - 1:
            index -= 1
        span = Span(times[index], times[-1], self._samples[index], self._samples[-1])
        self._asked = (seconds, span)
        return span

    def span_with(
        self, enough: float, shortest: float, longest: float, count: Callable[[EngineSample], float | None]
    ) -> Span | None:
        """Return the shortest span of ``shortest`` to ``longest`` seconds in which a sample's ``count`` rose enough."""
        if len(self._times) < 2:
            return None
        end, last = self._times[-1], self._samples[-1]
        start = bisect_right(self._times, end - shortest) - 1
        for index in range(max(0, min(start, len(self._times) - 2)), -1, -1):
            if end - self._times[index] > longest + self._step:
                return None
            risen = increase(count(last), count(self._samples[index]))
            if risen is not None and risen >= enough:
                return Span(self._times[index], end, self._samples[index], last)
        return None

    def working(self, longest: float) -> Span | None:
        """Return the span before now in which every sample shows work, or None where the newest two do not."""
        times, samples = self._times, self._samples
        start = len(samples) - 1
        while start > 0 and times[-1] - times[start - 1] <= longest + self._step and samples[start - 1].work:
            start -= 1
        return Span(times[start], times[-1], samples[start], samples[-1]) if start < len(samples) - 1 else None

    def calm(self, longest: float) -> tuple[Span, list[EngineSample]] | None:
        """Return the span before the newest preemptions, as far back as it holds none, and its samples."""
        samples, times = self._samples, self._times
        end = len(samples) - 1
        while end > 0 and increase(samples[end].preemptions, samples[end - 1].preemptions) != 0:
            end -= 1
        start = end
        while start > 0 and times[end] - times[start - 1] <= longest:
            if increase(samples[end].preemptions, samples[start - 1].preemptions) != 0:
                break
            start -= 1
        if start == end:
            return None
        return Span(times[start], times[end], samples[start], samples[end]), samples[start : end + 1]

    def within(self, seconds: float) -> list[EngineSample]:
        """Return the samples of the last ``seconds``, oldest first."""
        if not self._times:
            return []
        return self._samples[bisect_right(self._times, self._times[-1] - seconds - 1e-9) :]

    def _thin(self, now: float) -> None:
        """Drop what lies beyond reach; beyond ``fine``, drop a sample whose neighbours are within one ``step``."""
        times, samples = self._times, self._samples
        while len(times) > 2 and times[1] <= now - self._reach:
            del times[0], samples[0]
        edge = bisect_right(times, now - self._fine) - 1
        if edge >= 2 and times[edge] - times[edge - 2] <= self._step:
            del times[edge - 1], samples[edge - 1]
