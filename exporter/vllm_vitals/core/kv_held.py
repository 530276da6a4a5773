"""KV blocks that no request holds: usage while nothing is present, and an idle floor that rises from lull to lull.

Input: one engine's samples. Output: the held share, and since when. Sources: vllm/v1/core/block_pool.py get_usage
counts only referenced blocks, so with no request present it is 0, but for blocks that a KV transfer pins (its lease,
30 s by default, or the abort time-out of up to 300 s) or that were never freed. The gauge is refreshed by steps alone:
a server that has not stepped since may show an old value.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from vllm_vitals.core.sample import EngineSample

LEAST_HELD = 0.05  # share of the cache; below it rounding, and the null block of small caches
RISE = 0.01  # a point of usage from one lull to the next
LULLS = 3  # rises in a row
LULL_S = 5.0  # a single scrape without a request is no lull


@dataclass(frozen=True, slots=True)
class KvHeld:
    """``usage`` (0-1) with nobody present for ``seconds``; ``rising``: the floors of the last lulls, oldest first."""

    usage: float
    seconds: float
    rising: tuple[float, ...] = ()


class KvHeldWatch:
    """One engine's memory of its lulls; forget it (make a new one) at a restart."""

    def __init__(self) -> None:
        self._lull_since: float | None = None
        self._floors: deque[float] = deque(maxlen=LULLS + 1)
        self._lowest = 1.0

    def feed(self, at: float, sample: EngineSample) -> KvHeld | None:
        """Take in a sample; None while requests are present, or where their number or the usage is not known."""
        usage = sample.kv_usage
        if usage is None or sample.running is None or sample.waiting is None:
            return None
        if sample.work > 0:
            if self._lull_since is not None:
                if at - self._lull_since >= LULL_S:
                    self._floors.append(self._lowest)
                self._lull_since = None
            return None
        if self._lull_since is None:
            self._lull_since, self._lowest = at, usage
        self._lowest = min(self._lowest, usage)
        floors = (*self._floors, self._lowest)[-LULLS - 1 :]
        rises = len(floors) > LULLS and all(b - a >= RISE for a, b in pairwise(floors))
        return KvHeld(self._lowest, at - self._lull_since, floors if rises else ())
