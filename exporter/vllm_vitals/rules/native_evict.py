"""Native mode: thrashing and death_spiral in PromQL, with hold and release.

Input: the series of `native`. Output: ``engine:vllm_{thrashing,death_spiral}:latched``, there while the state holds: it
is entered after its condition held, and left after half of it was gone for long enough (`native_memory`). The
conditions are those of `vllm_vitals.core.state_machine`.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules.concurrency import RATE
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.native import (
    COMPLETIONS,
    OUTPUT,
    PREEMPTIONS,
    PROMPT,
    REPEATS,
    fast,
    sure_of_tax,
    waiting_total,
)
from vllm_vitals.rules.native_failing import PAUSED
from vllm_vitals.rules.native_memory import before_preemption, calm, latch
from vllm_vitals.rules.promql import Fold, metric, number, on

_LENGTHS = {"prompt_tokens_mean": PROMPT, "output_tokens_mean": OUTPUT}


def rules(config: Config) -> tuple[Recording, ...]:
    """In the order in which they read each other."""
    return (*_thrashing(config), *_spiral(config))


def _fold(config: Config) -> Fold:
    return Fold(config.identity, config.evaluation_seconds)


def preempted(config: Config, level: float = 1) -> str:
    """``level`` times the least number of preemptions in the fast window from which anything is concluded."""
    return (
        f"({metric('preemptions_per_second')} * {fast(config)} >= {number(config.thresholds.min_preemptions * level)})"
    )


def answers(config: Config) -> str:
    """Return a condition that keeps engines whose server answered its latest scrape."""
    return f"{on(config.target_identity)} ({metric('target_up')} == 1)"


def for_room(config: Config) -> str:
    """Return what takes out evictions for another reason than room: a cache never nearly full, or a pause's own."""
    limits = config.thresholds
    lately = _fold(config).range(fast(config) + 60)
    return (
        f"unless {on(config.identity)} ({metric('kv_cache_usage_max_ratio')} < {number(limits.eviction_kv_ratio)})"
        f" unless {on(config.target_identity)} last_over_time({PAUSED}{lately})"
    )


def _thrashing(config: Config) -> tuple[Recording, ...]:
    fold, identity = _fold(config), on(config.identity)
    half = fast(config) // 2
    mean = f"avg_over_time(engine:vllm_waiting:requests{fold.range(fast(config))})"
    later = f"avg_over_time(engine:vllm_waiting:requests{fold.range(half)})"
    # Not draining: the later half of the window waits no less than 90 % of its earlier half.
    earlier = f"avg_over_time(engine:vllm_waiting:requests{fold.range(half)} offset {half}s)"
    stuck = f"({mean} >= 1) and {identity} ({later} >= 0.9 * {earlier})"
    some = f"{metric('preemptions_per_second')} > 0"
    enter = f"{_ratio_conditions(config, 1)} and {identity} ({stuck}) and {identity} ({some}) {for_room(config)}"
    high = (
        f"({metric('preemptions_per_completion')} >= {number(config.thresholds.thrash_preemptions_per_completion / 2)}"
        f" or {metric('repeat_preemption_ratio')} >= {number(config.thresholds.thrash_repeat_ratio / 2)})"
    )
    # Without enough completions for R, preemptions alone keep it.
    blind = f"({preempted(config, 0.5)} unless {identity} {metric('preemptions_per_completion')})"
    stay = f"(({high} and {identity} ({some})) or {blind}) and {identity} ({mean} >= 0.5)"
    return (
        Recording("engine:vllm_waiting:requests", waiting_total(config)),
        *latch(config, "thrashing", enter, stay),
    )


def _spiral(config: Config) -> tuple[Recording, ...]:
    fold, limits, identity = _fold(config), config.thresholds, on(config.identity)
    r = _exceeds(
        PREEMPTIONS,
        COMPLETIONS,
        limits.spiral_preemptions_per_completion,
        limits.min_preemptions,
    )
    tax = metric("recompute_tax_ratio")
    redoing = (
        f"(engine:vllm_thrashing:enter and {identity} {r} and {identity} {tax} >="
        f" {number(limits.spiral_recompute_tax)} {sure_of_tax(config)})"
    )
    still_redoing = (
        f"(engine:vllm_thrashing:stay and {identity} {metric('preemptions_per_completion')} >="
        f" {number(limits.spiral_preemptions_per_completion / 2)} and {identity} {tax} >="
        f" {number(limits.spiral_recompute_tax / 2)})"
    )

    def barren(level: float) -> str:
        """Preemption after preemption and not one generated token."""
        silence = max(limits.spiral_silence * level, 2 * config.evaluation_seconds)
        none = fold.rate("generation_tokens_total", seconds=silence)
        return (
            f"({preempted(config, level)} and {identity} ({none} == 0)"
            f" and {identity} engine:vllm_work:requests >= 1 and {answers(config)}"
            f"{' ' + for_room(config) if level == 1 else ''})"
        )

    enter = f"{redoing} or {_collapsed(config, 1)}"
    stay = f"{still_redoing} or {_collapsed(config, 0.5)} or {barren(0.5)}"
    return (
        # Tokens now, and tokens and work in the ten minutes before, are in `concurrency`.
        *(before_preemption(config, name, metric(name)) for name in _LENGTHS),
        # Evictions without one token for so long need no further hold.
        *latch(config, "death_spiral", enter, stay, at_once=barren(1)),
    )


def _collapsed(config: Config, level: float) -> str:
    """Return where generation fell to a share of that before the first preemption, under no less and like work."""
    identity = on(config.identity)
    share = number(config.thresholds.spiral_generation_share / level)
    alike = " ".join(
        f"and {identity} ({now} / ({calm(config, name)} > 0) <= 2)"
        f" and {identity} ({now} / ({calm(config, name)} > 0) >= 0.5)"
        for name, now in _LENGTHS.items()
    )
    return (
        f"({preempted(config, level)} and {identity} ({RATE} <= {share} *"
        f" ({calm(config, 'vitals_generation')} > 0))"
        f" and {identity} (engine:vllm_work:requests >= {calm(config, 'vitals_work')}) {alike}"
        f"{' ' + for_room(config) if level == 1 else ''})"
    )


def _exceeds(count: str, total: str, limit: float, least: float) -> str:
    """``count`` is at least ``limit`` times ``total`` beyond chance, and at least ``least``."""
    # One-sided 90 % of a count with variance 1.5 times Poisson's (evictions come in clusters).
    expected = f"{number(limit)} * {total}"
    return f"({count} >= {number(least)} and {count} >= {expected} + 1.28 * sqrt(1.5 * {expected}))"


def _ratio_conditions(config: Config, level: float) -> str:
    """R or the repeat share beyond ``level`` times its limit."""
    limits, identity = config.thresholds, on(config.identity)
    r = _exceeds(
        PREEMPTIONS,
        COMPLETIONS,
        limits.thrash_preemptions_per_completion * level,
        limits.min_preemptions,
    )
    repeat = _exceeds(
        REPEATS,
        COMPLETIONS,
        limits.thrash_repeat_ratio * level,
        1,
    )
    enough = f"{PREEMPTIONS} >= {number(limits.min_preemptions)}"
    return f"({r} or ({repeat} and {identity} {enough}))"
