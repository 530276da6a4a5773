"""The HTTP server under our pages and under the simulated vLLM: nothing of a request that breaks HTTP is repeated.

Input: an application. Output: answers. Invariant: a request that cannot be read gets one fixed answer; neither that
answer nor a log line holds a byte of it (it may hold a password), a flood of them is a line a minute, and connections
are bounded in number and in how long they may be silent.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from ssl import SSLContext
from types import TracebackType
from typing import Self, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vllm_vitals.scrape.target import joined
from vllm_vitals.serve import connections
from vllm_vitals.serve.connections import Connections

_UNREADABLE = (HttpProcessingError, web.RequestPayloadError, ConnectionError)  # no fault of ours
REPEAT_S = 60.0  # more of the same in the meantime is counted, not told
SWEEP_S = 1.0
# asyncio and aiohttp leave cycles of some KB behind each connection. Those of short ones the collector finds among
# young objects; those of long ones a whole collection, which the daemon else never does (`spare_the_collector`).
COLLECT_AFTER = 2_000


@dataclass(frozen=True, slots=True)
class HttpFault:
    """Something that broke below the application: what kind of error, where in our code, for which client.

    ``fault`` is ours, else the request's; ``more`` of them came since the last that was told.
    """

    fault: bool
    error: str
    client: str
    more: int


OnFault = Callable[[HttpFault], None]


class ListenError(OSError):
    """The address cannot be listened on; the text is one line that names it and the mend."""


def _silence(_: HttpFault) -> None:
    pass


class HttpServer:
    """Serves an application, without an access log. ``on_fault`` hears each kind of mishap once in `REPEAT_S`."""

    def __init__(
        self,
        app: web.Application,
        on_fault: OnFault = _silence,
        shutdown_s: float = 2.0,
        handler_cancellation: bool = False,
        most: int = connections.MAX_CONNECTIONS,
    ) -> None:
        app.middlewares.insert(0, _mark_busy)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=shutdown_s, handler_cancellation=handler_cancellation
        )
        self.connections = Connections(most)
        self._on_fault = on_fault
        self._told_at: dict[bool, float] = {}
        self._untold = Counter[bool]()
        self._listening: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, option: str, tls: SSLContext | None = None) -> None:
        """Serve at an address (an empty host is all of them), instead of where it was served before.

        Raises `ListenError`; ``option`` is what sets another address.
        """
        await self.stop_listening()
        shake = connections.HEAD_S if tls is not None else None
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._accept, host or None, port, ssl=tls, ssl_handshake_timeout=shake, reuse_address=True
            )
        except (OSError, UnicodeError) as error:
            why = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise ListenError(f"cannot listen on {joined(host, port)}: {why}; {option} takes another address") from None

    async def stop_listening(self) -> None:
        """Accept no more; connections that are open live on."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._listening is not None  # noqa: S101 - asked for after `listen` alone
        host, port = self._listening.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """End; answers under way are given."""
        await self.stop_listening()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._runner.cleanup()

    def report_fault(self, error: BaseException | None, client: str) -> None:
        """Tell of a fault, or count it where one like it was told of just now."""
        now, fault = asyncio.get_running_loop().time(), not isinstance(error, _UNREADABLE)
        if now - self._told_at.get(fault, float("-inf")) < REPEAT_S:
            self._untold[fault] += 1
            return
        self._told_at[fault] = now
        self._on_fault(HttpFault(fault, _kind(error, fault), client, self._untold.pop(fault, 0)))

    def _accept(self) -> asyncio.BaseProtocol:
        """Return the protocol for one more client; one too many is disconnected."""
        now = asyncio.get_running_loop().time()
        if self._runner.server is None:
            return _HangUp()
        if not self.connections.may_come(now):
            silent = cast("_Connection | None", self.connections.give_way())
            if silent is None:
                return _HangUp()
            silent.hang_up()
        one = _Connection(self._runner.server, self)
        self.connections.accepted(one, now)
        return one

    async def _sweep(self) -> None:
        """Close connections that are silent for too long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if self.connections.lingered >= COLLECT_AFTER:
                self.connections.lingered = 0
                gc.collect()
            for one in self.connections.silent(asyncio.get_running_loop().time()):
                cast("_Connection", one).hang_up()

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep connections")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, _: TracebackType | None) -> None:
        await self.close()


@web.middleware
async def _mark_busy(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Tell its connection that a request is being answered: it is not silent."""
    one = cast("_Connection", request.protocol)
    one.busy += 1
    try:
        return await handler(request)
    finally:
        one.busy, one.served = one.busy - 1, True
        one.silent_since = asyncio.get_running_loop().time()


class _HangUp(asyncio.Protocol):
    """Talks to a client for whom there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class _Connection(web.RequestHandler):
    """aiohttp's protocol, which would log and answer with what could not be read."""

    __slots__ = ("_ours", "busy", "opened_at", "served", "silent_since")

    def __init__(self, server: web.Server, ours: HttpServer) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._ours = ours
        self.busy, self.served, self.silent_since, self.opened_at = 0, False, 0.0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._ours.connections.opened(self, asyncio.get_running_loop().time())

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._ours.connections.closed(self, asyncio.get_running_loop().time())
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """Close at once, whatever was on its way."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to what cannot be read, or to a fault of ours: a status in fixed words, then the end."""
        self.log_exception(exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of another answer was sent already")
        status = 400 if isinstance(exc, _UNREADABLE) else status
        text = f"{status} {HTTPStatus(status).phrase}\n"
        answer = web.Response(status=status, text=text, headers={"X-Content-Type-Options": "nosniff"})
        answer.force_close()
        return answer

    def log_exception(self, *_: object, exc_info: BaseException | None = None, **__: object) -> None:
        """Say what kind of error it was and who was at the other end; never the error's own text."""
        peer = self.peername
        self._ours.report_fault(exc_info, peer[0] if isinstance(peer, tuple) else "")


def _kind(error: BaseException | None, fault: bool) -> str:
    """Return an error's name; for a fault of ours also where it is."""
    if error is None or not fault:
        return type(error).__name__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{place}"
