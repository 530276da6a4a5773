"""Pushed batches on their way into the counts: each once, each whole, acknowledged once it is on disk.

Input: a batch. Output: what became of its lines, or `Refused`. Invariant: a batch that was refused with 503 and comes
again is not counted twice, whether it names itself or not; one batch at a time is counted, in slices.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from vllm_vitals.logs.aggregate import LogAggregator
from vllm_vitals.logs.batch_lines import Lines, TooManyError
from vllm_vitals.logs.batches import digest
from vllm_vitals.logs.bodies import Refused
from vllm_vitals.logs.config import LogLimits
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import Result
from vllm_vitals.logs.ledger import Ledger
from vllm_vitals.logs.push import Batch, Outcome
from vllm_vitals.logs.slices import Slices

# Batches without an id that are counted and could not be acknowledged; they are known by their bytes when they return.
MAX_OWED = 1000
_RETRY_S = 5


class Intake:
    """Counts the batches of every push source. ``decoders`` is by source."""

    def __init__(
        self,
        decoders: Mapping[str, LineDecoder],
        judge: LogAggregator,
        ledger: Ledger,
        slices: Slices,
        clock: Callable[[], float] = time.time,
        limits: LogLimits = LogLimits(),  # noqa: B008 - it is frozen
    ) -> None:
        self._decoders, self._judge, self._ledger, self._slices = decoders, judge, ledger, slices
        self._clock, self._limits = clock, limits
        self._owed: dict[tuple[str, str], Counter[Result]] = {}
        self._under_way: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[Outcome]] = set()

    async def take(self, batch: Batch) -> Outcome:
        """Count a batch, and return once that is on disk. Raises `Refused`."""
        if not self._ledger.ours:
            raise Refused(503, f"not reading yet: {self._ledger.trouble or 'starting'}", _RETRY_S)
        body = digest(batch.body)
        name = (batch.source, batch.key or body)
        if batch.key and name in self._under_way:
            raise Refused(409, "this batch is being counted: ask again in a second", 1)
        self._under_way.add(name)
        # A sender that goes away must not leave half a batch behind.
        task = asyncio.create_task(self._once(batch, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._under_way.discard(name))
        outcome = await asyncio.shield(task)
        if not await self._ledger.durable():
            if not batch.key:
                self._owe(name, outcome)
            raise self._not_stored()
        if not batch.key:
            self._owed.pop(name, None)
        return outcome

    async def close(self) -> None:
        """Wait for what is being counted."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _once(self, batch: Batch, body: str) -> Outcome:
        known = self._ledger.batches.look_up(batch.source, batch.key, body) if batch.key else "new"
        if known == "other body":
            raise Refused(422, "this Idempotency-Key came with another body before: give each batch its own")
        if known == "counted":
            return Outcome(Counter(), repeated=True)
        owed = None if batch.key else self._owed.get((batch.source, body))
        if owed is not None:
            return Outcome(owed, repeated=True)
        if not await self._ledger.works():
            raise self._not_stored()
        results: Counter[Result] = Counter()
        lines = Lines(batch.body, self._limits.max_line_bytes, self._limits.max_push_lines)
        try:
            await self._slices.run(lines.find())
        except TooManyError as error:
            raise Refused(413, f"{error}: send smaller batches") from None
        async with self._ledger.whole:
            await self._slices.run(self._count(batch.source, lines, results))
            if batch.key:
                self._ledger.batches.add(batch.source, batch.key, body)
            self._ledger.changed()
        return Outcome(results)

    def _count(self, source: str, lines: Lines, results: "Counter[Result]") -> Iterator[None]:
        decoder = self._decoders[source]
        for line in lines:
            now = self._clock()
            decoded = decoder.decode(line, now)
            self._judge.observe(source, decoded, now)
            results[decoded.result or "partial"] += 1
            yield

    def _owe(self, name: tuple[str, str], outcome: Outcome) -> None:
        while len(self._owed) >= MAX_OWED:
            del self._owed[next(iter(self._owed))]
        self._owed[name] = outcome.results

    def _not_stored(self) -> Refused:
        why = self._ledger.trouble or "the checkpoint was not written in time"
        return Refused(503, f"not acknowledged: {why}; send it again", _RETRY_S)
