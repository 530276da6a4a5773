"""What is counted, and what of it is on disk: the tally, the file marks and the batch ids, in one checkpoint.

Input: changes, as they are counted. Output: checkpoints, and whether a change is on disk. Invariant: offsets, ids and
counts are stored together or not at all; only the owner of the lease reads on or writes; a change is said to be on disk
only once it is.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vllm_vitals.log import Logger
from vllm_vitals.logs import checkpoint
from vllm_vitals.logs.batches import Batches
from vllm_vitals.logs.checkpoint import CheckpointError, FileMark
from vllm_vitals.logs.checkpoint_lease import Lease
from vllm_vitals.logs.files import Identity
from vllm_vitals.logs.tally import Tally
from vllm_vitals.logs.waiting import until, why_of

OnTrouble = Callable[[str], None]
"""Called with the reason while counts are not stored, and with "" once they are."""

LEASE_RETRY_S = 0.5
DURABLE_WITHIN_S = 10.0


def silence(_: str) -> None:
    """Hear nothing."""


class Ledger:
    """The state that survives a restart. ``path`` None: nothing does, and everything counts as on disk."""

    def __init__(
        self,
        config: checkpoint.Where,
        sources: Mapping[str, str],
        log: Logger,
        on_trouble: OnTrouble = silence,
    ) -> None:
        self._on_trouble = on_trouble
        self._path, self._every_s = config.path, config.every_s
        self._sources, self._log = sources, log
        self._lease = Lease(config.path) if config.path is not None else None
        self.marks: dict[str, dict[Identity, FileMark]] = {}
        self.tally, self.batches = Tally(), Batches()
        self.served: Tally | None = None
        """The counts of the last checkpoint: what may be served. None without a checkpoint."""
        self.whole = asyncio.Lock()
        """Held while something is counted that counts whole or not at all: no checkpoint is taken meanwhile."""
        self.ours = False
        """Whether the checkpoint is ours to go on from and to write."""
        self.trouble = ""
        """Why what is counted is not stored now; one line, or nothing."""
        self._changes = self._saved = 0
        self._failing = False
        self._saving = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")  # a hanging disk holds nobody else's
        self._under_way: set[asyncio.Task[bool]] = set()
        self._unlocked = False
        self._restore(tell=True)

    def changed(self) -> None:
        """Take note that there is something to store."""
        self._changes += 1

    async def take_over(self, stop: asyncio.Event) -> bool:
        """Wait until the checkpoint is ours, and go on from it; False where ``stop`` came first."""
        waited, owner = False, ""
        while not self._leased():
            if not waited:
                owner = self._lease.owner() if self._lease is not None else owner
                then = "reading nothing and answering pushes with 503 until it ends, then going on from there"
                self._log.error("log_checkpoint_in_use", path=str(self._path), by=owner, then=then)
                waited = True
            self._report(f"{self._path} is in use by {owner}")
            await until(stop, LEASE_RETRY_S)
            if stop.is_set():
                return False
        if self._path is not None:
            self._restore(tell=waited)
        if waited:
            self._log.info("log_checkpoint_taken_over", path=str(self._path))
        if waited:
            self._report("")
        self.ours = True
        return True

    def release(self) -> None:
        """Leave the checkpoint to others."""
        self.ours = False
        self._thread.shutdown(wait=False)
        if self._lease is not None:
            self._lease.release()

    async def durable(self) -> bool:
        """Store what is counted by now; False where that could not be, or not in time."""
        saving = asyncio.create_task(self.save())
        self._under_way.add(saving)  # a disk that hangs: the write goes on, whoever has gone
        saving.add_done_callback(self._under_way.discard)
        done, _ = await asyncio.wait({saving}, timeout=DURABLE_WITHIN_S)
        return saving in done and saving.result()

    async def works(self) -> bool:
        """Say whether checkpoints can be written; where the last one could not, by trying again."""
        return not self._failing or await self.save(anyway=True)

    async def save_regularly(self, ending: asyncio.Event) -> None:
        """Store what has changed, every so often, until ``ending``."""
        while not ending.is_set():
            await until(ending, self._every_s)
            await self.save()

    async def save(self, anyway: bool = False) -> bool:
        """Write a checkpoint if anything changed, then serve it. A full disk costs the promise, not the counts."""
        async with self._saving:
            return self._path is None or await self._save(self._path, anyway)

    async def _save(self, path: Path, anyway: bool) -> bool:
        async with self.whole:
            change = self._changes
            if change == self._saved and not anyway:
                return True
            marks = {name: tuple(by_identity.values()) for name, by_identity in self.marks.items()}
            content = checkpoint.encode(marks, self.tally, self.batches)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, checkpoint.save, path, content)
        except OSError as error:
            self._failed_to_save(error)
        else:
            if self._failing:
                self._log.info("log_checkpoint_works_again", path=str(path))
                self._report("")
            self._failing, self._saved = False, change
        self.served = checkpoint.decode(content).tally
        return not self._failing

    def _failed_to_save(self, error: OSError) -> None:
        if not self._failing:
            then = (
                "counting on, answering pushes with 503; after a crash, lines since the last checkpoint are read again"
            )
            self._log.error("log_checkpoint_failed", path=str(self._path), why=why_of(error), then=then)
        self._failing = True
        self._report(f"{self._path} cannot be written: {why_of(error)}")

    def _report(self, why: str) -> None:
        self.trouble = why
        self._on_trouble(why)

    def _leased(self) -> bool:
        if self._lease is None or self._unlocked:
            return True
        try:
            return self._lease.take()
        except OSError as error:
            then = "going on without one: make sure that only one vllm-vitals uses this checkpoint"
            self._log.warning("log_checkpoint_without_lock", path=str(self._path), why=why_of(error), then=then)
            self._unlocked = True
            return True

    def _restore(self, tell: bool) -> None:
        self.marks = {name: {} for name in self._sources}
        self.tally, self.batches = Tally(), Batches()
        try:
            found = checkpoint.load(self._path) if self._path is not None else None
        except (CheckpointError, OSError) as error:
            if tell:
                then = "reading from the start"
                self._log.warning("log_checkpoint_unusable", path=str(self._path), why=why_of(error), then=then)
            found = None
        if found is not None:
            for name, marks in found.marks.items():
                if name in self.marks:
                    self.marks[name] = {(mark.device, mark.inode): mark for mark in marks}
            self.tally, self.batches = found.tally, found.batches
            self.tally.keep(self._sources.keys(), set(self._sources.values()))
            self.batches.keep(set(self._sources))
        if self._path is not None:
            self.served = checkpoint.decode(checkpoint.encode({}, self.tally, self.batches)).tally
