"""Targets that come and go: file_sd and http_sd in Prometheus' formats, DNS, and the EndpointSlices of a cluster.

Inputs: a `Source`, a way to fetch, a resolver. Output: the list that was found last. Invariant: a source that fails
keeps its last good list and says why, once; one that answers replaces it at once, also by nothing. What it says is
read beside the event loop, and the same content only once.
"""

import asyncio
import glob
import hashlib
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Literal

from vllm_vitals import whole_file
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.log import Logger
from vllm_vitals.scrape.endpoint_slices import address, parse_slices
from vllm_vitals.scrape.target import DEFAULT_VLLM_PORT, Credentials, Target, Tls, shown
from vllm_vitals.scrape.target_groups import MAX_FOUND, Found, SourceError, parse_groups

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_FILES = 1_000
DNS_DEADLINE_S = 10.0
ASK_AGAIN_S = 1.0  # a name that had records and has none is asked again before it is believed


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files of target groups, JSON or YAML; the last part of a path may hold ``*``. Looked at every ``refresh`` s."""

    files: tuple[str, ...]
    refresh: float = 5.0


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A URL that answers target groups in JSON."""

    url: str = field(repr=False)
    refresh: float = 60.0
    credentials: Credentials = field(default_factory=Credentials)
    tls: Tls = field(default_factory=Tls)


@dataclass(frozen=True, slots=True)
class DnsSource:
    """Names whose records are targets. A and AAAA records need ``port``; SRV records bring their own."""

    names: tuple[str, ...]
    type: Literal["A", "AAAA", "SRV"] = "SRV"
    port: int = DEFAULT_VLLM_PORT
    refresh: float = 30.0


@dataclass(frozen=True, slots=True)
class KubernetesSource:
    """Pods of a namespace, behind the Services whose EndpointSlices have the labels ``selector``; all at ``port``."""

    api_server: str
    namespace: str
    selector: tuple[tuple[str, str], ...]
    port: int = DEFAULT_VLLM_PORT
    refresh: float = 15.0
    credentials: Credentials = field(default_factory=Credentials)
    tls: Tls = field(default_factory=Tls)


Source = FileSource | HttpSource | DnsSource | KubernetesSource
Parse = Callable[[str, bytes, Callable[[], bool]], list[Found]]
Fetch = Callable[[Target], Awaitable[Scrape]]
Resolve = Callable[[str, str, int], Awaitable[list[str]]]  # name, type, port -> addresses; none: no such name


