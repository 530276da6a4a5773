"""Turns at something that only one may do at a time, fair between clients.

Input: who asks. Output: one turn after another, in rotation over clients. Invariant: a client that asks for many turns
waits behind its own, never before another client's first; how many may wait is bounded, for each and in all.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator


class TooMany(Exception):  # noqa: N818 - an outcome, not a fault
    """No more may wait now."""


class Turns:
    """At most ``of_one`` turns of one client wait, ``in_all`` of all clients."""

    def __init__(self, of_one: int, in_all: int) -> None:
        self._of_one, self._in_all = of_one, in_all
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._taken = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._queues.values()))

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn and take it. Raises `TooMany`."""
        if self._taken:
            await self._wait(client)
        self._taken = True
        try:
            yield
        finally:
            self._next()

    async def _wait(self, client: str) -> None:
        if len(self._queues.get(client, ())) >= self._of_one or self.waiting >= self._in_all:
            raise TooMany
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._next()  # it was ours already
            elif mine in self._queues.get(client, ()):
                self._queues[client].remove(mine)
            raise

    def _next(self) -> None:
        """Give the turn to the next client's oldest, and put that client last."""
        self._taken = False
        while self._queues:
            client, queue = next(iter(self._queues.items()))
            oldest = queue.popleft() if queue else None
            if queue:
                self._queues.move_to_end(client)
            else:
                del self._queues[client]
            if oldest is not None and not oldest.done():
                self._taken = True
                oldest.set_result(None)
                return
