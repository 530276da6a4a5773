"""Whom the dashboards are built for: who feeds their Prometheus, and the alert config whose limits they show.

Input: the build's options. Output: a `Site` that every dashboard is built from. Invariant: a panel is yellow or red
where a state or an alert would mind, never by a second opinion; a number without such a limit has no colour.
"""

from dataclasses import dataclass, field

from vllm_vitals.config.alerts import Config
from vllm_vitals.dashboards.links import ALERTMANAGER


@dataclass(frozen=True, slots=True)
class Levels:
    """Yellow from ``warn``, red from ``bad``; with ``low_is_bad`` below them. Either may be None."""

    warn: float | None
    bad: float | None = None
    low_is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """The levels of every judged number."""

    preemptions_per_completion: Levels
    repeat_share: Levels
    recompute_tax: Levels
    kv_usage: Levels
    kv_demand: Levels
    kv_left: Levels
    slots_left: Levels
    ttft: Levels
    tpot: Levels | None
    expected_wait: Levels
    tail_ratio: Levels
    truncated: Levels
    straggler: Levels
    scrape_age: Levels
    sample_age: Levels


ANY_IS_BAD = Levels(None, 1)
ANY_IS_ODD = Levels(1)


def scale(config: Config) -> Scale:
    """Return the levels that this config alerts by."""
    state, limit = config.thresholds, config.limits
    return Scale(
        preemptions_per_completion=Levels(
            state.thrash_preemptions_per_completion, state.spiral_preemptions_per_completion
        ),
        repeat_share=Levels(state.thrash_repeat_ratio),
        # A spiral is entered at the level, and left below half of it.
        recompute_tax=Levels(state.spiral_recompute_tax / 2, state.spiral_recompute_tax),
        kv_usage=Levels(state.kv_pressure_ratio),
        # Above 1 the cache cannot hold what has arrived.
        kv_demand=Levels(state.kv_pressure_ratio, 1),
        kv_left=Levels(round(1 - state.kv_pressure_ratio, 6), low_is_bad=True),
        slots_left=Levels(0.01, low_is_bad=True),
        ttft=Levels(None, objective(config, "ttft") or limit.ttft_objective_seconds),
        tpot=Levels(None, seconds) if (seconds := objective(config, "tpot")) else None,
        expected_wait=Levels(None, limit.ttft_objective_seconds),
        tail_ratio=Levels(limit.tail_ratio),
        truncated=Levels(limit.truncated_ratio),
        straggler=Levels(limit.straggler_ratio),
        scrape_age=Levels(None, limit.stale_seconds),
        sample_age=Levels(limit.stale_seconds / 2, limit.stale_seconds),
    )


def objective(config: Config, indicator: str) -> float | None:
    """Return the strictest objective that the config has for an indicator, in seconds."""
    return min((slo.seconds for slo in config.slos if slo.indicator == indicator), default=None)


@dataclass(frozen=True, slots=True)
class Site:
    """Who feeds this Prometheus (the daemon, recording rules over vLLM's own series, or both), and its limits."""

    daemon: bool = True
    native: bool = True
    config: Config = field(default_factory=Config)
    # Grafana's data source of that name shows groups and silences; "": there is none.
    alertmanager: str = ALERTMANAGER

    @property
    def scale(self) -> Scale:
        """Where its numbers turn yellow and red."""
        return scale(self.config)
