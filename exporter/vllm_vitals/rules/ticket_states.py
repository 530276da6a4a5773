"""Tickets that a state of one engine opens by itself: what pages where it takes a share of the model, and milder ones.

Input: config. Output: `Alert`s of severity ticket. The page of the same name silences the ticket of each victim.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.evidence import IN_STATE, PRESENT, WAIT, evictions, knobs
from vllm_vitals.rules.model import Alert
from vllm_vitals.rules.promql import metric, number
from vllm_vitals.rules.selectors import WHO, in_state, ticket
from vllm_vitals.rules.text import duration_words, facts, now, percent

ENGINE = "vllm-vitals-engine"
_NEW = 60  # s: the state has its own hold; one blip of a restarting exporter opens nothing


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all of them."""
    limits = config.limits
    return (
        _one(
            config, "VLLMDeathSpiral", "spiral", State.DEATH_SPIRAL, _NEW,
            f"{WHO} is in a death spiral: a preemption/recompute loop.",
            f"{WHO} recomputes about as much as it computes. One engine of many: it pages once it is a share of the "
            "model, or the others drown.\n"
            "Next, no restart: cap its concurrency at the gateway. At the next restart, one knob: "
            f"{knobs()}. Do not lower gpu_memory_utilization.\n"
            + facts(*evictions(config), *PRESENT, WAIT),
        ),
        _one(
            config, "VLLMStalled", "stall", State.STALLED, _NEW,
            f"{WHO} has requests but makes no progress.",
            f"{WHO} has requests, and neither a token nor KV progress for "
            f"{duration_words(config.thresholds.stall_after)} or longer. One engine of many: it pages once it is a "
            "share of the model, or the others drown.\n"
            "Next: drain it at the gateway, capture (py-spy dump of its EngineCore process, the last log lines), "
            "restart it.\n" + facts(IN_STATE, *PRESENT),
        ),
        _one(
            config, "VLLMFailing", "errors", State.FAILING, _NEW,
            f"{WHO} processes requests and most of them fail.",
            f"Most requests of {WHO} fail. One engine of many: it pages once it is a share of the model, or the others "
            "drown.\n"
            "Next: drain it at the gateway, read the last error lines of its log, restart it.\n"
            + facts(IN_STATE, *_errors(config), *PRESENT),
        ),
        _one(
            config, "VLLMDegraded", "degraded", State.DEGRADED, limits.degraded_for,
            f"{WHO} is slower than its usual at the same load, or some of its requests fail.",
            f"{WHO} is slower than its own past or its peers at equal load, or at least "
            f"{percent(config.thresholds.degraded_error_share)} of its requests end in error beside good ones. Its "
            f"page "
            "on the exporter says which.\n"
            "Next: check clocks, temperature and neighbours of its GPU (nvidia-smi -q), what changed last, and its log "
            "for errors; move its traffic if the peers have room.\n"
            + facts(
                IN_STATE, *_errors(config), ("useful tokens/s", now("useful_tokens_per_second"), "count"),
                (
                    "usual useful tokens/s at this load", now("useful_tokens_baseline_per_second"), "count",
                ),
                *PRESENT,
            ),
        ),
        _one(
            config, "VLLMKVHeld", "kv", State.KV_HELD, limits.kv_held_for,
            f"{WHO} keeps KV blocks in use although no request is present.",
            f"For {duration_words(limits.kv_held_for)}, longer than any lease of a transfer, at least "
            f"{percent(config.thresholds.kv_held_ratio)} of the KV cache of {WHO} has been in use with no request "
            "running or waiting.\n"
            "Next: send it one request. If the usage falls, the gauge was old: it refreshes on steps alone. If not, "
            "the "
            "blocks are leaked or pinned by a transfer: drain and restart it in a calm hour.\n"
            + facts(IN_STATE, *PRESENT),
        ),
        _one(
            config, "VLLMPaused", "availability", State.PAUSED, limits.paused_for,
            f"{WHO} has been paused for {duration_words(limits.paused_for)}.",
            f"An operator, or an update of weights, called POST /pause on {WHO}, and nothing resumed it.\n"
            "Next: ask who paused it; POST /resume, or take it out of the gateway. Requests that wait stay unanswered "
            "until then.\n" + facts(IN_STATE, *PRESENT),
        ),
    )  # fmt: skip


def _errors(config: Config) -> tuple[tuple[str, str, str], ...]:
    failed, lately = (
        f'max(increase({metric("responses_total")}{{@,finished_reason="error"}}[{window}]))' for window in ("10m", "2m")
    )
    ended = f"max by (finished_reason) (increase({metric('responses_total')}{{@}}[2m]))"
    least = number(config.thresholds.failing_errors)
    return (
        (f"requests that ended in error, last 10 minutes (threshold {least})", failed, "count"),
        (
            f"share of all that ended, last 2 minutes (failing from {percent(config.thresholds.failing_share)})",
            f"{lately} / sum({ended})", "share",
        ),
    )  # fmt: skip


def _one(config: Config, name: str, signal: str, state: State, hold: int, summary: str, body: str) -> Alert:
    return ticket(config, name, signal, in_state(config, state), summary, body, f"{ENGINE}:State over time", hold)
