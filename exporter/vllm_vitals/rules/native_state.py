"""Native mode: the state of each engine, with hold and release, in PromQL.

Input: the series of `native`. Output: ``state``, ``state_since_timestamp_seconds`` and ``target_up``. Exactly one state
holds per engine: the worst. `down` also stands for blind, which PromQL cannot tell apart. A target that never answered
names no engine and no model, so it has no state: PromQL does not know what `starting` is. No record reads itself
(`native_memory`).
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.state_machine import ENDED_IN_A_MINUTE
from vllm_vitals.core.states import State
from vllm_vitals.rules import native_evict, native_failing, raw
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.native import computed_prompts, fast, raw_rate, waiting_total
from vllm_vitals.rules.native_evict import answers, preempted
from vllm_vitals.rules.native_memory import KEPT_SINCE, changed
from vllm_vitals.rules.promql import Fold, by, metric, number, on
from vllm_vitals.vllm.lookup import wire

# An engine that has vanished is remembered this long (s), so that its absence can be said.
REMEMBERED = _HOUR = 3600
_MINUTE = 60
# States that PromQL cannot tell: they are absent, never 0.
UNSAID = (State.BLIND, State.STARTING)
_PRESENT = "engine:vllm_present:timestamp"
_REMEMBERED = "engine:vllm_remembered:bool"
_STARVED = "engine:vllm_starved:bool"
_GAP = "engine:vllm_inter_token_latency_seconds:mean"
_STILL = "engine:vllm_still:bool"
_FOUND = "engine:vllm_stalled:found"
_RANK = "engine:vllm_state:rank"
_CHANGED = "engine:vllm_state:changed"


def rules(config: Config) -> tuple[Recording, ...]:
    """Return the states, in the order in which they read each other."""
    return (
        *_presence(config),
        *native_failing.pauses(config),
        *_progress(config),
        *native_failing.failing(config),
        native_failing.kv_held(config),
        *native_evict.rules(config),
        *_others(config),
        *_verdict(config),
    )


def slow(config: Config) -> tuple[Recording, ...]:
    """Return what looks an hour back, and is asked once a minute: who is there, and who is starved."""
    fold, limits, identity = _fold(config), config.thresholds, on(config.identity)
    usual = f"quantile_over_time(0.5, {_GAP}{fold.range(_HOUR)})"
    generated = fold.rate("generation_tokens_total", seconds=fast(config))
    return (
        Recording(_PRESENT, f"max {by(config.identity)} (0 * {metric('requests_running')}) + time()"),
        Recording(
            _STARVED,
            f"({_GAP} >= {number(limits.starved_latency_factor)} * {usual})"
            f" and {identity} (({computed_prompts(config)}) >= {number(limits.starved_prefill_factor)} * ({generated}))"
            f" and {identity} ({metric('preemptions_per_second')} == 0)",
        ),
    )


def _seen(config: Config) -> str:
    """Return 0 for every engine that there is, or was until its target fell silent."""
    return f"max {by(config.identity)} (0 * {metric('requests_running')} or 0 * {_REMEMBERED})"


def _fold(config: Config) -> Fold:
    return Fold(config.identity, config.evaluation_seconds)


def _presence(config: Config) -> tuple[Recording, ...]:
    """Return which engines exist or did so lately, and whether their target answers."""
    fold = _fold(config)
    target = by(config.target_identity)
    last = f"max_over_time({_PRESENT}{fold.range(REMEMBERED)})"
    up = raw.targeted("up")
    # Only while its target is listed and silent: one that discovery dropped is forgotten. Only the engines that the
    # target had at last: it may have served another model before.
    remembered = (
        f"({last} >= {on(config.target_identity)} group_left () max {target} ({last}))"
        f" and {on(config.target_identity)} (max {target} ({up}) == 0)"
    )
    failures = config.thresholds.failures
    window = fold.range((failures - 1) * config.scrape_seconds)
    lately = f"max {target} ({raw.targeted(f'max_over_time(up{window})')})"
    server = on(config.target_identity)
    return (
        Recording(_REMEMBERED, f"max {by(config.identity)} ({remembered}) * 0 + 1"),
        Recording(metric("target_up"), f"max {target} ({up}) and {server} ({_seen(config)})"),
        # Down after as many failed scrapes in a row as the daemon wants; a target that discovery dropped is not down.
        Recording("engine:vllm_down:bool", f"({_seen(config)} and {server} ({lately} == 0)) + 1"),
    )


def _progress(config: Config) -> tuple[Recording, ...]:
    fold, limits = _fold(config), config.thresholds
    identity = on(config.identity)
    work = f"max {by(config.identity)} ({metric('requests_running')}) + {identity} ({waiting_total(config)})"

    step, seconds = config.evaluation_seconds, limits.stall_after
    window, before = fold.range(seconds), f"{fold.range(seconds)} offset {int(seconds)}s"
    usage = metric("kv_cache_usage_ratio")
    # Since a ruler may see its own output one evaluation late, the samples are counted over one more.
    known = f"count_over_time(engine:vllm_work:requests{fold.range(seconds + step)}) > {int(seconds) // step}"
    # Work throughout, and neither tokens nor steps nor a new maximum of KV usage.
    still = (
        f"min_over_time(engine:vllm_work:requests{window}) > 0"
        f" and {identity} ({fold.rate('generation_tokens_total', seconds=seconds)} == 0)"
        f" and {identity} ({fold.rate('prompt_tokens_total', seconds=seconds)} == 0)"
        f" unless {identity} ({raw_rate(config, 'iteration_tokens', 'count', seconds=seconds)} > 0)"
        f" unless {identity} (max_over_time({usage}{window}) > max_over_time({usage}{before}))"
        f" and {identity} ({known})"
    )
    longer = limits.stall_after_start - seconds
    for_long = f"count_over_time({_STILL}{fold.range(longer + step)}) > {int(longer) // step} and {_STILL}"
    finished = f"sum {by(config.identity)} ({metric('responses_total')}) > 0"
    asleep = raw.latest(config, wire("asleep"), 'sleep_state="awake"')
    error = 'finished_reason="error"'
    ended = f"({fold.rate('responses_total', error, seconds=60, function='increase')})"
    # Until it is down, one that was found stalled and stopped answering is still stalled.
    lately = fold.range((limits.failures + 1) * config.scrape_seconds)
    return (
        Recording("engine:vllm_work:requests", work),
        Recording("engine:vllm_asleep:bool", f"(({asleep}) == 0) + 1"),
        Recording(_STILL, still),
        # Before its first answer a server may compile for minutes.
        Recording(
            "engine:vllm_frozen:bool",
            f"max {by(config.identity)} (({_STILL} and {identity} ({finished})) or ({for_long}))",
        ),
        # A server that no longer answers looks frozen too: only one that answers now can be found stalled.
        Recording(
            _FOUND,
            f"engine:vllm_frozen:bool and {answers(config)} unless {identity} engine:vllm_asleep:bool"
            # Under preemptions a frozen engine is a spiral that starves itself.
            f" unless {identity} ({preempted(config)} {native_evict.for_room(config)})"
            f" unless {on(config.target_identity)} {native_failing.PAUSED}"
            # One whose requests end in error moves, whatever it makes of them.
            f" unless {identity} ({ended} >= {number(ENDED_IN_A_MINUTE)})"
            f" unless {on(config.target_identity)} {_moving(config)}",
        ),
        Recording(
            "engine:vllm_stalled:bool",
            f"max {by(config.identity)} ({_FOUND} or (engine:vllm_frozen:bool and {identity}"
            f" last_over_time({_FOUND}{lately}) and {on(config.target_identity)} ({metric('target_up')} == 0)))"
            " * 0 + 1",
        ),
    )


def _moving(config: Config) -> str:
    """Servers that are falling asleep, waking, or taking new weights (vLLM 0.31 on): no token is expected of them."""
    names = raw.either(wire("updating"), wire("moving"))
    series = " or ".join(prefix + name for name in names for prefix in config.spellings)
    return f'(max {by(config.target_identity)} (label_replace({series}, "target", "$1", "instance", "(.+)")) > 0)'


def _others(config: Config) -> tuple[Recording, ...]:
    """Return the mean gap between tokens, of which starved is told."""
    total, count = (
        raw_rate(config, "inter_token_latency_seconds", part, seconds=fast(config)) for part in ("sum", "count")
    )
    return (Recording(_GAP, f"{total} / ({count} > 0)"),)


def _verdict(config: Config) -> tuple[Recording, ...]:
    """Return the worst condition that holds, once per engine; then every state as 0 or 1."""
    limits, identity, step = config.thresholds, by(config.identity), config.evaluation_seconds
    queued = f"(engine:vllm_waiting:requests >= bool 1)[{fast(config) + 1}s:{step}s]"
    known = f"{metric('preemptions_per_second')} or {metric('useful_tokens_per_second')}"
    window = _fold(config).range(fast(config))
    conditions: tuple[tuple[State, str], ...] = (
        (State.DOWN, "engine:vllm_down:bool"),
        (State.STALLED, "engine:vllm_stalled:bool"),
        (State.ASLEEP, "engine:vllm_asleep:bool"),
        (State.PAUSED, f"{_seen(config)} and {on(config.target_identity)} {native_failing.PAUSED}"),
        (State.FAILING, "engine:vllm_failing:latched"),
        (State.DEATH_SPIRAL, "engine:vllm_death_spiral:latched"),
        (State.THRASHING, "engine:vllm_thrashing:latched"),
        (State.STARVED, f"count_over_time({_STARVED}{_fold(config).range(2 * _MINUTE)}) >= 2"),
        (State.DEGRADED, "engine:vllm_some_errors:latched"),
        (State.KV_HELD, native_failing.KV_HELD),
        (State.PREEMPTING, f"{metric('preemptions_per_second')} > 0"),
        (State.SATURATED, f"avg_over_time({queued}) >= {number(limits.saturated_share)}"),
        (State.KV_PRESSURE, f"{metric('kv_cache_usage_max_ratio')} >= {number(limits.kv_pressure_ratio)}"),
        (
            State.IDLE,
            f"max_over_time(engine:vllm_work:requests{window}) == 0 and ({metric('useful_tokens_per_second')} == 0)",
        ),
        (State.HEALTHY, known),
        (State.UNKNOWN, _seen(config)),
    )
    chosen = " or ".join(f"(max {identity} ({condition})) * 0 + {state.rank}" for state, condition in conditions)
    return (
        # Windows outlive an engine that has gone; its state does not.
        Recording(_RANK, f"({chosen}) and {on(config.identity)} ({_seen(config)})"),
        # A rule each: one that labels and joins all of them takes twice the time.
        *(
            Recording(metric("state"), f"{_RANK} == bool {state.rank}", {"state": str(state)})
            for state in State
            if state not in UNSAID
        ),
        changed(config, _CHANGED, _RANK),
        Recording(
            metric("state_since_timestamp_seconds"),
            f"max_over_time({_CHANGED}{_fold(config).range(KEPT_SINCE)}) and {on(config.identity)} {_RANK}",
        ),
    )
