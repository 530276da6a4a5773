"""Basic auth for our own pages.

Input: bcrypt hashes by user, which may be replaced at any time. Output: a middleware that lets only known users in.
Invariant: a wrong name costs the same time as a wrong password, guessing keeps at most one thread busy, and no password
is kept.
"""

import asyncio
import base64
import binascii
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import bcrypt
from aiohttp import web
from aiohttp.typedefs import Middleware

OPEN = frozenset({"/-/healthy", "/-/ready"})  # probes know no password, and learn nothing here
MAX_VERIFIED = 256  # credentials whose costly check need not be repeated
MAX_WAITING = 16  # checks that may queue; more at once is guessing, not people
MAX_PASSWORD = 72  # bytes that bcrypt reads; longer ones are refused, as the library does


class BasicAuth:
    """Lets known users in. ``users`` may be replaced at any time."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users, self._dummy = users, dummy_hash(users)
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._busy = asyncio.Lock()
        self._waiting = 0

    def use(self, users: Mapping[str, bytes]) -> None:
        """Replace the users; whoever was known is checked anew."""
        self._users, self._dummy = users, dummy_hash(users)
        self._verified.clear()

    def middleware(self) -> Middleware:
        """The aiohttp middleware that asks everyone for a name and a password, once there are users."""

        @web.middleware
        async def gate(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if self._users and request.path not in OPEN:
                refusal = await self._check(request.headers.get("Authorization", ""))
                if refusal is not None:
                    return refusal
            return await handler(request)

        return gate

    async def _check(self, header: str) -> web.Response | None:
        """None for those who may come in, else what they are told."""
        credentials = _decode(header)
        if credentials is None:
            return _unauthorized()
        name, password = credentials
        hashed = self._users.get(name, self._dummy)
        mark = hmac.digest(self._key, b"\0".join((name.encode(), hashed, password)), "sha256")
        if mark in self._verified:
            self._verified.move_to_end(mark)
            return None
        if self._waiting >= MAX_WAITING:
            return web.Response(status=503, text="too many logins at once; try again\n", headers={"Retry-After": "1"})
        if not await self._matches(password, hashed) or self._users.get(name) != hashed:
            return _unauthorized()
        self._verified[mark] = None
        while len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)
        return None

    async def _matches(self, password: bytes, hashed: bytes) -> bool:
        """The costly check, one at a time and away from the event loop."""
        self._waiting += 1
        try:
            async with self._busy:
                return await asyncio.to_thread(bcrypt.checkpw, password, hashed)
        finally:
            self._waiting -= 1


def dummy_hash(users: Mapping[str, bytes]) -> bytes:
    """What an unknown name is checked against: a hash of no known password, as costly as the users' costliest."""
    cost = max((hashed[4:6] for hashed in users.values()), default=b"10")
    return b"$2b$%b$pdLZhOP3cNaSBSrImKKSE.ILxBpcMHIFW5RSMwFhwf6quZSmRn6Wy" % cost


def _unauthorized() -> web.Response:
    return web.Response(
        status=401, text="401 Unauthorized\n", headers={"WWW-Authenticate": 'Basic realm="vllm-vitals"'}
    )


def _decode(header: str) -> tuple[str, bytes] | None:
    """Name and password of a Basic header that could be right."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 4 * (MAX_PASSWORD + 256):
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        text = name.decode()
    except (binascii.Error, ValueError):
        return None
    return (text, password) if colon and len(password) <= MAX_PASSWORD and b"\0" not in password else None
