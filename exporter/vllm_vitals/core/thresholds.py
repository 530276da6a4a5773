"""The numbers that states are judged by. Each comes from recordings (tests/data) or says whose idea it was.

Change one only with a recording in hand: `vllm-vitals check --replay` shows what it would have said.
"""

from dataclasses import dataclass, replace
from typing import Annotated

# What a threshold is, and so how a config file writes it.
Seconds = Annotated[float, "seconds"]  # "45s"
Share = Annotated[float, "share"]  # 0 to 1


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Defaults for every engine; a target may override any of them in the config file. Times are in seconds."""

    # Rates and states. Move up where a request takes minutes and 60 s holds too little; never below 4 scrapes.
    fast_window: Seconds = 60.0
    # Quantiles and shares. Move up for rarely used models, so that p99 has enough requests behind it.
    slow_window: Seconds = 600.0
    # A younger engine answers once its samples span this long.
    min_span: Seconds = 5.0
    # A condition must hold this long before the state is entered. Move up if bursts page you.
    hold: Seconds = 30.0
    # ... and stay below half its entry level this long before the state is left.
    release: Seconds = 60.0

    # Share of finished requests that end in error (or of answers that are 5xx) from which the work of an engine fails.
    failing_share: Share = 0.5
    # Below so many failures, over the shortest window from 60 s to 10 min that holds as many finishes (for degraded:
    # 200, which hold as many at its share): not proven.
    failing_errors: float = 10.0

    # No token, step or KV progress with work present. Move up if one prefill step may take longer than this.
    stall_after: Seconds = 45.0
    # The same before the first completion since start (lazy compilation), and while only the step counter moves.
    stall_after_start: Seconds = 180.0
    # Thrashing, death_spiral and stalled survive a scrape outage of this long, with their age.
    blind_hold: Seconds = 300.0
    # Failed scrapes in a row before the state is down or blind.
    failures: int = 3
    # A server that has not answered yet may take this long to load before it is down. Move up for large weights.
    starting_budget: Seconds = 600.0

    # R (preemptions per completion) of thrashing. Healthy engines were measured at 0.07-0.24, thrash at 0.66 and up.
    thrash_preemptions_per_completion: float = 0.5
    # Share of finished requests preempted twice or more. Healthy: below 0.06.
    thrash_repeat_ratio: Share = 0.10
    # R of the death spiral, together with the tax below. Measured: 10 and more.
    spiral_preemptions_per_completion: float = 1.0
    # Share of work that is recomputation. A thrash was measured at 0.19-0.23, a spiral at 0.78-0.80.
    spiral_recompute_tax: Share = 0.40
    # Least number of preemptions in the window that proves anything.
    min_preemptions: float = 10.0
    # R uses the shortest window that holds this many completions.
    min_completions: float = 20.0
    # No generation token for so long, under preemptions, is a spiral whatever R says.
    spiral_silence: Seconds = 30.0
    # Generation at or under this share of what it was before the first preemption is a collapse.
    spiral_generation_share: Share = 0.3

    # Mean inter-token latency over the engine's usual one, for starved. Move down where readers notice smaller gaps.
    starved_latency_factor: float = 3.0
    # Prompt tokens computed per generated one, for starved; both factors must be reached.
    starved_prefill_factor: float = 5.0
    # Mean inter-token latency over its usual at the same load, for degraded; 1.5 is beyond what a batch explains.
    degraded_latency_factor: float = 1.5
    # ... for this long. Move up where a noisy neighbour for minutes is of no concern.
    degraded_hold: Seconds = 600.0
    # Share of finished requests that end in error beside good ones, for degraded.
    degraded_error_share: Share = 0.05
    # KV usage while no request is present, for kv_held.
    kv_held_ratio: Share = 0.05
    # ... for this long: past the lease of a KV transfer (30 s by default).
    kv_held_after: Seconds = 60.0

    # Share of the window's scrapes with a queue, for saturated.
    saturated_share: Share = 0.8
    # Largest KV usage over the window, for kv_pressure. Move up for fleets that run full on purpose.
    kv_pressure_ratio: Share = 0.90

    # Preemptions beside a cache that was never this full (a pause, reset_prefix_cache) are not for lack of room.
    eviction_kv_ratio: Share = 0.7

    # Share of finishes with at most one output token that makes an engine a prefill engine.
    prefill_share: Share = 0.95
    # Share of its context that a victim computes again; without prefix caching 0.40-0.49 was measured, in mid-prefill.
    lost_share: Share = 0.4
    # The same with prefix caching, where most of it comes back, while the lengths are not known that it depends on.
    lost_share_prefix_caching: Share = 0.1
    # Windows without preemption, at this concurrency and length, that the useful baseline needs.
    baseline_windows: int = 30

    def at_interval(self, seconds: float) -> "Thresholds":
        """Return these limits for a target that is scraped every ``seconds``: a window holds four scrapes at least."""
        fast = max(self.fast_window, 4 * seconds)
        return replace(self, fast_window=fast, slow_window=max(self.slow_window, fast))
