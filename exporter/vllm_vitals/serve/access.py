"""Who may use our pages: users with a password and a role, push sources with a token.

Input: an `Access`, which may be replaced at any time. Output: a middleware that lets only the known in. Invariant: a
wrong name costs the same time as a wrong password, guessing keeps at most one thread busy and delays only who guesses,
and no password is kept.
"""

import asyncio
import base64
import binascii
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import bcrypt
from aiohttp import web
from aiohttp.typedefs import Middleware

from vllm_vitals.serve.fair_turns import TooMany, Turns

OPEN = frozenset({"/-/healthy", "/-/ready"})  # probes know no password, and learn nothing here
PUSH = "/api/v1/logs"
MAX_VERIFIED = 256  # credentials whose costly check need not be repeated
MAX_WAITING_OF_ONE = 32  # checks of one address that may queue; more at once is guessing, not people
MAX_WAITING = 128
MAX_PASSWORD = 72  # bytes that bcrypt reads; longer ones are refused, as the library does
READ, WRITE = "read", "write"


@dataclass(frozen=True, slots=True)
class Access:
    """bcrypt hashes by user, what each may do (a user that is not listed: everything), tokens by push source."""

    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tokens: Mapping[str, bytes] = field(default_factory=dict, repr=False)


class AccessControl:
    """Lets the known in. What is known may be replaced at any time."""

    def __init__(self, access: Access) -> None:
        self._access, self._dummy = access, dummy_hash(access.users)
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._turns = Turns(MAX_WAITING_OF_ONE, MAX_WAITING)
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="password")

    @property
    def asks(self) -> bool:
        """Whether it asks for a name and a password."""
        return bool(self._access.users)

    def use(self, access: Access) -> None:
        """Replace what is known. Who was let in by a name and hash that stay need not be checked again."""
        self._access, self._dummy = access, dummy_hash(access.users)

    def middleware(self) -> Middleware:
        """Return the aiohttp middleware that requires a name and a password, once there are users."""

        @web.middleware
        async def gate(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            refusal = None if request.path in OPEN else await self._check(request)
            return await handler(request) if refusal is None else refusal

        return gate

    def close(self) -> None:
        """End."""
        self._checker.shutdown(wait=False, cancel_futures=True)

    async def _check(self, request: web.Request) -> web.Response | None:
        """None for those who may come in, else what they are told."""
        header = request.headers.get("Authorization", "")
        if request.path == PUSH and self._access.tokens:
            return self._check_token(request, header)
        if not self._access.users:
            return None
        return await self._check_user(
            header, request.remote or "", READ if request.method in ("GET", "HEAD") else WRITE
        )

    def _check_token(self, request: web.Request, header: str) -> web.Response | None:
        """Refuse a push without the token of its source; each source has its own."""
        source = request.query.get("source", "")
        token = self._access.tokens.get(source)
        scheme, _, given = header.partition(" ")
        if token is not None and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token):
            return None
        return web.Response(
            status=401,
            text="401 Unauthorized: name the source by ?source= and send its token\n",
            headers={"WWW-Authenticate": 'Bearer realm="vllm-vitals"', "Connection": "close"},
        )

    async def _check_user(self, header: str, client: str, wants: str) -> web.Response | None:
        credentials = _decode(header)
        if credentials is None:
            return _unauthorized()
        name, password = credentials
        hashed = self._access.users.get(name, self._dummy)
        mark = hmac.digest(self._key, b"\0".join((name.encode(), hashed, password)), "sha256")
        if mark in self._verified:
            self._verified.move_to_end(mark)
            return self._allowed(name, wants)
        try:
            async with self._turns.turn(client):
                right = mark in self._verified or await self._matches(password, hashed)
        except TooMany:
            return web.Response(status=503, text="too many logins at once; try again\n", headers={"Retry-After": "1"})
        if not right or self._access.users.get(name) != hashed:
            return _unauthorized()
        self._verified[mark] = None
        while len(self._verified) > MAX_VERIFIED:
            self._verified.popitem(last=False)
        return self._allowed(name, wants)

    def _allowed(self, name: str, wants: str) -> web.Response | None:
        if wants in self._access.roles.get(name, (wants,)):
            return None
        return web.Response(status=403, text=f"this user may not {wants}: roles in the web config say who may\n")

    async def _matches(self, password: bytes, hashed: bytes) -> bool:
        """Return the costly check, away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._checker, bcrypt.checkpw, password, hashed)


def dummy_hash(users: Mapping[str, bytes]) -> bytes:
    """Return the hash that an unknown name is checked against: of no known password, as costly as the costliest."""
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
