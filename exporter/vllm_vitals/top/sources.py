"""Where the live view's engines come from: servers that it scrapes itself, a running daemon, a recording.

Input: targets, a daemon's address, a file. Output: each answer as `/api/v1/engines` has it, handed to a `Book`, and a
sign that there is something new. Invariant: servers are judged by the daemon's own evaluator; a source that fails says
so in one line and goes on.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.log import get_logger
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.recording import RecordingError
from vllm_vitals.recordings.replay import judge
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.fleet import make_evaluator
from vllm_vitals.scrape.poller import Poller
from vllm_vitals.scrape.target import Target, shown
from vllm_vitals.serve import views
from vllm_vitals.top.book import Book

LOOK_S = 1.0  # new answers of several servers are drawn together
LONGEST_S = 3600.0  # a pause in a recording is no longer than this, before it is divided by the speed

Changed = Callable[[], None]


class Source(Protocol):
    """Fills a book until it is cancelled, or has no more. ``title`` says what it is and how it fares."""

    title: str

    async def run(self, book: Book, changed: Changed) -> None:
        """Hand over every answer, and call ``changed`` after each."""
        ...


class Servers:
    """Scrapes servers at their intervals, without a daemon."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self.title = f"{len(targets)} server{'s' if len(targets) > 1 else ''}, every {targets[0].interval:g} s"

    async def run(self, book: Book, changed: Changed) -> None:
        """Poll for ever."""
        clock, log = Clock(), get_logger()
        async with Fetcher(clock.now) as fetcher:
            pollers = [
                Poller(target, fetcher.fetch, make_evaluator(target), clock, log, "none", fetcher.ask)
                for target in self._targets
            ]
            spread = min(1.0, self._targets[0].interval / 2) / len(pollers)
            async with asyncio.TaskGroup() as group:
                for number, poller in enumerate(pollers):
                    group.create_task(poller.run(number * spread))
                seen: list[TargetSnapshot] = []
                while True:
                    snapshots = [poller.snapshot for poller in pollers if poller.snapshot is not None]
                    if len(seen) != len(snapshots) or any(a is not b for a, b in zip(seen, snapshots, strict=True)):
                        seen, now = snapshots, clock.now()
                        book.take(now, [views.target_or_fault(each, now) for each in snapshots])
                        changed()
                    await asyncio.sleep(LOOK_S)


class Daemon:
    """Reads a running daemon's `/api/v1/engines`."""

    def __init__(self, target: Target, interval: float) -> None:
        address = target.url.partition("?")[0].removesuffix("/metrics")
        self._target, self._interval = replace(target, url=f"{address}/api/v1/engines"), interval
        self._name = f"daemon {shown(address)}"
        self.title = self._name

    async def run(self, book: Book, changed: Changed) -> None:
        """Read at the interval for ever; what was read last stays while it does not answer."""
        clock = Clock()
        async with Fetcher(clock.now) as fetcher:
            while True:
                scrape = await fetcher.fetch(self._target)
                targets = None if scrape.body is None else _targets(scrape.body)
                if targets is None:
                    why = scrape.detail or "not the answer of a vllm-vitals daemon (expected /api/v1/engines)"
                    self.title = f"{self._name}: {why}"
                else:
                    self.title = self._name
                    book.take(clock.now(), targets)
                changed()
                await asyncio.sleep(self._interval)


def _targets(body: bytes) -> list[dict[str, Any]] | None:
    """Return the daemon's targets, None where this is no such answer."""
    try:
        found = orjson.loads(body)["targets"]
        whole = all(isinstance(t, dict) and all(isinstance(e, dict) for e in t.get("engines") or ()) for t in found)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if whole else None


class Recording:
    """Plays a recording, so many times faster than it was."""

    def __init__(self, path: Path, speed: float, limits: Thresholds | None) -> None:
        self._path, self._speed, self._limits = path, speed, limits
        self._name = f"{recording.target_name(path)}, {speed:g} x"
        self.title = self._name

    async def run(self, book: Book, changed: Changed) -> None:
        """Play it once."""
        first = last = None
        try:
            for poll in judge(recording.target_name(self._path), recording.read(self._path), self._limits):
                if last is not None:
                    await asyncio.sleep(min(LONGEST_S, max(0.0, poll.at - last)) / self._speed)
                first, last = first if first is not None else poll.at, poll.at
                self.title = f"{self._name}, at {last - first:.0f} s"
                book.take(poll.at, [views.target_or_fault(poll, poll.at)])
                changed()
            self.title += ", end"
        except RecordingError as error:
            if last is None:
                raise
            self.title = f"{self.title}, {error}"
        changed()
