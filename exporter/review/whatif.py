"""What a knob would do to this workload: the simulated server, fitted to it, with one thing changed at a time.

Input: a situation, a fitted step time, the server's settings. Output: `WhatIf`. A prediction is the observed value
times what the change does in the simulation. Invariant: its error bar is at least as wide as the simulation's miss of
what was really observed and, where something was changed, as `REACH`; where that miss is large the table says to trust
the direction alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median, stdev

from exporter.core.snapshot import Reading
from exporter.review.reach import REACH
from exporter.review.situation import METRICS, Situation
from exporter.review.trial import Outcome, run
from exporter.review.variants import Variant, variants
from exporter.simulator.settings import ServerSettings
from exporter.simulator.steptime import StepTime

MIN_SECONDS, MAX_REQUESTS = 120.0, 3_000
GOOD, FAIR = 0.15, 0.40  # median miss of the fit
WILD = 1.0  # a miss from which a measure is not reproduced at all
NAMES = {
    "generated": "generated tokens/s", "completed": "requests/s", "per_completion": "preemptions a request",
    "truncated": "share cut at a cap", "ttft_mean": "mean TTFT", "ttft_p50": "TTFT p50", "ttft_p99": "TTFT p99",
    "tpot_mean": "mean TPOT", "tpot_p50": "TPOT p50", "tpot_p99": "TPOT p99",
}  # fmt: skip
LOOP = 1.0  # preemptions a finished request from which the server redoes about as much as it does


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to simulate: seeds a variant, and the longest stretch in s."""

    seeds: int = 3
    seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """``value`` +/- ``error`` (a share of it), and the simulated value that it comes from."""

    value: float | None
    error: float
    simulated: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: ``knob`` is what changed (empty: nothing), ``setting`` its new value; ``idle``: no effect here."""

    knob: str
    setting: str
    metrics: Mapping[str, Prediction]
    note: str = ""
    idle: bool = False


@dataclass(frozen=True, slots=True)
class WhatIf:
    """``misses`` is by metric how far the simulation is from what was observed, as a share; ``trust`` sums it up.

    ``reach`` is by metric the least error of a changed row.
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
    reach: Mapping[str, float] = field(default_factory=lambda: REACH)


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated: a stretch, the fitted step time, the server, and which of its settings were assumed."""

    engine: str
    here: Situation
    time: StepTime
    settings: ServerSettings
    assumed: tuple[str, ...] = ()


def whatif(
    case: Case,
    chosen: Sequence[Variant] | None = None,
    effort: Effort = Effort(),
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> WhatIf:
    """Simulate the situation as it is and with each thing changed: those ``chosen``, or every knob."""
    here, settings = case.here, case.settings
    as_it_is = Variant("", "as it is", settings, here.load)
    time, base, misses = _calibrated(as_it_is, case.time, here, effort)
    changed = list(variants(as_it_is) if chosen is None else chosen)
    pair = [variant for variant in changed if variant.engines > 1]
    total = 1 + len(changed)
    progress(1, total, "as it is")
    rows = [_row(as_it_is, base, base, here.observed, misses)]
    pair_base = base
    for number, variant in enumerate(changed):
        outcomes = _runs(variant, time, here, effort)
        if pair and variant is pair[0]:
            pair_base = outcomes  # two engines without routing: what routing is compared with
        compared = pair_base if variant.engines > 1 else base
        rows.append(_row(variant, outcomes, compared, here.observed, misses))
        progress(number + 2, total, f"{variant.knob} {variant.setting}")
    return WhatIf(
        case.engine,
        here.clients,
        here.start,
        here.seconds,
        time,
        settings,
        case.assumed,
        misses,
        _trust(misses),
        tuple(rows),
    )


def _calibrated(
    base: Variant, time: StepTime, here: Situation, effort: Effort
) -> tuple[StepTime, list[Outcome], dict[str, float]]:
    """The simulation as it is. Where every token came faster or slower than simulated, all steps are scaled once.

    The scaled measure keeps its first miss: it was used, so it proves nothing.
    """
    outcomes = _runs(base, time, here, effort)
    misses = _misses(here, outcomes)
    seen, simulated = here.observed["tpot_mean"].value, _centre(outcomes, "tpot_mean")
    if not seen or not simulated or not 0.5 <= seen / simulated <= 2 or abs(seen / simulated - 1) < 0.03:
        return time, outcomes, misses
    scaled = time.scaled(seen / simulated)
    again = _runs(base, scaled, here, effort)
    better = {**_misses(here, again), "tpot_mean": misses["tpot_mean"]}
    return (scaled, again, better) if median(better.values()) <= median(misses.values()) else (time, outcomes, misses)


def _misses(here: Situation, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """By metric; truncation is left out, since outputs are drawn as they were cut."""
    return {
        name: miss
        for name in METRICS
        if name != "truncated" and (miss := _miss(here.observed[name], _centre(outcomes, name))) is not None
    }


def _seconds(here: Situation, effort: Effort) -> float:
    """Long enough to say something, short enough to be waited for."""
    if here.backlog is not None:
        return min(effort.seconds, here.seconds)
    rate = here.load.rate or (here.observed["completed"].value or 0.0)
    return max(
        MIN_SECONDS, min(effort.seconds, max(here.seconds, 300.0), MAX_REQUESTS / rate if rate else effort.seconds)
    )


def _runs(variant: Variant, time: StepTime, here: Situation, effort: Effort) -> list[Outcome]:
    backlog, seconds = None if here.backlog is None else here.backlog * variant.engines, _seconds(here, effort)
    return [
        run(variant.settings, time, variant.load, seconds, seed, variant.engines, variant.gateway, backlog)
        for seed in range(1, effort.seeds + 1)
    ]


def _value(outcome: Outcome, name: str) -> float | None:
    found: float | None = getattr(outcome, name)
    return found


def _centre(outcomes: Sequence[Outcome], name: str) -> float | None:
    values = [value for outcome in outcomes if (value := _value(outcome, name)) is not None]
    return sum(values) / len(values) if values else None


def _scatter(outcomes: Sequence[Outcome], name: str) -> float:
    """Relative spread over the seeds."""
    values = [value for outcome in outcomes if (value := _value(outcome, name)) is not None]
    centre = sum(values) / len(values) if values else 0.0
    return stdev(values) / centre if len(values) > 1 and centre > 0 else 0.0


def _miss(seen: Reading, simulated: float | None) -> float | None:
    """How far the simulation is off, as a share of the truth; nothing where it lies inside the bucket of the truth."""
    if simulated is None:
        return None
    if seen.lower is not None and seen.upper is not None and seen.lower <= simulated <= seen.upper:
        return 0.0
    truth = (
        seen.value
        if seen.value is not None
        else seen.upper
        if seen.upper is not None and seen.upper < 1e9
        else seen.lower
    )
    if truth is None:
        return None
    if truth <= 0:
        return 0.0 if simulated < 0.05 else 1.0
    return abs(simulated / truth - 1)


def _row(
    variant: Variant,
    outcomes: Sequence[Outcome],
    base: Sequence[Outcome],
    seen: Mapping[str, Reading],
    misses: Mapping[str, float],
) -> Row:
    metrics = {}
    for name in METRICS:
        simulated, before = _centre(outcomes, name), _centre(base, name)
        truth = seen[name].value
        value = simulated
        if truth is not None and simulated is not None and before:
            value = truth * simulated / before
        if name == "truncated" and value is not None:
            value = min(1.0, max(truth or 0.0, simulated or 0.0))
        error = sqrt(misses.get(name, 0.0) ** 2 + _scatter(outcomes, name) ** 2 + _coarse(seen[name]) ** 2)
        # The row as it is was observed; of a changed one nobody has seen how far the simulation carries.
        metrics[name] = Prediction(value, max(error, REACH.get(name, 0.0)) if variant.knob else error, simulated)
    return Row(
        variant.knob, variant.setting, metrics, _note(seen["per_completion"].value, metrics["per_completion"], base),
        idle=bool(variant.knob) and list(outcomes) == list(base),
    )  # fmt: skip


def _coarse(seen: Reading) -> float:
    """Half the width of the bucket that an observed quantile lies in, as a share of it."""
    if seen.value and seen.lower is not None and seen.upper is not None:
        return (seen.upper - seen.lower) / 2 / seen.value
    return 0.0


def _note(before: float | None, after: Prediction, base: Sequence[Outcome]) -> str:
    """Whether a loop of preemptions begins or ends; said only where the simulation shows the one that is there."""
    simulated = _centre(base, "per_completion")
    if before is None or after.value is None or simulated is None:
        return ""
    if min(before, simulated) >= LOOP > after.value:
        return "ends the loop of preemptions"
    return "a loop of preemptions" if after.value >= LOOP > max(before, simulated) else ""


def _trust(misses: Mapping[str, float]) -> str:
    if not misses:
        return "nothing was observed to hold the simulation against"
    off = median(misses.values())
    text = f"the simulation misses what was observed by {off:.0%} (median of {len(misses)} measures)"
    word, end = ("good", "") if off <= GOOD else ("fair", "; small differences mean nothing")
    if off > FAIR:
        word, end = "poor", "; trust the direction alone"
    wild = [NAMES[name] for name in METRICS if misses.get(name, 0.0) > WILD]
    if wild:
        word = "fair" if word == "good" else word
        end += f"; it does not reproduce {', '.join(wild)}, of which only the direction counts"
    return f"{word}: {text}{end}"
