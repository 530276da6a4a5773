"""One scrape over HTTP: a target in, a `Scrape` out.

Inputs: a `Target`, a clock. Output: the body, or one reason out of `SCRAPE_ERRORS` with one line for a person.
Invariant: nothing that a target does raises, lasts longer than its timeout, holds more than the byte cap, or makes us
talk to another host than the one that the operator named.
"""

import asyncio
import base64
import secrets
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import aiohttp
import orjson
from yarl import URL

from vllm_vitals.core.exposition import burden
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.impairment import Impairment, out_of_descriptors
from vllm_vitals.scrape import reasons
from vllm_vitals.scrape.canary import CanaryError
from vllm_vitals.scrape.decompress import Unpacker
from vllm_vitals.scrape.failures import NO_DESCRIPTORS, FetchError, classify, redirect_text, status_text, words
from vllm_vitals.scrape.session import connections_for_scrapes, new_session
from vllm_vitals.scrape.target import Target, Tls

MAX_SECRET_BYTES = 64 * 1024
LATE_S = 0.5
CANARY_ID = "vllm-vitals-canary-"  # how the request ids begin by which the server's log knows canaries


class Fetcher:
    """The connections to all targets. One request per target is in flight at most, so connections are bounded too."""

    def __init__(
        self, clock: Callable[[], float], max_body: int = 8 * 1024**2, impairment: Impairment | None = None
    ) -> None:
        self._clock = clock
        self.impairment = impairment or Impairment(clock)
        self._max_body = max_body
        self._urls: dict[str, URL] = {}
        self._contexts: dict[Tls, tuple[object, ssl.SSLContext]] = {}
        self._session, self._keeps = new_session(keep=True), True

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
            # a new one: what was raised holds this frame, with the body, until somebody collects cycles
            failure = FetchError(error.reason, error.detail)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = classify(error, started=bool(body))
        duration = asyncio.get_running_loop().time() - begun
        if failure is not None:
            failure = self._whose(failure, duration, target.timeout)
            return Scrape(at, duration, None, failure.reason, failure.detail)
        return Scrape(at, duration, bytes(body))

    def _whose(self, failure: FetchError, duration: float, timeout: float) -> FetchError:
        """Return the same failure, unless it is ours: then `impaired`, which says nothing about the server."""
        if failure.reason == "dns" and out_of_descriptors():
            failure = FetchError("impaired", NO_DESCRIPTORS)
        if failure.reason == "timeout":
            lag = max(self.impairment.lag(duration), duration - timeout)
            if lag >= max(LATE_S, timeout / 2):
                return FetchError("impaired", f"vllm-vitals itself stood still for {lag:.1f} s and could not listen")
        if failure.reason == "impaired":
            self.impairment.meet("file_descriptors", failure.detail)
        return failure

    async def ask(self, target: Target) -> tuple[Mapping[str, str], str]:
        """Return settings and version that a server exposes outside its metrics; what is missing is left out."""
        version = await self._json(target, "version")
        models = await self._json(target, "v1/models")
        listed = models.get("data")
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        length, said = first.get("max_model_len"), version.get("version")
        settings = {"max_model_len": str(length)} if isinstance(length, int) else {}
        return settings, said[:64] if isinstance(said, str) else ""

    async def post(self, target: Target, path: str, payload: Mapping[str, Any], deadline: float) -> tuple[int, bytes]:
        """Send JSON to ``path`` beside /metrics and read the whole answer; its status and body.

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
                body = bytearray()
                await self._read(response, body)
                return response.status, bytes(body)
        except FetchError as error:
            raise CanaryError(error.detail) from None
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CanaryError(classify(error, started=False).detail) from None

    async def _json(self, target: Target, path: str) -> dict[str, Any]:
        """Return a JSON object beside /metrics, or an empty one: this is a courtesy and never an error."""
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
                    raise FetchError("redirect", redirect_text(response.status, url, location))
                return followed
            if response.status != 200:
                raise FetchError(reasons.of_status(response.status), status_text(response.status, target))
            await self._read(response, body)
            return None

    async def _read(self, response: aiohttp.ClientResponse, body: bytearray) -> None:
        limit = f"larger than {self._max_body:,} bytes (limits.body)"
        if (size := response.content_length or 0) > self._max_body:
            response.close()
            raise FetchError("too_large", f"the body of {size:,} bytes is {limit}")
        unpacker = Unpacker(response.headers.get("Content-Encoding", ""))
        async for chunk in response.content.iter_any():
            for piece in unpacker.feed(chunk, self._max_body + 1 - len(body)):
                body += piece
                if len(body) <= self._max_body:
                    continue
                response.close()
                raise FetchError("too_large", f"the body is {limit}: {burden(body)}")

    def _context(self, target: Target) -> ssl.SSLContext | bool:
        """Return the TLS context of a target, made again only when one of its files changed."""
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
            raise FetchError("tls", f"cannot use {', '.join(files)}: {words(error)}") from None
        return known[1]

    async def settle(self, targets: tuple[Target, ...], max_body: int) -> None:
        """Take a new config: these targets and this byte cap; what is kept for others is dropped.

        Connections are kept between scrapes only where there are file descriptors for all of them.
        """
        self._max_body = max_body
        keep = len(targets) <= connections_for_scrapes()
        if keep is not self._keeps:
            old, self._session, self._keeps = self._session, new_session(keep=keep), keep
            await old.close()
        wanted = {target.tls for target in targets}
        self._contexts = {tls: known for tls, known in self._contexts.items() if tls in wanted}
        self._urls.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, _: TracebackType | None) -> None:
        await self._session.close()


def make_context(tls: Tls) -> ssl.SSLContext:
    """Return what to verify and what to show when connecting."""
    context = ssl.create_default_context(cafile=tls.ca_file or None)
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file:
        # a password prompt would hang the daemon: an encrypted key is an error
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    return context


def _beside_metrics(target: Target, path: str) -> str:
    """Return the address of ``path`` on the server whose metrics a target's URL names."""
    url = urlsplit(target.url)
    return url._replace(path=url.path.removesuffix("metrics") + path, query="").geturl()


def _own_headers(target: Target) -> dict[str, str]:
    """Return what a target's requests carry beside `_HEADERS`."""
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
    """Return a secret from its file, without the newline at its end."""
    try:
        with Path(file).open("rb") as handle:
            secret = handle.read(MAX_SECRET_BYTES + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchError("unauthorized", f"vllm-vitals cannot read the secret in {file}: {words(error)}") from None
    if not secret or len(secret) > MAX_SECRET_BYTES or not secret.isprintable():
        raise FetchError("unauthorized", f"the file {file} does not hold one line with a secret")
    return secret


def _same_origin(url: str, location: str) -> str | None:
    """Return where a redirect leads, if that is the configured server."""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, location))
        same = (here.scheme, here.hostname, here.port) == (there.scheme, there.hostname, there.port)
    except ValueError:
        return None
    return there._replace(netloc=here.netloc, fragment="").geturl() if same else None
