"""Let a calm server's time pass without simulating each request: what was simulated once is played again.

Input: a server, how its requests look (a `Load`), and a rate for every stretch. Output: `EngineStats` grown by what an
engine did in a stretch at that rate. At each of a grid of rates an exact simulation is cut into stretches; they are
drawn again in runs of several, so that counters, histograms, gauges and their noise stay those of the simulation.
Invariants: between two rates of the grid the mean is right; a rate at which a queue builds up is refused, because
overload has a memory and must be simulated.
"""

from dataclasses import dataclass, replace
from math import ceil, floor, log
from random import Random

from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.stats import EngineStats
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Load, Traffic

_GRID = 1.2  # a rate of the grid over the one below it
_LEAST_RATE = _GRID**-16  # 0.05/s: below it stretches without a request come between
_MOST_RATES = 100
_WARM_UP_S = 300.0
_ENOUGH_REQUESTS = 2000  # so that the mean of what is known at a rate is right within some two per cent
_MOST_STRETCHES = 1000
_RUN = 10  # stretches that follow each other as they were simulated
_LONGEST_WAIT_S = 5.0  # of a calm server: its mean queue over its rate
_COUNTERS = (
    "preemptions", "prompt_tokens", "cached_tokens", "device_hits", "generation_tokens", "prefix_queries", "prefilled",
    "steps",
)  # fmt: skip


class NotCalmError(ValueError):
    """A queue builds up at this rate."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What grew, by counter, reason and histogram; and the gauges at its end."""

    counters: tuple[int, ...]
    responses: tuple[int, ...]
    buckets: tuple[tuple[tuple[int, int], ...], ...]  # by histogram: (bucket, count) of those that grew
    sums: tuple[float, ...]
    running: int
    waiting: int
    kv_usage: float


class CalmStretches:
    """What one kind of engine does at any calm rate of one kind of requests; learnt once, for a whole fleet.

    ``load.rate`` means nothing here. A rate is simulated when it is first asked for: `stretches` stretches, more
    of them where requests are few.
    """

    def __init__(
        self,
        settings: ServerSettings,
        step_time: StepTime,
        load: Load,
        stretch_s: float = 60.0,
        stretches: int = 120,
        seed: int = 0,
    ) -> None:
        self.stretch_s = stretch_s
        self._settings = settings
        self._step_time = step_time
        self._load = load
        self._count = stretches
        self._seed = seed
        self._levels: dict[int, list[_Stretch]] = {}

    def at(self, level: int) -> list[_Stretch]:
        """Return the stretches at a rate of the grid. Raises `NotCalmError`."""
        found = self._levels.get(level)
        if found is None:
            if len(self._levels) >= _MOST_RATES:
                self._levels.pop(next(iter(self._levels)))
            found = self._levels[level] = self._simulate(_GRID**level, level)
        return found

    def _simulate(self, rate: float, level: int) -> list[_Stretch]:
        engine = Engine(self._settings, self._step_time)
        traffic = Traffic(self._settings, self._seed + level)
        traffic.switch(replace(self._load, rate=rate, clients=0), 0.0)
        _advance(engine, traffic, _WARM_UP_S)
        count = min(_MOST_STRETCHES, max(self._count, ceil(_ENOUGH_REQUESTS / (rate * self.stretch_s))))
        stretches, before, queue = [], _copy(engine.stats), 0.0
        for number in range(1, count + 1):
            _advance(engine, traffic, _WARM_UP_S + number * self.stretch_s)
            stretches.append(_difference(before, engine.stats))
            before = _copy(engine.stats)
            queue += engine.stats.waiting / count
        if queue > max(1.0, rate * _LONGEST_WAIT_S):
            raise NotCalmError(f"at {rate:.3g} requests/s a queue builds up ({queue:.0f} wait): simulate that exactly")
        return stretches


class Coast:
    """One engine's way through calm stretches: which of them comes next."""

    def __init__(self, known: CalmStretches, seed: int = 0) -> None:
        self._known = known
        self._random = Random(seed)  # noqa: S311 - a simulation
        self._level: int | None = None
        self._next, self._left = 0, 0

    def grow(self, stats: EngineStats, rate: float) -> int:
        """Let `stats` grow by one stretch at `rate` requests/s; return how many responses there were.

        Raises `NotCalmError` for a rate that the server does not keep up with.
        """
        if rate < _LEAST_RATE and self._random.random() * _LEAST_RATE >= rate:
            stats.running = stats.waiting = stats.deferred = self._left = 0
            stats.kv_usage = 0.0
            return 0
        level = self._near(max(rate, _LEAST_RATE))
        stretches = self._known.at(level)
        if level != self._level or not self._left:
            self._level, self._left = level, _RUN
            self._next = self._random.randrange(len(stretches))
        stretch = stretches[self._next % len(stretches)]
        self._next, self._left = self._next + 1, self._left - 1
        _add(stats, stretch)
        return sum(stretch.responses)

    def _near(self, rate: float) -> int:
        """Choose one of the two rates of the grid beside this one, so that the mean is right."""
        below = floor(log(rate) / log(_GRID) + 1e-9)
        if self._level in (below, below + 1) and self._left:
            return self._level
        low, high = _GRID**below, _GRID ** (below + 1)
        return below + (self._random.random() < (rate - low) / (high - low))


def _advance(engine: Engine, traffic: Traffic, until: float) -> None:
    while traffic.next_at <= until:
        while engine.advance(traffic.next_at):
            pass
        engine.add(traffic.take())
    while engine.advance(until):
        pass


_Totals = tuple[list[int], list[int], list[tuple[list[int], float]]]


def _copy(stats: EngineStats) -> _Totals:
    histograms = [(list(histogram.counts), histogram.sum) for histogram in stats.histograms.values()]
    return [getattr(stats, name) for name in _COUNTERS], list(stats.responses.values()), histograms


def _difference(before: _Totals, stats: EngineStats) -> _Stretch:
    counters, responses, histograms = _copy(stats)
    buckets = tuple(
        tuple((index, now - was) for index, (was, now) in enumerate(zip(old, new, strict=True)) if now != was)
        for (old, _), (new, _) in zip(before[2], histograms, strict=True)
    )
    return _Stretch(
        tuple(now - was for was, now in zip(before[0], counters, strict=True)),
        tuple(now - was for was, now in zip(before[1], responses, strict=True)),
        buckets,
        tuple(now - was for (_, was), (_, now) in zip(before[2], histograms, strict=True)),
        stats.running,
        stats.waiting,
        stats.kv_usage,
    )


def _add(stats: EngineStats, stretch: _Stretch) -> None:
    for name, more in zip(_COUNTERS, stretch.counters, strict=True):
        setattr(stats, name, getattr(stats, name) + more)
    for reason, more in zip(stats.responses, stretch.responses, strict=True):
        stats.responses[reason] += more
    for histogram, grown, total in zip(stats.histograms.values(), stretch.buckets, stretch.sums, strict=True):
        for index, more in grown:
            histogram.counts[index] += more
        histogram.sum += total
    stats.running, stats.waiting, stats.kv_usage = stretch.running, stretch.waiting, stretch.kv_usage
