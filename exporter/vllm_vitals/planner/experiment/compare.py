"""Is the candidate really better? One knob, the same workload, and a difference that the noise cannot make.

Input: two `Baseline`s. Output: a `Comparison` with a decision: keep, roll back, or not comparable. Invariant: a
difference counts only beyond what repeats of the same setting show (Welch's t, 90 %), and only where the histogram's
buckets can show it. Where buckets only bound a vital, all repeats of one side must lie apart from all of the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import variance
from typing import Literal

from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.planner.experiment.baseline import VITALS, Baseline, Better, Measure
from vllm_vitals.planner.review.trend import student
from vllm_vitals.planner.review.words import change, number, vital

Decision = Literal["keep", "roll back", "not comparable"]
Effect = Literal["better", "worse", "noise", "unknown"]
SAME = 0.10  # workload figures further apart than this are not the same load
APART = 3  # repeats on either side from which their lying apart says something
SMALL = 0.02  # a proven change smaller than this moves nothing
# Follow from other settings or from the machine: no knob that someone turned, unless nothing else changed.
CONSEQUENCES = frozenset({
    "dialect", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "kv_cache_memory_bytes",
    "num_cpu_blocks", "kv_cache_capacity_tokens",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One vital in both. ``noise`` is the relative difference that repeats alone could make."""

    what: str
    unit: str
    before: Reading
    after: Reading
    relative: float | None
    noise: float | None
    effect: Effect


