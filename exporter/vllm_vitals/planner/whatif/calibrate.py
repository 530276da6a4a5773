"""The simulation as it is: run, calibrated, compared with the observations; and which settings they support.

Input: a `Case`. Output: a `Fit`, and what was assumed in words. Invariant: an unknown setting is named with the value
assumed; another value than vLLM's own is assumed only where the default is far from what was observed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median, stdev
from typing import Any

from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.whatif.simulate_run import Outcome, run
from vllm_vitals.planner.whatif.variants import Variant
from vllm_vitals.planner.whatif.workload_slice import METRICS, Situation
from vllm_vitals.simulator.settings import ServerSettings, SettingsError
from vllm_vitals.simulator.steptime import StepTime

MIN_SECONDS, MAX_REQUESTS = 120.0, 3_000
LOOPS = 0.3  # preemptions a request from which recomputation is much of the prefill
ALIKE = 0.02  # medians of misses (a share) that say the same
FAR = 0.5  # a value is ruled out whose worst miss is larger by so much (a share), and twice as large
NAMES = {
    "generated": "generated tokens/s", "completed": "requests/s", "per_completion": "preemptions a request",
    "truncated": "share truncated at a cap", "ttft_mean": "mean TTFT", "ttft_p50": "TTFT p50", "ttft_p99": "TTFT p99",
    "tpot_mean": "mean TPOT", "tpot_p50": "TPOT p50", "tpot_p99": "TPOT p99",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulationBudget:
    """How much to simulate: seeds a variant, and the longest part in s."""

    seeds: int = 3
    seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated: a part of the period, the fitted step time, the server, and which settings were assumed.

    ``open``: of settings that are not known, the values to try.
    ``engines`` share the load; ``fits`` is how many requests ran on average while the cache was full, where it was.
    """

    engine: str
    here: Situation
    time: StepTime
    settings: ServerSettings
    assumed: tuple[str, ...] = ()
    open: Mapping[str, Sequence[object]] = field(default_factory=dict)
    engines: int = 1
    fits: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The server as it is, its step time, what came of it, and by metric how far that is from what was observed."""

    as_it_is: Variant
    time: StepTime
    outcomes: list[Outcome]
    misses: dict[str, float]

    @property
    def worst(self) -> float:
        """The largest miss."""
        return max(self.misses.values(), default=0.0)

    @property
    def middle(self) -> float:
        """The median miss."""
        return median(self.misses.values()) if self.misses else 0.0

    def value(self, name: str) -> Any:
        """Return one of the server's settings."""
        return getattr(self.as_it_is.settings, name)


def calibrate(case: Case, effort: SimulationBudget) -> tuple[Fit, tuple[str, ...]]:
    """Return the fit, and what was assumed. Of open settings the first values, unless others fit far better."""
    fits = [calibrated(settings, case, effort) for settings in _candidates(case)]
    best = min(fits, key=lambda fit: fit.worst)
    chosen = next(fit for fit in fits if not _far(fit, best))
    return chosen, (*case.assumed, *(_assumed(name, chosen, fits) for name in case.open))


def _candidates(case: Case) -> list[ServerSettings]:
    """Return the settings as they are, then with open ones at every other value that vLLM would start with."""
    found = [case.settings]
    for values in product(*case.open.values()):
        changes: dict[str, Any] = dict(zip(case.open, values, strict=True))
        try:
            settings = replace(case.settings, **changes)
        except SettingsError:
            continue
        if settings not in found:
            found.append(settings)
    return found


def _far(fit: Fit, better: Fit) -> bool:
    return fit.worst >= max(2 * better.worst, better.worst + FAR)


def _assumed(name: str, chosen: Fit, fits: Sequence[Fit]) -> str:
    """Return an open setting's value, and what supports it."""
    said = f"{name}={_plain(chosen.value(name))}"
    rivals = [fit for fit in fits if fit.value(name) != chosen.value(name)]
    if not rivals:
        return said
    rival = min(rivals, key=lambda fit: fit.worst)
    other = _plain(rival.value(name))
    if not _far(rival, chosen):
        return f"{said} (assumed; {other} fits equally well)"
    worst = max(rival.misses, key=rival.misses.__getitem__)
    misses = f"{other} misses {NAMES[worst]} by {rival.misses[worst]:,.0%}, {_plain(chosen.value(name))} by"
    return f"{said} (from the fit: {misses} {chosen.misses.get(worst, 0.0):,.0%})"


