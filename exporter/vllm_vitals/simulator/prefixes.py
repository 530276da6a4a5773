"""Which blocks requests find in the prefix cache: their own from before a preemption, and prompt heads they share.

Input: requests entering and leaving the batch. Output: hits, in blocks. A shared head belongs to the requests that hold
it together and is held once; when the last of them leaves, it stays findable until the pool hands its blocks to others.
Invariant: ``request.shared`` blocks of a request belong to its prefix, all its others to itself.
"""

from vllm_vitals.simulator.blocks import BlockPool
from vllm_vitals.simulator.request import Request


class Prefixes:
    """The prefix cache of one engine. With caching off nothing is ever found."""

    def __init__(self, pool: BlockPool, block_size: int, caching: bool) -> None:
        self._pool = pool
        self._size = block_size
        self._caching = caching
        self._held: dict[int, list[int]] = {}  # by prefix: [requests that hold it, blocks]

    def look_up(self, request: Request) -> tuple[int, int, int]:
        """Hits in blocks: shared with others, the request's own, and how many of both are free ones now."""
        if not self._caching:
            return 0, 0, 0
        most = (request.tokens - 1) // self._size  # the last token is always computed
        shared = revived = 0
        if request.prefix_tokens:
            wanted = min(most, request.prefix_tokens // self._size)
            held = self._held.get(request.prefix)
            if held is not None:
                shared = min(wanted, held[1])
            else:
                shared = revived = min(wanted, self._pool.cached(("prefix", request.prefix)))
            if shared < wanted:
                return shared, 0, revived
        own = min(most - shared, self._pool.cached(request.id)) if request.preemptions else 0
        return shared, own, revived + own

    def hold(self, request: Request, shared: int, own: int) -> None:
        """The request takes the hits that `look_up` found."""
        if shared:
            held = self._held.get(request.prefix)
            if held is None:
                self._pool.revive(("prefix", request.prefix), shared)
                held = self._held[request.prefix] = [0, shared]
            held[0] += 1
        self._pool.revive(request.id, own)
        request.shared = shared
        request.blocks = shared + own

    def share(self, request: Request) -> bool:
        """The first request that has computed a whole shared head leaves it to the others; True if it did."""
        whole = request.prefix_tokens // self._size
        held = self._held.get(request.prefix)
        if not self._caching or request.shared >= whole or (held is not None and held[1] != request.shared):
            return False
        if held is None:
            held = self._held[request.prefix] = [0, 0]
        held[1] = whole
        held[0] += not request.shared
        request.shared = whole
        return True

    def release(self, request: Request) -> None:
        """The request gives up all its blocks; full ones stay findable until they are taken."""
        if request.shared:
            held = self._held[request.prefix]
            held[0] -= 1
            if not held[0]:
                self._pool.give(("prefix", request.prefix), held[1], 0)
                del self._held[request.prefix]
        full = max(0, min(request.computed // self._size, request.blocks) - request.shared)
        self._pool.give(request.id, full, request.blocks - request.shared - full)
        request.blocks = request.shared = request.computed = 0
