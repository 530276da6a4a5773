"""What went wrong: time in each state, incidents with their evidence, and what preemption cost.

Input: one model's engines. Output: minutes, `Incident`s, `Preemption`. Invariant: time comes from the folded state over
time, read at every instant of the state grid; an incident is a period in a state that harms or hides service.
"""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan

from vllm_vitals.core import quantile
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.states import State
from vllm_vitals.planner.review.load import Engines, completions, rates, total
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import (
    STATES,
    UNKNOWN,
    EngineId,
    EngineSeries,
    known,
    mean,
    merged,
    state_seconds,
)

HARMFUL = frozenset(state for state in State if state.spec.incident)
GAP_S = 60.0  # two periods closer than this are one incident
BEFORE_S = 600.0
MAX_INCIDENTS = 100


@dataclass(frozen=True, slots=True)
class Incident:
    """A period in harmful states. ``worst`` is its worst state; evidence is measured in it, ``_before`` before it."""

    engine: EngineId
    start: float
    end: float
    worst: State
    preemptions: float | None
    completions: float | None
    generation_rate: float | None
    generation_rate_before: float | None
    kv_max: float | None
    waiting_max: float | None
    recompute_tax: float | None

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Preemption:
    """``minutes`` are those of windows with any preemption. Tax is the share of work done again, with its bounds."""

    events: float
    minutes: float
    share_of_time: float | None
    per_completion: float | None
    repeated_share: float | None
    tax: float | None
    tax_lower: float | None
    tax_upper: float | None


def minutes(engines: Engines, states: Grid) -> Mapping[str, float]:
    """Minutes in each state, all engines added up; "not known" where none could be read."""
    found: dict[str, float] = {}
    for series in engines.values():
        for state, seconds in state_seconds(series.states, states.step).items():
            name = state.value if state is not None else "not known"
            found[name] = found.get(name, 0.0) + seconds / 60
    return found


def incidents(engines: Engines, grid: Grid, states: Grid) -> list[Incident]:
    """Return every incident, worst first within the bound; by time where there are fewer."""
    found = [
        _incident(engine, series, grid, start, end, worst)
        for engine, series in engines.items()
        for start, end, worst in _stretches(series.states, states)
    ]
    if len(found) > MAX_INCIDENTS:
        found = sorted(found, key=lambda i: (i.worst.rank, -i.seconds))[:MAX_INCIDENTS]
    return sorted(found, key=lambda incident: (incident.start, incident.engine))


def _stretches(codes: bytearray, grid: Grid) -> Iterator[tuple[float, float, State]]:
    """(start, end, worst state) of each period in harmful states; short gaps between two are part of it."""
    patience = int(GAP_S // grid.step)
    first, last, worst = -1, -1, UNKNOWN
    for index, code in enumerate(codes):
        if code != UNKNOWN and STATES[code] in HARMFUL:
            if first >= 0 and index - last > patience + 1:
                yield grid.at(first), grid.at(last + 1), STATES[worst]
                first, worst = -1, UNKNOWN
            first, last, worst = (index if first < 0 else first), index, min(worst, code)
    if first >= 0:
        yield grid.at(first), grid.at(last + 1), STATES[worst]


def _incident(engine: EngineId, series: EngineSeries, grid: Grid, start: float, end: float, worst: State) -> Incident:
    inside = range(
        max(0, int((start - grid.start) // grid.step)), min(grid.windows, int(-((grid.start - end) // grid.step)))
    )
    lead = max(1, int(BEFORE_S // grid.step))
    before = range(max(0, inside.start - lead), inside.start)
    generated = rates(series.counter("generation_tokens_total"), grid.step, grid.windows)
    kv, waiting = series.gauge("kv_cache_usage_max_ratio"), series.gauge("requests_waiting")
    tax, done = series.gauge("recompute_tax_ratio"), completions(series)
    preempted = series.counter("preemptions_total")

    def largest(values: "array[float] | None") -> float | None:
        return max(known(values[w] for w in inside), default=None) if values is not None else None

    return Incident(
        engine, start, end, worst,
        preemptions=sum(known(preempted[w] for w in inside)) if preempted is not None else None,
        completions=sum(known(done[w] for w in inside)) if done is not None else None,
        generation_rate=mean(generated[w] for w in inside),
        generation_rate_before=mean(generated[w] for w in before),
        kv_max=largest(kv),
        waiting_max=largest(waiting),
        recompute_tax=mean(tax[w] for w in inside) if tax is not None else None,
    )  # fmt: skip


def preemption(engines: Engines, grid: Grid) -> Preemption:
    """See `Preemption`."""
    touched = windows = 0
    for series in engines.values():
        counts = known(series.counter("preemptions_total") or ())
        touched += sum(1 for count in counts if count > 0)
        windows += len(counts)
    finished = sum(sum(known(done)) for series in engines.values() if (done := completions(series)) is not None)
    events = total(engines, "preemptions_total")
    repeats = merged(h.total() for series in engines.values() if (h := series.histograms.get("request_preemptions")))
    return Preemption(
        events=events,
        minutes=touched * grid.step / 60,
        share_of_time=touched / windows if windows else None,
        per_completion=events / finished if finished else None,
        repeated_share=_twice(repeats),
        tax=_tax(engines, "recompute_tax_ratio"),
        tax_lower=_tax(engines, "recompute_tax_lower_ratio"),
        tax_upper=_tax(engines, "recompute_tax_upper_ratio"),
    )


def _twice(histogram: Histogram | None) -> float | None:
    """Return the share of requests preempted twice or more; the bucket up to 1 holds those with none or one."""
    share = None if histogram is None else quantile.share_at_most(histogram, 1.0)
    return None if share is None else 1 - share


def _tax(engines: Engines, name: str) -> float | None:
    """Return the mean share of the work that was done again, over the windows in which there was work to judge."""
    values = [
        tax
        for series in engines.values()
        for tax, running in zip(series.gauge(name) or (), series.gauge("requests_running") or (), strict=False)
        if running > 0 and not isnan(tax)
    ]
    return mean(values)
