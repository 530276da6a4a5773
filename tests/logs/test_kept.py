"""What was acknowledged is kept: over a full disk, over kill -9, over two daemons on one checkpoint, over repeats."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from vllm_vitals.logs import checkpoint
from vllm_vitals.logs.batches import MAX_BATCHES, Batches
from vllm_vitals.logs.bodies import Refused
from vllm_vitals.logs.checkpoint_lease import Lease
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.push import Batch, Outcome
from vllm_vitals.logs.reader import LogReader
from vllm_vitals.logs.tally import Tally


def response(number: int) -> bytes:
    return json.dumps({"id": f"chatcmpl-{number}", "model": "m", "usage": {"completion_tokens": 1}}).encode() + b"\n"


def body(count: int, start: int = 0) -> bytes:
    return b"".join(response(number) for number in range(start, start + count))


def said(tmp_path: Path) -> dict[str, Any]:
    sources = [{"name": "f", "paths": [str(tmp_path / "a.log")]}, {"name": "push", "push": True}]
    limits = {"poll": "5ms", "checkpoint": "10ms"}
    return {"sources": sources, "checkpoint": str(tmp_path / "checkpoint"), "limits": limits}


def config(tmp_path: Path) -> LogsConfig:
    return LogsConfig.model_validate(said(tmp_path))


def counted(reader: LogReader, source: str) -> int:
    return sum(view.counts.responses for view in reader.snapshot(time.time()).series if view.source == source)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def ours(reader: LogReader) -> None:
    await until(lambda: reader._ledger.ours)


def running(reader: LogReader, what: Callable[[], Awaitable[None]]) -> None:
    async def both() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(reader.run(stop))
        try:
            await ours(reader)
            await what()
        finally:
            stop.set()
            await task

    asyncio.run(both())


async def push(reader: LogReader, content: bytes, key: str = "") -> Outcome | Refused:
    try:
        return await reader._intake.take(Batch("push", key, content))
    except Refused as refused:
        return refused


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_on_a_full_disk_nothing_is_acknowledged_and_what_comes_again_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LogReader(config(tmp_path))

    async def scene() -> None:
        assert await push(reader, body(10)) == Outcome({"response": 10})  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", full)
            for content in (body(20, 100), body(20, 100), body(30, 200)):
                refused = await push(reader, content)
                assert isinstance(refused, Refused)
                assert (refused.status, refused.retry_after_s) == (503, 5)
                assert "No space left on device; send it again" in str(refused)
            assert "cannot be written: No space left on device" in reader.trouble
        again = await push(reader, body(20, 100))
        assert again == Outcome({"response": 20}, repeated=True)  # type: ignore[arg-type]
        assert isinstance(await push(reader, body(30, 200)), Outcome)
        assert reader.trouble == ""
        assert counted(reader, "push") == 60
        # acknowledged, then sent once more: without an id it is a batch of its own
        assert await push(reader, body(20, 100)) == Outcome({"response": 20})  # type: ignore[arg-type]

    running(reader, scene)
    assert counted(LogReader(config(tmp_path)), "push") == 80


def test_a_batch_with_an_id_counts_once_however_often_it_comes_and_over_restarts(tmp_path: Path) -> None:
    first = LogReader(config(tmp_path))

    async def scene() -> None:
        assert await push(first, body(10), "a") == Outcome({"response": 10})  # type: ignore[arg-type]
        assert await push(first, body(10), "a") == Outcome({}, repeated=True)  # type: ignore[arg-type]
        assert await push(first, body(10), "b") == Outcome({"response": 10})  # type: ignore[arg-type]
        other = await push(first, body(11), "a")
        assert isinstance(other, Refused)
        assert (other.status, str(other)[:31]) == (422, "this Idempotency-Key came with ")

    running(first, scene)
    second = LogReader(config(tmp_path))

    async def after() -> None:
        assert await push(second, body(10), "a") == Outcome({}, repeated=True)  # type: ignore[arg-type]
        assert counted(second, "push") == 20

    running(second, after)


def test_a_batch_with_an_id_that_a_full_disk_refused_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LogReader(config(tmp_path))

    async def scene() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", full)
            assert isinstance(await push(reader, body(10), "a"), Refused)
            assert isinstance(await push(reader, body(10), "a"), Refused)
        assert await push(reader, body(10), "a") == Outcome({}, repeated=True)  # type: ignore[arg-type]
        assert counted(reader, "push") == 10

    running(reader, scene)
    assert counted(LogReader(config(tmp_path)), "push") == 10


def test_the_same_batch_at_the_same_time_is_counted_once(tmp_path: Path) -> None:
    reader = LogReader(config(tmp_path))

    async def scene() -> None:
        answers = await asyncio.gather(*(push(reader, body(5000), "a") for _ in range(5)))
        assert sorted(getattr(one, "status", 200) for one in answers) == [200, 409, 409, 409, 409]
        assert counted(reader, "push") == 5000

    running(reader, scene)


def test_a_sender_that_goes_away_leaves_no_half_batch(tmp_path: Path) -> None:
    reader = LogReader(config(tmp_path))

    async def scene() -> None:
        task = asyncio.create_task(push(reader, body(20_000), "a"))
        await until(lambda: reader._judge.tally.records.get("push", {}).get("response", 0) > 0)
        task.cancel()

    running(reader, scene)
    assert counted(LogReader(config(tmp_path)), "push") == 20_000


def test_no_checkpoint_holds_half_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, seen, save = LogReader(config(tmp_path)), set(), checkpoint.save

    def watched(path: Path, content: bytes) -> None:
        seen.add(checkpoint.decode(content).tally.records.get("push", {}).get("response", 0))
        save(path, content)

    monkeypatch.setattr(checkpoint, "save", watched)

    async def scene() -> None:
        with (tmp_path / "a.log").open("ab") as log:
            for number in range(3):
                log.write(body(5, number))
                log.flush()
                await push(reader, body(7000, 10_000 * number))

    running(reader, scene)
    assert seen <= {0, 7000, 14_000, 21_000}
    assert 21_000 in seen


def test_ids_are_bounded_and_the_newest_are_kept() -> None:
    batches = Batches()
    for number in range(3 * MAX_BATCHES):
        batches.add("push", f"{number}" * 50, "body")
    assert len(batches.plain()["push"]) == MAX_BATCHES
    assert batches.look_up("push", f"{3 * MAX_BATCHES - 1}" * 50, "body") == "counted"
    assert batches.look_up("push", "0" * 50, "body") == "new"
    batches.keep({"other"})
    assert batches.plain() == {}


def test_a_checkpoint_of_an_older_release_is_read_and_an_older_release_can_read_ours() -> None:
    tally, batches = Tally({"push": {"response": 3}}), Batches({"push": {"a": "b"}})
    ours = json.loads(checkpoint.encode({}, tally, batches))
    assert ours["version"] == 1
    old = {name: value for name, value in ours.items() if name != "batches"}
    assert checkpoint.decode(json.dumps(old).encode()).tally.records == {"push": {"response": 3}}
    for broken in ({"push": 5}, [1], "x"):
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.decode(json.dumps({**ours, "batches": broken}).encode())


DAEMON = """
import asyncio, json, sys
from vllm_vitals.logs.bodies import Refused
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.push import Batch
from vllm_vitals.logs.reader import LogReader

