"""How many reads are answered at once, in all and for one client.

Input: requests. Output: a middleware. Invariant: a crowd of slow readers never keeps others out for long: where there
is no room, the reader who has been at it longest is hung up on, unless all have only just come.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from vllm_vitals.serve.access import OPEN

MAX_READS = 64
MAX_READS_OF_ONE = 16  # from one address
PATIENCE_S = 2.0  # a reader that reads at all has its answer by then


class Crowd:
    """The reads under way, oldest first."""

    def __init__(self) -> None:
        self._reads: dict[int, tuple[web.Request, float]] = {}

    def middleware(self) -> Middleware:
        """Return the aiohttp middleware that bounds concurrent requests."""

        @web.middleware
        async def gate(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if request.method not in ("GET", "HEAD") or request.path in OPEN:
                return await handler(request)
            now = asyncio.get_running_loop().time()
            if not self._has_room(request, now):
                return web.Response(
                    status=503, text="too many requests at once; try again\n", headers={"Retry-After": "1"}
                )
            self._reads[id(request)] = (request, now)
            try:
                return await handler(request)
            finally:
                self._reads.pop(id(request), None)

        return gate

    def _has_room(self, request: web.Request, now: float) -> bool:
        """Return whether one more may connect, after closing one that blocks it."""
        reads = list(self._reads.values())
        same = [read for read in reads if read[0].remote == request.remote]
        crowded = same if len(same) >= MAX_READS_OF_ONE else reads if len(reads) >= MAX_READS else []
        if not crowded:
            return True
        oldest, since = crowded[0]
        if now - since < PATIENCE_S:
            return False
        del self._reads[id(oldest)]
        if oldest.transport is not None:
            oldest.transport.abort()
        return True
