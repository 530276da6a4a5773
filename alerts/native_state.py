"""Native mode: the state of each engine, with hold and release, in PromQL.

Input: the series of `native`. Output: ``state``, ``state_since_timestamp_seconds`` and ``target_up``. A latch reads its
own last value, so a state is entered after its condition held, and left after half the condition was gone for long
enough. Exactly one state holds per engine: the worst. `down` also stands for blind, which PromQL cannot tell apart.
"""

from alerts import raw
from alerts.config import Config
from alerts.model import Group, Recording
from alerts.native import fast, waiting_total
from alerts.promql import Fold, by, metric, number, on
from exporter.core.snapshot import State

# An engine that has vanished is remembered this long (s), so that its absence can be said.
REMEMBERED = 3600
_SEEN = "engine:vllm_seen:timestamp"
_CHOSEN = "engine:vllm_state:chosen"
_SINCE = "engine:vllm_state:since"


def group(config: Config) -> Group:
    """The states, in the order in which they read each other."""
    rules = (*_presence(config), *_progress(config), *_thrashing(config), *_spiral(config), *_others(config), *_verdict(config))
    return Group("vllm_vitals.native_state", rules, config.evaluation_seconds)


def _fold(config: Config) -> Fold:
    return Fold(config.identity, config.evaluation_seconds)


def _presence(config: Config) -> tuple[Recording, ...]:
    """Which engines exist or did so lately, and whether their target answers."""
    fold = _fold(config)
    target = by(config.target_identity)
    present = f"0 * {metric('requests_running')} + time()"
    remembered = f"({_SEEN} > time() - {REMEMBERED})"
    labelled = 'label_replace(UP, "target", "$1", "instance", "(.+)")'
    up = labelled.replace("UP", "up")
    known = f"max {target} ({_SEEN})"
    failures = config.thresholds.failures
    window = fold.range((failures - 1) * config.scrape_seconds)
    lately = f"max {target} ({labelled.replace('UP', f'max_over_time(up{window})')})"
    return (
        Recording(_SEEN, f"({present}) or {remembered}"),
        Recording(metric("target_up"), f"max {target} ({up}) and {on(config.target_identity)} {known}"),
        # Down after as many failed scrapes in a row as the daemon wants; a target that discovery dropped is not down.
        Recording("engine:vllm_down:bool", f"({_SEEN} * 0 + 1) and {on(config.target_identity)} ({lately} == 0)"),
    )


def _progress(config: Config) -> tuple[Recording, ...]:
    fold, limits = _fold(config), config.thresholds
    identity = on(config.identity)
    work = f"max {by(config.identity)} ({metric('requests_running')}) + {identity} ({waiting_total(config)})"

    def frozen(seconds: float) -> str:
        """Work throughout, and neither tokens nor steps nor a new maximum of KV usage."""
        window = fold.range(seconds)
        shift = f"{int(seconds)}s"
        usage = raw.folded(config, raw.KV_USAGE, function="max_over_time", window=window)
        before = raw.folded(config, raw.KV_USAGE, function="max_over_time", window=f"{window} offset {shift}")
        return (
            f"(min_over_time(engine:vllm_work:requests{window}) > 0"
            f" and {identity} ({fold.rate('generation_tokens_total', seconds=seconds, function='increase')} == 0)"
            f" and {identity} ({fold.rate('prompt_tokens_total', seconds=seconds, function='increase')} == 0)"
            f" unless {identity} (increase(engine:vllm_steps:count{window}) > 0)"
            f" unless {identity} ({usage} > {identity} {before})"
            f" and {identity} count_over_time(engine:vllm_work:requests{window}) > {int(seconds) // config.evaluation_seconds})"
        )

    finished = f"sum {by(config.identity)} ({metric('responses_total')}) > 0"
    asleep = raw.latest(config, ("engine_sleep_state",), 'sleep_state="awake"')
    return (
        Recording("engine:vllm_work:requests", work),
        Recording("engine:vllm_asleep:bool", f"({asleep}) == bool 0"),
        Recording(
            "engine:vllm_stalled:bool",
            f"(({frozen(limits.stall_after)} and {identity} ({finished})) or {frozen(limits.stall_after_start)})"
            f" * 0 + 1 unless {identity} (engine:vllm_asleep:bool == 1)",
        ),
    )


def _latch(config: Config, record: str, enter: str, stay: str) -> Recording:
    """1 once ``enter`` has held for the hold; then until ``stay`` has been false for the release."""
    fold, limits = _fold(config), config.thresholds
    hold, release = fold.range(limits.hold), fold.range(limits.release)
    samples = int(limits.hold) // config.evaluation_seconds + 1
    return Recording(
        record,
        f"(min_over_time({enter}{hold}) == 1 and count_over_time({enter}{hold}) >= {samples})"
        f" or (({record} == 1) and max_over_time({stay}{release}) == 1)"
        f" or 0 * {metric('generation_tokens_total')}",
    )