@dataclass(frozen=True, slots=True)
class LengthLine:
    """One class of prompt lengths in both: preemptions, TTFT p95, TPOT p95."""

    low: float
    before: tuple[float, Reading, Reading]
    after: tuple[float, Reading, Reading]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``changed`` maps a knob to (before, after). ``refusals`` make it not comparable, ``warnings`` do not."""

    changed: Mapping[str, tuple[str, str]]
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    lines: tuple[Line, ...]
    by_length: tuple[LengthLine, ...]
    decision: Decision
    why: str


def compare(before: Baseline, after: Baseline, anyway: bool = False) -> Comparison:
    """``anyway`` decides in spite of refusals, and keeps them as warnings."""
    changed = knobs(before, after)
    refusals = [*_refusals(before, after, changed), *_workloads(before, after)]
    warnings = _warnings(before, after, changed)
    if anyway:
        warnings, refusals = [*refusals, *warnings], []
    lines = tuple(_line(name, before.vitals.get(name), after.vitals.get(name)) for name in VITALS)
    lengths = _lengths(before, after)
    decision, why = _decide(lines, lengths, refusals)
    return Comparison(changed, tuple(refusals), tuple(warnings), lines, lengths, decision, why)


def knobs(before: Baseline, after: Baseline) -> dict[str, tuple[str, str]]:
    """Return the knobs that changed. Consequences count only when nothing else did."""
    names = sorted({*before.settings, *after.settings})
    pairs = {name: (before.settings.get(name, "not known"), after.settings.get(name, "not known")) for name in names}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return {name: pair for name, pair in changed.items() if name not in CONSEQUENCES} or changed


def _refusals(before: Baseline, after: Baseline, changed: Mapping[str, tuple[str, str]]) -> list[str]:
    found = []
    if before.model_name != after.model_name:
        found.append(f"two models: {before.model_name} and {after.model_name}")
    if before.version != after.version:
        found.append(f"two versions of vLLM: {before.version or 'not known'} and {after.version or 'not known'}")
    real = [name for name in changed if name not in CONSEQUENCES]
    if len(real) > 1:
        found.append(
            f"{len(real)} knobs changed at once ({', '.join(real)}): the effect cannot be attributed to one of them"
        )
    if before.engines != after.engines:
        found.append(f"{before.engines} engines before, {after.engines} after")
    return found


def _workloads(before: Baseline, after: Baseline) -> list[str]:
    """Lengths must agree, and what was in flight or the rate: a closed load fixes one, an open load the other."""
    found = [_apart(before, after, name) for name in ("prompt tokens, mean", "output tokens, mean")]
    load = [_apart(before, after, name) for name in ("requests in flight, mean", "requests/s")]
    if all(load):
        found.append(" and ".join(filter(None, load)))
    hits = [each.workload.get("prefix-cache hits") or 0.0 for each in (before, after)]
    if abs(hits[0] - hits[1]) > SAME:
        found.append(f"prefix-cache hits: {hits[0]:.0%} before, {hits[1]:.0%} after")
    return [f"another workload: {text}" for text in found if text]


def _apart(before: Baseline, after: Baseline, name: str) -> str:
    old, new = before.workload.get(name), after.workload.get(name)
    if old is None or new is None:
        return "" if old is new else f"{name} is known only once"
    if abs(new - old) <= SAME * max(abs(old), abs(new)):
        return ""
    return f"{name}: {number(old)} before, {number(new)} after"


def _warnings(before: Baseline, after: Baseline, changed: Mapping[str, tuple[str, str]]) -> list[str]:
    found = []
    if not changed:
        found.append("no setting that we know of changed: this measures the noise (or give settings with --set)")
    if len(before.vitals["completed requests"].repeats) < 2 or len(after.vitals["completed requests"].repeats) < 2:
        found.append("without repeats the noise is not known: take snapshots with --repeats 3 or more")
    return found


def _line(name: str, old: Measure | None, new: Measure | None) -> Line:
    unit, better = VITALS[name]
    nothing = absent("not in the snapshot")
    before, after = (nothing if each is None else each.reading for each in (old, new))
    if old is None or new is None or not _observed(old) or not _observed(new):
        return Line(name, unit, before, after, None, None, "unknown")
    if before.value is None or after.value is None or not (_estimated(old) and _estimated(new)):
        return Line(name, unit, before, after, None, None, _by_ranges(old, new, better))
    relative = after.value / before.value - 1 if before.value else None
    noise = _noise(old, new)
    gap = after.value - before.value
    if noise is None:
        effect: Effect = "unknown"
    elif _one_bucket(old, new) or abs(gap) <= noise or (relative is not None and abs(relative) < SMALL):
        effect = "noise"
    else:
        effect = _which(gap > 0, better)
    share = None if noise is None or not before.value else noise / abs(before.value)
    return Line(name, unit, before, after, relative, share, effect)


def _which(more: bool, better: Better) -> Effect:
    return "better" if more == (better == "higher") else "worse"


def _observed(each: Measure) -> bool:
    return each.value is not None or each.lower is not None


def _estimated(each: Measure) -> bool:
    """Return whether every repeat in which something was observed has an estimate."""
    return all(value is not None or bounds is None for value, bounds in zip(each.repeats, _bounds(each), strict=True))


def _bounds(each: Measure) -> Sequence[tuple[float, float | None] | None]:
    return each.ranges or [None] * len(each.repeats)


def _by_ranges(old: Measure, new: Measure, better: Better) -> Effect:
    """Three repeats on either side lie wholly apart by chance in one case of ten; fewer say nothing."""
    sides = [[bounds for bounds in _bounds(each) if bounds is not None] for each in (old, new)]
    if _one_bucket(old, new):
        return "noise"
    if any(len(side) < APART for side in sides):
        return "unknown"
    (least, most), (new_least, new_most) = (
        (min(low for low, _ in side), max(inf if high is None else high for _, high in side)) for side in sides
    )
    if new_least >= most or least >= new_most:
        return _which(new_least >= most, better)
    return "noise"


def _one_bucket(old: Measure, new: Measure) -> bool:
    """Return whether both quantiles lie in one bucket of the histogram, which cannot tell them apart."""
    return old.lower is not None and (old.lower, old.upper) == (new.lower, new.upper)


def _noise(old: Measure, new: Measure) -> float | None:
    """Return how far apart the means of repeats could lie by chance (90 %); None without repeats."""
    samples = [[value for value in each.repeats if value is not None] for each in (old, new)]
    if any(len(sample) < 2 for sample in samples):
        return None
    parts = [variance(sample) / len(sample) for sample in samples]
    total = sum(parts)
    if total <= 0:
        return 0.0
    freedom = total**2 / sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True) if part)
    return student(max(1, int(freedom))) * sqrt(total)


def _lengths(before: Baseline, after: Baseline) -> tuple[LengthLine, ...]:
    new = {each.low: each for each in after.by_length}
    return tuple(
        LengthLine(
            old.low,
            (old.preemptions, old.ttft_p95.reading, old.tpot_p95.reading),
            (new[old.low].preemptions, new[old.low].ttft_p95.reading, new[old.low].tpot_p95.reading),
        )
        for old in before.by_length
        if old.low in new
    )


def _decide(lines: Sequence[Line], lengths: Sequence[LengthLine], refusals: Sequence[str]) -> tuple[Decision, str]:
    if refusals:
        return "not comparable", refusals[0]
    better = [line for line in lines if line.effect == "better"]
    worse = [line for line in lines if line.effect == "worse"]
    if all(line.effect == "unknown" for line in lines):
        return "not comparable", "the noise is not known: take both snapshots with repeats"
    if not better:
        what = f"worse: {_said(worse)}" if worse else "no difference beyond the noise"
        return "roll back", f"{what}; without an improvement the old value stays"
    if worse:
        return (
            "roll back",
            f"better: {_said(better)}; but worse: {_said(worse)}. Keep it only if that trade is what you want",
        )
    long = [line for line in lengths[1:] if _much_worse(line.before[1], line.after[1])]
    if long:
        return (
            "roll back",
            f"better: {_said(better)}; but prompts from {long[0].low:.0f} tokens on wait longer for their first token",
        )
    return "keep", f"better: {_said(better)}; nothing worse beyond the noise"


def _much_worse(before: Reading, after: Reading) -> bool:
    """Certainly: where buckets only bound them, the least after against the most before."""
    most = before.value if before.value is not None else before.upper
    least = after.value if after.value is not None else after.lower
    return most is not None and least is not None and least > 1.25 * most


def _said(lines: Sequence[Line]) -> str:
    return ", ".join(
        f"{line.what} {change(line.relative)}"
        if line.relative is not None
        else f"{line.what} {vital(line.before, line.unit)} → {vital(line.after, line.unit)}"
        for line in lines
    )
