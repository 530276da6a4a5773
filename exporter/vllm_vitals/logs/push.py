"""``POST /api/v1/logs``: lines that shippers send (Vector, Fluent Bit): NDJSON or one JSON array, gzip'd or not.

Input: a request. Output: 200 with what became of the lines, or an error with its mend. Invariant: a request counts
whole or not at all, so a sender that dies in mid-line and tries again counts its lines once.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

import orjson
from aiohttp import StreamReader, web

from vllm_vitals.logs.events import Result
from vllm_vitals.logs.framer import Line, LineFramer, TooLong

BODY_TIMEOUT_S = 30.0
Consume = Callable[[str, list[Line]], Awaitable["Counter[Result]"]]


class TooLarge(Exception):  # noqa: N818 - an outcome, not a fault
    """More bytes than one request may hold."""


class PushHandler:
    """Takes pushes for the named sources, at most ``max_pending`` bytes of bodies at a time."""

    def __init__(
        self, sources: Collection[str], consume: Consume, max_body: int, max_pending: int, max_line: int
    ) -> None:
        self._sources = sources
        self._consume = consume
        self._max_body, self._max_pending, self._max_line = max_body, max_pending, max_line
        self._pending = 0

    async def handle(self, request: web.Request) -> web.Response:
        """One request; ``?source=`` names the source where there is more than one."""
        source = request.query.get("source") or (next(iter(self._sources)) if len(self._sources) == 1 else "")
        if source not in self._sources:
            names = ", ".join(sorted(self._sources)) or "none is configured"
            return _error(404, f"no such push source; name one by ?source= ({names})")
        if (request.content_length or 0) > self._max_body:
            return self._too_large()
        reserved = self._max_body if request.content_length is None else request.content_length
        if self._pending + reserved > self._max_pending:
            return _error(429, "busy: try again in a second", {"Retry-After": "1"})
        self._pending += reserved
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await read_body(request.content, self._max_body)
            results = await self._consume(source, lines_of(body, self._max_line))
        except TooLarge:
            return self._too_large()
        except TimeoutError:
            return _error(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s")
        except (zlib.error, web.RequestPayloadError) as error:
            return _error(400, f"the body cannot be read: {' '.join(str(error).split())[:100]}")
        finally:
            self._pending -= reserved
        return web.json_response({"lines": results.total(), "results": dict(results)})

    def _too_large(self) -> web.Response:
        answer = _error(413, f"more than {self._max_body} bytes: send smaller batches")
        answer.force_close()  # the rest of the body is not worth reading
        return answer


async def read_body(stream: StreamReader, limit: int) -> bytes:
    """The body within ``limit``, unpacked if its first bytes say gzip: the server may have unpacked it already."""
    body = bytearray()
    unpack: zlib._Decompress | None = None
    first = True
    async for chunk in stream.iter_chunked(64 * 1024):
        if first and chunk[:2] == b"\x1f\x8b":
            unpack = zlib.decompressobj(wbits=31)
        first = False
        data = chunk
        while data:
            body += data if unpack is None else unpack.decompress(data, limit + 1 - len(body))
            if len(body) > limit:
                raise TooLarge
            data = b"" if unpack is None else unpack.unconsumed_tail
            if unpack is not None and unpack.eof and unpack.unused_data:
                data, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)
    if unpack is not None and not unpack.eof:
        raise zlib.error("incomplete gzip stream")
    return bytes(body)


def lines_of(body: bytes, max_line: int) -> list[Line]:
    """The lines of a body; the elements of a JSON array are its lines."""
    if body.lstrip()[:1] == b"[":
        try:
            records = orjson.loads(body)
        except orjson.JSONDecodeError:
            records = None
        if isinstance(records, list):
            return [TooLong() if len(line) > max_line else line for line in map(orjson.dumps, records)]
    framer = LineFramer(max_line)
    return framer.feed(body) + framer.flush()


def _error(status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": why}, status=status, headers=headers)
