"""Reads a period of a fleet from a Prometheus API into `Telemetry`: few queries, each for all engines.

Input: an API client (see `Ask`), a period, what to read. Output: `Telemetry`. Results are bounded: a range is
cut so that an answer holds some 150,000 points, and halved when the API says that it is too much. Invariant: what could
not be read is in ``missing`` with its reason; nothing that failed is ever filled in.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from vllm_vitals.catalog import NAMESPACE
from vllm_vitals.planner.telemetry.grid import Grid, state_grid, window_grid
from vllm_vitals.planner.telemetry.queries import FAST_HISTOGRAMS, SLOW_HISTOGRAMS, WEEK, Signal, promql, raw_promql
from vllm_vitals.planner.telemetry.query_results import Intake
from vllm_vitals.planner.telemetry.telemetry import EngineId, EngineSeries, Missing, Telemetry
from vllm_vitals.prometheus.promapi import PromError, Series

Progress = Callable[[int, int, str], None]
FAILURES_IN_A_ROW = 5
MAX_POINTS_A_SERIES = 10_000  # Prometheus refuses more than 11,000

# Series an engine has, roughly, by form: only sizes the queries.
_WIDTH = {"histogram": 24, "setting": 12, "log": 20}


class Ask(Protocol):
    """An API client (`promapi.PromApi` is one)."""

    def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """Return values at start, start + step, ... end."""
        ...

    def series(self, match: str, start: float, end: float) -> list[Mapping[str, str]]:
        """Label sets that had samples between two times."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Points an answer may hold; and points of all states, of the latency histograms, and of the others: these set how
    finely each is read.
    """

    answer: int = 150_000
    states: int = 2_500_000
    histograms: int = 4_000_000
    lengths: int = 2_000_000
    slow_windows: int = 300


@dataclass(frozen=True, slots=True)
class Job:
    """One query: a signal between two instants of its grid."""

    signal: Signal
    query: str
    kind: str
    start: float
    end: float
    step: int

    def halves(self) -> tuple["Job", "Job"] | None:
        """Return a query cut in two, or None for a single instant."""
        steps = round((self.end - self.start) / self.step)
        if steps < 1:
            return None
        middle = self.start + steps // 2 * self.step
        first = Job(self.signal, self.query, self.kind, self.start, middle, self.step)
        return first, Job(self.signal, self.query, self.kind, middle + self.step, self.end, self.step)


def collect(
    askers: Sequence[Ask],
    start: float,
    end: float,
    labels: Sequence[str] = (),
    matchers: str = "",
    signals: Sequence[Signal] = WEEK,
    budget: Budget | None = None,
    progress: Progress = lambda done, total, what: None,
) -> Telemetry:
    """Read a period. ``askers`` are used in parallel, one query each at a time.

    Raises `PromError` when not even the list of engines can be read, or when there is none.
    """
    budget = budget or Budget()
    engines = discover(askers[0], start, end, labels, matchers)
    telemetry = _empty(engines, start, end, budget, signals)
    ours = _own_histograms(askers[0], telemetry.grid, matchers)
    grids = _grids(telemetry, len(engines), budget)
    intakes = {signal: Intake(signal, grids[signal.pace], labels) for signal in signals}
    jobs = [
        job
        for signal in signals
        for job in _jobs(signal, intakes[signal].grid, len(engines), budget, labels, matchers, ours)
    ]
    _Run(askers, telemetry, intakes, jobs, progress).all()
    return telemetry


def discover(ask: Ask, start: float, end: float, labels: Sequence[str], matchers: str) -> list[EngineId]:
    """Return the engines that had a state in the period."""
    match = f'{NAMESPACE}state{{state="healthy"{"," if matchers else ""}{matchers}}}'
    found = {_engine(each, labels) for each in ask.series(match, start, end)}
    if not found:
        raise PromError(
            f"no series {match} in the period: does this Prometheus scrape vllm-vitals, or run its recording rules?",
            fatal=True,
        )
    return sorted(found)


def _engine(labels: Mapping[str, str], extra: Sequence[str]) -> EngineId:
    place = ",".join(f"{name}={labels.get(name, '')}" for name in extra)
    return EngineId(labels.get("model_name", ""), labels.get("target", ""), labels.get("engine", ""), place)


def _empty(
    engines: Sequence[EngineId], start: float, end: float, budget: Budget, signals: Sequence[Signal]
) -> Telemetry:
    grid = window_grid(start, end)
    states = state_grid(grid, len(engines), budget.states)
    slow = grid.coarser(max(1, -(-grid.windows // budget.slow_windows)))
    return Telemetry(grid, states, slow, {engine: EngineSeries() for engine in engines})


def _grids(telemetry: Telemetry, engines: int, budget: Budget) -> dict[str, Grid]:
    grid = telemetry.grid
    points = _WIDTH["histogram"] * engines * grid.windows
    return {
        "window": grid,
        "histogram": grid.coarser(max(1, -(-len(FAST_HISTOGRAMS) * points // budget.histograms))),
        "lengths": grid.coarser(max(1, -(-len(SLOW_HISTOGRAMS) * points // budget.lengths))),
        "slow": telemetry.slow,
        "state": telemetry.states,
    }


def _own_histograms(ask: Ask, grid: Grid, matchers: str) -> frozenset[str]:
    """Return our histograms that this Prometheus holds; the rest is read under vLLM's own names."""
    separator = "," if matchers else ""
    match = f'{{__name__=~"{NAMESPACE}.+_count"{separator}{matchers}}}'
    try:
        found = ask.series(match, grid.start, grid.end)
    except PromError:
        return frozenset()
    return frozenset(each.get("__name__", "").removeprefix(NAMESPACE).removesuffix("_count") for each in found)