async def main():
    reader, stop = LogReader(LogsConfig.model_validate(json.loads(sys.argv[1]))), asyncio.Event()
    task = asyncio.create_task(reader.run(stop))
    loop = asyncio.get_running_loop()
    async def line():
        return (await loop.run_in_executor(None, sys.stdin.readline)).strip()
    while name := await line():
        if name == "stop":
            break
        try:
            body = open(await line(), "rb").read()
            outcome = await reader._intake.take(Batch("push", name.strip("-"), body))
            print(200, outcome.results.total(), flush=True)
        except Refused as refused:
            print(refused.status, str(refused), flush=True)
    stop.set()
    await task

asyncio.run(main())
"""


class Program:
    """A process of its own that reads the logs; pushes go in by name of a file."""

    def __init__(self, tmp_path: Path) -> None:
        self._folder = tmp_path
        self._process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, json.dumps(said(tmp_path))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.said: list[str] = []

    def push(self, content: bytes, key: str = "-") -> tuple[int, str]:
        file = self._folder / "body"
        file.write_bytes(content)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{key}\n{file}\n")
        self._process.stdin.flush()
        while True:
            line = self._process.stdout.readline()
            assert line, self.said
            if line[:3].isdigit() and line[3] == " ":
                return int(line[:3]), line[4:].strip()
            self.said.append(line)

    def until_ready(self, key: str = "-") -> None:
        deadline = time.monotonic() + 60
        while self.push(b"\n", key)[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self, how: int | None = None) -> None:
        assert self._process.stdin is not None
        if how is None:
            self._process.stdin.write("stop\n")
            self._process.stdin.flush()
        else:
            self._process.send_signal(how)
        self._process.wait(60)
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.parametrize("how", [None, signal.SIGKILL])
def test_two_daemons_on_one_checkpoint_lose_nothing_that_was_acknowledged(tmp_path: Path, how: int | None) -> None:
    """A rolling update: the new one starts, is asked, the old one ends or is killed, the new one goes on from there."""
    old = Program(tmp_path)
    old.until_ready()
    (tmp_path / "a.log").write_bytes(body(100))
    new = Program(tmp_path)
    assert old.push(body(500)) == (200, "500")
    refused = new.push(body(500))
    while refused[1].endswith("starting"):
        refused = new.push(body(500))
    assert refused[0] == 503
    assert f"checkpoint is in use by process {old._process.pid} on " in refused[1]
    assert old.push(body(10, 1000), "x") == (200, "10")
    old.end(how)
    new.until_ready()
    assert new.push(body(10, 1000), "x") == (200, "0")
    assert new.push(body(7, 2000)) == (200, "7")
    assert "log_checkpoint_in_use" in "".join(new.said)
    new.end(signal.SIGKILL)
    last = LogReader(config(tmp_path))
    running(last, lambda: until(lambda: counted(last, "f") == 100))
    assert counted(last, "push") == 517


def test_kill_9_between_pushes_loses_none_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged = 0
    for round_number in range(3):
        one = Program(tmp_path)
        one.until_ready()
        for number in range(5):
            status, count = one.push(body(20 + number, 1000 * round_number + 100 * number))
            assert status == 200
            acknowledged += int(count)
        one.end(signal.SIGKILL)
    assert counted(LogReader(config(tmp_path)), "push") == acknowledged == 330


def test_a_lock_file_that_a_killed_process_left_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.lock").write_text("process 1 on elsewhere")
    first, second = Lease(tmp_path / "checkpoint"), Lease(tmp_path / "checkpoint")
    assert first.take()
    assert first.take()
    assert not second.take()
    assert second.owner() == f"process {os.getpid()} on {os.uname().nodename}"
    first.release()
    assert second.take()
    second.release()


def test_without_a_folder_for_the_lock_reading_goes_on_and_says_so(tmp_path: Path) -> None:
    where = config(tmp_path).model_copy(update={"checkpoint": tmp_path / "missing" / "checkpoint"})
    (tmp_path / "a.log").write_bytes(response(0))
    reader = LogReader(where)

    async def scene() -> None:
        await until(lambda: counted(reader, "f") == 1)
        refused = await push(reader, body(1))
        assert isinstance(refused, Refused)
        assert refused.status == 503

    with capture_logs() as said:
        running(reader, scene)
    events = [one["event"] for one in said]
    assert events.count("log_checkpoint_without_lock") == 1
    assert "log_checkpoint_failed" in events


def test_a_reader_that_waits_ends_when_told(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "checkpoint")
    assert lease.take()
    reader = LogReader(config(tmp_path))

    async def scene() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(reader.run(stop))
        await until(lambda: "is in use by process" in reader.trouble)
        stop.set()
        await task

    asyncio.run(scene())
    lease.release()
    assert not (tmp_path / "checkpoint").exists()


def test_the_folder_is_synced_so_that_the_rename_outlives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    checkpoint.save(tmp_path / "checkpoint", b"x")
    assert synced == [str(tmp_path / "checkpoint.new"), str(tmp_path)]

    def odd(_: int) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", odd)
    with pytest.raises(OSError, match="Input/output"):
        checkpoint.save(tmp_path / "checkpoint", b"y")
    assert (tmp_path / "checkpoint").read_bytes() == b"x"