def _plain(value: object) -> str:
    return str(value).lower()


def calibrated(settings: ServerSettings, case: Case, effort: SimulationBudget) -> Fit:
    """Simulate the settings as they are. Where every token came faster or slower, the step time is put right once.

    The measure that it is put right by keeps its first miss: it was used, so it proves nothing.
    """
    here, time, base = case.here, case.time, Variant("", "as it is", settings, case.here.load)
    outcomes = runs(base, time, here, effort)
    misses = misses_of(here, outcomes)
    fit = Fit(base, time, outcomes, misses)
    seen, simulated = here.observed["tpot_mean"].value, centre(outcomes, "tpot_mean")
    if not seen or not simulated or not 0.5 <= seen / simulated <= 2 or abs(seen / simulated - 1) < 0.03:
        return fit

    def again(changed: StepTime) -> Fit:
        found = runs(base, changed, here, effort)
        return Fit(base, changed, found, {**misses_of(here, found), "tpot_mean": misses["tpot_mean"]})

    scaled = again(time.scaled(seen / simulated))
    if seen < simulated and time.prefill and (here.observed["per_completion"].value or 0.0) >= LOOPS:
        cheaper = _cheaper_prefill(time, seen, simulated, again)
        scaled = cheaper if cheaper.middle <= scaled.middle + ALIKE else scaled
    return scaled if scaled.middle <= fit.middle else fit


def _cheaper_prefill(time: StepTime, seen: float, simulated: float, again: Callable[[StepTime], Fit]) -> Fit:
    """Return the fit whose prefill alone is cheaper, as far as tokens came faster than simulated.

    In a loop most prefill is recomputation, which no counter shows: the fit guesses how much a victim loses and charges
    slow steps to it. So prefill is the least certain term there, and what decoding alone costs is not to be touched.
    """
    free = again(replace(time, prefill=0.0))
    least = centre(free.outcomes, "tpot_mean") or simulated
    if least >= seen or least >= simulated:
        return free
    return again(replace(time, prefill=time.prefill * (seen - least) / (simulated - least)))


def misses_of(here: Situation, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """By metric; truncation is left out, since outputs are drawn as they were cut."""
    return {
        name: miss
        for name in METRICS
        if name != "truncated" and (miss := _miss(here.observed[name], centre(outcomes, name))) is not None
    }


def _seconds(here: Situation, effort: SimulationBudget) -> float:
    """Long enough to say something, short enough to be waited for."""
    if here.backlog is not None:
        return min(effort.seconds, here.seconds)
    rate = here.load.rate or (here.observed["completed"].value or 0.0)
    return max(
        MIN_SECONDS, min(effort.seconds, max(here.seconds, 300.0), MAX_REQUESTS / rate if rate else effort.seconds)
    )


def runs(variant: Variant, time: StepTime, here: Situation, effort: SimulationBudget) -> list[Outcome]:
    """Simulate a variant, once a seed."""
    backlog, seconds = None if here.backlog is None else here.backlog * variant.engines, _seconds(here, effort)
    return [
        run(variant.settings, time, variant.load, seconds, seed, variant.engines, variant.gateway, backlog)
        for seed in range(1, effort.seeds + 1)
    ]


def _value(outcome: Outcome, name: str) -> float | None:
    found: float | None = getattr(outcome, name)
    return found


def centre(outcomes: Sequence[Outcome], name: str) -> float | None:
    """Return a measure's mean over the seeds."""
    values = [value for outcome in outcomes if (value := _value(outcome, name)) is not None]
    return sum(values) / len(values) if values else None


def scatter(outcomes: Sequence[Outcome], name: str) -> float:
    """Relative spread over the seeds."""
    values = [value for outcome in outcomes if (value := _value(outcome, name)) is not None]
    centre = sum(values) / len(values) if values else 0.0
    return stdev(values) / centre if len(values) > 1 and centre > 0 else 0.0


def _miss(seen: Reading, simulated: float | None) -> float | None:
    """Return the simulation's error as a share of the observed value; 0 inside the observed bucket."""
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
