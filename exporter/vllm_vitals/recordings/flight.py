"""The flight recorder: a target's scrapes from before and after an engine entered a bad state, on disk.

Inputs: every scrape and its snapshot. Outputs: recordings (see `vllm_vitals.recordings.recording`) in one directory.
Invariant: the directory stays within its bytes and number of files, only own files are ever deleted, and a disk that
is full or slow costs one line in the log and nothing else.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from zlib import crc32

from vllm_vitals.core.snapshot import Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.impairment import Impairment
from vllm_vitals.log import Logger
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.ring_buffer import ScrapeRingBuffer, unroll

TRIGGERS = frozenset({State.THRASHING, State.DEATH_SPIRAL, State.STALLED})
MAX_OPEN = 20  # recordings written at one time; when a whole fleet fails, so many show why
MAX_PENDING = 2_000  # scrapes waiting for a slow disk
MAX_EXTENSIONS = 6  # an incident that changes state again and again is recorded for so many times ``after``
_OURS = re.compile(r"(.+)-\d{8}T\d{6}Z-(?:thrashing|death_spiral|stalled)\.jsonl\.gz")


@dataclass(frozen=True, slots=True)
class Flight:
    """How much is kept, in seconds and bytes, and where."""

    directory: str
    before: float = 300.0
    after: float = 300.0
    memory_per_target: int = 384 * 1024
    max_bytes: int = 1024**3
    max_files: int = 200

    @property
    def max_file(self) -> int:
        """Bytes of one recording: all that are open and still growing fit half of the directory."""
        return self.max_bytes // (2 * MAX_OPEN)


@dataclass(slots=True)
class _Open:
    """A recording being written. The worker alone touches what has a default."""

    target: str
    state: State
    begun: float
    until: float
    last: float
    path: Path = field(default_factory=Path)
    files: ExitStack = field(default_factory=ExitStack)
    writer: recording.Writer | None = None
    done: bool = False


Submit = Callable[[Callable[[], None]], object]


class FlightRecorder:
    """Watches every poll. ``submit`` runs the work on files, in order, away from the event loop."""

    def __init__(
        self, flight: Flight, log: Logger, submit: Submit | None = None, impairment: Impairment | None = None
    ) -> None:
        self._flight, self._log, self._impairment = flight, log, impairment
        self._worker = None if submit else ThreadPoolExecutor(1, thread_name_prefix="flight")
        self._submit: Submit = submit or self._worker.submit  # type: ignore[union-attr]
        self._tapes: dict[str, ScrapeRingBuffer] = {}
        self._trouble: dict[str, frozenset[tuple[str, str, State]]] = {}
        self._open: dict[str, _Open] = {}
        self._room = BoundedSemaphore(MAX_PENDING)

    def observe(self, scrape: Scrape, snapshot: TargetSnapshot) -> None:
        """Take in one poll of one target."""
        target, flight = snapshot.target, self._flight
        if target not in self._tapes:
            self._tapes[target] = ScrapeRingBuffer(flight.before, flight.memory_per_target)
        self._tapes[target].push(scrape)
        entered = self._entered(snapshot)
        now = self._open.get(target)
        if now is None and entered:
            self._begin(target, min(entered, key=lambda state: state.rank), scrape.at)
        elif now is not None:
            if entered:
                now.until = min(scrape.at + flight.after, now.last)
            self._do(partial(self._write, now, [(scrape, scrape.body)]))
            if scrape.at >= now.until:
                self._end(now)

    def forget(self, targets: Iterable[str]) -> None:
        """Targets that are no longer watched: their recordings end, their memory goes."""
        for target in targets:
            self._tapes.pop(target, None)
            self._trouble.pop(target, None)
            if target in self._open:
                self._end(self._open[target])

    def close(self) -> None:
        """End every recording and wait until it is whole."""
        self.forget(list(self._tapes))
        if self._worker is not None:
            self._worker.shutdown()

    def _entered(self, snapshot: TargetSnapshot) -> list[State]:
        """States of trouble that an engine is in now and was not at the last poll."""
        now = frozenset((e.key.model_name, e.key.engine, e.state) for e in snapshot.engines if e.state in TRIGGERS)
        new = now - self._trouble.get(snapshot.target, frozenset())
        self._trouble[snapshot.target] = now
        return [state for _, _, state in new]

    def _begin(self, target: str, state: State, at: float) -> None:
        if len(self._open) >= MAX_OPEN:
            why = f"{MAX_OPEN} others are being recorded"
            self._log.warning("flight_not_recorded", target=target, state=state.value, why=why)
            return
        after = self._flight.after
        now = self._open[target] = _Open(target, state, at, at + after, at + after * MAX_EXTENSIONS)
        self._do(partial(self._create, now, len(self._open)))
        self._do(partial(self._write, now, self._tapes[target].copy()))

    def _end(self, now: _Open) -> None:
        self._open.pop(now.target, None)
        self._submit(partial(self._finish, now))

    def _do(self, work: Callable[[], None]) -> None:
        """Hand work to the worker, unless so much waits that the disk must be stuck."""
        if self._room.acquire(blocking=False):
            self._submit(partial(self._work, work))

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._room.release()

    # Below: in the worker.

    def _create(self, now: _Open, open_files: int) -> None:
        flight, folder = self._flight, Path(self._flight.directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            make_room(folder, flight.max_files - open_files, flight.max_bytes - open_files * flight.max_file)
            now.path = folder / file_name(now.target, now.begun, now.state)
            now.writer = now.files.enter_context(recording.Writer(now.files.enter_context(now.path.open("xb"))))
        except OSError as error:
            self._fail(now, error)

    def _write(self, now: _Open, kept: list[tuple[Scrape, bytes | None]]) -> None:
        if now.done or now.writer is None:
            return
        try:
            for scrape in unroll(kept):
                now.writer.write(scrape)
            if now.path.stat().st_size > self._flight.max_file:
                self._finish(now)
        except OSError as error:
            self._fail(now, error)

    def _finish(self, now: _Open) -> None:
        if now.done or now.writer is None:
            return
        now.done = True
        try:
            now.files.close()
        except OSError as error:
            self._fail(now, error)
        else:
            if self._impairment is not None:
                self._impairment.over("disk")
            self._log.info("flight_recorded", target=now.target, file=str(now.path), scrapes=now.writer.scrapes)

    def _fail(self, now: _Open, error: OSError) -> None:
        """Say it, and leave what could be written: a recording that breaks off replays up to the break."""
        now.done = True
        with suppress(OSError):
            now.files.close()
            if now.writer is not None and not now.writer.scrapes:
                now.path.unlink()
        why = error.strerror or str(error)
        where = str(now.path) if now.writer is not None else self._flight.directory
        if self._impairment is not None:
            self._impairment.meet("disk", f"nothing can be written to {self._flight.directory}: {why}")
        self._log.error("flight_recording_failed", target=now.target, file=where, why=why)


def file_name(target: str, at: float, state: State) -> str:
    """``host_8000-20260102T030405Z-thrashing.jsonl.gz``; a name that had to be changed carries a checksum."""
    safe = re.sub(r"[^A-Za-z0-9._]", "_", target)[:80].lstrip(".") or "target"
    name = safe if safe == target.replace(":", "_") else f"{safe}_{crc32(target.encode(errors='replace')):08x}"
    return f"{name}-{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}-{state.value}.jsonl.gz"


def make_room(folder: Path, max_files: int, max_bytes: int) -> None:
    """Delete recordings of ours until at most so many files and bytes are left.

    The oldest of the target that has the most goes first, so that one noisy target cannot push out the others.
    """
    files = {path: path.stat() for path in folder.iterdir() if _OURS.fullmatch(path.name) and path.is_file()}
    oldest_first = sorted(files, key=lambda path: (files[path].st_mtime_ns, path.name))
    held = Counter(_target_of(path) for path in oldest_first)
    size = sum(stat.st_size for stat in files.values())
    while oldest_first and (len(oldest_first) > max_files or size > max_bytes):
        most = max(held.values())
        victim = next(path for path in oldest_first if held[_target_of(path)] == most)
        victim.unlink(missing_ok=True)
        oldest_first.remove(victim)
        held[_target_of(victim)] -= 1
        size -= files[victim].st_size


def _target_of(path: Path) -> str:
    match = _OURS.fullmatch(path.name)
    return match[1] if match else ""
