"""Native mode: work that fails, engines that an operator paused, and KV blocks that no request holds.

Input: the series of `native`, and vLLM's ``http_requests_total`` where it is kept. Output: `PAUSED`, and what decides
failing, degraded and kv_held. PromQL says `degraded` by errors alone: an engine's own past at equal
load, and its peers, it cannot compare. An idle KV floor that rises from lull to lull it cannot follow either.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules import raw
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.native_memory import KEPT_SINCE, earlier, latch
from vllm_vitals.rules.promql import Fold, by, metric, number, on
from vllm_vitals.vllm.routes import HTTP_REQUESTS, PAUSE, RESUME

PAUSED = "target:vllm_paused:bool"
KV_HELD = "engine:vllm_kv_held:bool"
_PAUSED_AT, _ENDED_AT = "target:vllm_paused:timestamp", "target:vllm_pause_ended:timestamp"
_PAUSES, _RESUMES = "target:vllm_pauses:count", "target:vllm_resumes:count"


def pauses(config: Config) -> tuple[Recording, ...]:
    """Record which servers are paused: the last call was /pause, and no token and no restart came after it."""
    fold, target = Fold(config.target_identity, config.evaluation_seconds), on(config.target_identity)
    window = fold.range(3 * config.scrape_seconds)

    def calls(route: str) -> str:
        series = f'{HTTP_REQUESTS}_total{{handler=~".*{route}",method="POST",status=~"2.*"}}'
        folded = f"max {by((*config.target_identity, 'handler', 'status'))}"
        return f"sum {by(config.target_identity)} ({folded} ({raw.targeted(f'last_over_time({series}{window})')}))"

    def rose(record: str) -> str:
        # Its first call makes the series; two moments apart, as a ruler may see its own output late.
        return f"({record} > {earlier(config, record, 2)}) or ({record} > 0 unless {earlier(config, record, 2)})"

    ever = f"max_over_time({_PAUSED_AT}{fold.range(KEPT_SINCE)})"
    tokens = fold.rate("generation_tokens_total", seconds=2 * config.evaluation_seconds)
    # What was made within the interval in which the pause came was made before it.
    moved = f"({tokens} > 0 and {target} (time() - {ever} > {3 * config.evaluation_seconds}))"
    ended = f"max_over_time({_ENDED_AT}{fold.range(KEPT_SINCE)})"
    return (
        Recording(_PAUSES, calls(PAUSE)),
        Recording(_RESUMES, calls(RESUME)),
        Recording(_PAUSED_AT, f"max {by(config.target_identity)} ({rose(_PAUSES)}) * 0 + time()"),
        Recording(_ENDED_AT, f"max {by(config.target_identity)} ({rose(_RESUMES)} or {moved}) * 0 + time()"),
        Recording(PAUSED, f"({ever} > ({ended} or 0 * {ever})) * 0 + 1 and {target} ({_PAUSES} > 0)"),
    )


def failing(config: Config) -> tuple[Recording, ...]:
    """Record the latches of failing and of errors beside good finishes (`core.state_machine`)."""
    limits = config.thresholds

    def share(least: float, level: float, errors: str = "errors", ended: str = "ended") -> str:
        failed = f"engine:vllm_{errors}:count"
        ratio = f"{failed} / (engine:vllm_{ended}:count > 0) >= {number(level)}"
        return f"{failed} >= {number(least)} and {on(config.identity)} ({ratio})"

    def some(least: float, level: float) -> str:
        return share(least, level, "some_errors", "some_ended")

    least, degraded = limits.failing_errors, limits.degraded_error_share
    return (
        *latch(config, "failing", share(least, limits.failing_share), share(least / 2, limits.failing_share / 2)),
        *latch(config, "some_errors", some(least, degraded), some(least / 2, degraded / 2)),
    )


def kv_held(config: Config) -> Recording:
    """Record engines whose KV blocks stayed in use while no request was present."""
    fold, limits, identity = Fold(config.identity, config.evaluation_seconds), config.thresholds, on(config.identity)
    seconds, step = int(limits.kv_held_after), config.evaluation_seconds
    window = fold.range(seconds)
    known = f"count_over_time(engine:vllm_work:requests{fold.range(seconds + step)}) > {seconds // step}"
    used = f"min_over_time({metric('kv_cache_usage_ratio')}{window}) >= {number(limits.kv_held_ratio)}"
    return Recording(
        KV_HELD,
        f"{used} and {identity} (max_over_time(engine:vllm_work:requests{window}) == 0) and {identity} ({known})",
    )
