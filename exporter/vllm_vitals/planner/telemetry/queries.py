"""The queries to Prometheus, as a table in the catalogue's names, and the PromQL of each entry.

Gauges are folded on the server (`max by` identity: replicas and two producers at once change nothing). Counters and
buckets are read raw at window edges and differenced here, so a total equals the counter's own change exactly, without
the extrapolation of `increase()`. Invariant: a name that the catalogue lacks is an error at import.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vllm_vitals.catalog import BY_NAME, NAMESPACE, Kind
from vllm_vitals.vllm.lookup import PREFIXES, wire

Form = Literal["mean", "max", "now", "counter", "histogram", "state", "setting", "version", "log"]
Pace = Literal["window", "histogram", "lengths", "slow", "state"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing to read. ``key`` is what the review calls it; ``split`` is a label that is kept (or summed over)."""

    name: str
    form: Form
    pace: Pace = "window"
    key: str = ""
    split: str = ""
    add: bool = False
    suffix: str = ""

    def __post_init__(self) -> None:
        base = BY_NAME[self.name]
        if self.form == "histogram" and base.kind is not Kind.HISTOGRAM:
            raise ValueError(f"{self.name} is not a histogram")

    @property
    def called(self) -> str:
        """The key in `EngineSeries`."""
        return self.key or self.name + self.suffix

    @property
    def full_name(self) -> str:
        """The series' name on the wire."""
        return NAMESPACE + self.name + self.suffix


FOLDED: dict[Form, str] = {"mean": "avg_over_time", "max": "max_over_time"}

GAUGES = (
    Signal("requests_running", "mean"),
    Signal("requests_running", "max", key="requests_running_max"),
    Signal("requests_waiting", "mean", split="reason", add=True),
    Signal("kv_cache_usage_ratio", "mean"),
    Signal("kv_cache_usage_max_ratio", "max"),
    Signal("kv_cache_demand_ratio", "max"),
    Signal("recompute_tax_ratio", "mean"),
    Signal("recompute_tax_lower_ratio", "mean"),
    Signal("recompute_tax_upper_ratio", "mean"),
    Signal("abandoned_requests_per_second", "mean"),
)
COUNTERS = (
    Signal("generation_tokens_total", "counter"),
    Signal("prompt_tokens_total", "counter"),
    Signal("prompt_tokens_computed_total", "counter"),
    Signal("preemptions_total", "counter"),
    Signal("responses_total", "counter", split="finished_reason"),
    Signal("rejected_requests_total", "counter"),
    Signal("prefix_cache_queries_total", "counter"),
    Signal("prefix_cache_hits_total", "counter"),
    *(
        Signal(name, "counter", suffix=suffix)
        for name in ("request_prompt_tokens", "inter_token_latency_seconds")
        for suffix in ("_sum", "_count")
    ),
)
FAST_HISTOGRAMS = (Signal("tpot_seconds", "histogram", "histogram"), Signal("ttft_seconds", "histogram", "histogram"))
SLOW_HISTOGRAMS = tuple(
    Signal(name, "histogram", "lengths")
    for name in ("e2e_latency_seconds", "queue_time_seconds", "inter_token_latency_seconds", "request_prompt_tokens",
                 "request_output_tokens", "request_max_tokens", "request_preemptions")
)  # fmt: skip
SLOW = (Signal("kv_cache_capacity_tokens", "now", "slow"), Signal("kv_cache_full_windows", "now", "slow"))
STATE = Signal("state", "state", "state")
SERVER = (Signal("server_setting", "setting", "slow"), Signal("server_info", "version", "slow"))
LOGS = (
    Signal("log_responses_total", "log", "slow"),
    Signal("log_truncated_responses_total", "log", "slow"),
    Signal("log_reasoning_truncated_total", "log", "slow"),
)

WEEK = (STATE, *GAUGES, *COUNTERS, *FAST_HISTOGRAMS, *SLOW_HISTOGRAMS, *SLOW, *SERVER, *LOGS)
# The week before is only compared with: what costs most to read is left out, its histograms are read slowly.
_COMPARED = frozenset({
    "requests_running", "requests_waiting", "kv_cache_usage_max_ratio", "abandoned_requests_per_second",
    "generation_tokens_total", "prompt_tokens_computed_total", "preemptions_total", "responses_total",
    "rejected_requests_total",
    "tpot_seconds", "ttft_seconds", "request_prompt_tokens", "request_output_tokens",
})  # fmt: skip
BEFORE = tuple(
    replace(signal, pace="lengths") if signal.form == "histogram" else signal
    for signal in WEEK
    if signal.called in _COMPARED
)


def identity(extra: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of an engine."""
    return ("target", "model_name", "engine", *extra)


def promql(signal: Signal, extra: Sequence[str], matchers: str, step: int, kind: str = "") -> str:
    """Return the query for one signal. ``matchers`` stands between braces; ``kind`` is bucket or sum for a histogram.

    A range ends just short of its window, so that a sample on the edge counts once in Prometheus 2 and 3 alike.
    """
    by = ", ".join((*identity(extra), *([signal.split] if signal.split else [])))
    if signal.form == "histogram":
        return f"{signal.full_name}_{kind}{{{matchers}}}"
    series = f"{signal.full_name}{{{matchers}}}"
    if signal.form in ("mean", "max"):
        folded = f"max by ({by}) ({FOLDED[signal.form]}({series}[{step * 1000 - 1}ms]))"
        return f"sum by ({', '.join(identity(extra))}) ({folded})" if signal.add else folded
    if signal.form == "now":
        return f"max by ({by}) ({series})"
    if signal.form == "state":
        return f"max by ({by}, state) ({series} == 1)"  # the filter first: of 13 states an engine is in one
    if signal.form == "setting":
        return f"max by (target, name) ({NAMESPACE}{signal.name})"
    if signal.form == "version":
        return f"max by (target, version, dialect) ({NAMESPACE}{signal.name})"
    return f"{NAMESPACE}{signal.name}" if signal.form == "log" else series


def raw_promql(name: str, ending: str) -> str:
    """vLLM's own histogram behind one of ours, under every spelling: for fleets that run on recording rules alone."""
    return f'{{__name__=~"({"|".join(PREFIXES)})({"|".join(wire(name))})_{ending}"}}'
