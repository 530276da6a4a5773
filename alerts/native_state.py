"""Native mode: the state of each engine, with hold and release, in PromQL.

Input: the series of `native`. Output: ``state``, ``state_since_timestamp_seconds`` and ``target_up``. A latch reads its
own last value, so a state is entered after its condition held, and left after half the condition was gone for long
enough. Exactly one state holds per engine: the worst. `down` also stands for blind, which PromQL cannot tell apart.
"""

from alerts import raw
from alerts.config import Config
from alerts.model import Recording
from alerts.native import computed_prompts, fast, waiting_total
from alerts.promql import Fold, by, metric, number, on
from exporter.core.snapshot import State

# An engine that has vanished is remembered this long (s), so that its absence can be said.
REMEMBERED = 3600
_SEEN = "engine:vllm_seen:timestamp"
_CHOSEN = "engine:vllm_state:chosen"
_SINCE = "engine:vllm_state:since"


def rules(config: Config) -> tuple[Recording, ...]:
    """The states, in the order in which they read each other."""
    return (
        *_presence(config),
        *_progress(config),
        *_thrashing(config),
        *_spiral(config),
        *_others(config),
        *_verdict(config),
    )


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
            f" and {identity} count_over_time(engine:vllm_work:requests{window}) >"
            f" {int(seconds) // config.evaluation_seconds})"
        )

    finished = f"sum {by(config.identity)} ({metric('responses_total')}) > 0"
    asleep = raw.latest(config, ("engine_sleep_state",), 'sleep_state="awake"')
    return (
        Recording("engine:vllm_work:requests", work),
        Recording("engine:vllm_asleep:bool", f"({asleep}) == bool 0"),
        Recording(
            "engine:vllm_frozen:bool",
            f"({frozen(limits.stall_after)} and {identity} ({finished})) or {frozen(limits.stall_after_start)}",
        ),
        # A server that no longer answers looks frozen too: only one that answers now can be found stalled.
        Recording(
            "engine:vllm_stalled:bool",
            f"(engine:vllm_frozen:bool and {_answers(config)}"
            f" or (engine:vllm_frozen:bool and {identity} engine:vllm_stalled:bool)) * 0 + 1"
            f" unless {identity} (engine:vllm_asleep:bool == 1)"
            # Under preemptions a frozen engine is a spiral that starves itself.
            f" unless {identity} {_preempted(config)} unless {on(config.target_identity)} {_moving(config)}",
        ),
    )


def _answers(config: Config) -> str:
    """Keeps engines whose server answered its latest scrape."""
    return f"{on(config.target_identity)} ({metric('target_up')} == 1)"


def _moving(config: Config) -> str:
    """Servers that are falling asleep, waking, or taking new weights (vLLM 0.31 on): no token is expected of them."""
    names = ("rl_weight_update_operations_in_flight", "sleep_mode_operations_in_flight")
    series = " or ".join(prefix + name for name in names for prefix in config.spellings)
    return f'(max {by(config.target_identity)} (label_replace({series}, "target", "$1", "instance", "(.+)")) > 0)'


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
        "engine:vllm_repeat_preempted:r_window",
        "engine:vllm_finished_with_count:r_window",
        limits.thrash_repeat_ratio * level,
        1,
    )
    enough = f"engine:vllm_preemptions:r_window >= {number(limits.min_preemptions)}"
    return f"({r} or ({repeat} and {identity} {enough}))"


def _thrashing(config: Config) -> tuple[Recording, ...]:
    fold, identity = _fold(config), on(config.identity)
    half = fast(config) // 2
    mean = f"avg_over_time(engine:vllm_waiting:requests{fold.range(fast(config))})"
    later = f"avg_over_time(engine:vllm_waiting:requests{fold.range(half)})"
    # Not draining: the later half of the window waits no less than 90 % of its earlier half.
    stuck = f"({mean} >= 1) and {identity} ({later} >= 0.9 * ({later} offset {half}s))".replace(
        f"({later} offset {half}s)", f"avg_over_time(engine:vllm_waiting:requests{fold.range(half)} offset {half}s)"
    )
    some = f"{metric('preemptions_per_second')} > 0"
    enter = f"{_ratio_conditions(config, 1)} and {identity} ({stuck}) and {identity} ({some})"
    high = (
        f"({metric('preemptions_per_completion')} >= {number(config.thresholds.thrash_preemptions_per_completion / 2)}"
        f" or {metric('repeat_preemption_ratio')} >= {number(config.thresholds.thrash_repeat_ratio / 2)})"
    )
    # Without enough completions for R, preemptions alone keep it.
    blind = f"({_preempted(config, 0.5)} unless {identity} {metric('preemptions_per_completion')})"
    stay = f"(({high} and {identity} ({some})) or {blind}) and {identity} ({mean} >= 0.5)"
    return (
        Recording("engine:vllm_waiting:requests", waiting_total(config)),
        Recording("engine:vllm_thrashing:enter", _bool(config, enter)),
        Recording("engine:vllm_thrashing:stay", _bool(config, stay)),
        _latch(config, "engine:vllm_thrashing:latched", "engine:vllm_thrashing:enter", "engine:vllm_thrashing:stay"),
    )


