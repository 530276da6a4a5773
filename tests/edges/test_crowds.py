"""Crowds at the door: half-open connections, slow readers, more of both than there is room for."""

import asyncio
import contextlib
import errno
import gc
import gzip
import re
import socket
import tracemalloc
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import CapturingLogger

from tests import fed_time
from tests.edges.servers import bodies, http, says, serving
from tests.fleet.daemons import configured, running
from vllm_vitals.impairment import HELD_S, KINDS, Impairment
from vllm_vitals.process import LoopFaults
from vllm_vitals.serve import bodies as sending
from vllm_vitals.serve import connections, crowd
from vllm_vitals.serve.bodies import SharedBodies
from vllm_vitals.serve.connections import Connections
from vllm_vitals.serve.crowd import Crowd
from vllm_vitals.serve.httpd import HttpServer

LARGE = b"x" * 4 * 1024**2


@contextlib.asynccontextmanager
async def served(*routes: web.RouteDef, most: int = 100, crowd: Crowd | None = None) -> AsyncIterator[HttpServer]:
    app = web.Application(middlewares=[crowd.middleware()] if crowd else [])
    app.add_routes(routes)
    async with HttpServer(app, most=most) as server:
        await server.listen("127.0.0.1", 0, "--listen")
        yield server


async def hello(_: web.Request) -> web.Response:
    return web.Response(text="hello\n")


async def say(server: HttpServer, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(text)
    await asyncio.sleep(0.01)
    return reader, writer


async def until(what: object) -> None:
    async with asyncio.timeout(60):
        while not what():  # type: ignore[operator]
            await asyncio.sleep(0.05)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALVES = {"nothing": b"", "half a head": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", "half a line": b"GE"}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_who_says_nothing_whole_is_hung_up_on(half: bytes) -> None:
    async def run() -> float:
        async with served(web.get("/", hello)) as server:
            begun = asyncio.get_running_loop().time()
            reader, writer = await say(server, half)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            return asyncio.get_running_loop().time() - begun

    took = fed_time.run(run())
    assert connections.HEAD_S <= took <= connections.HEAD_S + 3


def test_a_head_that_drips_for_ever_is_hung_up_on() -> None:
    async def run() -> float:
        async with served(web.get("/", hello)) as server:
            begun = asyncio.get_running_loop().time()
            _, writer = await say(server, b"GET / HTTP/1.1\r\nHost: x\r\n")
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"X-A: b\r\n")
                    await writer.drain()
                    await asyncio.sleep(1.0)
            return asyncio.get_running_loop().time() - begun

    assert fed_time.run(run()) <= connections.HEAD_S + 4


def test_between_requests_a_connection_may_rest_as_long_as_prometheus_does() -> None:
    async def run() -> None:
        async with served(web.get("/", hello)) as server:
            reader, writer = await say(server, GET)
            await reader.readuntil(b"hello\n")
            await asyncio.sleep(60.0)
            writer.write(GET)
            await reader.readuntil(b"hello\n")
            await asyncio.sleep(connections.IDLE_S + 3)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    fed_time.run(run())


def test_a_crowd_of_half_open_connections_neither_grows_nor_keeps_anyone_out() -> None:
    async def run() -> None:
        async with served(web.get("/", hello), most=20) as server:
            writers = [(await say(server, HALVES["half a head"]))[1] for _ in range(60)]
            assert len(server.connections.open) <= 20
            reader, writer = await say(server, GET)
            assert await reader.readuntil(b"hello\n")
            assert len(server.connections.open) <= 20
            for each in (*writers, writer):
                each.transport.abort()
            await until(lambda: not server.connections.open)

    fed_time.run(run())


def test_who_is_being_answered_never_makes_room() -> None:
    async def run() -> None:
        release = asyncio.Event()

        async def slow(_: web.Request) -> web.Response:
            await release.wait()
            return web.Response(text="late\n")

        async with served(web.get("/", hello), web.get("/slow", slow), most=3) as server:
            busy = [await say(server, GET.replace(b"/ ", b"/slow ", 1)) for _ in range(3)]
            reader, writer = await say(server, GET)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            release.set()
            for reader, writer in busy:
                assert await reader.readuntil(b"late\n")
                writer.close()

    fed_time.run(run())


def test_connections_leave_descriptors_for_scrapes() -> None:
    assert connections.most(64) == 12
    assert connections.most(1024) == 492
    assert connections.most(65_536) == connections.MAX_CONNECTIONS
    assert connections.most(20) == 4
    assert connections.most(-1) == connections.MAX_CONNECTIONS


def test_connections_that_only_shake_hands_count_until_they_time_out() -> None:
    class One:
        busy, served, silent_since, opened_at = 0, False, 0.0, 0.0

    known = Connections(2)
    for _ in range(2):
        assert known.may_come(0.0)
        known.accepted(One(), 0.0)
    assert not known.may_come(connections.HEAD_S)
    assert known.give_way() is None
    assert known.may_come(connections.HEAD_S + 1)


def test_what_long_connections_leave_behind_is_collected_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[float] = []
    monkeypatch.setattr("vllm_vitals.serve.httpd.COLLECT_AFTER", 10)

    async def run() -> None:
        monkeypatch.setattr("vllm_vitals.serve.httpd.gc.collect", lambda: collected.append(1.0))
        async with served(web.get("/", hello)) as server:
            for held, often in ((0.0, 15), (connections.LONG_S + 1, 9)):
                writers = [(await say(server, GET))[1] for _ in range(often)]
                await asyncio.sleep(held)
                for writer in writers:
                    writer.transport.abort()
                await until(lambda: not server.connections.open)
            await asyncio.sleep(2.0)
            assert not collected
            _, writer = await say(server, GET)
            await asyncio.sleep(connections.LONG_S + 1)
            writer.transport.abort()
            await asyncio.sleep(2.0)
            assert len(collected) == 1

    fed_time.run(run())


# slow readers


async def slow_readers(server: HttpServer, count: int) -> list[asyncio.StreamWriter]:
    """Clients that ask for a large body and take nothing of it."""
    writers = []
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, server.address)
        reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET)
        writers.append(writer)
        del reader
    await asyncio.sleep(0.05)
    return writers


