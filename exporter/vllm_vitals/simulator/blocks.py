"""The pool of KV blocks: how many are free, and which free ones still hold a prefix someone may come back for.

Input: takes and gives, in blocks. Output: whether a take fits, and prefix hits. Free blocks that hold cached content
are kept as one segment per owner in least-recently-freed order and are lost from the tail of the oldest segment, the
order of vLLM's free queue (vllm/v1/core/block_pool.py). Invariant: cached free blocks never exceed free blocks.
"""

from collections import OrderedDict
from collections.abc import Hashable


class BlockPool:
    """Counts blocks; identity matters only for the content of free ones."""

    __slots__ = ("_caching", "_clean", "_segments", "free", "usable")

    def __init__(self, usable: int, caching: bool) -> None:
        self.usable = usable
        self.free = usable
        self._caching = caching
        self._clean = usable
        self._segments: OrderedDict[Hashable, int] = OrderedDict()

    def take(self, count: int) -> None:
        """Take `count` free blocks; the caller has checked that there are as many. Empty ones go first."""
        self.free -= count
        if not self._caching:
            return
        clean = self._clean - count
        while clean < 0:
            owner, held = next(iter(self._segments.items()))
            lost = min(held, -clean)
            clean += lost
            if lost == held:
                del self._segments[owner]
            else:
                self._segments[owner] = held - lost
        self._clean = clean

    def give(self, owner: Hashable, cached: int, empty: int) -> None:
        """Return blocks: `cached` of them keep `owner`'s prefix until they are taken, `empty` hold nothing of use."""
        self.free += cached + empty
        if not self._caching:
            return
        self._clean += empty
        if cached:
            stale = self._segments.pop(owner, 0)
            self._clean += stale
            self._segments[owner] = cached

    def cached(self, owner: Hashable) -> int:
        """Return how many leading blocks of `owner` a look-up would find among the free ones."""
        return self._segments.get(owner, 0)

    def revive(self, owner: Hashable, count: int) -> None:
        """Take back the first `count` cached blocks of `owner`, found by `cached`; the rest of its segment is lost."""
        if count:
            self.free -= count
            self._clean += self._segments.pop(owner) - count
