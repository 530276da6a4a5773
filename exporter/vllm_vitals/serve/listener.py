"""The socket that our pages are served on.

Inputs: an application, where to listen, a TLS context or none. Outputs: answers; a line where one failed. Invariant:
another certificate takes the old one's place while it runs; open connections live on.
"""

import ssl
from types import TracebackType
from typing import Self

from aiohttp import web

from vllm_vitals.log import Logger
from vllm_vitals.scrape.target import joined
from vllm_vitals.serve import connections
from vllm_vitals.serve.httpd import HttpFault, HttpServer


class Listener:
    """Serves an application at the configured address; port 0 takes a free one."""

    def __init__(self, app: web.Application, host: str, port: int, tls: ssl.SSLContext | None, log: Logger) -> None:
        self._log = log
        self._server = HttpServer(app, self._log_fault, most=connections.most())
        self.wanted = host, port
        self.host, self.port = self.wanted
        self._tls = tls
        self._listens = False

    @property
    def is_tls(self) -> bool:
        """Whether it speaks TLS now."""
        return self._tls is not None

    @property
    def url(self) -> str:
        """Where a person finds it."""
        return f"{'http' if self._tls is None else 'https'}://{joined(self.host, self.port)}"

    async def serve(self, tls: ssl.SSLContext | None) -> None:
        """Listen, with or without TLS; a new context takes the old one's place without a connection being cut."""
        if self._listens and tls is None and self._tls is None:
            return
        self._tls = tls
        await self._server.listen(self.wanted[0], self.port, "--listen", tls)
        self._listens = True
        self.host, self.port = self._server.address

    async def close(self) -> None:
        """End; answers under way are given."""
        await self._server.close()

    def _log_fault(self, fault: HttpFault) -> None:
        say, event = (self._log.error, "request_failed") if fault.fault else (self._log.warning, "bad_request")
        say(event, error=fault.error, client=fault.client, more=fault.more)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        try:
            await self.serve(self._tls)
        except BaseException:
            await self._server.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, _: TracebackType | None) -> None:
        await self.close()