def large(shared: SharedBodies, built: list[int]) -> web.RouteDef:
    def build() -> list[bytes]:
        built.append(1)
        return [LARGE, str(len(built)).encode()]

    async def page(request: web.Request) -> web.StreamResponse:
        return await shared.send(request, "page", build, {"Content-Type": "text/plain"})

    return web.get("/", page)


def test_slow_readers_hold_few_bodies_for_a_bounded_time() -> None:
    async def run() -> None:
        shared, built = SharedBodies(), list[int]()
        async with served(large(shared, built), crowd=Crowd()) as server:
            writers = await slow_readers(server, 60)
            assert 0 < shared.sending <= sending.FEW + 1
            assert len(built) <= sending.FEW + 2  # one more may be asked for before the last is on its way
            begun = asyncio.get_running_loop().time()
            await until(lambda: not shared.sending)
            assert asyncio.get_running_loop().time() - begun <= sending.WRITE_S + 1
            for writer in writers:
                writer.transport.abort()
        shared.close()

    fed_time.run(run())


def test_a_reader_who_reads_gets_in_where_slow_ones_crowd_the_door() -> None:
    async def run() -> None:
        shared = SharedBodies()
        async with served(large(shared, []), crowd=Crowd()) as server:
            writers = await slow_readers(server, crowd.MAX_READS_OF_ONE)
            host, port = server.address
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{host}:{port}/") as answer:
                    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")  # all have only just come
                await asyncio.sleep(crowd.PATIENCE_S + 0.1)
                async with session.get(f"http://{host}:{port}/") as answer:
                    assert answer.status == 200
                    assert len(await answer.read()) > len(LARGE)
            for writer in writers:
                writer.transport.abort()
            await until(lambda: not server.connections.open)
        shared.close()

    fed_time.run(run())


