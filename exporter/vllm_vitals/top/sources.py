"""Where the live view's engines come from: servers that it scrapes itself, a running daemon, a recording.

Input: targets, a daemon's address, a file. Output: each answer as `/api/v1/engines` has it, handed to a `Book`, and a
sign that there is something new. Invariant: servers are judged by the daemon's own evaluator; a source that fails says
so in one line and goes on.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import orjson

from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import Scrape, TargetSnapshot
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.log import QUIET
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.recording import RecordingError
from vllm_vitals.recordings.replay import judge
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.poller import Poller, make_evaluator
from vllm_vitals.scrape.target import Target, shown
from vllm_vitals.serve import views
from vllm_vitals.top.memory import Book

LOOK_S = 1.0  # new answers of several servers are drawn together
LONGEST_S = 3600.0  # a pause in a recording is no longer than this, before it is divided by the speed

Changed = Callable[[], None]


class Source(Protocol):
    """Fills a book until it is cancelled, or has no more.

    ``title`` says what it is and how it fares; ``story``: lines for a person above the engines.
    """

    title: str
    story: Sequence[str]

    async def run(self, book: Book, changed: Changed) -> None:
        """Hand over every answer, and call ``changed`` after each."""
        ...

    def seek(self, seconds: float) -> str:
        """Go so far on or back; return what came of it, for the last line."""
        ...

    def save(self, target: str) -> str:
        """Begin a recording of a server, or end it; return what came of it."""
        ...


class Live:
    """A source whose present is all that there is."""

    story: Sequence[str] = ()

    def seek(self, seconds: float) -> str:
        """Return why not."""
        return "only a recording can be wound: top --replay FILE"

    def save(self, target: str) -> str:
        """Return why not."""
        return "only servers that top scrapes itself can be recorded: vllm-vitals record URL"


class Servers(Live):
    """Scrapes servers at their intervals, without a daemon. Recordings go into ``folder``."""

    def __init__(self, targets: Sequence[Target], folder: Path = Path()) -> None:
        self._targets, self._folder = targets, folder
        self._tapes: dict[str, tuple[recording.Writer, Path, ExitStack]] = {}
        self.title = f"{len(targets)} server{'s' if len(targets) > 1 else ''}, every {targets[0].interval:g} s"

    def save(self, target: str) -> str:
        """Begin a recording, or end it."""
        tape = self._tapes.pop(target, None)
        if tape is not None:
            tape[2].close()
            return f"{tape[1]}: {tape[0].scrapes} scrapes"
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", target)[:80].lstrip(".") or "server"
        path = self._folder / f"{safe}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl.gz"
        files = ExitStack()
        try:
            writer = files.enter_context(recording.Writer(files.enter_context(path.open("xb"))))
        except OSError as error:
            return f"{path}: {error.strerror}"
        self._tapes[target] = writer, path, files
        return f"recording {target} into {path}; w ends it"

    def _tape(self, scrape: Scrape, snapshot: TargetSnapshot) -> None:
        tape = self._tapes.get(snapshot.target)
        if tape is None:
            return
        try:
            tape[0].write(scrape)
        except OSError as error:
            del self._tapes[snapshot.target]
            self.title = f"{tape[1]}: {error.strerror}"

    async def run(self, book: Book, changed: Changed) -> None:
        """Poll for ever; recordings end with it."""
        try:
            await self._poll(book, changed)
        finally:
            for _, _, files in self._tapes.values():
                files.close()

    async def _poll(self, book: Book, changed: Changed) -> None:
        clock, log = Clock(), QUIET
        async with Fetcher(clock.now) as fetcher:
            pollers = [
                Poller(
                    target, fetcher.fetch, make_evaluator(target), clock, log, "none", fetcher.ask, record=self._tape
                )
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


class Daemon(Live):
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


class Recording(Live):
    """Plays a recording, so many times faster than it was."""

    def __init__(self, path: Path, speed: float, limits: Thresholds | None) -> None:
        self._path, self._speed, self._limits = path, speed, limits
        self._name = f"{recording.target_name(path)}, {speed:g} x"
        self.title = self._name
        self._at, self._goal = 0.0, 0.0  # seconds from its beginning: what is shown, and up to where nothing waits
        self._wound = asyncio.Event()

    def seek(self, seconds: float) -> str:
        """Go on without waiting, or begin again and go on up to there."""
        self._goal = max(0.0, (self._goal if self._wound.is_set() else self._at) + seconds)
        self._wound.set()
        return f"to {self._goal:.0f} s"

    async def run(self, book: Book, changed: Changed) -> None:
        """Play it, also again from where somebody winds it back to, until cancelled."""
        while True:
            wound = not await self._played(book, changed)
            changed()
            if not wound:
                await self._wound.wait()
            book.entries = {}

    async def _played(self, book: Book, changed: Changed) -> bool:
        """Play from the beginning; return False where it was wound back before its end."""
        first, self._at = None, 0.0
        try:
            for poll in judge(recording.target_name(self._path), recording.read(self._path), self._limits):
                first = poll.at if first is None else first
                if not await self._until(poll.at - first):
                    return False
                self._at = poll.at - first
                self.title = f"{self._name}, at {self._at:.0f} s"
                book.take(poll.at, [views.target_or_fault(poll, poll.at)])
                if self._at >= self._goal:
                    changed()
            self.title += ", end"
        except RecordingError as error:
            if first is None:
                raise
            self.title = f"{self.title}, {error}"
        return True

    async def _until(self, at: float) -> bool:
        """Wait until a scrape comes, up to the goal not at all; return False where what lies before is wanted."""
        wait = 0.0 if at <= self._goal else min(LONGEST_S, at - max(self._at, self._goal)) / self._speed
        with suppress(TimeoutError):
            await (asyncio.wait_for(self._wound.wait(), wait) if wait > 0 else asyncio.sleep(0))
        if not self._wound.is_set():
            return True
        self._wound.clear()
        return self._goal >= self._at
