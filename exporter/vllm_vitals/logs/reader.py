"""The reader: sources in, a snapshot out, on one event loop.

After a crash: files go on at the last checkpoint with the counts that belong to it. What is served never runs ahead of
what is on disk, so each line of a file is in the served counts exactly once, also after kill -9; pushed lines are
acknowledged once they are on disk. Not kept: quantile windows and open requests (they refill), unread bytes of stdin.
"""

import asyncio
import os
import select
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from aiohttp import web

from vllm_vitals.log import Logger, get_logger
from vllm_vitals.logs import checkpoint, response_limits
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.checkpoint import FileMark
from vllm_vitals.logs.config import LogsConfig, LogSource, zone_of
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import NOT_UNDERSTOOD, Decoded
from vllm_vitals.logs.files import Chunk, FileFollower, Identity
from vllm_vitals.logs.framer import Line, LineFramer
from vllm_vitals.logs.intake import Intake
from vllm_vitals.logs.ledger import Ledger, OnTrouble, silence
from vllm_vitals.logs.push import PushHandler
from vllm_vitals.logs.slices import Slices
from vllm_vitals.logs.snapshot import LogSnapshot
from vllm_vitals.logs.waiting import until, why_of

# Lines that may wait for the rest of a split line before they are counted anyway.
MAX_HELD_BACK = 10_000
# Lines of a source, all of them strange, after which that is said.
DOUBT_LINES, DOUBT_S = 100, 60.0
# Bytes that are counted in one step, with their mark: 4,096 empty lines take some milliseconds.
_STEP = 4096


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
        log: Logger | None = None,
        clock: Callable[[], float] = time.time,
        stdin: int | None = None,
        on_trouble: OnTrouble = silence,
    ) -> None:
        self._config = config
        self._log = log or get_logger()
        self._clock = clock
        self._stdin = stdin
        self._schemas = {source.name: config.schemas_of(source) for source in config.sources}
        self._slices, self._doubt_s = Slices(), DOUBT_S
        where = checkpoint.Where(config.checkpoint, config.limits.checkpoint_s)
        self._ledger = Ledger(where, {source.name: source.target for source in config.sources}, self._log, on_trouble)
        infos = {
            source.name: SourceInfo(
                source.target, response_limits.ServerLimits(source.max_model_len, source.default_max_tokens)
            )
            for source in config.sources
        }
        self._judge = LogAggregator(infos, config.limits.max_series, config.limits.window_s, self._ledger.tally)
        decoders = {source.name: self._stream(source).decoder for source in config.sources if source.push}
        self._intake = Intake(decoders, self._judge, self._ledger, self._slices, clock, config.limits)

    async def run(self, stop: asyncio.Event) -> None:
        """Read until ``stop``; then write the last checkpoint. Waits while another process owns the checkpoint."""
        try:
            if await self._ledger.take_over(stop):
                self._judge.tally = self._ledger.tally
                await self._read_all(stop)
        finally:
            self._ledger.release()

    async def _read_all(self, stop: asyncio.Event) -> None:
        readers = [self._guarded(source, stop) for source in self._config.sources if not source.push]
        ending = asyncio.Event()
        saver = asyncio.create_task(self._ledger.save_regularly(ending))
        try:
            await asyncio.gather(*readers, self._doubt(stop))
        finally:
            await self._intake.close()
            ending.set()
            await saver
            await self._ledger.save()

    async def _doubt(self, stop: asyncio.Event) -> None:
        """Say once of a source that nothing in it was understood: it is silent in every metric but one."""
        told: set[str] = set()
        while not stop.is_set():
            for name, results in self._judge.tally.records.items():
                strange = name not in told and results.keys() <= NOT_UNDERSTOOD and sum(results.values()) >= DOUBT_LINES
                if strange:
                    told.add(name)
                    mend = "vllm-vitals logs FILE --show 5 says why; is it vLLM's log, or does it need a mapping?"
                    self._log.warning("log_source_not_understood", source=name, results=dict(results), mend=mend)
            await until(stop, self._doubt_s)

    def snapshot(self, now: float) -> LogSnapshot:
        """Say what the logs say; the counts are those of the last checkpoint, where there is one."""
        return self._judge.snapshot(now, self._ledger.served)

    @property
    def trouble(self) -> str:
        """Why what is counted is not stored now, or why nothing is read; one line, or nothing."""
        return self._ledger.trouble

    def push_routes(self) -> list[web.RouteDef]:
        """Give the routes to add to the web application; none without a push source."""
        names = [source.name for source in self._config.sources if source.push]
        limits = self._config.limits
        handler = PushHandler(names, self._intake.take, limits.max_push_bytes, limits.max_push_pending_bytes)
        return [web.post("/api/v1/logs", handler.handle)] if names else []

    def _stream(self, source: LogSource) -> _Stream:
        limit = self._config.limits.max_line_bytes
        return _Stream(LineFramer(limit), LineDecoder(self._schemas[source.name], zone_of(source.timezone), limit))

    async def _guarded(self, source: LogSource, stop: asyncio.Event) -> None:
        """Tell of a fault in one source and go on: it never stops the others."""
        read: Callable[[LogSource, asyncio.Event], Awaitable[None]] = self._stdin_lines if source.stdin else self._files
        while not stop.is_set():
            try:
                await read(source, stop)
                return
            except Exception as error:
                self._log.error("log_source_failed", source=source.name, why=why_of(error), then="starting it again")
                await until(stop, 10 * self._config.limits.poll_s)

    async def _files(self, source: LogSource, stop: asyncio.Event) -> None:
        marks = self._ledger.marks[source.name]
        follower = FileFollower(
            source.paths, tuple(marks.values()), source.start == "end", self._config.limits.max_files
        )
        streams: dict[int, _Stream] = {}
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix=f"log {source.name}")
        try:
            while not stop.is_set():
                chunks = await loop.run_in_executor(thread, follower.poll)
                for chunk in chunks:
                    stream = streams.get(chunk.key)
                    if stream is None:
                        stream = streams[chunk.key] = self._stream(source)
                    await self._slices.run(self._take(source.name, stream, chunk))
                    if chunk.last:
                        del streams[chunk.key]
                for notice in follower.notices:
                    self._log.warning("log_file", source=source.name, notice=notice)
                follower.notices.clear()
                if not chunks:
                    await until(stop, self._config.limits.poll_s)
        finally:
            thread.shutdown(wait=False)
            follower.close()

    def _take(self, name: str, stream: _Stream, chunk: Chunk) -> Iterator[None]:
        """Count a chunk in steps, each with its mark."""
        start = chunk.mark.offset - len(chunk.data)
        for begin in range(0, len(chunk.data) or 1, _STEP):
            piece = chunk.data[begin : begin + _STEP]
            end = begin + len(piece)
            last = chunk.last and end == len(chunk.data)
            self._step(name, stream, piece, replace(chunk.mark, offset=start + end), last)
            yield

    def _step(self, name: str, stream: _Stream, piece: bytes, mark: FileMark, last: bool) -> None:
        """Count the lines of a piece and move its file's mark, both or neither: no await may come between them."""
        now = self._clock()
        stream.waiting += (stream.decoder.decode(line, now) for line in stream.framer.feed(piece))
        if last:
            stream.waiting += (stream.decoder.decode(line, now) for line in stream.framer.flush())
            stream.waiting += stream.decoder.drain(now)
        elif stream.decoder.holding and len(stream.waiting) < MAX_HELD_BACK:
            return
        for decoded in stream.waiting:
            self._judge.observe(name, decoded, now)
        stream.waiting.clear()
        marks, identity = self._ledger.marks[name], (mark.device, mark.inode)
        if stream.identity not in (None, identity):  # the stream goes on in a copy of its file
            marks.pop(stream.identity, None)
        stream.identity = identity
        if last:
            marks.pop(identity, None)
        else:
            marks[identity] = replace(mark, offset=mark.offset - stream.framer.pending)
        self._ledger.changed()

    async def _stdin_lines(self, source: LogSource, stop: asyncio.Event) -> None:
        stream = self._stream(source)
        descriptor = sys.stdin.fileno() if self._stdin is None else self._stdin
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix="log stdin")
        try:
            while not stop.is_set():
                data = await loop.run_in_executor(thread, _read_ready, descriptor)
                if data is None:
                    continue
                lines = stream.framer.feed(data) if data else stream.framer.flush()
                await self._slices.run(self._count(source.name, stream.decoder, lines))
                if not data:
                    return
        finally:
            thread.shutdown(wait=False)

    def _count(self, name: str, decoder: LineDecoder, lines: Iterable[Line]) -> Iterator[None]:
        for line in lines:
            now = self._clock()
            self._judge.observe(name, decoder.decode(line, now), now)
            self._ledger.changed()
            yield


def _read_ready(descriptor: int) -> bytes | None:
    """Read what a descriptor has, b"" at its end, None where nothing came for half a second."""
    ready, _, _ = select.select([descriptor], [], [], 0.5)
    return os.read(descriptor, 64 * 1024) if ready else None
