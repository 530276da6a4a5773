"""Pretended vLLM servers of the soak: good ones that make progress, and hostile ones by the first part of their path.

Output: the port on standard output. Invariant: answers are made beforehand: attacking costs this machine little.
"""

import asyncio
import contextlib
import gzip
import itertools
import json
import re
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "recordings"
STEP_S = 2.0  # how often a good server's numbers move
_COUNTS = re.compile(rb"(?m)^(vllm:\S+(?:_total|_sum|_count|_bucket)\{[^\n]*\}) (\S+)$")
_QUEUE = re.compile(rb"(?m)^(vllm:num_requests_waiting\{[^\n]*\}) \S+$")


def recorded(name: str = "saturated_no_preemption", number: int = 30) -> bytes:
    """A page of a real server."""
    with gzip.open(RECORDINGS / name / "metrics.jsonl.gz") as lines:
        line = next(itertools.islice(lines, number, None))
    return json.loads(line)["text"].encode()


BASE = _QUEUE.sub(rb"\1 0", recorded())


def good(step: int) -> bytes:
    """The page of a server after ``step`` steps of work: all counters grow alike."""
    factor = 1 + step / 100
    return _COUNTS.sub(lambda m: b"%b %d" % (m[1], float(m[2]) * factor), BASE)


def rows(line: bytes, count: int, turn: int, head: bytes = b"") -> bytes:
    return BASE + head + b"".join(line % (turn, n) for n in range(count))


def engines(count: int, turn: int) -> bytes:
    names = (b"num_requests_running", b"num_requests_waiting", b"kv_cache_usage_perc", b"num_preemptions_total")
    parts = []
    for name in names:
        parts.append(b"# TYPE vllm:%b gauge\n" % name)
        parts += [b'vllm:%b{model_name="m",engine="r%d_%d"} 0.5\n' % (name, turn, n) for n in range(count)]
    return b"".join(parts)


def buckets(count: int, turn: int) -> bytes:
    name = b"vllm:time_to_first_token_seconds"
    row = name + b'_bucket{model_name="tiny",engine="0",le="%d.%d"} 1\n'
    return b"# TYPE %b histogram\n" % name + b"".join(row % (n, turn) for n in range(count)) + BASE


BODIES: dict[str, Callable[[int], bytes]] = {
    "engines": lambda turn: engines(1000, turn),
    "series": lambda turn: rows(b'vllm:zz{a="%d_%d"} 1\n', 150_000, turn, b"# TYPE vllm:zz gauge\n"),
    "families": lambda turn: rows(b"# TYPE vllm:y%d_%d gauge\n", 50_000, turn),
    "wanted": lambda turn: rows(
        b'vllm:request_success_total{engine="0",model_name="t",finished_reason="%d_%d"} 1\n', 100_000, turn
    ),
    "buckets": lambda turn: buckets(20_000, turn),
    "line": lambda turn: BASE + b"vllm:x{" + b",".join(b'a%d="%d"' % (n, turn) for n in range(90_000)) + b"} 1\n",
    "absurd": lambda turn: _COUNTS.sub(lambda m: m[1] + (b" 1.79e308", b" NaN", b" 5e-324")[turn % 3], BASE),
    "names": lambda turn: BASE.replace(b'model_name="tiny"', b'model_name="\xe2\x80\xae\x1b[31m<script>%d"' % turn),
    "models": lambda turn: BASE.replace(b'model_name="tiny"', b'model_name="m%d"' % turn),
    "cut": lambda turn: BASE[: len(BASE) * (turn % 7 + 1) // 9],
}  # fmt: skip


def http(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), more, body)


def bomb(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(megabytes)), packer.flush()])


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"#" * 0xFFFF + b"\n\r\n")
        await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\n#\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)


async def heads(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: " + b"b" * 1000 + b"\r\n")
        await writer.drain()


async def silent(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


STREAMS: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    "endless": endless, "drip": drip, "heads": heads, "silent": silent,
}  # fmt: skip
FIXED = {
    "bomb": http(bomb(64), b"Content-Encoding: gzip\r\n"),
    "redirect": b"HTTP/1.1 302 F\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n",
    "garbage": bytes(range(256)) * 16,
}
HOSTILE = (*BODIES, *STREAMS, *FIXED)


class Servers:
    """All of them, behind one port."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._good = (-1, b"")
        turns: dict[str, list[bytes]] = {name: [http(make(n)) for n in range(3)] for name, make in BODIES.items()}
        self._turns: dict[str, Iterator[bytes]] = {name: itertools.cycle(made) for name, made in turns.items()}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                mode = path.split("/")[1]
                if not path.endswith("/metrics"):
                    writer.write(http(b"{}"))
                elif mode in STREAMS:
                    await STREAMS[mode](writer)
                else:
                    writer.write(self._answer(mode))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            with contextlib.suppress(Exception):
                writer.close()

    def _answer(self, mode: str) -> bytes:
        if mode in FIXED:
            return FIXED[mode]
        if mode in self._turns:
            return next(self._turns[mode])
        step = int((time.monotonic() - self._begun) / STEP_S)
        if self._good[0] != step:
            self._good = (step, http(good(step)))
        return self._good[1]


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(Servers().serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1])
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