def _bool(config: Config, condition: str) -> str:
    """0 or 1 for every engine."""
    return f"((({condition}) * 0 + 1) or 0 * {metric('generation_tokens_total')})"


def _exceeds(count: str, total: str, limit: float, least: float) -> str:
    """``count`` is at least ``limit`` times ``total`` beyond chance, and at least ``least``."""
    # One-sided 90 % of a count with variance 1.5 times Poisson's (evictions come in clusters).
    expected = f"{number(limit)} * {total}"
    return f"({count} >= {number(least)} and {count} >= {expected} + 1.28 * sqrt(1.5 * {expected}))"


def _ratio_conditions(config: Config, level: float) -> str:
    """R or the repeat share beyond ``level`` times its limit."""
    limits, identity = config.thresholds, on(config.identity)
    r = _exceeds(
        "engine:vllm_preemptions:r_window",
        "engine:vllm_completions:r_window",
        limits.thrash_preemptions_per_completion * level,
        limits.min_preemptions,
    )
    repeat = _exceeds(
        "engine:vllm_repeat_preempted:r_window", "engine:vllm_finished_with_count:r_window", limits.thrash_repeat_ratio * level, 1
    )
    enough = f"engine:vllm_preemptions:r_window >= {number(limits.min_preemptions)}"
    return f"({r} or ({repeat} and {identity} {enough}))"


def _thrashing(config: Config) -> tuple[Recording, ...]:
    fold, identity = _fold(config), on(config.identity)
    window = fold.range(fast(config))
    queued = waiting_total(config)
    mean = f"avg_over_time(engine:vllm_waiting:requests{window})"
    # Not fallen by more than 10 % over the window.
    stuck = f"({mean} >= 1) and {identity} (engine:vllm_waiting:requests >= 0.9 * engine:vllm_waiting:requests offset {fast(config)}s"
    stuck += f" or engine:vllm_waiting:requests unless {identity} engine:vllm_waiting:requests offset {fast(config)}s)"
    enter = f"{_ratio_conditions(config, 1)} and {identity} ({stuck})"
    return (
        Recording("engine:vllm_waiting:requests", queued),
        Recording("engine:vllm_thrashing:enter", _bool(config, enter)),
        Recording("engine:vllm_thrashing:stay", _bool(config, _ratio_conditions(config, 0.5))),
        _latch(config, "engine:vllm_thrashing:latched", "engine:vllm_thrashing:enter", "engine:vllm_thrashing:stay"),
    )


def _spiral(config: Config) -> tuple[Recording, ...]:
    fold, limits, identity = _fold(config), config.thresholds, on(config.identity)
    seconds = fast(config)
    preempted = f"{metric('preemptions_per_second')} * {seconds} >= {number(limits.min_preemptions)}"
    generated = fold.rate("generation_tokens_total", seconds=seconds)

    def redoes(level: float) -> str:
        r = _exceeds(
            "engine:vllm_preemptions:r_window",
            "engine:vllm_completions:r_window",
            limits.spiral_preemptions_per_completion * level,
            limits.min_preemptions,
        )
        return f"({r} and {identity} {metric('recompute_tax_ratio')} >= {number(limits.spiral_recompute_tax * level)})"

    silent = (
        f"(({preempted}) and {identity} "
        f"({fold.rate('generation_tokens_total', seconds=limits.spiral_silence, function='increase')} == 0))"
    )

    def collapsed(level: float) -> str:
        share = min(1.0, limits.spiral_generation_share / level)
        lengths = " ".join(
            f"and {identity} ({metric(name)} / {record} <= 2) and {identity} ({metric(name)} / {record} >= 0.5)"
            for name, record in (
                ("prompt_tokens_mean", "engine:vllm_prompt_tokens_mean:calm"),
                ("output_tokens_mean", "engine:vllm_output_tokens_mean:calm"),
            )
        )
        return (
            f"(({preempted}) and {identity} (({generated}) <= {number(share)} * (engine:vllm_generation:calm > 0))"
            f" and {identity} (engine:vllm_work:requests >= engine:vllm_work:calm) {lengths})"
        )

    enter = f"({redoes(1)} and {identity} engine:vllm_thrashing:enter == 1) or {collapsed(1)}"
    stay = f"{redoes(0.5)} or {collapsed(0.5)} or {silent}"
    return (
        *_calm(config, generated),
        Recording("engine:vllm_death_spiral:enter", _bool(config, enter)),
        Recording("engine:vllm_death_spiral:stay", _bool(config, stay)),
        # Ten evictions without one token for so long need no further hold.
        Recording("engine:vllm_death_spiral:silent", _bool(config, silent)),
        _latch(config, "engine:vllm_death_spiral:held", "engine:vllm_death_spiral:enter", "engine:vllm_death_spiral:stay"),
        Recording(
            "engine:vllm_death_spiral:latched",
            "(engine:vllm_death_spiral:held == 1) or (engine:vllm_death_spiral:silent == 1)"
            f" or ((engine:vllm_death_spiral:latched == 1) and max_over_time(engine:vllm_death_spiral:stay{fold.range(limits.release)}) == 1)"
            f" or 0 * {metric('generation_tokens_total')}",
        ),
    )


