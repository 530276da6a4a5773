"""The reader as a whole, on real files, with real crashes."""

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

from tests import fed_time
from vllm_vitals.logs import checkpoint
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.reader import LogReader

FAST = {"poll": "5ms", "checkpoint": "10ms"}


def response(number: int) -> bytes:
    return json.dumps({"id": f"chatcmpl-{number}", "model": "m", "usage": {"completion_tokens": 1}}).encode() + b"\n"


def said(tmp_path: Path, **source: Any) -> dict[str, object]:
    gateway = {"name": "gw", "target": "server", "paths": [str(tmp_path / "*.log")]} | source
    return {"sources": [gateway], "checkpoint": str(tmp_path / "checkpoint"), "limits": FAST}


def config(tmp_path: Path, **source: object) -> LogsConfig:
    return LogsConfig.model_validate(said(tmp_path, **source))


def served(reader: LogReader) -> int:
    return sum(view.counts.responses for view in reader.snapshot(time.time()).series)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def running(reader: LogReader, what: Callable[[], Awaitable[None]]) -> None:
    """Run the reader while ``what`` happens, then stop it."""

    async def both() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(reader.run(stop))
        try:
            await what()
        finally:
            stop.set()
            await task

    fed_time.run(both())


def test_lines_are_counted_as_they_come_and_once_over_restarts(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for start in range(0, 300, 100):
        with log.open("ab") as stream:
            stream.writelines(response(number) for number in range(start, start + 100))
        reader = LogReader(config(tmp_path))
        assert served(reader) == start
        running(reader, lambda: until(lambda: served(reader) == start + 100))  # noqa: B023 - run at once
    assert served(LogReader(config(tmp_path))) == 300


def test_settings_survive_a_restart_that_reads_no_start_up_again(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('{"message": "Using max model len 2048"}\n')
    first = LogReader(config(tmp_path))
    running(first, lambda: until(lambda: "server" in first.snapshot(0.0).servers))
    assert LogReader(config(tmp_path)).snapshot(0.0).servers["server"].settings == {"max_model_len": 2048}


def test_an_unfinished_line_is_not_counted_twice(tmp_path: Path) -> None:
    log, line = tmp_path / "a.log", response(1)
    log.write_bytes(response(0) + line[:10])
    first = LogReader(config(tmp_path))
    running(first, lambda: until(lambda: served(first) == 1))
    with log.open("ab") as stream:
        stream.write(line[10:])
    second = LogReader(config(tmp_path))
    running(second, lambda: until(lambda: served(second) == 2))
    assert dict(second.snapshot(0.0).records["gw"]) == {"response": 2}


def test_pieces_of_a_split_line_are_read_again_whole(tmp_path: Path) -> None:
    log, line = tmp_path / "a.log", response(1).decode()
    wrap = "2026-09-21T10:00:00Z stdout {} {}\n"
    log.write_text(wrap.format("F", response(0).decode().strip()) + wrap.format("P", line[:10]))
    first = LogReader(config(tmp_path))
    running(first, lambda: asyncio.sleep(0.1))
    with log.open("a") as stream:
        stream.write(wrap.format("F", line[10:].strip()))
    second = LogReader(config(tmp_path))
    running(second, lambda: until(lambda: served(second) == 2))
    assert dict(second.snapshot(0.0).records["gw"]) == {"response": 2, "partial": 1}


CHILD = """
import asyncio, json, sys, time
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.reader import LogReader

async def main():
    reader = LogReader(LogsConfig.model_validate(json.loads(sys.argv[1])))
    asyncio.get_running_loop().create_task(reader.run(asyncio.Event()))
    while True:
        await asyncio.sleep(0.002)
        print(sum(view.counts.responses for view in reader.snapshot(time.time()).series), flush=True)

asyncio.run(main())
"""


def test_kill_9_neither_loses_nor_counts_twice(tmp_path: Path) -> None:
    """Killed at arbitrary moments while lines are written; what was served is what the next run begins with."""
    log, written, last_served = tmp_path / "a.log", 0, 0
    where = json.dumps(said(tmp_path))
    for round_number in range(4):
        with subprocess.Popen([sys.executable, "-c", CHILD, where], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            goal = written + 100 * (round_number + 1)
            with log.open("ab", buffering=0) as stream:
                for text in child.stdout:
                    assert int(text) >= last_served
                    last_served = int(text)
                    if last_served >= goal:
                        break
                    for _ in range(37):
                        stream.write(response(written))
                        written += 1
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().splitlines()  # what it had already said when it died
            last_served = int(rest[-1]) if rest and rest[-1].isdigit() else last_served
    reader = LogReader(config(tmp_path))
    assert served(reader) >= last_served
    running(reader, lambda: until(lambda: served(reader) == written))
    assert dict(reader.snapshot(0.0).records["gw"]) == {"response": written}
    assert written > 1000


def test_a_checkpoint_that_cannot_be_written_is_said_once_and_counting_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(response(0))
    reader = LogReader(config(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def scene() -> None:
        monkeypatch.setattr(checkpoint, "save", full)
        await until(lambda: served(reader) == 1)
        with log.open("ab") as stream:
            stream.write(response(1))
        await until(lambda: served(reader) == 2)
        monkeypatch.undo()
        with log.open("ab") as stream:
            stream.write(response(2))
        await until(lambda: served(reader) == 3)

    with capture_logs() as said:
        running(reader, scene)
    failures = [one for one in said if one["event"] == "log_checkpoint_failed"]
    assert len(failures) == 1
    assert failures[0]["why"] == "No space left on device"
    assert any(one["event"] == "log_checkpoint_works_again" for one in said)
    assert served(LogReader(config(tmp_path))) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint.save(path, b"old")
    (tmp_path / "checkpoint.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"version": 99}', b"\xff", b'{"version":1,"files":[],"tally":{}}', b"[]"]
)
def test_a_checkpoint_that_is_none_is_said_and_reading_starts_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(content)
    (tmp_path / "a.log").write_bytes(response(0))
    with capture_logs() as said:
        reader = LogReader(config(tmp_path))
    assert [one["event"] for one in said] == ["log_checkpoint_unusable"]
    running(reader, lambda: until(lambda: served(reader) == 1))


def test_a_fault_in_one_source_does_not_stop_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(response(0))
    from vllm_vitals.logs.files import FileFollower

    good, calls = FileFollower.poll, []

    def odd(self: FileFollower) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a fault of ours")
        return good(self)

    monkeypatch.setattr(FileFollower, "poll", odd)
    reader = LogReader(config(tmp_path))
    with capture_logs() as said:
        running(reader, lambda: until(lambda: served(reader) == 1))
    assert [one["why"] for one in said if one["event"] == "log_source_failed"] == ["a fault of ours"]


def test_a_source_in_which_nothing_is_understood_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "strange.log").write_text("once upon a time\n" * 200)
    (tmp_path / "a.log").write_bytes(b"a preface\n" * 200 + response(0))
    sources = [{"name": name, "paths": [str(tmp_path / f"{name}.log")]} for name in ("strange", "a")]
    reader = LogReader(LogsConfig.model_validate({"sources": sources, "limits": FAST}))
    reader._doubt_s = 0.01

    def doubted() -> list[Any]:
        return [one for one in said if one["event"] == "log_source_not_understood"]

    async def scene() -> None:
        await until(lambda: bool(doubted()) and served(reader) == 1)
        await asyncio.sleep(0.1)

    with capture_logs() as said:
        running(reader, scene)
    assert [(one["source"], one["results"]["text"] >= 100) for one in doubted()] == [("strange", True)]


def test_stdin_is_read_to_its_end(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    reader = LogReader(config(tmp_path, paths=[], stdin=True), stdin=read_end)
    os.write(write_end, response(0) + response(1)[:-1])
    os.close(write_end)
    running(reader, lambda: until(lambda: served(reader) == 2))
    os.close(read_end)


def test_a_source_that_config_no_longer_has_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(response(0))
    first = LogReader(config(tmp_path))
    running(first, lambda: until(lambda: served(first) == 1))
    renamed = LogReader(config(tmp_path, name="other"))
    assert renamed.snapshot(0.0).records == {}
    running(renamed, lambda: until(lambda: served(renamed) == 1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"paths": []}, "exactly one of paths, stdin and push"),
        ({"push": True}, "exactly one of paths, stdin and push"),
        ({"mapping": "mine"}, "unknown mapping 'mine'"),
        ({"timezone": "Mars/Olympus"}, "is no time zone"),
        ({"nmae": "x"}, "Extra inputs"),
        ({"name": "a b"}, "expected up to 64 letters"),
    ],
)
def test_a_wrong_source_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        config(tmp_path, **change)
