"""KV blocks that no request holds: usage while nothing is present, and an idle floor that rises from lull to lull.

Input: one engine's samples. Output: the held share, and since when. Sources: vllm/v1/core/block_pool.py get_usage
counts only referenced blocks, so with no request present it is 0, but for blocks that a KV transfer pins (its lease,
30 s by default, or the abort time-out of up to 300 s) or that were never freed. The gauge is refreshed by steps alone:
a server that has not stepped since may show an old value.
"""

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise

from vllm_vitals.core.sample import EngineSample

LEAST_HELD = 0.05  # share of the cache; below it rounding, and the null block of small caches
RISE = 0.01  # a point of usage from one lull to the next
LULLS = 3  # rises in a row
LULL_S = 5.0  # a single scrape without a request is no lull
REMEMBERED = 32  # lulls: a floor that rises by less than a point in each is found by what it rose in all
LEASED_S = 30.0  # a lull that is longer outlasts the lease of a transfer: what it shows at its end is not being fetched


@dataclass(frozen=True, slots=True)
class KvHeld:
    """``usage`` (0-1) with nobody present for ``seconds``; ``rising``: the floors of the last lulls, oldest first.

    ``seconds`` adds up lulls in a row that each outlasted a transfer's lease. ``present``: a request is there now, and
    this is what the lull before it showed.
    """

    usage: float
    seconds: float
    rising: tuple[float, ...] = ()
    present: bool = False


class KvHeldWatch:
    """One engine's memory of its lulls; forget it (make a new one) at a restart."""

    def __init__(self) -> None:
        self._lull_since: float | None = None
        self._floors: deque[float] = deque(maxlen=REMEMBERED)
        self._lowest = 1.0
        self._before = 0.0  # seconds of the lulls before this one in which as much was held
        self._last: KvHeld | None = None

    def feed(self, at: float, sample: EngineSample) -> KvHeld | None:
        """Take in a sample; None before the first lull, or where presence or the usage is not known."""
        usage = sample.kv_usage
        if usage is None or sample.running is None or sample.waiting is None:
            return None
        if sample.work > 0:
            if self._lull_since is not None:
                self._end(at - self._lull_since)
            return self._last
        if self._lull_since is None:
            self._lull_since, self._lowest = at, usage
        self._lowest = min(self._lowest, usage)
        if self._lowest < LEAST_HELD:
            self._before = 0.0
        floors = (*self._floors, self._lowest)
        rising = _rising(floors[-LULLS - 1 :]) or _rising(floors)
        seconds = at - self._lull_since
        held = KvHeld(self._lowest, seconds + (self._before if seconds >= LEASED_S else 0.0), rising)
        self._last = replace(held, present=True)
        return held

    def _end(self, seconds: float) -> None:
        if seconds >= LULL_S:
            self._floors.append(self._lowest)
        if seconds >= LEASED_S and self._lowest >= LEAST_HELD:
            self._before += seconds
        self._lull_since = None


def _rising(floors: tuple[float, ...]) -> tuple[float, ...]:
    """Return the last floors where each rose by a point, or where all of them rose and none fell; else nothing.

    A gauge that steps left behind goes up and down; what leaks only goes up.
    """
    steps = [b - a for a, b in pairwise(floors)]
    if len(steps) < LULLS:
        return ()
    slow = len(steps) > LULLS and all(step >= 0 for step in steps) and sum(step > 0 for step in steps) > LULLS
    if all(step >= RISE for step in steps) or (slow and sum(steps) >= LULLS * RISE):
        return floors[-LULLS - 1 :]
    return ()
