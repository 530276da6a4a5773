"""Runs in the order A, B, A: what the change did, and whether the server stayed the same without it.

Input: three `Baseline`s, the first and the last of the old setting. Output: a `Judgement`. Both runs of A together are
what B is compared with, so what drifts evenly cancels, and what drifts from A to A is noise. Invariant: where the two
runs of A differ by more than noise, B must differ from each of them the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_vitals.planner.experiment import comparable
from vllm_vitals.planner.experiment.baseline import Baseline, Measure
from vllm_vitals.planner.experiment.compare import Comparison, Decision, compare

_DECIDED = ("keep", "roll back")


@dataclass(frozen=True, slots=True)
class Judgement:
    """``found`` compares both runs of A with B; ``drift`` says how the runs of A differ, or nothing."""

    decision: Decision
    why: str
    found: Comparison
    drift: str


def judge(first: Baseline, changed: Baseline, again: Baseline, anyway: bool = False) -> Judgement:
    """Decide on a change by the runs before, with and after it."""
    found = compare(both(first, again), changed, anyway)
    twins = compare(first, again, anyway=True)
    if different := comparable.knobs(first, again):
        names = ", ".join(different)
        return Judgement("not comparable", f"{names} is not the same in both runs of A", found, "")
    drift = twins.why if twins.decision in _DECIDED else ""
    if found.decision in _DECIDED and drift:
        each = {compare(run, changed, anyway).decision for run in (first, again)}
        if each != {found.decision}:
            why = f"the server without the change differed from the first run to the last ({drift}): record all again"
            return Judgement("not enough", why, found, drift)
    return Judgement(found.decision, found.why, found, drift)


def both(first: Baseline, again: Baseline) -> Baseline:
    """Return two runs of one setting as one: all their parts, and what they are weighted means of."""
    gap, workload = first.seconds + 1.0, first.workload
    return first.model_copy(
        update={
            "name": f"{first.name} and {again.name}", "end": again.end,
            "workload": {name: _middle([workload.get(name), again.workload.get(name)]) for name in workload},
            "vitals": {
                name: _joined(own, other) for name, own in first.vitals.items()
                if (other := again.vitals.get(name)) is not None
            },
            "by_length": [], "parts": [*first.parts, *(gap + part for part in again.parts)],
            "seconds": max(first.seconds, again.seconds),
        }
    )  # fmt: skip


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _joined(one: Measure, other: Measure) -> Measure:
    """Return a vital of both; a quantile of both lies between the two, so their weighted mean stands for it."""
    weights = [sum(each.weights) for each in (one, other)]
    value = None
    if one.value is not None and other.value is not None and sum(weights) > 0:
        value = (one.value * weights[0] + other.value * weights[1]) / sum(weights)
    lower = None if None in (one.lower, other.lower) else min(one.lower or 0.0, other.lower or 0.0)
    upper = None if one.upper is None or other.upper is None else max(one.upper, other.upper)
    return Measure(
        repeats=[*one.repeats, *other.repeats], weights=[*one.weights, *other.weights], value=value, lower=lower,
        upper=upper, sure=one.sure and other.sure,
    )  # fmt: skip


def enough(first: Baseline) -> tuple[float | None, float | None]:
    """Return what a comparison of such runs could show, and how many seconds longer each must be to show 15 %.

    Two runs like this one that have nothing but their length in common. None: see `Comparison`.
    """
    twin = compare(first, first.model_copy(update={"parts": [-1.0 - part for part in first.parts]}))
    return twin.sees, twin.more
