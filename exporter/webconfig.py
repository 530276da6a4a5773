"""TLS and basic auth for our own pages, by the web config file that Prometheus and its exporters use.

Input: that file (YAML). Outputs: an `ssl.SSLContext`, and a middleware that lets only known users in. Invariant: a
wrong name costs the same time as a wrong password, guessing keeps at most one thread busy, and no password is kept.
"""

import asyncio
import base64
import binascii
import hmac
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import bcrypt
from aiohttp import web
from aiohttp.typedefs import Middleware
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from exporter import strict_yaml

OPEN = frozenset({"/-/healthy", "/-/ready"})  # probes know no password, and learn nothing here
MAX_BYTES = 1024 * 1024
MAX_VERIFIED = 256  # credentials whose costly check need not be repeated
MAX_WAITING = 16  # checks that may queue; more at once is guessing, not people
MAX_PASSWORD = 72  # bytes that bcrypt reads; longer ones are refused, as the library does
_HASH = r"^\$2[abxy]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{53}$"  # cost 14 takes a second; 31 would take a day


class WebConfigError(Exception):
    """The file cannot be used. The text is one line that names the key and the mend."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Tls(_Model):
    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: Literal["", "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = ""
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class _Http(_Model):
    http2: bool = False  # part of the format; we speak HTTP/1.1 either way


class _File(_Model):
    tls_server_config: _Tls | None = None
    http_server_config: _Http = _Http()
    basic_auth_users: dict[str, Annotated[str, Field(pattern=_HASH)]] = {}


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How our pages are served: over TLS or not, and to whom (bcrypt hashes by user; nobody listed means anyone)."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def load(path: Path) -> WebConfig:
    """Read the file and what it names, relative to it. Raises `WebConfigError`."""
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise WebConfigError(f"{path}: larger than {MAX_BYTES} bytes")
        file = _File.model_validate(strict_yaml.load(str(path), content))
    except OSError as error:
        raise WebConfigError(f"{path}: {error.strerror}") from None
    except strict_yaml.YamlError as error:
        raise WebConfigError(str(error)) from None
    except ValidationError as error:
        raise WebConfigError(f"{path}: {_explain(error.errors(include_input=False)[0])}") from None
    tls = file.tls_server_config
    users = {name: hashed.encode() for name, hashed in file.basic_auth_users.items()}
    return WebConfig(None if tls is None else _context(path, tls), users)


def _explain(problem: Any) -> str:
    """One line on the first thing that is wrong; never with what the file says, which may be a password."""
    where = ".".join(map(str, problem["loc"])) or "the file"
    what = problem["msg"].replace("Input should be", "expected").replace("Field required", "is needed")
    if problem["loc"][:1] == ("basic_auth_users",):
        return f"{where}: expected a bcrypt hash of cost 4 to 14, such as htpasswd -nBC 10 makes"
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key"
    if problem["loc"][-1:] == ("client_auth_type",):
        return f"{where}: {what} (a certificate that is not verified proves nothing)"
    return f"{where}: {what}"


def _context(path: Path, tls: _Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}[tls.min_version]
    context.verify_mode = {
        "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
        "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
    }.get(tls.client_auth_type, ssl.CERT_NONE)
    if bool(tls.client_ca_file) != (context.verify_mode is not ssl.CERT_NONE):
        raise WebConfigError(
            f"{path}: tls_server_config: client_ca_file goes with a client_auth_type that verifies, and the reverse"
        )
    here = path.parent
    try:
        # a password prompt would hang the daemon: an encrypted key is an error
        context.load_cert_chain(here / tls.cert_file, here / tls.key_file, password="")
    except (OSError, ValueError) as error:
        files = f"{tls.cert_file} and {tls.key_file}"
        raise WebConfigError(f"{path}: tls_server_config: cannot use {files}: {_words(error)}") from None
    try:
        if tls.client_ca_file:
            context.load_verify_locations(here / tls.client_ca_file)
    except (OSError, ValueError) as error:
        where = f"{path}: tls_server_config.client_ca_file"
        raise WebConfigError(f"{where}: cannot use {tls.client_ca_file}: {_words(error)}") from None
    return context


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return " ".join(str(reason).split())[:200]


class Gate:
    """Lets known users in. ``users`` may be replaced at any time."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users, self._nobody = users, nobody(users)
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._busy = asyncio.Lock()
        self._waiting = 0

    def use(self, users: Mapping[str, bytes]) -> None:
        """Replace the users; whoever was known is checked anew."""
        self._users, self._nobody = users, nobody(users)
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
        hashed = self._users.get(name, self._nobody)
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


def nobody(users: Mapping[str, bytes]) -> bytes:
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
