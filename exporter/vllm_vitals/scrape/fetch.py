"""One scrape over HTTP: a target in, a `Scrape` out.

Inputs: a `Target`, a clock. Output: the body, or one reason out of `SCRAPE_ERRORS` with one line for a person.
Invariant: nothing that a target does raises, lasts longer than its timeout, holds more than the byte cap, or makes us
talk to another host than the one that the operator named.
"""

import asyncio
import base64
import errno
import re
import secrets
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from vllm_vitals import __version__
from vllm_vitals.core.exposition import burden
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.impairment import Impairment, is_ours, out_of_descriptors
from vllm_vitals.scrape import reasons
from vllm_vitals.scrape.canary import CanaryError
from vllm_vitals.scrape.target import Target, Tls, joined, shown

MAX_SECRET_BYTES = 64 * 1024
LATE_S = 0.5
NO_DESCRIPTORS = "vllm-vitals has no file descriptor left for it: raise the limit of open files (ulimit -n)"
CANARY_ID = "vllm-vitals-canary-"  # how the request ids begin by which the server's log knows canaries
# vLLM's own route answers plain text only; asking for it keeps proxies and old versions from answering OpenMetrics,
# whose writer turns vLLM's colons into underscores. Identity: vLLM never compresses, and we need not inflate.
_HEADERS = {
    "Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": f"vllm-vitals/{__version__}",
}
_BY_ERRNO = {
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ETIMEDOUT: "timeout",
}


