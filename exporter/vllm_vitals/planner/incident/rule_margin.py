"""Was this page right? Which rule fired, by what margin, and which threshold would have kept it quiet.

Input: an incident, the thresholds it was judged by. Output: `Margin`s. Invariant: pure; a threshold is said to keep
quiet only beyond the most extreme value that the engine showed in its worst state.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.planner.incident.episodes import Incident


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition of a state: how its evidence begins, the threshold, which way it is crossed, whether it alone counts.

    ``enough``: the state needs this condition, so that this threshold alone keeps it quiet.
    """

    begins: str
    threshold: str
    below: bool = False
    enough: bool = True


@dataclass(frozen=True, slots=True)
class Margin:
    """``value`` was the most extreme; ``factor`` is how far beyond the threshold (1: at it)."""

    what: str
    threshold: str
    limit: float
    value: float
    factor: float | None
    below: bool
    enough: bool


_R = "preemptions per finished request"
RULES: Mapping[State, tuple[Rule, ...]] = {
    State.DEATH_SPIRAL: (
        Rule(_R, "spiral_preemptions_per_completion"),
        Rule("work spent on recomputing", "spiral_recompute_tax"),
        Rule("time without a generated token", "spiral_silence", enough=False),
        Rule("generation against before", "spiral_generation_share", below=True, enough=False),
    ),
    State.THRASHING: (
        Rule(_R, "thrash_preemptions_per_completion", enough=False),
        Rule("finished requests preempted twice", "thrash_repeat_ratio", enough=False),
    ),
    State.STALLED: (Rule("time without a token", "stall_after"),),
    State.FAILING: (
        Rule("finished requests that end in error", "failing_share", enough=False),
        Rule("inference requests answered 5xx", "failing_share", enough=False),
    ),
    State.STARVED: (
        Rule("inter-token latency", "starved_latency_factor"),
        Rule("prompt tokens computed per", "starved_prefill_factor"),
    ),
    State.DEGRADED: (
        Rule("slower than its usual", "degraded_latency_factor", enough=False),
        Rule("finished requests that end in error", "degraded_error_share", enough=False),
    ),
    State.KV_HELD: (Rule("KV cache held without", "kv_held_ratio"),),
}


def margins(incident: Incident, limits: Thresholds) -> list[Margin]:
    """Return the conditions of its worst state that were met, in the rules' order.

    Where only one was met, its threshold alone would have kept the state away.
    """
    met = list(_met(incident, limits))
    alone = len(met) == 1
    return [Margin(m.what, m.threshold, m.limit, m.value, m.factor, m.below, enough=m.enough or alone) for m in met]


def _met(incident: Incident, limits: Thresholds) -> Iterator[Margin]:
    for rule in RULES.get(incident.state, ()):
        values = [value for text, value in incident.extremes.items() if text.startswith(rule.begins)]
        limit = float(getattr(limits, rule.threshold))
        if not values:
            continue
        value = min(low for low, _ in values) if rule.below else max(high for _, high in values)
        if (value <= limit) if rule.below else (value >= limit):
            factor = (limit / value if value else None) if rule.below else (value / limit if limit else None)
            yield Margin(rule.begins, rule.threshold, limit, value, factor, rule.below, rule.enough)
