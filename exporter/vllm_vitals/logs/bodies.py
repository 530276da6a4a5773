"""Bodies of requests that send logs, within bounds set before they are unpacked.

Input: a request. Output: its bytes, unpacked. Invariant: all bodies that are held at one time have at most
``max_pending`` bytes together, each of them ``max_body``, whatever they say about their size.
"""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator

from aiohttp import web

BODY_TIMEOUT_S = 30.0
# A log packs 5 to 50 times; gzip's own limit is 1,032. Below RATIO_FROM bytes anything goes.
MAX_RATIO, RATIO_FROM = 500, 1 << 20
_CHUNK = 64 * 1024


class Refused(Exception):  # noqa: N818 - an outcome, not a fault
    """A push that is not acknowledged: the status, one line that says why, and when to come again (s)."""

    def __init__(self, status: int, why: str, retry_after_s: int | None = None) -> None:
        super().__init__(why)
        self.status, self.retry_after_s = status, retry_after_s


class Bodies:
    """Counts the bytes of the bodies that are held."""

    def __init__(self, max_body: int, max_pending: int) -> None:
        self._max_body, self._max_pending = max_body, max_pending
        self._pending = 0

    @contextlib.asynccontextmanager
    async def of(self, request: web.Request) -> AsyncIterator[bytes]:
        """Read a body and hold it. Raises `Refused`."""
        said = request.content_length
        if (said or 0) > self._max_body:
            raise self._too_large()
        body, held = bytearray(), 0
        packed = said if "Content-Encoding" in request.headers else None  # the server may unpack it before we see it
        try:
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    async for _ in self._read(request, body, packed):
                        held += self._hold(len(body) - held)
            except TimeoutError:
                raise Refused(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
            except (zlib.error, web.RequestPayloadError) as error:
                raise Refused(400, f"the body cannot be read: {' '.join(str(error).split())[:100]}") from None
            whole = bytes(body)
            body.clear()
            yield whole
        finally:
            self._pending -= held

    def _hold(self, size: int) -> int:
        if self._pending + size > self._max_pending:
            raise Refused(429, "busy: try again in a second", 1)
        self._pending += size
        return size

    async def _read(self, request: web.Request, body: bytearray, packed: int | None) -> AsyncIterator[None]:
        """Read into ``body``, unpacking what begins like gzip. ``packed``: its size before the server unpacked it."""
        unpack: zlib._Decompress | None = None
        came = 0
        async for chunk in request.content.iter_chunked(_CHUNK):
            if not came and chunk[:2] == b"\x1f\x8b":
                unpack = zlib.decompressobj(wbits=31)
            came += len(chunk)
            data = chunk
            while data:
                body += data if unpack is None else unpack.decompress(data, self._max_body + 1 - len(body))
                if len(body) > self._max_body:
                    raise self._too_large()
                _plausible(len(body), packed if unpack is None else came)
                data = b"" if unpack is None else unpack.unconsumed_tail
                if unpack is not None and unpack.eof and unpack.unused_data:
                    data, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)
            yield
        if unpack is not None and not unpack.eof:
            raise zlib.error("incomplete gzip stream")

    def _too_large(self) -> Refused:
        return Refused(413, f"more than {self._max_body} bytes: send smaller batches")


def _plausible(size: int, packed: int | None) -> None:
    if packed is not None and size > RATIO_FROM and size > MAX_RATIO * packed:
        raise Refused(413, f"unpacks to more than {MAX_RATIO} times its size: no log does; send it unpacked")
