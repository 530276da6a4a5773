"""What alerts about one engine tell in numbers, each with its threshold.

Input: config. Output: rows of `text.facts`, which asks Prometheus once for all of them, and the knob for later.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.advice import NOW_KNOBS
from vllm_vitals.rules.promql import metric, number
from vllm_vitals.rules.text import each, facts, now, percent, waiting

IN_STATE = ("time in this state", f"time() - {now('state_since_timestamp_seconds')}", "time")
PRESENT = (
    ("requests running", now("requests_running"), "count"),
    ("requests waiting", waiting(), "count"),
    ("KV usage, max (1 is full)", now("kv_cache_usage_max_ratio"), "share"),
)
WAIT = ("expected wait of a new request", now("expected_wait_seconds"), "time")


def evictions(config: Config) -> tuple[tuple[str, str, str], ...]:
    """Return what is measured of a preemption loop, each with its thresholds."""
    limits = config.thresholds
    return (
        (
            f"preemptions per finished request (R; thrashing from {number(limits.thrash_preemptions_per_completion)}, "
            f"death spiral from {number(limits.spiral_preemptions_per_completion)})",
            now("preemptions_per_completion"), "number",
        ),
        (
            f"preempted twice or more, of finished requests (threshold {percent(limits.thrash_repeat_ratio)})",
            now("repeat_preemption_ratio"), "share",
        ),
        (
            f"recompute tax (death spiral from {percent(limits.spiral_recompute_tax)})",
            now("recompute_tax_ratio"), "share",
        ),
        (
            f"preemptions in the last minute (threshold {number(limits.min_preemptions)})",
            f"max(increase({metric('preemptions_total')}{{@}}[61s]))", "count",
        ),
        ("useful tokens/s", now("useful_tokens_per_second"), "count"),
    )  # fmt: skip


def evidence(config: Config) -> str:
    """R, repeat share, tax, work, queue and cache; one query."""
    return facts(*evictions(config), *PRESENT, WAIT)


def load() -> str:
    """Queue and cache; one query."""
    return facts(*PRESENT, WAIT)


def knobs() -> str:
    """Return the advice for the next restart; one query."""
    knob = f'max by (knob, direction) ({metric("advice")}{{@,knob!~"{"|".join(NOW_KNOBS)}"}}) == 1'
    fallback = (
        "max_num_seqs down to that cap; with long inputs rather scheduler_reserve_full_isl on (vLLM 0.19), then "
        "watermark 0.01-0.05 (0.24)"
    )
    return each(knob, "{{ .Labels.knob }} {{ .Labels.direction }}", fallback)