class FetchError(Exception):
    """A scrape that gave no body: a reason of the closed set and one line."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = " ".join(detail.split())[:300]


class Fetcher:
    """The connections to all targets. One request per target is in flight at most, so connections are bounded too."""

    def __init__(
        self, clock: Callable[[], float], max_body: int = 16 * 1024**2, impairment: Impairment | None = None
    ) -> None:
        self._clock = clock
        self._impairment = impairment or Impairment(clock)
        self._max_body = max_body
        self._urls: dict[str, URL] = {}
        self._contexts: dict[Tls, tuple[object, ssl.SSLContext]] = {}
        connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, keepalive_timeout=60)
        # every deadline is ours: one total per scrape
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=_HEADERS,
            timeout=aiohttp.ClientTimeout(),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=16 * 1024,
        )

    async def fetch(self, target: Target) -> Scrape:
        """Scrape once, within the target's timeout."""
        at, begun, body = self._clock(), asyncio.get_running_loop().time(), bytearray()
        failure: FetchError | None = None
        try:
            async with asyncio.timeout(target.timeout):
                elsewhere = await self._get(target, target.url, body)
                if elsewhere is not None and await self._get(target, elsewhere, body) is not None:
                    raise FetchError("redirect", "the server redirects to itself again and again")
        except TimeoutError:
            part = f" ({len(body):,} bytes of a body had come)" if body else ""
            failure = FetchError("timeout", f"no whole answer within {target.timeout:g} s{part}")
        except FetchError as error:
            failure = error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = _classify(error, started=bool(body))
        duration = asyncio.get_running_loop().time() - begun
        if failure is not None:
            failure = self._whose(failure, duration, target.timeout)
            return Scrape(at, duration, None, failure.reason, failure.detail)
        return Scrape(at, duration, bytes(body))

    def _whose(self, failure: FetchError, duration: float, timeout: float) -> FetchError:
        """The same failure, unless it is ours: then `impaired`, which says nothing about the server."""
        if failure.reason == "dns" and out_of_descriptors():
            failure = FetchError("impaired", NO_DESCRIPTORS)
        if failure.reason == "timeout":
            lag = max(self._impairment.lag(duration), duration - timeout)
            if lag >= max(LATE_S, timeout / 2):
                return FetchError("impaired", f"vllm-vitals itself stood still for {lag:.1f} s and could not listen")
        if failure.reason == "impaired":
            self._impairment.meet("file_descriptors", failure.detail)
        return failure

    async def ask(self, target: Target) -> tuple[Mapping[str, str], str]:
        """Settings and version that a server tells outside its metrics; what it does not tell is left out."""
        version = await self._json(target, "version")
        models = await self._json(target, "v1/models")
        listed = models.get("data")
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        length, said = first.get("max_model_len"), version.get("version")
        settings = {"max_model_len": str(length)} if isinstance(length, int) else {}
        return settings, said[:64] if isinstance(said, str) else ""

    async def post(self, target: Target, path: str, payload: Mapping[str, Any], deadline: float) -> int:
        """Send JSON to ``path`` beside /metrics and read the whole answer; its status.

        Raises TimeoutError at the deadline (s), `CanaryError` where no answer came. Redirects are not followed.
        """
        address = _beside_metrics(target, path)
        request_id = CANARY_ID + secrets.token_hex(8)
        try:
            async with (
                asyncio.timeout(deadline),
                self._session.post(
                    address,
                    json=payload,
                    headers={**_own_headers(target), "Accept": "application/json", "X-Request-Id": request_id},
                    ssl=self._context(target),
                    server_hostname=target.tls.server_name or None,
                    allow_redirects=False,
                ) as response,
            ):
                await self._read(response, bytearray())
                return response.status
        except FetchError as error:
            raise CanaryError(error.detail) from None
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CanaryError(_classify(error, started=False).detail) from None

    async def _json(self, target: Target, path: str) -> dict[str, Any]:
        """A JSON object beside /metrics, or an empty one: this is a courtesy and never an error."""
        address, body = _beside_metrics(target, path), bytearray()
        try:
            async with asyncio.timeout(target.timeout):
                await self._get(target, address, body)
            answer = orjson.loads(body)
        except (TimeoutError, FetchError, aiohttp.ClientError, OSError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    async def _get(self, target: Target, url: str, body: bytearray) -> str | None:
        """Read into ``body``; or the address on the same server that it should be read from instead."""
        headers, context = _own_headers(target), self._context(target)
        server = target.tls.server_name or None
        address = self._urls.get(url) or self._urls.setdefault(url, URL(url))
        async with self._session.get(
            address, headers=headers, ssl=context, server_hostname=server, allow_redirects=False
        ) as response:
            location = response.headers.get("Location", "")
            if 300 <= response.status < 400 and location:
                followed = _same_origin(url, location)
                if followed is None:
                    raise FetchError("redirect", _redirect_text(response.status, url, location))
                return followed
            if response.status != 200:
                raise FetchError(reasons.of_status(response.status), _status_text(response.status, target))
            await self._read(response, body)
            return None

    async def _read(self, response: aiohttp.ClientResponse, body: bytearray) -> None:
        limit = f"larger than {self._max_body:,} bytes (limits.body)"
        if (size := response.content_length or 0) > self._max_body:
            response.close()
            raise FetchError("too_large", f"the body of {size:,} bytes is {limit}")
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_body:
                response.close()
                raise FetchError("too_large", f"the body is {limit}: {burden(body)}")

    def _context(self, target: Target) -> ssl.SSLContext | bool:
        """The TLS context of a target, made again only when one of its files changed."""
        tls = target.tls
        if not target.url.startswith("https:") or tls == Tls(server_name=tls.server_name):
            return True
        files = [file for file in (tls.ca_file, tls.cert_file, tls.key_file) if file]
        try:
            stamp = tuple(Path(file).stat().st_mtime_ns for file in files)
            known = self._contexts.get(tls)
            if known is None or known[0] != stamp:
                known = self._contexts[tls] = (stamp, make_context(tls))
        except (OSError, ssl.SSLError) as error:
            raise FetchError("tls", f"cannot use {', '.join(files)}: {_words(error)}") from None
        return known[1]

    def settle(self, targets: tuple[Target, ...], max_body: int) -> None:
        """A new config: these targets and this byte cap; what is kept for others is dropped."""
        self._max_body = max_body
        wanted = {target.tls for target in targets}
        self._contexts = {tls: known for tls, known in self._contexts.items() if tls in wanted}
        self._urls.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, _: TracebackType | None) -> None:
        await self._session.close()


def make_context(tls: Tls) -> ssl.SSLContext:
    """What to verify and what to show when connecting."""
    context = ssl.create_default_context(cafile=tls.ca_file or None)
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file:
        # a password prompt would hang the daemon: an encrypted key is an error
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    return context


def _beside_metrics(target: Target, path: str) -> str:
    """The address of ``path`` on the server whose metrics a target's URL names."""
    url = urlsplit(target.url)
    return url._replace(path=url.path.removesuffix("metrics") + path, query="").geturl()