def _calm(config: Config, generated: str) -> tuple[Recording, ...]:
    """What the engine did in the ten minutes before the first preemption of this episode: kept while it lasts."""
    identity = on(config.identity)
    calm = f"{identity} ({metric('preemptions_per_second')} == 0)"
    window = _fold(config).range(config.thresholds.slow_window)

    def before(record: str, source: str) -> Recording:
        return Recording(record, f"({source} and {calm}) or {record}")

    return (
        Recording("engine:vllm_generation:rate", generated),
        before("engine:vllm_generation:calm", f"avg_over_time(engine:vllm_generation:rate{window})"),
        before("engine:vllm_work:calm", f"avg_over_time(engine:vllm_work:requests{window})"),
        before("engine:vllm_prompt_tokens_mean:calm", metric("prompt_tokens_mean")),
        before("engine:vllm_output_tokens_mean:calm", metric("output_tokens_mean")),
    )


def _others(config: Config) -> tuple[Recording, ...]:
    """Starved, and the plain conditions that need no memory."""
    fold, limits, identity = _fold(config), config.thresholds, on(config.identity)
    window = fold.range(fast(config))
    mean = (
        f"rate(engine:vllm_inter_token_latency_seconds:sum{window})"
        f" / (rate(engine:vllm_inter_token_latency_seconds:count{window}) > 0)"
    )
    hour = fold.range(3600)
    prefill = fold.rate("prompt_tokens_computed_total", seconds=fast(config))
    generated = fold.rate("generation_tokens_total", seconds=fast(config))
    queued = f"(engine:vllm_waiting:requests >= bool 1)[{fast(config) + 1}s:{config.evaluation_seconds}s]"
    return (
        Recording("engine:vllm_inter_token_latency_seconds:mean", mean),
        Recording(
            "engine:vllm_starved:bool",
            _bool(
                config,
                f"(engine:vllm_inter_token_latency_seconds:mean >= {number(limits.starved_latency_factor)}"
                f" * quantile_over_time(0.5, engine:vllm_inter_token_latency_seconds:mean{hour}))"
                f" and {identity} (({prefill}) >= {number(limits.starved_prefill_factor)} * ({generated}))"
                f" and {identity} ({metric('preemptions_per_second')} == 0)",
            ),
        ),
        Recording("engine:vllm_queued:share", f"avg_over_time({queued})"),
    )


def _verdict(config: Config) -> tuple[Recording, ...]:
    """The worst condition that holds, once per engine; then every state as 0 or 1."""
    limits, identity = config.thresholds, by(config.identity)
    known = f"{metric('preemptions_per_second')} or {metric('useful_tokens_per_second')}"
    window = _fold(config).range(fast(config))
    conditions: tuple[tuple[State, str], ...] = (
        (State.DOWN, "engine:vllm_down:bool == 1"),
        (State.STALLED, "engine:vllm_stalled:bool == 1"),
        (State.ASLEEP, "engine:vllm_asleep:bool == 1"),
        (State.DEATH_SPIRAL, "engine:vllm_death_spiral:latched == 1"),
        (State.THRASHING, "engine:vllm_thrashing:latched == 1"),
        (State.STARVED, f"min_over_time(engine:vllm_starved:bool{window}) == 1"),
        (State.PREEMPTING, f"{metric('preemptions_per_second')} > 0"),
        (State.SATURATED, f"engine:vllm_queued:share >= {number(limits.saturated_share)}"),
        (State.KV_PRESSURE, f"{metric('kv_cache_usage_max_ratio')} >= {number(limits.kv_pressure_ratio)}"),
        (State.IDLE, f"max_over_time(engine:vllm_work:requests{window}) == 0 and ({metric('useful_tokens_per_second')} == 0)"),
        (State.HEALTHY, known),
        (State.UNKNOWN, _SEEN),
    )
    chosen = " or ".join(
        f'label_replace((max {identity} ({condition})) * 0 + 1, "state", "{state}", "", "")' for state, condition in conditions[:1]
    )
    for state, condition in conditions[1:]:
        chosen += f' or {on(config.identity)} label_replace((max {identity} ({condition})) * 0 + 1, "state", "{state}", "", "")'
    stateful = (*config.identity, "state")
    return (
        Recording(_CHOSEN, chosen),
        Recording(_SINCE, f"({_SINCE} and {on(stateful)} {_CHOSEN}) or ({_CHOSEN} * 0 + time())"),
        *(
            Recording(
                metric("state"),
                f'max {identity} ({_CHOSEN}{{state="{state}"}}) or 0 * max {identity} ({_CHOSEN})',
                {"state": str(state)},
            )
            for state in State
        ),
        Recording(metric("state_since_timestamp_seconds"), f"max {identity} ({_SINCE})"),
    )
