import asyncio
import gzip
import io
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests import fed_time
from vllm_vitals.logs import checkpoint
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.reader import LogReader

LINE = json.dumps({"id": "chatcmpl-1", "model": "m", "usage": {"completion_tokens": 1}}).encode() + b"\n"
Scene = Callable[[aiohttp.ClientSession, str, LogReader], Awaitable[None]]


def served(reader: LogReader) -> int:
    return sum(view.counts.responses for view in reader.snapshot(time.time()).series)


def with_server(
    scene: Scene, tmp_path: Path, names: tuple[str, ...] = ("push",), unpacks: bool = True, **limits: Any
) -> None:
    """A real server on loopback with the reader's routes, while ``scene`` plays."""
    sources = [{"name": name, "push": True} for name in names]
    config = LogsConfig.model_validate(
        {"sources": sources, "checkpoint": tmp_path / "checkpoint", "limits": {"checkpoint": "10ms"} | limits}
    )

    async def play() -> None:
        reader, stop = LogReader(config), asyncio.Event()
        app = web.Application()
        app.add_routes(reader.push_routes())
        runner = web.AppRunner(app, auto_decompress=unpacks, access_log=None, lingering_time=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        task = asyncio.create_task(reader.run(stop))
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            await scene(session, f"http://{host}:{port}/api/v1/logs", reader)
        stop.set()
        await task
        await runner.cleanup()

    fed_time.run(play())


async def post(session: aiohttp.ClientSession, url: str, **what: Any) -> tuple[int, dict[str, Any]]:
    async with session.post(url, **what) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (LINE * 3, {"Content-Type": "application/x-ndjson"}),
        (LINE * 2 + LINE[:-1], {}),
        (b"[" + b",".join([LINE] * 3) + b"]", {"Content-Type": "application/json"}),
        (gzip.compress(LINE * 3, mtime=0), {"Content-Encoding": "gzip"}),
        (gzip.compress(LINE, mtime=0) + gzip.compress(LINE * 2, mtime=0), {}),
    ],
)
@pytest.mark.parametrize("unpacks", [True, False])
def test_lines_are_taken_and_acknowledged_once_on_disk(
    tmp_path: Path, body: bytes, headers: dict[str, str], unpacks: bool
) -> None:
    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        assert await post(session, url, data=body, headers=headers) == (200, {"lines": 3, "results": {"response": 3}})
        found = checkpoint.load(tmp_path / "checkpoint")
        assert found is not None
        assert found.tally.records == {"push": {"response": 3}}
        assert served(reader) == 3

    with_server(scene, tmp_path, unpacks=unpacks)


@pytest.mark.parametrize("packed", [False, True])
def test_a_body_over_the_limit_is_refused_whole(tmp_path: Path, packed: bool) -> None:
    async def chunks(data: bytes) -> Any:
        for start in range(0, len(data), 4096):
            yield data[start : start + 4096]

    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        huge = LINE * 100_000
        status, answer = await post(session, url, data=chunks(gzip.compress(huge, mtime=0) if packed else huge))
        assert status == 413
        assert "send smaller batches" in answer["error"]
        assert served(reader) == 0

    with_server(scene, tmp_path, unpacks=False, max_push="100000B")


def test_a_broken_gzip_body_is_refused_whole(tmp_path: Path) -> None:
    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        for body in (gzip.compress(LINE * 1000, mtime=0)[:-9], gzip.compress(LINE, mtime=0)[:12] + b"junk" * 10):
            status, _ = await post(session, url, data=body)
            assert status == 400
        assert served(reader) == 0

    with_server(scene, tmp_path, unpacks=False)


def test_a_client_that_dies_in_mid_line_counts_nothing_and_its_retry_counts_once(tmp_path: Path) -> None:
    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        host, port = url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = LINE * 3
        writer.write(f"POST /api/v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body[:-20])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert await post(session, url, data=body) == (200, {"lines": 3, "results": {"response": 3}})
        assert served(reader) == 3

    with_server(scene, tmp_path)


async def answer(session: aiohttp.ClientSession, url: str, **what: Any) -> tuple[int, str | None, dict[str, Any]]:
    async with session.post(url, **what) as said:
        return said.status, said.headers.get("Retry-After"), await said.json()


def test_a_batch_that_names_itself_is_counted_once(tmp_path: Path) -> None:
    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        for key, expected in (
            ('"a"', {"lines": 2, "results": {"response": 2}}),
            ("a", {"lines": 0, "results": {}, "repeated": True}),
            ("b", {"lines": 2, "results": {"response": 2}}),
        ):
            assert await post(session, url, data=LINE * 2, headers={"Idempotency-Key": key}) == (200, expected)
        status, said = await post(session, url, data=LINE * 3, headers={"Idempotency-Key": "b"})
        assert status == 422
        assert "give each batch its own" in said["error"]
        status, said = await post(session, url, data=LINE, headers={"Idempotency-Key": "x" * 300})
        assert (status, said["error"]) == (400, "Idempotency-Key: give at most 256 printable characters")
        assert served(reader) == 4

    with_server(scene, tmp_path)


def test_a_full_disk_is_503_with_the_reason_and_when_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", full)
            for _ in range(3):
                status, again, said = await answer(session, url, data=LINE)
                assert (status, again) == (503, "5")
                assert said["error"].startswith("not acknowledged: ")
                assert said["error"].endswith("No space left on device; send it again")
        assert (await answer(session, url, data=LINE))[0] == 200
        assert served(reader) == 1

    with_server(scene, tmp_path)


def test_what_no_log_holds_is_refused_before_it_is_unpacked_or_parsed(tmp_path: Path) -> None:
    bodies = {
        "500 times its size": gzip.compress(b"{}" * (3 << 20), mtime=0),
        "more than 100000 lines": b"{}\n" * 100_002,
        "more than 400000 objects": b"[" + b"[]," * 400_000 + b"[]]",
    }

    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        for why, body in bodies.items():
            status, _, said = await answer(session, url, data=io.BytesIO(body))
            assert status == 413
            assert why in said["error"]
        deep = b'[{"ok":1},' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"," + LINE + b"]"
        assert await post(session, url, data=deep) == (200, {"lines": 3, "results": {"no_schema": 2, "response": 1}})
        assert served(reader) == 1

    with_server(scene, tmp_path, unpacks=False)


def test_more_than_may_wait_at_once_is_answered_by_429(tmp_path: Path) -> None:
    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        host, port = url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /api/v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: 1900\r\n\r\n" + LINE * 25)
        await writer.drain()
        async with asyncio.timeout(10):
            status = 200
            while status == 200:  # until the server has seen the first request
                async with session.post(url, data=LINE * 5) as answer:
                    status, wait = answer.status, answer.headers.get("Retry-After")
        assert (status, wait) == (429, "1")
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(10):
            while (await post(session, url, data=LINE))[0] == 429:  # until it has seen that the first client is gone
                await asyncio.sleep(0)

    with_server(scene, tmp_path, max_push_pending="2000B")


def test_the_source_is_named_where_there_are_several(tmp_path: Path) -> None:
    async def scene(session: aiohttp.ClientSession, url: str, reader: LogReader) -> None:
        status, answer = await post(session, url, data=LINE)
        assert status == 404
        assert "a, b" in answer["error"]
        assert (await post(session, url, data=LINE, params={"source": "b"}))[0] == 200
        assert reader.snapshot(0.0).records == {"b": {"response": 1}}

    with_server(scene, tmp_path, names=("a", "b"))


def test_without_a_push_source_there_is_no_route() -> None:
    assert LogReader(LogsConfig()).push_routes() == []