def test_who_waits_for_an_answer_that_is_being_made_is_not_taken_for_slow() -> None:
    async def run() -> None:
        release, asked = asyncio.Event(), list[int]()

        async def made_late(_: web.Request) -> web.Response:
            asked.append(1)
            await release.wait()
            return web.Response(text="late\n")

        async def from_one_more() -> int:
            async with session.get(f"http://{host}:{port}/") as answer:
                return answer.status

        async with served(web.get("/", made_late), crowd=Crowd()) as server, aiohttp.ClientSession() as session:
            host, port = server.address
            waiting = [await say(server, GET) for _ in range(crowd.MAX_READS_OF_ONE)]
            await until(lambda: len(asked) == len(waiting))
            await asyncio.sleep(crowd.PATIENCE_S + 1)
            assert await from_one_more() == 503
            await asyncio.sleep(crowd.BUILD_S)  # not for ever: a crowd could ask for page after page
            last = asyncio.create_task(from_one_more())
            await until(lambda: len(asked) == len(waiting) + 1)
            release.set()
            assert await last == 200
            ends = [await reader.read(64) for reader, _ in waiting[1:]]
            assert all(b" 200 OK" in end for end in ends)
            for _, writer in waiting:
                writer.transport.abort()

    fed_time.run(run())


def test_who_asks_at_the_same_time_shares_one_body_packed_or_not() -> None:
    async def run() -> None:
        shared, built = SharedBodies(), list[int]()
        async with served(large(shared, built)) as server, aiohttp.ClientSession(auto_decompress=False) as session:
            host, port = server.address

            async def get(encoding: str) -> bytes:
                async with session.get(f"http://{host}:{port}/", headers={"Accept-Encoding": encoding}) as answer:
                    assert answer.status == 200, await answer.text()
                    assert answer.headers.get("Content-Encoding", "") == ("gzip" if encoding == "gzip" else "")
                    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                    return await answer.read()

            plain = await asyncio.gather(*(get("identity") for _ in range(8)))
            packed = await asyncio.gather(*(get("gzip") for _ in range(8)))
        assert {len(body) for body in plain} == {len(LARGE) + 1}
        assert all(gzip.decompress(body).startswith(LARGE) for body in packed)
        assert len(built) < 16
        shared.close()

    fed_time.run(run())


def test_what_nobody_is_sent_any_more_is_not_kept() -> None:
    async def run() -> int:
        shared = SharedBodies()
        async with served(large(shared, [])) as server, aiohttp.ClientSession() as session:
            host, port = server.address
            async with session.get(f"http://{host}:{port}/") as answer:
                assert len(await answer.read()) > len(LARGE)
            await until(lambda: not shared.sending)
            gc.collect()
            kept = len(shared._last)
        shared.close()
        return kept

    assert fed_time.run(run()) == 0


def test_a_page_that_is_packed_is_never_whole_in_memory() -> None:
    tracemalloc.start()
    try:
        (packed,), is_packed = sending._built(lambda: (b"%d\n" % n * 300_000 for n in range(10)), packed=True)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert is_packed
    assert gzip.decompress(packed) == b"".join(b"%d\n" % n * 300_000 for n in range(10))
    assert most < 3_000_000


def test_what_is_small_is_sent_as_it_is() -> None:
    for parts in ([], [b"a"], [b"a", b"b" * 1000]):
        assert sending._built(lambda parts=parts: parts, packed=True) == ((b"".join(parts),), False)  # type: ignore[misc]


def test_a_head_request_gets_no_body() -> None:
    async def run() -> None:
        shared = SharedBodies()
        async with served(large(shared, [])) as server, aiohttp.ClientSession() as session:
            host, port = server.address
            async with session.head(f"http://{host}:{port}/", headers={"Accept-Encoding": "identity"}) as answer:
                assert answer.status == 200
                assert int(answer.headers["Content-Length"]) == len(LARGE) + 1
                assert await answer.read() == b""
        shared.close()

    fed_time.run(run())


# our own limits


