"""This period against the one before: the same measures, taken the same way.

Input: one model's engines in each period. Output: `Change`s. Invariant: a measure that one side lacks is shown as
lacking, not as zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.planner.review.latency import tail, whole
from vllm_vitals.planner.review.load import Engines, spread, traffic
from vllm_vitals.planner.review.shape import lengths
from vllm_vitals.planner.telemetry.grid import Grid

Measures = Mapping[str, tuple[str, float | None, bool | None]]


@dataclass(frozen=True, slots=True)
class Change:
    """``relative`` is after / before - 1. ``good``: whether more is better (None: neither)."""

    what: str
    unit: str
    before: float | None
    after: float | None
    good: bool | None

    @property
    def relative(self) -> float | None:
        """The change as a share."""
        return self.after / self.before - 1 if self.before and self.after is not None else None


def changes(before: Measures | None, after: Measures) -> list[Change]:
    """Return every measure, before and after; empty without a before."""
    if before is None:
        return []
    return [Change(what, unit, before[what][1], value, good) for what, (unit, value, good) in after.items()]


def measures(engines: Engines, grid: Grid) -> Measures:
    """Return what is compared: unit, value, and whether more is better, by name."""
    load = traffic(engines, grid)
    tpot, ttft = tail(whole(engines, "tpot_seconds")), tail(whole(engines, "ttft_seconds"))
    finished = load.requests or None
    preempted = sum(sum(v for v in s.counter("preemptions_total") or () if v > 0) for s in engines.values())
    cut = load.by_reason.get("length", 0.0) / finished if finished else None
    return {
        "requests": ("", load.requests, None),
        "generated tokens": ("", load.generated_tokens, None),
        "five-minute demand, p99": ("requests/s", load.demand_p99, None),
        "running, p95": ("", spread([s.gauge("requests_running") for s in engines.values()]).p95, None),
        "KV usage, p95": ("share", spread([s.gauge("kv_cache_usage_max_ratio") for s in engines.values()]).p95, False),
        "preemptions a request": ("", preempted / finished if finished else None, False),
        "truncated": ("share", cut, False),
        "time to first token, p50": ("s", ttft.p50.value, False),
        "time to first token, p99": ("s", ttft.p99.value, False),
        "time per output token, p50": ("s", tpot.p50.value, False),
        "time per output token, p99": ("s", tpot.p99.value, False),
        "prompt tokens, mean": ("tokens", lengths(whole(engines, "request_prompt_tokens")).mean, None),
        "output tokens, mean": ("tokens", lengths(whole(engines, "request_output_tokens")).mean, None),
    }
