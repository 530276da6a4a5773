"""The loop that other tests rely on: a deadline of its time is met by whatever comes, however long that takes."""

import asyncio
import time

import pytest

from tests import fed_time


def test_an_hour_passes_at_once_and_exactly() -> None:
    async def story() -> float:
        begun = fed_time.clock().now()
        await asyncio.sleep(3_600)
        return fed_time.clock().now() - begun

    assert fed_time.run(story()) == pytest.approx(3_600)


def test_neither_work_nor_threads_take_time() -> None:
    async def story() -> float:
        time.sleep(0.05)
        async with asyncio.timeout(0.001):
            await asyncio.to_thread(time.sleep, 0.05)
        return asyncio.get_running_loop().time()

    assert fed_time.run(story()) == 0.0


def test_a_deadline_passes_where_nothing_comes_and_not_where_something_does() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        time.sleep(0.05)  # as a busy machine would make it
        writer.write(asked)
        await writer.drain()
        writer.close()

    async def story() -> bytes:
        async with await asyncio.start_server(slow, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await reader.read()
            async with asyncio.timeout(0.001):
                writer.write(b"hello\n")
                answer = await reader.read()
            writer.close()
            return answer

    assert fed_time.run(story()) == b"hello\n"


def test_what_hangs_for_real_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fed_time, "STUCK_S", 0.01)
    with pytest.raises(asyncio.CancelledError):
        fed_time.run(asyncio.Event().wait())