def impaired(text: str) -> dict[str, float]:
    return {kind: float(n) for kind, n in re.findall(r'monitor_impaired\{reason="(\w+)"\} (\S+)', text)}


def test_out_of_file_descriptors_is_our_trouble_and_no_verdict() -> None:
    """As with ``ulimit -n 64`` and 80 targets, or 300 half-open connections before they were capped."""

    async def run() -> None:
        async with serving(says(http(bodies()[5]))) as good:
            config = configured({"url": good, "name": "good"})
            async with running(lambda: config) as daemon:

                async def is_up() -> bool:
                    return bool((await daemon.targets()).get("good", {}).get("up"))

                await daemon.until(is_up)
                assert impaired((await daemon.get("/metrics"))[1]) == dict.fromkeys(KINDS, 0.0)

                async def refused(*_: object, **__: object) -> None:
                    raise OSError(errno.EMFILE, "Too many open files")

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("aiohappyeyeballs.start_connection", refused)
                    patch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", refused)

                    async def is_unknown() -> bool:
                        told = (await daemon.targets())["good"]
                        (engine,) = told["engines"]
                        assert engine["state"] not in ("blind", "down")
                        return told["reason"] == "impaired" and "says nothing about" in str(engine["unknown"])

                    await daemon.until(is_unknown)
                    told = (await daemon.targets())["good"]
                    assert "ulimit -n" in told["detail"]
                    assert impaired((await daemon.get("/metrics"))[1])["file_descriptors"] == 1.0
                    assert "vllm-vitals itself is impaired" in (await daemon.get("/"))[1]
                await daemon.until(is_up)

    asyncio.run(run())


def test_a_loop_that_stood_still_is_our_trouble_and_not_the_servers_time_out() -> None:
    now = [0.0]
    trouble = Impairment(lambda: now[0])
    trouble.lagged(0.0, 0.2)
    assert trouble.active() == {}
    trouble.lagged(0.0, 3.0)
    assert "stood still for 3.0 s" in trouble.active()["event_loop"]
    assert trouble.lag() == 3.0
    now[0] = HELD_S["event_loop"] + 1
    assert trouble.active() == {}
    assert trouble.lag() == 0.0


def test_a_full_disk_is_our_trouble_until_something_is_written_again() -> None:
    now = [0.0]
    trouble = Impairment(lambda: now[0])
    trouble.meet("disk", "no space left on device")
    now[0] = 600.0
    assert trouble.active() == {"disk": "no space left on device"}
    trouble.over("disk")
    assert trouble.active() == {}


def test_the_accept_loop_is_told_of_once_and_counted() -> None:
    log, trouble = CapturingLogger(), Impairment(lambda: 0.0)

    async def run() -> None:
        faults = LoopFaults(trouble, log)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        for _ in range(100):
            error = OSError(errno.EMFILE, "Too many open files")
            faults.handle(loop, {"message": "socket.accept() out of system resource", "exception": error})
        await asyncio.sleep(61.0)
        faults.handle(loop, {"message": "socket.accept() out of system resource", "exception": error})

    fed_time.run(run())
    assert [(call.kwargs["error"], call.kwargs["more"]) for call in log.calls] == [("OSError", 0), ("OSError", 99)]
    assert "file_descriptors" in trouble.active()


def test_half_open_connections_to_the_daemon_cost_its_targets_nothing() -> None:
    async def run() -> None:
        async with serving(says(http(bodies()[5]))) as good:
            config = configured({"url": good, "name": "good"}, interval="1s")
            async with running(lambda: config) as daemon:
                at = urlsplit(daemon.url)
                writers = []
                for _ in range(connections.MAX_CONNECTIONS // 4):
                    _, writer = await asyncio.open_connection(at.hostname, at.port)
                    writer.write(HALVES["half a head"])
                    writers.append(writer)

                async def is_up() -> bool:
                    return bool((await daemon.targets()).get("good", {}).get("up"))

                await daemon.until(is_up)
                assert (await daemon.get("/-/healthy"))[0] == 200
                for writer in writers:
                    writer.transport.abort()

    fed_time.run(run())
