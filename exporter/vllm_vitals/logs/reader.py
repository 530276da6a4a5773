"""The reader: sources in, a snapshot out, on one event loop.

After a crash: files go on at the last checkpoint with the counts that belong to it. What is served never runs ahead of
what is on disk, so each line of a file is in the served counts exactly once, also after kill -9; pushed lines are
acknowledged once they are on disk. Not kept: quantile windows and open requests (they refill), unread bytes of stdin.
"""

import asyncio
import contextlib
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog
from aiohttp import web

from vllm_vitals.logs import checkpoint, derive
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.checkpoint import CheckpointError, FileMark
from vllm_vitals.logs.config import LogsConfig, LogSource, zone_of
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import Decoded, Result
from vllm_vitals.logs.files import Chunk, FileFollower, Identity
from vllm_vitals.logs.framer import Line, LineFramer
from vllm_vitals.logs.push import PushHandler
from vllm_vitals.logs.snapshot import LogSnapshot
from vllm_vitals.logs.tally import Tally

# Lines that may wait for the rest of a split line before they are counted anyway.
MAX_HELD_BACK = 10_000
_SLICE = 500
_ACKNOWLEDGE_S = 10.0


@dataclass(slots=True)
class _Stream:
    """One run of bytes: its framer, its decoder, and decoded lines that cannot be counted yet."""

    framer: LineFramer
    decoder: LineDecoder
    waiting: list[Decoded] = field(default_factory=list)
    identity: Identity | None = None