class Discovery:
    """Keeps one source's list, ``found``, fresh."""

    def __init__(self, source: Source, fetch: Fetch, log: Logger, resolve: Resolve | None = None) -> None:
        self.found: list[Found] = []
        self._log = log
        self._reader = _reader(source, fetch, resolve or resolve_name)
        self._said = ""

    def close(self) -> None:
        """End what is still being read."""
        self._reader.gone.set()

    async def refresh(self) -> bool:
        """Read the source again; whether its list changed."""
        try:
            found, problems = await self._reader.read()
        except Exception as error:  # a bug must not end the watch
            found, problems = self.found, [f"{type(error).__name__}: {error}"[:300]]
        self._say("; ".join(problems))
        changed = found != self.found
        self.found = found
        return changed

    async def run(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Refresh at the source's pace until cancelled; ``changed`` is awaited after each change."""
        try:
            while True:
                await asyncio.sleep(self._reader.source.refresh)
                if await self.refresh():
                    await changed()
        finally:
            self.close()

    def _say(self, problem: str) -> None:
        """Log each new problem once, and its end once."""
        if problem and problem != self._said:
            self._log.warning("discovery_failed", why=problem, keeps="what was found last")
        elif self._said and not problem:
            self._log.info("discovery_recovered", targets=len(self.found))
        self._said = problem


def _reader(source: Source, fetch: Fetch, resolve: Resolve) -> "_Reader":
    reader = _Reader(source)
    if isinstance(source, FileSource):
        reader.parts, reader.read_part = lambda: _matching(source.files), reader.read_file
    elif isinstance(source, HttpSource):
        reader.parts, reader.read_part = lambda: [source.url], lambda _: reader.read_http(source, fetch)
    elif isinstance(source, KubernetesSource):
        reader.parts, reader.read_part = lambda: [source.namespace], lambda _: reader.read_cluster(source, fetch)
    else:
        reader.parts, reader.read_part = lambda: source.names, lambda name: reader.read_dns(source, name, resolve)
    return reader


class _Reader:
    """One source: each of its parts (file, URL, name) keeps its own last good list."""

    parts: Callable[[], Iterable[str]]
    read_part: Callable[[str], Awaitable[list[Found]]]

    def __init__(self, source: Source) -> None:
        self.source = source
        self.gone = Event()  # nobody waits any more for what is being read
        self._kept: dict[str, list[Found]] = {}
        self._known: dict[str, _Known] = {}

    async def read(self) -> tuple[list[Found], list[str]]:
        """Return what all parts list now, and what was wrong."""
        parts, problems = list(self.parts()), []
        self._kept = {part: self._kept.get(part, []) for part in parts}
        self._known = {part: self._known[part] for part in parts if part in self._known}
        for part in parts:
            try:
                self._kept[part] = await self.read_part(part)
            except SourceError as error:
                problems.append(str(error))
        found = [item for items in self._kept.values() for item in items]
        if len(found) > MAX_FOUND:
            problems.append(f"{len(found)} targets, more than {MAX_FOUND}: the rest is left out")
        return found[:MAX_FOUND], problems

    async def read_file(self, file: str) -> list[Found]:
        """Return the targets of a file; an unchanged one is not opened."""
        stamp, known = _stamp(file), self._known.get(file)
        if stamp is not None and known is not None and known.stamp == stamp:
            return known.said()
        return await self._parsed(file, file, await asyncio.to_thread(_content, file), stamp)

    async def read_http(self, source: HttpSource, fetch: Fetch) -> list[Found]:
        """Return the targets of a service."""
        where = shown(source.url)
        return await self._parsed(source.url, where, await _answer(source, source.url, fetch))

    async def read_cluster(self, source: KubernetesSource, fetch: Fetch) -> list[Found]:
        """Return the pods that a cluster's API lists."""
        url = address(source.api_server, source.namespace, dict(source.selector))
        needs = f"the token needs a Role in {source.namespace}: list on endpointslices of discovery.k8s.io"
        content = await _answer(source, url, fetch, needs)

        def parse(where: str, body: bytes, _: object) -> list[Found]:
            return parse_slices(where, body, source.port)

        return await self._parsed(source.namespace, shown(url), content, parse=parse)

    async def read_dns(self, source: DnsSource, name: str, resolve: Resolve) -> list[Found]:
        """Return the addresses of a name."""
        found = await _resolved(source, name, resolve)
        if not found and self._kept.get(name):
            await asyncio.sleep(ASK_AGAIN_S)
            found = await _resolved(source, name, resolve)
        return found

    async def _parsed(
        self, part: str, where: str, content: bytes, stamp: object = None, parse: Parse | None = None
    ) -> list[Found]:
        """Parse beside the event loop. Content that could not be parsed is not tried again either."""
        digest, known = hashlib.sha256(content).digest(), self._known.get(part)
        if known is None or known.digest != digest:
            known = await asyncio.to_thread(_parse, parse or parse_groups, where, content, digest, self.gone)
        self._known[part] = replace(known, stamp=stamp)
        return known.said()


@dataclass(frozen=True, slots=True)
class _Known:
    """What content, by its digest, was found to say: targets, or why there are none."""

    digest: bytes
    found: list[Found]
    problem: str = ""
    stamp: object = None

    def said(self) -> list[Found]:
        """Return the targets. Raises `SourceError`."""
        if self.problem:
            raise SourceError(self.problem)
        return self.found


async def _answer(source: HttpSource | KubernetesSource, url: str, fetch: Fetch, needs: str = "") -> bytes:
    """Return the body that a service answers with 200. Raises `SourceError`, which says what a refused token needs."""
    where, deadline = shown(url), min(10.0, source.refresh)
    accept = {"Accept": "application/json"}
    target = Target(
        where, url, source.refresh, deadline, credentials=source.credentials, tls=source.tls, headers=accept
    )
    reply = await fetch(target)
    if reply.body is None:
        status = reply.detail.partition(" from ")[0]
        why = f"{status}: {needs}" if needs and status in ("HTTP 401", "HTTP 403") else reply.detail
        raise SourceError(f"{where}: {reply.reason}: {why}")
    return reply.body


def _parse(parse: Parse, where: str, content: bytes, digest: bytes, gone: Event) -> _Known:
    try:
        return _Known(digest, parse(where, content, gone.is_set))
    except SourceError as error:
        return _Known(digest, [], str(error))


def _matching(patterns: Iterable[str]) -> list[str]:
    """Return the files that there are now; a plain path is listed even where it is missing, so that this is said."""
    files = [f for pattern in patterns for f in (sorted(glob.glob(pattern)) if "*" in pattern else [pattern])]
    return list(dict.fromkeys(files))[:MAX_FILES]


def _stamp(file: str) -> object:
    try:
        now = Path(file).stat()
    except OSError:
        return None
    return now.st_mtime_ns, now.st_size, now.st_ino, now.st_dev


def _content(file: str) -> bytes:
    return whole_file.read(Path(file), MAX_FILE_BYTES, SourceError)


async def _resolved(source: DnsSource, name: str, resolve: Resolve) -> list[Found]:
    try:
        async with asyncio.timeout(DNS_DEADLINE_S):
            addresses = await resolve(name, source.type, source.port)
    except TimeoutError:
        raise SourceError(f"dns {source.type} {name}: no answer within {DNS_DEADLINE_S:g} s") from None
    except OSError as error:
        raise SourceError(f"dns {source.type} {name}: {error.strerror or error}") from None
    return [Found(address) for address in sorted(set(addresses))]


async def resolve_name(name: str, kind: str, port: int) -> list[str]:
    """Addresses of a name. Raises OSError where nobody could tell; an empty list means that it has no such records."""
    if kind == "SRV":
        return await _resolve_srv(name)
    family = socket.AF_INET6 if kind == "AAAA" else socket.AF_INET
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(name, port, family=family, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NO_SUCH_NAME:
            return []
        raise
    hosts = [str(row[4][0]) for row in rows]
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]


_NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


async def _resolve_srv(name: str) -> list[str]:
    try:
        from dns import asyncresolver, exception, resolver  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise OSError("SRV records need dnspython: pip install 'vllm-vitals[dns]'") from None
    try:
        answer = await asyncresolver.resolve(name, "SRV", lifetime=DNS_DEADLINE_S)
    except (resolver.NXDOMAIN, resolver.NoAnswer):
        return []
    except exception.DNSException as error:
        raise OSError(" ".join(str(error).split())[:200]) from None
    return [f"{record.target.to_text(omit_final_dot=True)}:{record.port}" for record in answer]
