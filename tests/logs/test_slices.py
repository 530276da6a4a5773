"""Log work shares the event loop: whoever has some, others get their turn between two slices."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_vitals.logs.bodies import Refused
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.push import Batch
from vllm_vitals.logs.reader import LogReader
from vllm_vitals.logs.slices import SLICE_S, Slices


class Ticks:
    """A clock that goes on by a millisecond with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def test_between_two_slices_of_anyone_the_loop_turns() -> None:
    order: list[str] = []

    def work(name: str) -> Iterator[None]:
        for _ in range(20):
            order.append(name)
            yield

    async def other() -> None:
        while order.count("other") < 1000 and len(order) < 60:
            order.append("other")
            await asyncio.sleep(0)

    async def scene() -> None:
        slices = Slices(Ticks())
        await asyncio.gather(slices.run(work("a")), slices.run(work("b")), other())

    asyncio.run(scene())
    runs = "".join(name[0] for name in order).split("o")
    per_slice = round(SLICE_S / 0.001)
    assert max(map(len, runs)) <= per_slice
    assert all(len(set(run)) <= 1 for run in runs)
    assert order.count("a") == order.count("b") == 20


def test_what_work_raises_comes_through_and_frees_the_turn() -> None:
    def broken() -> Iterator[None]:
        yield
        raise ValueError("odd")

    async def scene() -> None:
        slices = Slices()
        with pytest.raises(ValueError, match="odd"):
            await slices.run(broken())
        await slices.run(iter([None]))

    asyncio.run(scene())


BODIES = {
    "a line of {}{}": b"{}" * 190_000,
    "glued records": b'{"message":"Using max model len 5"}' * 25_000,
    "90,000 small lines": b"{}\n" * 90_000,
    "90,000 empty lines": b"\n" * 90_000,
    "an array of {}": b"[" + b"{}," * 89_999 + b"{}]",
    "glued text": (b"INFO 11-30 22:00:00 [a.py:1] Using max model len 5" * 20_000)[: (1 << 20) - 1],
    "deep": b'[{"ok":1},' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b',{"ok":2}]',
}


@pytest.mark.parametrize("what", BODIES)
def test_no_batch_holds_the_loop_for_longer_than_its_longest_line(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in steps between two turns of the loop: with a clock that jumps, every step is a slice of its own."""
    config = LogsConfig.model_validate({"sources": [{"name": "push", "push": True}]})
    reader, turns, steps = LogReader(config), 0, 0
    monkeypatch.setattr(reader._slices, "_clock", Ticks())

    async def scene() -> None:
        nonlocal turns, steps
        task = asyncio.create_task(reader._intake.take(Batch("push", "", BODIES[what])))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        outcome = await task
        steps = outcome.results.total()

    reader._ledger.ours = True
    asyncio.run(scene())
    assert turns >= steps / (SLICE_S / 0.001) / 2
    assert steps >= 1


def test_a_pack_that_unpacks_beyond_belief_is_no_log() -> None:
    async def scene() -> None:
        from vllm_vitals.logs.bodies import _plausible

        _plausible(8 << 20, 40_000)
        _plausible(1 << 20, 5)
        with pytest.raises(Refused, match="500 times its size"):
            _plausible(8 << 20, 7_000)

    asyncio.run(scene())
    assert len(gzip.compress(b"{}" * (4 << 20))) * 500 < 8 << 20
    line = json.dumps({"message": "Engine 000: Avg prompt throughput: 0.0 tokens/s", "level": "INFO"}).encode() + b"\n"
    assert len(gzip.compress(line * 20_000)) * 500 > len(line) * 20_000


def test_a_file_of_empty_lines_is_counted_in_small_steps(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\n" * 200_000)
    config = LogsConfig.model_validate({"sources": [{"name": "f", "paths": [str(tmp_path / "a.log")]}]})
    reader, most = LogReader(config), 0

    async def scene() -> None:
        nonlocal most
        stop, before = asyncio.Event(), 0
        task = asyncio.create_task(reader.run(stop))
        async with asyncio.timeout(60):
            while before < 200_000:
                await asyncio.sleep(0)
                now = dict(reader.snapshot(0.0).records.get("f", {})).get("blank", 0)
                most, before = max(most, now - before), now
        stop.set()
        await task

    reader._slices._clock = Ticks()
    asyncio.run(scene())
    assert most <= 4096 * SLICE_S / 0.001
