"""What a knob would do to this workload: the simulated server, fitted to it, with one thing changed at a time.

Input: a situation, a fitted step time, the server's settings. Output: `WhatIf`. A prediction is the observed value
times what the change does in the simulation. Invariant: its error bar is at least as wide as the simulation's miss of
what was really observed and, where something was changed, as `WHATIF_ERROR_FLOOR`, times what measured pairs say of
such bars; where that miss is large the table says to trust the direction alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor, sqrt
from statistics import median

from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.whatif import verified
from vllm_vitals.planner.whatif.calibrate import NAMES, Case, SimulationBudget, calibrate, centre, runs, scatter
from vllm_vitals.planner.whatif.error_floor import WHATIF_ERROR_FLOOR
from vllm_vitals.planner.whatif.error_floor import floor as least_error
from vllm_vitals.planner.whatif.measured import Bars
from vllm_vitals.planner.whatif.simulate_run import Outcome
from vllm_vitals.planner.whatif.variants import Variant, variants
from vllm_vitals.planner.whatif.variants import asked as one
from vllm_vitals.planner.whatif.verified import Verdict
from vllm_vitals.planner.whatif.workload_slice import METRICS, Situation
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime

DEMAND = 0.05  # least error of a throughput that the load sets, not the server
# How much of the fit's own miss a change keeps: a machine that is slower than fitted is so before and after. Measured
# on the pairs of bench.reach whose fits miss the throughput by 130 to 160 % and its change by 7 to 35 %.
CARRIED = {"generated": 0.25, "completed": 0.25}
GOOD, FAIR = 0.15, 0.40  # median miss of the fit
HALF = 0.5  # a miss from which no fit is called good
WILD = 1.0  # a miss from which a measure is not reproduced at all
LOOP = 1.0  # preemptions a finished request from which the server recomputes about as much as it computes


@dataclass(frozen=True, slots=True)
class Prediction:
    """``value`` +/- ``error`` (a share of it), and the simulated value that it comes from."""

    value: float | None
    error: float
    simulated: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: ``knob`` is what changed (empty: nothing), ``setting`` its new value; ``idle``: no effect here.

    ``ours``: what check or the review advises. ``verdict`` is of a change under the same load. ``value`` is what a
    person would set the knob to; empty where it is no setting.
    """

    knob: str
    setting: str
    metrics: Mapping[str, Prediction]
    note: str = ""
    idle: bool = False
    ours: bool = False
    verdict: Verdict | None = None
    value: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """``misses`` is by metric how far the simulation is from what was observed, as a share; ``trust`` sums it up.

    ``first`` is the change to try first, ``rolled_back`` our own advice that would be rolled back, with their numbers.
    ``reach`` is by metric the least error of a changed row; ``pairs`` is how many measured pairs put the bars right.
    """

    engine: str
    clients: str
    start: float
    seconds: float
    step_time: StepTime
    settings: ServerSettings
    assumed: tuple[str, ...]
    misses: Mapping[str, float]
    trust: str
    rows: tuple[Row, ...]
    first: str = ""
    rolled_back: tuple[str, ...] = ()
    reach: Mapping[str, float] = field(default_factory=lambda: WHATIF_ERROR_FLOOR)
    pairs: int = 0


def whatif(
    case: Case,
    chosen: Sequence[Variant] | None = None,
    effort: SimulationBudget | None = None,
    asked: Callable[[Variant], Iterable[Variant]] = lambda _: (),
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
    bars: Bars | None = None,
) -> WhatIf:
    """Simulate the situation as it is and with each thing changed: those ``chosen``, or every knob.

    ``asked`` makes further variants of the server as it is, which come first; our own advice is always among them.
    ``bars`` is what measured pairs say of the error bars.
    """
    here, effort, bars = case.here, effort or SimulationBudget(), bars or Bars()
    progress(0, 1, "as it is")
    fit, assumed = calibrate(case, effort)
    as_it_is, time, base, misses = fit.as_it_is, fit.time, fit.outcomes, fit.misses
    changed = list(chosen) if chosen is not None else [*asked(as_it_is), *_advised(case, as_it_is), *variants(as_it_is)]
    pair = [variant for variant in changed if variant.engines > 1]
    total = 1 + len(changed)
    progress(1, total, "as it is")
    rows = [_row(as_it_is, base, base, here, misses, bars)]
    pair_base = base
    for number, variant in enumerate(changed):
        outcomes = runs(variant, time, here, effort)
        if pair and variant is pair[0]:
            pair_base = outcomes  # two engines without routing: what routing is compared with
        compared = pair_base if variant.engines > 1 else base
        rows.append(_row(variant, outcomes, compared, here, misses, bars))
        progress(number + 2, total, f"{variant.knob} {variant.setting}")
    judged = [_judged(row, variant, rows[0], here) for row, variant in zip(rows, (as_it_is, *changed), strict=True)]
    return WhatIf(
        case.engine,
        here.clients,
        here.start,
        here.seconds,
        time,
        as_it_is.settings,
        assumed,
        misses,
        trust(misses),
        tuple(judged),
        _named(verified.first(judged)),
        tuple(_named(row) for row in verified.refused(judged)),
        {name: bars.of(name, error) for name, error in WHATIF_ERROR_FLOOR.items()},
        bars.pairs,
    )


