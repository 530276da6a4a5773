"""Were the objectives met, how much error budget is left, and did the traffic stay what they assume?

Input: one model's engines and its SLOs. Output: `Promise`s. Invariant: a threshold between two bucket edges gives a
range, never a single invented number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_vitals.config.objectives import HISTOGRAM_OF, Slo
from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.planner.review.latency import whole
from vllm_vitals.planner.review.load import Engines
from vllm_vitals.planner.review.shape import STRAGGLERS, Lengths
from vllm_vitals.planner.telemetry.telemetry import share_within

ASSUMPTION_FACTOR = 1.5  # how far lengths may leave what an SLO assumes; the alerts use the same


@dataclass(frozen=True, slots=True)
class Promise:
    """One objective. ``attained`` and ``budget_left`` carry bounds; a budget below 0 is overspent.

    ``assumption``: met, broken, not stated, not known; ``assumption_text`` says it in numbers.
    """

    slo: Slo
    requests: float
    attained: Reading
    budget_left: Reading
    met: bool | None
    assumption: str
    assumption_text: str


def promises(engines: Engines, slos: Sequence[Slo], outputs: Lengths) -> list[Promise]:
    """Judge each objective."""
    return [_promise(engines, slo, outputs) for slo in slos]


def _promise(engines: Engines, slo: Slo, outputs: Lengths) -> Promise:
    histogram = whole(engines, HISTOGRAM_OF[slo.indicator])
    state, text = _assumption(slo, outputs)
    if histogram is None or histogram.count <= 0:
        missing = absent("no request was observed")
        return Promise(slo, 0.0, missing, missing, None, state, text)
    low, high = share_within(histogram, slo.seconds)
    exact = low == high
    why = "" if exact else f"{slo.seconds:g} s is no bucket edge of this histogram: the truth lies between the bounds"
    attained = Reading(low if exact else None, low, high, why=why)
    budget = Reading(_left(low, slo) if exact else None, _left(low, slo), _left(high, slo), why=why)
    met = True if low >= slo.share else False if high < slo.share else None
    return Promise(slo, histogram.count, attained, budget, met, state, text)


def _left(share: float, slo: Slo) -> float:
    return 1 - (1 - share) / (1 - slo.share)


def _assumption(slo: Slo, outputs: Lengths) -> tuple[str, str]:
    if outputs.mean is None or outputs.p99.lower is None:
        return "not known", "no output lengths were observed"
    tail = (
        f"{outputs.p99.value:.0f}"
        if outputs.p99.value is not None
        else f"between {outputs.p99.lower:.0f} and {outputs.p99.upper:.0f}"
    )
    seen = f"observed: mean {outputs.mean:.0f}, p99 {tail} tokens"
    assumed = slo.output_tokens
    if assumed is None:
        ratio = outputs.straggler_ratio.value or outputs.straggler_ratio.lower or 0.0
        need = (
            f"; the p99 is {ratio:.0f} x the mean, so this objective means little without it"
            if ratio >= STRAGGLERS
            else ""
        )
        return "not stated", f"the objective states no output lengths{need} ({seen})"
    broken = outputs.mean > ASSUMPTION_FACTOR * assumed.mean or outputs.p99.lower > ASSUMPTION_FACTOR * assumed.p99
    text = f"assumed: mean {assumed.mean:.0f}, p99 {assumed.p99:.0f} tokens; {seen}"
    return ("broken" if broken else "met"), text
