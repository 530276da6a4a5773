"""Which blocks requests find in the prefix cache: their own from before a preemption, and prompt blocks they share.

Input: requests entering, growing in and leaving the batch. Output: hits, in KV blocks. A prompt's shared part is a
chain of prefix blocks (`Request.prefix`), each some KV blocks long. One that is computed is held once by all requests
that found it; when the last of them leaves, it stays findable until the pool hands its KV blocks to others, the end of
the chain first (vllm/v1/core/kv_cache_manager.py frees a request's blocks in reverse order). Invariant: the leading
``request.shared`` KV blocks of a request belong to its first ``request.chain`` prefix blocks, all others to itself.
"""

from vllm_vitals.simulator.blocks import BlockPool
from vllm_vitals.simulator.request import PrefixBlock, Request


class Prefixes:
    """The prefix cache of one engine. With caching off nothing is ever found."""

    def __init__(self, pool: BlockPool, block_size: int, caching: bool) -> None:
        self._pool = pool
        self._size = block_size
        self._caching = caching
        self._held: dict[PrefixBlock, list[int]] = {}  # by prefix block: [requests that hold it, KV blocks]

    def look_up(self, request: Request) -> tuple[int, int, int]:
        """Return hits in KV blocks: shared with others, the request's own, and how many of both are free ones now."""
        if not self._caching:
            return 0, 0, 0
        most = (request.tokens - 1) // self._size  # the last token is always computed
        shared = revived = 0
        for index, block in enumerate(request.prefix):
            begin, end = self._bounds(request, index)
            held = self._held.get(block)
            found = min(most - begin, held[1] if held is not None else self._pool.cached(("prefix", block)))
            if found > 0:
                shared += found
                revived += found if held is None else 0
            if found < end - begin:
                return shared, 0, revived
        own = min(most - shared, self._pool.cached(request.id)) if request.preemptions else 0
        return shared, own, revived + own

    def hold(self, request: Request, shared: int, own: int) -> None:
        """Give the request the hits that `look_up` found."""
        index = 0
        while shared and index < len(request.prefix):
            block = request.prefix[index]
            begin, end = self._bounds(request, index)
            if begin >= shared:
                break
            held = self._held.get(block)
            if held is None:
                found = min(end, shared) - begin
                self._pool.revive(("prefix", block), found)
                held = self._held[block] = [0, found]
            held[0] += 1
            index += 1
        self._pool.revive(request.id, own)
        request.chain = index
        request.shared = shared
        request.blocks = shared + own

    def share(self, request: Request) -> None:
        """Leave to others what the request has computed of its prefix, as vLLM does once a step is scheduled.

        Where another request holds the same block already (both computed it) the request keeps its own copy and all
        that follows to itself.
        """
        if not self._caching:
            return
        whole = request.computed // self._size
        while request.chain <= len(request.prefix):
            partial = request.chain and self._bounds(request, request.chain - 1)[1] > request.shared
            index = request.chain - 1 if partial else request.chain
            if index == len(request.prefix):
                return
            begin, end = self._bounds(request, index)
            held = self._held.get(request.prefix[index])
            if whole < end or (held is not None and (not partial or held[1] != request.shared - begin)):
                return
            if held is None:
                self._held[request.prefix[index]] = [1, end - begin]
                request.chain += 1
            else:
                held[1] = end - begin
            request.shared = end

    def release(self, request: Request) -> None:
        """Take back all blocks of the request; full ones stay findable until they are taken."""
        full = max(0, min(request.computed // self._size, request.blocks) - request.shared)
        self._pool.give(request.id, full, request.blocks - request.shared - full)
        for block in reversed(request.prefix[: request.chain]):
            held = self._held[block]
            held[0] -= 1
            if not held[0]:
                self._pool.give(("prefix", block), held[1], 0)
                del self._held[block]
        request.blocks = request.shared = request.chain = request.computed = 0

    def _bounds(self, request: Request, index: int) -> tuple[int, int]:
        """Return the KV blocks of a prefix block, from and to; equal where it holds no whole one."""
        first = index * request.prefix_block
        return first // self._size, min(first + request.prefix_block, request.prefix_tokens) // self._size