def _preempted(config: Config, level: float = 1) -> str:
    """``level`` times the least number of preemptions in the fast window from which anything is concluded."""
    return (
        f"({metric('preemptions_per_second')} * {fast(config)} >= {number(config.thresholds.min_preemptions * level)})"
    )


def _spiral(config: Config) -> tuple[Recording, ...]:
    fold, limits, identity = _fold(config), config.thresholds, on(config.identity)
    generated = fold.rate("generation_tokens_total", seconds=fast(config))
    r = _exceeds(
        "engine:vllm_preemptions:r_window",
        "engine:vllm_completions:r_window",
        limits.spiral_preemptions_per_completion,
        limits.min_preemptions,
    )
    tax = metric("recompute_tax_ratio")
    redoing = (
        f"(engine:vllm_thrashing:enter == 1 and {identity} {r} and {identity} {tax} >="
        f" {number(limits.spiral_recompute_tax)})"
    )
    still_redoing = (
        f"(engine:vllm_thrashing:stay == 1 and {identity} {metric('preemptions_per_completion')} >="
        f" {number(limits.spiral_preemptions_per_completion / 2)} and {identity} {tax} >="
        f" {number(limits.spiral_recompute_tax / 2)})"
    )

    def barren(level: float) -> str:
        """Preemption after preemption and not one generated token."""
        silence = max(limits.spiral_silence * level, 2 * config.evaluation_seconds)
        none = fold.rate("generation_tokens_total", seconds=silence, function="increase")
        return (
            f"({_preempted(config, level)} and {identity} ({none} == 0)"
            f" and {identity} engine:vllm_work:requests >= 1 and {_answers(config)})"
        )

    enter = f"{redoing} or {_collapsed(config, 1)}"
    stay = f"{still_redoing} or {_collapsed(config, 0.5)} or {barren(0.5)}"
    latched, release = "engine:vllm_death_spiral:latched", fold.range(limits.release)
    return (
        *_calm(config, generated),
        Recording("engine:vllm_death_spiral:enter", _bool(config, enter)),
        Recording("engine:vllm_death_spiral:stay", _bool(config, stay)),
        _latch(
            config, "engine:vllm_death_spiral:held", "engine:vllm_death_spiral:enter", "engine:vllm_death_spiral:stay"
        ),
        # Evictions without one token for so long need no further hold.
        Recording(
            latched,
            f"(engine:vllm_death_spiral:held == 1) or ({barren(1)} * 0 + 1)"
            f" or (({latched} == 1) and max_over_time(engine:vllm_death_spiral:stay{release}) == 1)"
            f" or 0 * {metric('generation_tokens_total')}",
        ),
    )


def _collapsed(config: Config, level: float) -> str:
    """Generation fell to a share of what it was before the first preemption, under no less work of like lengths."""
    identity = on(config.identity)
    share = number(config.thresholds.spiral_generation_share / level)
    alike = " ".join(
        f"and {identity} ({metric(name)} / (engine:vllm_{name}:calm > 0) <= 2)"
        f" and {identity} ({metric(name)} / (engine:vllm_{name}:calm > 0) >= 0.5)"
        for name in ("prompt_tokens_mean", "output_tokens_mean")
    )
    return (
        f"({_preempted(config, level)} and {identity} (engine:vllm_generation:rate <= {share} *"
        f" (engine:vllm_generation:calm > 0))"
        f" and {identity} (engine:vllm_work:requests >= engine:vllm_work:calm) {alike})"
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
    prefill = computed_prompts(config)
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
        (
            State.IDLE,
            f"max_over_time(engine:vllm_work:requests{window}) == 0 and ({metric('useful_tokens_per_second')} == 0)",
        ),
        (State.HEALTHY, known),
        (State.UNKNOWN, _SEEN),
    )
    chosen = " or ".join(
        f'label_replace((max {identity} ({condition})) * 0 + 1, "state", "{state}", "", "")'
        for state, condition in conditions[:1]
    )
    for state, condition in conditions[1:]:
        chosen += (
            f' or {on(config.identity)} label_replace((max {identity} ({condition})) * 0 + 1, "state",'
            f' "{state}", "", "")'
        )
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