def _own_headers(target: Target) -> dict[str, str]:
    """What a target's requests carry beside `_HEADERS`."""
    return {**target.headers, **_authorization(target)}


def _authorization(target: Target) -> dict[str, str]:
    who = target.credentials
    if who.bearer_token_file:
        return {"Authorization": f"Bearer {_secret(who.bearer_token_file)}"}
    if who.username:
        password = _secret(who.password_file) if who.password_file else who.password
        pair = base64.b64encode(f"{who.username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {}


def _secret(file: str) -> str:
    """A secret from its file, without the newline at its end."""
    try:
        with Path(file).open("rb") as handle:
            secret = handle.read(MAX_SECRET_BYTES + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchError("unauthorized", f"cannot read the secret in {file}: {_words(error)}") from None
    if not secret or len(secret) > MAX_SECRET_BYTES or not secret.isprintable():
        raise FetchError("unauthorized", f"the file {file} does not hold one line with a secret")
    return secret


def _same_origin(url: str, location: str) -> str | None:
    """Where a redirect leads, if that is the very server we were told to read."""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, location))
        same = (here.scheme, here.hostname, here.port) == (there.scheme, there.hostname, there.port)
    except ValueError:
        return None
    return there._replace(netloc=here.netloc, fragment="").geturl() if same else None


def _redirect_text(status: int, url: str, location: str) -> str:
    try:
        # a server may put what it was sent, our secret too, into the path
        where = shown(urlsplit(urljoin(url, location))._replace(path="").geturl())
    except ValueError:
        where = "an address that cannot be read"
    return f"HTTP {status} redirects to {where}: not followed; if that is the server, give its address as the target"


def _status_text(status: int, target: Target) -> str:
    path = urlsplit(target.url).path
    mend = {
        401: "give --bearer-token-file or --user, in the config bearer_token_file or basic_auth",
        403: "these credentials may not read metrics",
        404: f"there is no {path} here; is this a vLLM API server?",
        503: "the server is up but not serving; it may be starting or scaling",
    }.get(status, "see the server's own log")
    return f"HTTP {status} from {path}: {mend}"


def _classify(error: Exception, started: bool) -> FetchError:
    """A transport error as a reason. ``started`` means that part of a body had come."""
    text = _words(error)
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if is_ours(cause):
        return FetchError("impaired", NO_DESCRIPTORS if cause.errno in (errno.EMFILE, errno.ENFILE) else _words(cause))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FetchError("dns", f"the name {error.host} has no address: {_words(error.os_error)}")
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return FetchError("tls", text)
    if isinstance(error, aiohttp.ClientPayloadError) or (started and isinstance(error, OSError | aiohttp.ClientError)):
        return FetchError("truncated", f"the body ended early: {_cut_short(error)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if cause.errno == errno.ECONNREFUSED:
            where = f"{joined(error.host, error.port)} refuses connections"
            return FetchError("refused", f"{where}; vLLM opens its port only once the model is loaded")
        return FetchError(_BY_ERRNO.get(cause.errno or 0) or reasons.of_text(str(cause))[0], _words(cause))
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return FetchError("protocol", "the server closed the connection without an answer")
    if isinstance(error, aiohttp.ClientResponseError):
        # the parser's words, without its list of protocols and without its arrow below them
        what = " ".join(error.message.split()).removesuffix(" ^").removeprefix("Bad status line: ")
        what = what.replace("Expected HTTP/, RTSP/ or ICE/:", "it begins with")
        return FetchError("protocol", f"not an HTTP answer: {what}")
    if isinstance(error, OSError):
        return FetchError(_BY_ERRNO.get(error.errno or 0, "protocol"), text)
    return FetchError("protocol", text)


def _cut_short(error: Exception) -> str:
    """What was missing of a body, from the error below the library's own, whose text is that error's dump."""
    cause = error.__cause__
    words = cause.message if isinstance(cause, HttpProcessingError) else _words(error)
    came = re.search(r"received (\d+) of (\d+) bytes", words)
    return f"{came[1]} of {came[2]} bytes came" if came else " ".join(words.split())


def _words(error: BaseException) -> str:
    """An error in a few words, without the library's object dumps."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