class LogReader:
    """Reads every configured source until told to stop."""

    def __init__(
        self,
        config: LogsConfig,
        log: structlog.stdlib.BoundLogger | None = None,
        clock: Callable[[], float] = time.time,
        stdin: int | None = None,
    ) -> None:
        self._config = config
        self._log: structlog.stdlib.BoundLogger = log or structlog.get_logger()
        self._clock = clock
        self._stdin = stdin
        self._schemas = {source.name: config.schemas_of(source) for source in config.sources}
        self._marks: dict[str, dict[Identity, FileMark]] = {source.name: {} for source in config.sources}
        self._served: Tally | None = None
        self._changes = self._saved = 0
        self._save_failed = False
        self._on_disk = asyncio.Condition()
        self._hurry = asyncio.Event()
        self._judge = self._restored()
        self._pushed = {source.name: self._stream(source) for source in config.sources if source.push}

    async def run(self, stop: asyncio.Event) -> None:
        """Read until ``stop``; then write the last checkpoint."""
        readers = [self._guarded(source, stop) for source in self._config.sources if not source.push]
        ending = asyncio.Event()
        saver = asyncio.create_task(self._save_regularly(ending))
        try:
            await asyncio.gather(*readers, _until(stop))
        finally:
            ending.set()
            await saver
            await self._save()

    def snapshot(self, now: float) -> LogSnapshot:
        """What the logs say; the counts are those of the last checkpoint, where there is one."""
        return self._judge.snapshot(now, self._served)

    def push_routes(self) -> list[web.RouteDef]:
        """The routes to add to the web application; none without a push source."""
        if not self._pushed:
            return []
        limits = self._config.limits
        handler = PushHandler(
            self._pushed.keys(), self._pushed_lines, limits.max_push_bytes, limits.max_push_pending_bytes,
            limits.max_line_bytes,
        )  # fmt: skip
        return [web.post("/api/v1/logs", handler.handle)]

    def _restored(self) -> LogAggregator:
        infos = {
            source.name: SourceInfo(source.target, derive.ServerLimits(source.max_model_len, source.default_max_tokens))
            for source in self._config.sources
        }
        tally = self._restore_tally(infos)
        if self._config.checkpoint is not None:
            self._served = checkpoint.decode(checkpoint.encode({}, tally)).tally
        return LogAggregator(infos, self._config.limits.max_series, self._config.limits.window_s, tally)

    def _restore_tally(self, infos: dict[str, SourceInfo]) -> Tally:
        path = self._config.checkpoint
        try:
            found = checkpoint.load(path) if path is not None else None
        except (CheckpointError, OSError) as error:
            self._log.warning("log_checkpoint_unusable", path=str(path), why=_why(error), then="reading from the start")
            return Tally()
        if found is None:
            return Tally()
        for name, marks in found.marks.items():
            if name in self._marks:
                self._marks[name] = {(mark.device, mark.inode): mark for mark in marks}
        targets = {info.target for info in infos.values()}
        for by_source in (found.tally.records, found.tally.errors, found.tally.stats_lines, found.tally.series):
            for gone in by_source.keys() - infos.keys():
                del by_source[gone]
        for target in found.tally.servers.keys() - targets:
            del found.tally.servers[target]
        return found.tally

    def _stream(self, source: LogSource) -> _Stream:
        limit = self._config.limits.max_line_bytes
        return _Stream(LineFramer(limit), LineDecoder(self._schemas[source.name], zone_of(source.timezone), limit))

    async def _guarded(self, source: LogSource, stop: asyncio.Event) -> None:
        """A fault in one source is told and survived; it never stops the others."""
        read: Callable[[LogSource, asyncio.Event], Awaitable[None]] = self._stdin_lines if source.stdin else self._files
        while not stop.is_set():
            try:
                await read(source, stop)
                return
            except Exception as error:
                self._log.error("log_source_failed", source=source.name, why=_why(error), then="starting it again")
                await _until(stop, 10 * self._config.limits.poll_s)

    async def _files(self, source: LogSource, stop: asyncio.Event) -> None:
        marks = self._marks[source.name]
        follower = FileFollower(
            source.paths, tuple(marks.values()), source.start == "end", self._config.limits.max_files
        )
        streams: dict[int, _Stream] = {}
        try:
            while not stop.is_set():
                chunks = await asyncio.to_thread(follower.poll)
                for chunk in chunks:
                    stream = streams.get(chunk.key)
                    if stream is None:
                        stream = streams[chunk.key] = self._stream(source)
                    self._take(source.name, stream, chunk)
                    if chunk.last:
                        del streams[chunk.key]
                    await asyncio.sleep(0)
                for notice in follower.notices:
                    self._log.warning("log_file", source=source.name, notice=notice)
                follower.notices.clear()
                if not chunks:
                    await _until(stop, self._config.limits.poll_s)
        finally:
            follower.close()

    def _take(self, name: str, stream: _Stream, chunk: Chunk) -> None:
        """Count a chunk's lines and move its mark, both or neither: no await may come between them."""
        now = self._clock()
        stream.waiting += (stream.decoder.decode(line, now) for line in stream.framer.feed(chunk.data))
        if chunk.last:
            stream.waiting += (stream.decoder.decode(line, now) for line in stream.framer.flush())
            stream.waiting += stream.decoder.drain(now)
        elif stream.decoder.holding and len(stream.waiting) < MAX_HELD_BACK:
            return
        for decoded in stream.waiting:
            self._judge.observe(name, decoded, now)
        stream.waiting.clear()
        identity = (chunk.mark.device, chunk.mark.inode)
        if stream.identity not in (None, identity):  # the stream goes on in a copy of its file
            self._marks[name].pop(stream.identity, None)
        stream.identity = identity
        if chunk.last:
            self._marks[name].pop(identity, None)
        else:
            self._marks[name][identity] = replace(chunk.mark, offset=chunk.mark.offset - stream.framer.pending)
        self._changes += 1

    async def _stdin_lines(self, source: LogSource, stop: asyncio.Event) -> None:
        stream = self._stream(source)
        descriptor = sys.stdin.fileno() if self._stdin is None else self._stdin
        while not stop.is_set():
            data = await asyncio.to_thread(_read_ready, descriptor)
            if data is None:
                continue
            await self._count(source.name, stream, stream.framer.feed(data) if data else stream.framer.flush())
            if not data:
                return

    async def _pushed_lines(self, name: str, lines: list[Line]) -> "Counter[Result]":
        results = await self._count(name, self._pushed[name], lines)
        await self._until_on_disk(self._changes)
        return results

    async def _count(self, name: str, stream: _Stream, lines: list[Line]) -> "Counter[Result]":
        """Count lines in slices, so that a large batch does not hold up the loop."""
        results: Counter[Result] = Counter()
        for start in range(0, len(lines), _SLICE):
            now = self._clock()
            for line in lines[start : start + _SLICE]:
                decoded = stream.decoder.decode(line, now)
                self._judge.observe(name, decoded, now)
                results[decoded.result or "partial"] += 1
            self._changes += 1
            await asyncio.sleep(0)
        return results

    async def _until_on_disk(self, change: int) -> None:
        if self._config.checkpoint is None:
            return
        self._hurry.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ACKNOWLEDGE_S), self._on_disk:
                await self._on_disk.wait_for(lambda: self._saved >= change)

    async def _save_regularly(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            await _until_any((ending, self._hurry), self._config.limits.checkpoint_s)
            self._hurry.clear()
            await self._save()

    async def _save(self) -> None:
        """Write a checkpoint if anything changed, then serve it. A full disk costs the promise, not the counts."""
        path, change = self._config.checkpoint, self._changes
        if path is None or change == self._saved:
            return
        marks = {name: tuple(by_identity.values()) for name, by_identity in self._marks.items()}
        content = checkpoint.encode(marks, self._judge.tally)
        try:
            await asyncio.to_thread(checkpoint.save, path, content)
        except OSError as error:
            if not self._save_failed:
                then = "counting on; after a crash, lines since the last checkpoint are read again"
                self._log.error("log_checkpoint_failed", path=str(path), why=_why(error), then=then)
            self._save_failed = True
        else:
            if self._save_failed:
                self._log.info("log_checkpoint_works_again", path=str(path))
            self._save_failed = False
        self._served = checkpoint.decode(content).tally
        async with self._on_disk:
            self._saved = change
            self._on_disk.notify_all()


def _read_ready(descriptor: int) -> bytes | None:
    """What a descriptor has, b"" at its end, None where nothing came for half a second."""
    ready, _, _ = select.select([descriptor], [], [], 0.5)
    return os.read(descriptor, 64 * 1024) if ready else None


def _why(error: BaseException) -> str:
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(said.split())[:200]


async def _until(stop: asyncio.Event, timeout_s: float | None = None) -> None:
    await _until_any((stop,), timeout_s)


async def _until_any(events: tuple[asyncio.Event, ...], timeout_s: float | None) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
