"""A thousand pretended vLLM servers in one cheap process: real 0.32 bodies that change from scrape to scrape.

Every address 127.x.y.z at one port is a server; each plays the recording from a point of its own. ``/stats`` tells how
many scrapes were served and how late they came. Prints its port, then serves until it is killed.
"""

import asyncio
import gzip
import json
import resource
import time
from pathlib import Path
from zlib import crc32

RECORDING = Path(__file__).parents[2] / "tests" / "data" / "recordings" / "spiral_chunked" / "metrics.jsonl.gz"


def responses() -> list[bytes]:
    """Whole HTTP answers, in the order of the recording."""
    with gzip.open(RECORDING, "rt") as lines:
        bodies = [scrape["text"].encode() for scrape in map(json.loads, lines) if scrape["status"] == 200]
    del bodies[0]  # before the first request a few series are missing: a server shows that once in its life
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\r\n"
    return [head.format(len(body)).encode() + body for body in bodies]


class Fleet:
    """What all servers share: the answers, and when each was asked."""

    def __init__(self) -> None:
        self.answers = responses()
        self.asked: dict[str, int] = {}
        self.last: dict[str, float] = {}
        self.gaps: list[float] = []
        self.scrapes = 0

    def next(self, address: str) -> bytes:
        now = time.monotonic()
        if address in self.last:
            self.gaps.append(now - self.last[address])
        self.last[address] = now
        number = self.asked.get(address, crc32(address.encode())) + 1
        self.asked[address] = number
        self.scrapes += 1
        return self.answers[number % len(self.answers)]

    def stats(self) -> bytes:
        body = json.dumps({"scrapes": self.scrapes, "gaps": self.gaps, "seen": len(self.last)}).encode()
        self.gaps, self.scrapes = [], 0
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Server(asyncio.Protocol):
    """One connection."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.transport, self.address = fleet, None, ""

    def connection_made(self, transport) -> None:
        self.transport, self.address = transport, transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /metrics"):
            self.transport.write(self.fleet.next(self.address))
        elif data.startswith(b"GET /stats"):
            self.transport.write(self.fleet.stats())
        else:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


async def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fleet = Fleet()
    server = await asyncio.get_running_loop().create_server(lambda: Server(fleet), "0.0.0.0", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
