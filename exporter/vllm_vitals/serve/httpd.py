"""The HTTP server under our pages and under the simulated vLLM: nothing of a request that breaks HTTP is repeated.

Input: an application. Output: a runner that serves it. Invariant: a request that cannot be read gets one fixed answer;
neither that answer nor a log line holds a byte of it (it may hold a password), and a flood of them is a line a minute.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vllm_vitals.scrape.target import joined

_UNREADABLE = (HttpProcessingError, web.RequestPayloadError, ConnectionError)  # no fault of ours
REPEAT_S = 60.0  # more of the same in the meantime is counted, not told


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


class Runner(web.AppRunner):
    """An `AppRunner` without an access log. ``tell`` hears of mishaps, each kind at most once in `REPEAT_S`."""

    def __init__(self, app: web.Application, on_fault: OnFault = _silence, **more: Any) -> None:
        super().__init__(app, access_log=None, **more)
        self._on_fault = on_fault
        self._told_at: dict[bool, float] = {}
        self._untold = Counter[bool]()

    @property
    def server(self) -> web.Server | None:
        """What makes a connection's protocol: as aiohttp's own, but with ours."""
        server = super().server
        if server is None:
            return None
        return cast("web.Server", partial(_Connection, server, self._report_fault, asyncio.get_running_loop()))

    def _report_fault(self, error: BaseException | None, client: str) -> None:
        """Tell of a fault, or count it where one like it was told of just now."""
        now, fault = asyncio.get_running_loop().time(), not isinstance(error, _UNREADABLE)
        if now - self._told_at.get(fault, float("-inf")) < REPEAT_S:
            self._untold[fault] += 1
            return
        self._told_at[fault] = now
        self._on_fault(HttpFault(fault, _kind(error, fault), client, self._untold.pop(fault, 0)))


async def listen(runner: Runner, host: str, port: int, option: str, tls: SSLContext | None = None) -> web.TCPSite:
    """Serve at an address (an empty host is all of them). Raises `ListenError`; ``option`` is what sets another."""
    try:
        site = web.TCPSite(runner, host or None, port, ssl_context=tls)
        await site.start()
    except (OSError, UnicodeError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise ListenError(f"cannot listen on {joined(host, port)}: {why}; {option} takes another address") from None
    return site


class _Connection(web.RequestHandler):
    """aiohttp's protocol, which would log and answer with what could not be read."""

    __slots__ = ("_report_fault",)

    def __init__(
        self,
        server: web.Server,
        report_fault: Callable[[BaseException | None, str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(server, loop=loop, access_log=None)  # type: ignore[arg-type]
        self._report_fault = report_fault

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what cannot be read, or to a fault of ours: a status in fixed words, then the end."""
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
        self._report_fault(exc_info, peer[0] if isinstance(peer, tuple) else "")


def _kind(error: BaseException | None, fault: bool) -> str:
    """An error's name; for a fault of ours also where it is."""
    if error is None or not fault:
        return type(error).__name__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{place}"
