"""Recordings as servers on loopback, at true speed: each line is served at the moment at which it was recorded.

While the recorded server refused connections, so does this one: its port is closed. Used by the incidents run.
"""

import asyncio
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from vllm_vitals.core.snapshot import DOWN_REASONS, Scrape
from vllm_vitals.recordings.recording import read


@dataclass
class Player:
    """One recording's server. ``port`` is free on loopback; ``seconds`` is how long the recording is."""

    name: str
    port: int
    rows: list[Scrape]
    began: float = 0.0

    @property
    def seconds(self) -> float:
        return self.rows[-1].at - self.rows[0].at

    def current(self) -> Scrape | None:
        """The scrape to answer with now, or None once the recording is over."""
        elapsed = asyncio.get_running_loop().time() - self.began
        if elapsed > self.seconds:
            return None
        return next(row for row in reversed(self.rows) if row.at - self.rows[0].at <= elapsed)

    async def answer(self, _: web.Request) -> web.Response:
        """/metrics as it was, under this recording's own model name."""
        row = self.current()
        if row is None or row.body is None:
            return web.Response(status=503)
        renamed = re.sub(rb'model_name="[^"]*"', f'model_name="{self.name}"'.encode(), row.body)
        return web.Response(body=renamed, content_type="text/plain")

    async def play(self) -> None:
        """Listen whenever the recorded server did, until the recording ends."""
        app = web.Application()
        app.router.add_get("/metrics", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site: web.TCPSite | None = None
        while (row := self.current()) is not None:
            open_now = row.body is not None or row.reason not in DOWN_REASONS
            if open_now and site is None:
                site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
                await site.start()
            elif not open_now and site is not None:
                await site.stop()
                site = None
            await asyncio.sleep(0.2)
        await runner.cleanup()


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def player(folder: Path) -> Player:
    """The player of one recording's folder."""
    return Player(folder.name, free_port(), list(read(folder / "metrics.jsonl.gz")))
