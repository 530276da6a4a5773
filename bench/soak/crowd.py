"""The crowd of the soak: half-open connections, slow readers, guessed logins, foreign pages, and pushes of nonsense.

Input: the daemon's address. Invariant: each kind goes on until this process is killed, at a pace that leaves the
machine some time.
"""

import asyncio
import base64
import contextlib
import socket
import sys
from collections.abc import Awaitable, Callable

NONSENSE = (
    b"[" * 5_000,
    b"[" + b"{}," * 20_000 + b"{}]",
    b"\x1f\x8b\x08" + bytes(200),
    b"x" * 300_000,
    b"{\xff}\n" * 99,
)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    fields = {"Host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body:
        fields["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


class Crowd:
    """Everything that presses against one daemon. ``login`` is a right one's header, for those who need it."""

    def __init__(self, port: int, login: str) -> None:
        self._port, self._login = port, login

    async def half_open(self, _: int) -> None:
        """Say half a head and wait."""
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-A:")
            await asyncio.sleep(15)
        finally:
            writer.transport.abort()

    async def slow(self, number: int) -> None:
        """Ask for a large answer and take nothing of it."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        _, writer = await asyncio.open_connection(sock=sock, limit=1024)
        try:
            writer.transport.pause_reading()
            writer.write(request("GET", ("/metrics", "/", "/api/v1/engines")[number % 3], Authorization=self._login))
            await asyncio.sleep(25)
        finally:
            writer.transport.abort()

    async def guess(self, number: int) -> None:
        """Try a password."""
        word = base64.b64encode(f"prometheus:{number}".encode()).decode()
        await self._ask(request("GET", "/metrics", Authorization=f"Basic {word}"))

    async def foreign(self, number: int) -> None:
        """Be the page of another site, or a name that was let point here."""
        page = {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site", "Authorization": self._login}
        tried = (
            request("POST", "/-/reload", **page),
            request("POST", "/api/v1/logs?source=shipper", b'{"a":1}\n', Content_Type="text/plain", **page),
            request("GET", "/metrics", Authorization=self._login).replace(b"127.0.0.1", b"evil.example"),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        )
        await self._ask(tried[number % len(tried)])

    async def push(self, number: int) -> None:
        """Send what is no log."""
        body = NONSENSE[number % len(NONSENSE)]
        kind = {"Content_Type": "application/json", "Authorization": self._login}
        await self._ask(request("POST", "/api/v1/logs?source=nonsense", body, **kind))

    async def _ask(self, text: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(text)
            async with asyncio.timeout(20):
                await reader.read(4096)
        finally:
            writer.transport.abort()


async def again(attack: Callable[[int], Awaitable[None]], first: int, pause: float) -> None:
    """Attack for ever, one at a time."""
    number = first
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            await attack(number)
        number += 1
        await asyncio.sleep(pause)


# How many of each press at once, and how long each rests between two attempts (s).
PRESS = {"half_open": (300, 0.5), "slow": (60, 0.5), "guess": (8, 0.2), "foreign": (4, 0.5), "push": (2, 0.5)}


async def main(port: int, login: str, *kinds: str) -> None:
    """Press in these ways, or in all, until killed."""
    crowd = Crowd(port, login)
    pressing = [
        again(getattr(crowd, kind), number * 10**6, PRESS[kind][1])
        for kind in kinds or PRESS
        for number in range(PRESS[kind][0])
    ]
    await asyncio.gather(*pressing)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