def _jobs(
    signal: Signal, grid: Grid, engines: int, budget: Budget, labels: Sequence[str], matchers: str, ours: frozenset[str]
) -> Iterator[Job]:
    edges = signal.form in ("counter", "histogram", "log")
    first = grid.start if edges else grid.at(1)
    for kind in ("bucket", "sum") if signal.form == "histogram" else ("",):
        native = (signal.form == "histogram" or signal.suffix) and signal.name not in ours
        ending = kind or signal.suffix.lstrip("_")
        query = raw_promql(signal.name, ending) if native else promql(signal, labels, matchers, grid.step, kind)
        width = 1 if kind == "sum" else 6 if signal.split and not signal.add else _WIDTH.get(signal.form, 1)
        steps = max(1, min(MAX_POINTS_A_SERIES, budget.answer // (engines * width)))
        at = first
        while at <= grid.end + 0.5:
            until = min(grid.end, at + (steps - 1) * grid.step)
            yield Job(signal, query, kind, at, until, grid.step)
            at += steps * grid.step


class _Run:
    """Runs the jobs with a few queries in flight, and collects the results."""

    def __init__(
        self,
        askers: Sequence[Ask],
        telemetry: Telemetry,
        intakes: Mapping[Signal, Intake],
        jobs: Sequence[Job],
        progress: Progress,
    ) -> None:
        self._free = list(askers)
        self._telemetry, self._intakes, self._progress = telemetry, intakes, progress
        self._todo = deque(jobs)
        self._left = dict.fromkeys(intakes, 0)
        for job in jobs:
            self._left[job.signal] += 1
        self._done, self._failures, self._stop = 0, 0, ""

    def all(self) -> None:
        """Until nothing is left, the API has stopped answering, or someone presses Ctrl-C."""
        flying: dict[Future[list[Series]], tuple[Job, Ask]] = {}
        with ThreadPoolExecutor(len(self._free)) as pool:
            try:
                while (self._todo and not self._stop) or flying:
                    while self._free and self._todo and not self._stop:
                        job, ask = self._todo.popleft(), self._free.pop()
                        flying[pool.submit(ask.range, job.query, job.start, job.end, job.step)] = job, ask
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        job, ask = flying.pop(future)
                        self._free.append(ask)
                        self._file(job, future)
            except KeyboardInterrupt:
                self._stop = "interrupted"
                self._todo.extendleft(job for job, _ in flying.values())
        for job in self._todo:
            self._lose(job, self._stop)
        for intake in self._intakes.values():
            intake.finish(self._telemetry)

    def _file(self, job: Job, future: "Future[list[Series]]") -> None:
        try:
            answer = future.result()
        except PromError as error:
            halves = job.halves() if error.too_much else None
            if halves is not None:
                self._todo.extendleft(reversed(halves))
                self._left[job.signal] += 1
                return
            self._lose(job, str(error))
            self._failures += 1
            if error.fatal or self._failures >= FAILURES_IN_A_ROW:
                self._stop = f"not queried: {error}"
        else:
            self._failures = 0
            self._intakes[job.signal].add(answer, job.kind)
        self._done += 1
        self._progress(self._done, self._done + len(self._todo), job.signal.called)
        self._left[job.signal] -= 1
        if not self._left[job.signal]:
            self._intakes[job.signal].finish(self._telemetry)

    def _lose(self, job: Job, why: str) -> None:
        start = job.start if job.signal.form in ("counter", "histogram", "log") else job.start - job.step
        what = f"{job.signal.name} ({job.kind})" if job.kind else job.signal.called
        self._telemetry.missing.append(Missing(what, start, job.end, why))
