"""How many requests a second one engine carries within its objectives, by a simulated server fitted to it.

Input: a fitted `Case` and objectives. Output: `Carries`. The rate of an open load is swept until the first objective
breaks; without objectives nine tenths of what clients who always wait get out of it. Invariant: the same fit gives the
same answer whatever the load was that it was fitted to, and the interval is no narrower than the fit's own miss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from vllm_vitals.config.objectives import Slo
from vllm_vitals.planner.whatif.calibrate import Case, Fit, SimulationBudget, calibrate
from vllm_vitals.planner.whatif.simulate_run import Outcome, run
from vllm_vitals.simulator.workload import Load

REQUESTS, SHORTEST, LONGEST = 2_400, 240.0, 7_200.0  # requests a run, and its least and greatest length in s
SEEDS = (1, 2)
STEPS = 7
LEAST, WORST = 0.10, 0.4  # the interval is at least so wide either way; a fit that misses by more carries no answer
NEAR_FULL = 0.9  # without objectives: of what the engine does when clients always wait
EFFORT = SimulationBudget(seeds=2, seconds=600.0)


@dataclass(frozen=True, slots=True)
class Carries:
    """Requests/s of one engine with an interval; ``why`` says what ends it. ``generated`` tokens/s at that rate."""

    requests_per_second: float
    lower: float
    upper: float
    generated: float
    why: str


def carries(case: Case, slos: Sequence[Slo]) -> Carries | str:
    """Return what one engine carries, or why it is not known."""
    fit, _ = calibrate(case, EFFORT)
    off = max(LEAST, median(fit.misses.values()) if fit.misses else WORST)
    if off > WORST:
        return f"the simulated server misses what was observed by {off:.0%}"
    checked = [slo for slo in slos if slo.indicator in ("ttft", "tpot", "e2e")]
    rate, generated, why = _swept(case, fit, checked)
    if rate <= 0:
        return "no rate would meet every objective, by the simulated server"
    return Carries(rate, rate / (1 + off), rate * (1 + off), generated, why)


def _swept(case: Case, fit: Fit, slos: Sequence[Slo]) -> tuple[float, float, str]:
    """Return the greatest rate, the tokens/s at it, and what ends it."""
    settings, load = fit.as_it_is.settings, case.here.load
    full = replace(load, rate=0.0, clients=2 * settings.max_num_seqs, think_s=0.0)
    most = run(settings, fit.time, full, SHORTEST, 1).completed
    if not slos or most <= 0:
        rate = NEAR_FULL * most
        return rate, rate * load.output.mean, "nine tenths of all it can do (no objectives)"
    low, high = 0.0, 1.1 * most
    why = "every objective is met up to all it can do"
    for _ in range(STEPS):
        middle = (low + high) / 2
        outcomes = _at(case, fit, middle)
        broken = next((slo.name for slo in slos if _within(outcomes, slo) < slo.share), None)
        if broken is None:
            low = middle
        else:
            high, why = middle, f"beyond it, {broken} breaks"
    return low, low * load.output.mean, why


def _at(case: Case, fit: Fit, rate: float) -> list[Outcome]:
    """Return runs of an open load at a rate; the same requests come at every rate, nearer together."""
    load: Load = replace(case.here.load, rate=rate, clients=0)
    seconds = max(SHORTEST, min(LONGEST, REQUESTS / rate if rate else SHORTEST))
    return [run(fit.as_it_is.settings, fit.time, load, seconds, seed) for seed in SEEDS]


def _within(outcomes: Sequence[Outcome], slo: Slo) -> float:
    return mean(outcome.within(slo.indicator, slo.seconds) for outcome in outcomes)
