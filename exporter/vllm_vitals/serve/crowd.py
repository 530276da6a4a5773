"""How many reads are answered at once, in all and for one client.

Input: requests. Output: a middleware. Invariant: a crowd of slow readers never keeps others out for long: where there
is no room, the reader who takes longest is hung up on, unless none takes long; who waits for us is given more time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from operator import itemgetter

from aiohttp import web
from aiohttp.typedefs import Middleware

from vllm_vitals.serve.access import OPEN

MAX_READS = 64
MAX_READS_OF_ONE = 16  # from one address
PATIENCE_S = 2.0  # a reader that reads at all has its answer by then
BUILD_S = 8.0  # what we may take to make an answer, on top
_SENT_SINCE = web.RequestKey("sent_since", float)


def begins(request: web.Request) -> None:
    """Note that a large answer is ready and on its way: from now on it is the reader who takes time."""
    request[_SENT_SINCE] = asyncio.get_running_loop().time()


class Crowd:
    """The reads under way, oldest first."""

    def __init__(self) -> None:
        self._reads: dict[int, tuple[web.Request, float]] = {}  # and when its time begins

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
            self._reads[id(request)] = (request, now + BUILD_S)
            try:
                return await handler(request)
            finally:
                self._reads.pop(id(request), None)

        return gate

    def _has_room(self, request: web.Request, now: float) -> bool:
        """Return whether one more may connect, after closing one that blocks it."""
        reads = [(read.get(_SENT_SINCE, due), read) for read, due in self._reads.values()]
        same = [each for each in reads if each[1].remote == request.remote]
        crowded = same if len(same) >= MAX_READS_OF_ONE else reads if len(reads) >= MAX_READS else []
        if not crowded:
            return True
        since, slowest = min(crowded, key=itemgetter(0))
        if now - since < PATIENCE_S:
            return False
        del self._reads[id(slowest)]
        if slowest.transport is not None:
            slowest.transport.abort()
        return True
