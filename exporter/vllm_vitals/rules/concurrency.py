"""How many requests an evicting engine can carry, in recording rules: what a page says to set at the gateway.

Input: folded `vllm_vitals_*` series. Output: ``engine:vllm_vitals_gateway_cap:requests``, there while the engine evicts
and the number is known; page and runbook read it. The rule is `vllm_vitals.core.sizing.concurrency_that_fits`, which
the status page says: a test compares both on the same server.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.native_memory import before_preemption, calm
from vllm_vitals.rules.promql import Fold, number, on
from vllm_vitals.rules.selectors import in_state

CAP = "engine:vllm_vitals_gateway_cap:requests"
RATE = "engine:vllm_vitals_generation:rate"
RATE_BEFORE = "engine:vllm_vitals_generation:calm"
EVICTING = (State.PREEMPTING, State.THRASHING, State.DEATH_SPIRAL)
_FULL = "engine:vllm_vitals_running_full:requests"
_SHARE = 0.9  # of what was seen to fit
_REACHED, _LESS = 0.95, 0.75  # running that reaches max_num_seqs, and what is left of it then


def rules(config: Config) -> tuple[Recording, ...]:
    """In the order in which they read each other; ``:calm`` is what was just before the first preemption."""
    fold, identity, limits = Fold(config.identity, config.evaluation_seconds), on(config.identity), config.thresholds
    ten_minutes = fold.range(limits.slow_window)
    full = f"{fold.gauge('kv_cache_usage_ratio')} >= {number(limits.kv_pressure_ratio)}"
    return (
        Recording(RATE, fold.rate("generation_tokens_total", seconds=limits.fast_window)),
        before_preemption(config, "vitals_generation", RATE, "avg_over_time", ten_minutes),
        before_preemption(config, "vitals_work", "engine:vllm_vitals_work:requests", "avg_over_time", ten_minutes),
        Recording(_FULL, f"{fold.gauge('requests_running')} and {identity} ({full})"),
        Recording(CAP, f"({_fits(config)}) and {identity} ({in_state(config, *EVICTING)})"),
    )


def _fits(config: Config) -> str:
    """Return 25 % less than max_num_seqs where running reaches it, else a share of what ran while the cache was full.

    Where that made nothing, it is a share of what was present before the first preemption.
    """
    fold, identity = Fold(config.identity, config.evaluation_seconds), on(config.identity)
    server = f"{on(config.target_identity)} group_left ()"
    fits = f"avg_over_time({_FULL}{fold.range(config.thresholds.fast_window)})"
    slots = Fold(config.target_identity, config.evaluation_seconds).gauge("server_setting", 'name="max_num_seqs"')
    less = f"({fits} >= {server} ({number(_REACHED)} * {slots})) * 0 + {server} floor({number(_LESS)} * {slots})"
    works = f"({fits} >= 1 and {identity} ({RATE} > 0))"
    before = f"({calm(config, 'vitals_work')} > 0) unless {identity} {works}"
    return f"clamp_min(floor({less} or {number(_SHARE)} * ({before}) or {number(_SHARE)} * ({fits} > 0)), 1)"
