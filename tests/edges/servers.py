"""Real servers on loopback, as rude as the world: raw bytes out, on a random port, in the test's own loop."""

import asyncio
import contextlib
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path

from vllm_vitals.scrape.target import Target, parse_address

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
Reply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@cache
def bodies(recording: str = "spiral_chunked") -> tuple[bytes, ...]:
    """The good bodies of a recording."""
    with gzip.open(RECORDINGS / recording / "metrics.jsonl.gz") as file:
        lines = [json.loads(line) for line in file]
    return tuple(line["text"].encode() for line in lines if line["status"] == 200)


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole HTTP answer."""
    fields = {"Content-Type": "text/plain; version=0.0.4", "Content-Length": str(len(body)), "Connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def says(answer: bytes) -> Reply:
    """Answers every request with the same bytes."""

    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return reply


def plays(answers: Iterator[bytes]) -> Reply:
    """Answers each request for metrics with the next body, and everything else with 404."""

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        found = b"/metrics " in request.split(b"\r\n")[0] + b" "
        writer.write(http(next(answers)) if found else http(b"", "404 Not Found"))
        await writer.drain()

    return reply


@contextlib.asynccontextmanager
async def serving(reply: Reply, until: bytes = b"\r\n\r\n", tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve, answering once ``until`` was heard; gives the base URL. Connections end with the block."""
    open_writers: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await reply(await reader.readuntil(until), writer)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        scheme = "https" if tls is not None else "http"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in open_writers:
            writer.transport.abort()  # also one that still has to send what nobody reads
        await server.wait_closed()
        await asyncio.sleep(0)


def target(url: str, timeout: float = 5.0, **more: object) -> Target:
    """A target at a URL."""
    address = parse_address(url)
    return Target(name=address.name, url=address.url, timeout=timeout, **more)  # type: ignore[arg-type]
