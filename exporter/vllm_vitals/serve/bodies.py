"""Large answers: built once for all who ask at the same time, away from the event loop, and sent within a deadline.

Input: what builds a body; requests. Output: responses. Invariant: readers, however many and slow, hold a bounded number
of bodies, and none holds one for longer than `WRITE_S`.
"""

import asyncio
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from weakref import WeakValueDictionary

from aiohttp import web

from vllm_vitals.serve import crowd

WRITE_S = 20.0  # Prometheus gives up on a scrape after 10 s unless told otherwise
CHUNK = 64 * 1024
FEW = 4  # bodies that may be on their way at once; beyond, a new reader gets one that is up to `SHARED_S` old
SHARED_S = 5.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(slots=True, eq=False, weakref_slot=True)
class Body:
    """What is sent, and to how many at the moment. ``built_at`` is the event loop's time."""

    pieces: Sequence[bytes]
    headers: Mapping[str, str]
    status: int
    built_at: float
    readers: int = 0

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(map(len, self.pieces))


Build = Callable[[], Iterable[bytes]]


class SharedBodies:
    """Builds bodies, one at a time. What builds runs in a thread: it must only read what is never changed."""

    def __init__(self) -> None:
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="render")
        self._building: dict[Hashable, asyncio.Task[Body]] = {}
        self._last: WeakValueDictionary[Hashable, Body] = WeakValueDictionary()  # as long as somebody is sent it
        self.sending = 0  # different bodies on their way

    async def send(
        self, request: web.Request, key: Hashable, build: Build, headers: Mapping[str, str], status: int = 200
    ) -> web.StreamResponse:
        """Answer with what ``build`` makes; requests with the same ``key`` at the same time share it."""
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        body = await self._get((key, packed), build, headers, status, packed)
        if body.size <= CHUNK or request.method == "HEAD":
            return web.Response(body=b"".join(body.pieces), status=body.status, headers={**HEADERS, **body.headers})
        self.sending += not body.readers
        body.readers += 1
        try:
            return await stream(request, body)
        finally:
            body.readers -= 1
            self.sending -= not body.readers
            del body  # an error that is on its way keeps this frame for as long as nobody collects cycles

    async def _get(self, key: Hashable, build: Build, headers: Mapping[str, str], status: int, packed: bool) -> Body:
        now, last = asyncio.get_running_loop().time(), self._last.get(key)
        if last is not None and self.sending >= FEW and now - last.built_at < SHARED_S:
            return last
        task = self._building.get(key)
        if task is None:
            task = self._building[key] = asyncio.create_task(self._build(build, headers, status, packed))
            task.add_done_callback(lambda _: self._building.pop(key, None))
        body = await asyncio.shield(task)
        self._last[key] = body
        return body

    async def _build(self, build: Build, headers: Mapping[str, str], status: int, packed: bool) -> Body:
        loop = asyncio.get_running_loop()
        made, is_packed = await loop.run_in_executor(self._builder, _built, build, packed)
        more = {"Content-Encoding": "gzip"} if is_packed else {}
        return Body(made, {**headers, **more}, status, loop.time())

    def close(self) -> None:
        """End; what is being built is finished."""
        self._builder.shutdown(wait=False, cancel_futures=True)


async def stream(request: web.Request, body: Body) -> web.StreamResponse:
    """Send a large body piece by piece, within `WRITE_S`; who takes longer is hung up on."""
    response = web.StreamResponse(status=body.status, headers={**HEADERS, **body.headers})
    response.content_length = body.size
    crowd.begins(request)
    try:
        async with asyncio.timeout(WRITE_S):
            await response.prepare(request)
            for piece in body.pieces:
                for at in range(0, len(piece), CHUNK):
                    await response.write(piece[at : at + CHUNK])
            await response.write_eof()
    except (TimeoutError, ConnectionError):  # too slow, or gone: an error on its way up would keep all these frames
        if request.transport is not None:
            request.transport.abort()
    return response


def _built(build: Build, packed: bool) -> tuple[Sequence[bytes], bool]:
    """Make the pieces, packed where that pays: then they are never whole in memory."""
    made = _gathered(build())
    first = next(made, b"")
    if not packed or len(first) < CHUNK:
        return (first, *made), False
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return (b"".join([*map(packer.compress, chain([first], made)), packer.flush()]),), True


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Put small pieces together: each but the last has at least `CHUNK` bytes."""
    small: list[bytes] = []
    size = 0
    for piece in pieces:
        small.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(small)
            small, size = [], 0
    if small:
        yield b"".join(small)
