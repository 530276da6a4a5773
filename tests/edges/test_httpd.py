"""Requests that break HTTP itself, before a password is asked for: fixed answers, and a log that repeats none."""

import asyncio
import io
import json
import logging
from urllib.parse import urlsplit

import pytest
import structlog
from aiohttp import web

from tests import fed_time
from tests.fleet.daemons import configured, running
from vllm_vitals import log as logs
from vllm_vitals.clock import Clock
from vllm_vitals.scrape.target import joined
from vllm_vitals.serve import httpd
from vllm_vitals.serve.access import Access
from vllm_vitals.serve.httpd import HttpFault, HttpServer
from vllm_vitals.serve.web_config import WebConfig
from vllm_vitals.simulator.scenarios import scenario
from vllm_vitals.simulator.server import SimulatedServer

SECRET = "cHJvbTpzZWNyZXQ="
USERS = {"prom": b"$2b$04$" + b"x" * 53}
AUTH = f"Authorization: Basic {SECRET}\r\n"
BODY = f"Content-Length: {len(SECRET)}\r\n\r\n{SECRET}"
HEADERS = "".join(f"X-{n}: {SECRET}\r\n" for n in range(5000))
BROKEN = {
    "a control character": f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {SECRET}\x01\r\n\r\n",
    "a long header": f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {SECRET * 600}\r\n\r\n",
    "a long address": f"GET /{SECRET * 600} HTTP/1.1\r\nHost: x\r\n\r\n",
    "many headers": f"GET / HTTP/1.1\r\nHost: x\r\n{HEADERS}\r\n",
    "no such HTTP": f"GET / HTTP/9.9\r\nHost: x\r\n{AUTH}\r\n",
    "no host": f"GET / HTTP/1.1\r\n{AUTH}\r\n",
    "a negative length": f"POST /-/reload HTTP/1.1\r\nHost: x\r\n{AUTH}Content-Length: -1\r\n\r\n",
    "a bad chunk": f"POST /-/reload HTTP/1.1\r\nHost: x\r\n{AUTH}Transfer-Encoding: chunked\r\n\r\n{SECRET}\r\n",
    "an unknown encoding": f"POST /-/reload HTTP/1.1\r\nHost: x\r\n{AUTH}Content-Encoding: br\r\n{BODY}",
    "not HTTP": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}
NO_GZIP = f"POST /api/v1/logs HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\n{BODY}"


async def answer(url: str, request: str) -> str:
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(request.encode("latin-1"))
    try:
        async with asyncio.timeout(20):
            return (await reader.read()).decode()
    except ConnectionError:  # it closed before it had read the rest
        return ""
    finally:
        writer.close()


def events(said: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in said.getvalue().splitlines()]


def test_what_breaks_http_is_repeated_neither_in_the_answer_nor_in_the_log() -> None:
    said = io.StringIO()

    async def run() -> None:
        config = configured("http://127.0.0.1:1")
        async with running(lambda: config, load_web=lambda: WebConfig(access=Access(USERS))) as daemon:
            for what, request in BROKEN.items():
                got = await answer(daemon.url, request)
                assert got.startswith("HTTP/1.0 400 ") or (not got and what.startswith(("a long", "many"))), what
                assert not got or got.endswith("\r\n\r\n400 Bad Request\n"), what
                assert SECRET not in got, what

    logs.configure("debug", said)
    try:
        fed_time.run(run())
    finally:
        structlog.reset_defaults()
    assert SECRET not in said.getvalue()
    assert "Traceback" not in said.getvalue()
    (told,) = [event for event in events(said) if event["event"] == "bad_request"]
    assert (told["level"], told["client"], told["more"]) == ("warning", "127.0.0.1", 0)


def test_a_push_whose_encoding_is_a_lie_is_told_without_its_body(caplog: pytest.LogCaptureFixture) -> None:
    said = io.StringIO()

    async def run() -> str:
        config = configured("http://127.0.0.1:1", logs={"sources": [{"name": "a", "push": True}]})
        async with running(lambda: config) as daemon:
            return await answer(daemon.url, NO_GZIP)

    logs.configure("debug", said)
    try:
        got = fed_time.run(run())
    finally:
        structlog.reset_defaults()
    assert got.startswith("HTTP/1.1 400 ")
    assert SECRET not in got + said.getvalue() + caplog.text
    assert not caplog.records
    assert [event["error"] for event in events(said) if event["event"] == "bad_request"] == ["RequestPayloadError"]


def test_the_simulated_server_repeats_nothing_either(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[str]:
        async with SimulatedServer(scenario("healthy"), Clock().now).serve("127.0.0.1", 0) as (host, port):
            lie = NO_GZIP.replace("/api/v1/logs", "/v1/completions")
            return [await answer(f"http://{host}:{port}", request) for request in (BROKEN["a control character"], lie)]

    for got in fed_time.run(run()):
        assert got.split(" ")[1] == "400"
        assert got.endswith("\r\n\r\n400 Bad Request\n")
    assert not caplog.records


def test_a_flood_is_told_once_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[HttpFault] = []

    async def broken(_: web.Request) -> web.StreamResponse:
        raise KeyError(SECRET)

    async def run() -> str:
        app = web.Application()
        app.router.add_get("/broken", broken)
        async with HttpServer(app, told.append) as server:
            await server.listen("127.0.0.1", 0, "--listen")
            url = f"http://127.0.0.1:{server.address[1]}"
            for _ in range(3):
                await answer(url, BROKEN["no host"])
            monkeypatch.setattr(httpd, "REPEAT_S", 0.0)
            await answer(url, BROKEN["no host"])
            return await answer(url, "GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")

    got = fed_time.run(run())
    assert [(each.fault, each.more) for each in told] == [(False, 0), (False, 2), (True, 0)]
    assert told[-1].error.startswith("KeyError at broken:")
    assert got.endswith("500 Internal Server Error\n")
    assert SECRET not in got + repr(told)


def test_what_libraries_say_is_one_event_without_arguments_or_traceback() -> None:
    said = io.StringIO()
    logs.configure("info", said)
    try:
        found = (ValueError, ValueError(SECRET), None)
        record = logging.LogRecord("lib", logging.ERROR, "f", 1, "it broke for %s\nhere", (SECRET,), found)
        logs._Libraries().emit(record)
    finally:
        structlog.reset_defaults()
    (event,) = events(said)
    assert (event["event"], event["library"], event["what"], event["error"]) == (
        "library_failed", "lib", "it broke for %s", "ValueError",
    )  # fmt: skip


def test_an_address_that_cannot_be_listened_on_is_named_with_the_mend() -> None:
    async def run() -> None:
        async with HttpServer(web.Application()) as server, HttpServer(web.Application()) as other:
            with pytest.raises(httpd.ListenError, match=r"on nosuch\.invalid:9999: .*; --listen takes another address"):
                await server.listen("nosuch.invalid", 9999, "--listen")
            await server.listen("127.0.0.1", 0, "--port")
            port = server.address[1]
            with pytest.raises(httpd.ListenError, match=f"on 127.0.0.1:{port}: .*in use; --port takes another"):
                await other.listen("127.0.0.1", port, "--port")

    fed_time.run(run())
    assert joined("::1", 9840) == "[::1]:9840"
