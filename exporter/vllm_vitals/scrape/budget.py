"""What one target may cost: CPU seconds, paid back by polling it more seldom.

Input: what each poll cost. Output: how long the target must now be left alone, and whether its bodies are read beside
the event loop. Invariant: whatever a target answers, in the long run it takes at most `SHARE` of one core, and it is
still looked at every `LONGEST_S`.
"""

SHARE = 0.1  # of one core. A real server of 100 ranks takes 0.5 s the first time and 20 ms a scrape after that
LONGEST_S = 300.0
INLINE_BYTES = 128 * 1024  # two engines of vLLM 0.32; larger bodies are read beside the event loop
INLINE_S = 0.02  # so are those of a target whose last one took longer than this


class Budget:
    """One target's. Times are the event loop's (s)."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last_cost = 0.0
        self.free_at = 0.0

    def is_light(self, size: int) -> bool:
        """Return whether a body of ``size`` bytes may be read on the event loop itself."""
        return size <= INLINE_BYTES and self._last_cost <= INLINE_S

    def spend(self, now: float, cost: float) -> float:
        """Pay for a poll that ended at ``now`` and cost so many CPU seconds; how long the target now waits, or 0."""
        self._last_cost = cost
        wait = min(cost / SHARE, LONGEST_S)
        if wait <= self._interval:
            return 0.0
        self.free_at = now + wait
        return wait