def _judged(row: Row, variant: Variant, now: Row, here: Situation) -> Row:
    """Return a row with what users would get from it; other traffic and pairs of engines are no change of a knob."""
    if not variant.knob or variant.engines > 1 or variant.servers != 1.0 or variant.knob == "traffic":
        return row
    return replace(row, verdict=verified.verdict(now.metrics, row.metrics, here.load.output.mean))


def _named(row: Row | None) -> str:
    return "" if row is None else f"{row.knob} {row.setting} ({row.verdict})"


def advised(base: Variant, number: int) -> Iterator[Variant]:
    """Yield our advice of so many requests inside, by either knob that does it; more than now by max_num_seqs alone."""
    for name in ("max_num_seqs", "gateway_concurrency"):
        if number < base.settings.max_num_seqs or (name == "max_num_seqs" and number > base.settings.max_num_seqs):
            made = one(base, name, str(number))
            yield replace(made, setting=f"{made.setting} (our advice)", ours=True)


def _advised(case: Case, base: Variant) -> Iterator[Variant]:
    """Yield what `check` advises where a cache is full, as it says it: 0.9 x what fits, or 25 % off a cap reached."""
    slots = base.settings.max_num_seqs
    if case.fits:
        yield from advised(base, max(1, floor(0.75 * slots if case.fits >= 0.95 * slots else 0.9 * case.fits)))


def _row(
    variant: Variant,
    outcomes: Sequence[Outcome],
    base: Sequence[Outcome],
    here: Situation,
    misses: Mapping[str, float],
    bars: Bars,
) -> Row:
    metrics, seen, rate = {}, here.observed, here.load.rate
    for name in METRICS:
        simulated, before = centre(outcomes, name), centre(base, name)
        truth = seen[name].value
        value = simulated
        if truth is not None and simulated is not None and before:
            value = truth * simulated / before
        if name == "truncated" and value is not None:
            value = min(1.0, max(truth or 0.0, simulated or 0.0))
        if value is not None and name in ("generated", "completed"):
            value *= variant.servers
        miss = misses.get(name, 0.0) * (CARRIED.get(name, 1.0) if variant.knob else 1.0)
        error = sqrt(miss**2 + scatter(outcomes, name) ** 2 + _coarse(seen[name]) ** 2)
        # The row as it is was observed; how well a changed one is simulated is unknown.
        floor_here = least_error(name, simulated / before if simulated and before else 1.0)
        if (
            name in ("generated", "completed")
            and _answers_all(variant.load.rate, outcomes)
            and _answers_all(rate, base)
        ):
            floor_here = DEMAND  # what comes is answered, before and after: the load says how much that is
        error = bars.of(name, max(error, floor_here)) if variant.knob else error
        metrics[name] = Prediction(value, error, simulated)
    return Row(
        variant.knob, variant.setting, metrics, _note(seen["per_completion"].value, metrics["per_completion"], base),
        idle=bool(variant.knob) and list(outcomes) == list(base), ours=variant.ours, value=variant.value,
    )  # fmt: skip


def _answers_all(rate: float, outcomes: Sequence[Outcome]) -> bool:
    """Return whether an open load is answered as it comes."""
    done = centre(outcomes, "completed")
    return rate > 0 and done is not None and done >= 0.97 * rate


def _coarse(seen: Reading) -> float:
    """Half the width of the bucket that an observed quantile lies in, as a share of it."""
    if seen.value and seen.lower is not None and seen.upper is not None:
        return (seen.upper - seen.lower) / 2 / seen.value
    return 0.0


def _note(before: float | None, after: Prediction, base: Sequence[Outcome]) -> str:
    """Return whether a loop of preemptions begins or ends; only where the simulation shows the existing one."""
    simulated = centre(base, "per_completion")
    if before is None or after.value is None or simulated is None:
        return ""
    if min(before, simulated) >= LOOP > after.value:
        return "ends the loop of preemptions"
    return "a loop of preemptions" if after.value >= LOOP > max(before, simulated) else ""


def trust(misses: Mapping[str, float]) -> str:
    """Return the simulation's error in words; never good where one measure is off by half."""
    if not misses:
        return "nothing was observed to hold the simulation against"
    off = median(misses.values())
    text = f"the simulation misses what was observed by {off:.0%} (median of {len(misses)} measures)"
    word, end = ("good", "") if off <= GOOD else ("fair", "; small differences mean nothing")
    if off > FAIR:
        word, end = "poor", "; trust the direction alone"
    far = [f"{NAMES[name]} by {misses[name]:.0%}" for name in METRICS if HALF < misses.get(name, 0.0) <= WILD]
    wild = [NAMES[name] for name in METRICS if misses.get(name, 0.0) > WILD]
    if word == "good" and (far or wild):
        word = "fair"
    if far:
        end += f"; it misses {', '.join(far)}"
    if wild:
        end += f"; it does not reproduce {', '.join(wild)}, of which only the direction counts"
    return f"{word}: {text}{end}"
