import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from tests import fed_time
from vllm_vitals.core.dialect import normalise
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.logs import LogWriter, startup
from vllm_vitals.simulator.scenario import Freeze, Restart, Scenario
from vllm_vitals.simulator.scenarios import scenario
from vllm_vitals.simulator.server import SimulatedServer
from vllm_vitals.simulator.workload import Load
from vllm_vitals.simulator.world import World

EMPTY = Scenario("empty", "nobody asks", "idle", 1000, ())


class HandClock:
    """A clock that the test moves."""

    def __init__(self):
        self.time = 1.8e9

    def __call__(self):
        return self.time


def with_server(scene, use, **options):
    """Run ``use(session, base_url, server, clock)`` against a listening server."""

    async def go():
        clock = HandClock()
        server = SimulatedServer(scene, clock, **options)
        async with server.serve("127.0.0.1", 0) as (host, port), aiohttp.ClientSession() as session:
            return await use(session, f"http://{host}:{port}", server, clock)

    return fed_time.run(go())


async def until(condition):
    """Give the loop turns until `condition` holds; the ticker of the server runs meanwhile."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_metrics_are_what_the_clock_says_has_happened():
    async def use(session, url, server, clock):
        async with session.get(f"{url}/metrics") as before:
            assert before.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"
            (first,) = normalise(await before.read()).engines.values()
        clock.time += 60
        async with session.get(f"{url}/metrics") as after:
            (second,) = normalise(await after.read()).engines.values()
        assert (first.completions, first.generation_tokens) == (0, 0)
        assert 60 < second.completions < 200

    with_server(scenario("healthy"), use)


def test_a_completion_takes_simulated_time_and_is_counted():
    async def use(session, url, server, clock):
        asked = {"model": "sim-8b", "prompt": [1] * 100, "max_tokens": 50}
        waiting = asyncio.create_task(session.post(f"{url}/v1/completions", json=asked))
        await until(lambda: server.world.engines[0].requests)
        assert not waiting.done()
        clock.time += 10
        answer = await (await waiting).json()
        assert answer["usage"] == {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
        assert answer["choices"][0]["finish_reason"] == "length"
        assert server.world.engines[0].stats.responses["length"] == 1

    with_server(EMPTY, use)


def test_chat_answers_in_its_own_shape():
    async def use(session, url, server, clock):
        asked = {"model": "sim-8b", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 3}
        waiting = asyncio.create_task(session.post(f"{url}/v1/chat/completions", json=asked))
        await until(lambda: server.world.engines[0].requests)
        clock.time += 1
        answer = await (await waiting).json()
        assert answer["choices"][0]["message"]["role"] == "assistant"

    with_server(EMPTY, use)


def test_a_client_that_hangs_up_leaves_the_batch():
    async def use(session, url, server, clock):
        asked = {"prompt": "x" * 400, "max_tokens": 500}
        waiting = asyncio.create_task(session.post(f"{url}/v1/completions", json=asked))
        await until(lambda: server.world.engines[0].requests)
        clock.time += 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: not server._answers)
        clock.time += 1
        await until(lambda: not server.world.engines[0].requests)
        assert sum(server.world.engines[0].stats.responses.values()) == 0

    with_server(EMPTY, use)


@pytest.mark.parametrize(
    ("asked", "status", "why"),
    [
        (b"{", 400, "The body is not JSON."),
        (b"[]", 400, "The body must be a JSON object."),
        (b'{"prompt": "hi", "max_tokens": "many"}', 400, "max_tokens must be a whole number."),
        (b'{"prompt": "hi", "max_tokens": 1e300}', 400, "max_tokens must be a whole number."),
        (b'{"prompt": "hi", "max_tokens": [1]}', 400, "max_tokens must be a whole number."),
        (b'{"model": "other", "prompt": "hi"}', 404, "The model `other` does not exist."),
        (b'{"prompt": "hi", "max_tokens": 9000}', 400, "maximum context length is 8192 tokens"),
        (b'{"prompt": "hi", "max_tokens": -1}', 400, "max_tokens must be at least 1"),
        (b'{"prompt": "hi", "stream": true}', 400, "stream is not simulated"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_vllms_shape(asked, status, why):
    async def use(session, url, server, clock):
        async with session.post(f"{url}/v1/completions", data=asked) as response:
            assert response.status == status
            assert why in (await response.json())["error"]["message"]

    with_server(EMPTY, use)


def test_a_hung_engine_answers_metrics_but_no_request():
    async def use(session, url, server, clock):
        clock.time += 2
        waiting = asyncio.create_task(session.post(f"{url}/v1/completions", json={"prompt": "hi"}))
        await until(lambda: server.world.engines[0].requests)
        clock.time += 100
        async with session.get(f"{url}/metrics") as response:
            assert response.status == 200
        assert not waiting.done()
        waiting.cancel()

    with_server(replace(EMPTY, script=((1, Freeze()),)), use)


def test_while_the_process_is_down_the_port_is_closed_and_then_it_is_back_with_new_settings():
    changed = replace(EMPTY.settings, max_model_len=4096)

    async def use(session, url, server, clock):
        async with session.get(f"{url}/v1/models") as response:
            assert (await response.json())["data"][0]["max_model_len"] == 8192
        clock.time += 11
        await until(lambda: not server.world.up)
        async with aiohttp.ClientSession() as fresh, asyncio.timeout(10):
            refused = False
            while not refused:
                try:
                    await (await fresh.get(f"{url}/metrics")).read()
                except aiohttp.ClientConnectorError:
                    refused = True
                except aiohttp.ClientError:
                    await asyncio.sleep(0.01)  # the listening socket is about to go
        clock.time += 20
        async with aiohttp.ClientSession() as fresh, asyncio.timeout(10):
            while True:
                try:
                    async with fresh.get(f"{url}/v1/models") as response:
                        assert (await response.json())["data"][0]["max_model_len"] == 4096
                        return
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.01)

    with_server(replace(EMPTY, script=((10, Restart(15.0, changed)),)), use)


@pytest.mark.parametrize(
    ("dialect", "version"), [(Dialect.V0, "0.6.6"), (Dialect.V0_11, "0.11.0"), (Dialect.V0_32, "0.32.0")]
)
def test_the_version_goes_with_the_dialect(dialect, version):
    async def use(session, url, server, clock):
        async with session.get(f"{url}/version") as response:
            assert await response.json() == {"version": version}
        async with session.get(f"{url}/health") as response:
            assert (response.status, await response.read()) == (200, b"")

    with_server(EMPTY, use, dialect=dialect)


def test_the_log_is_vllms_own_json_with_start_up_statistics_and_requests():
    lines = []

    async def use(session, url, server, clock):
        clock.time += 35
        server.sync()

    with_server(scenario("healthy"), use, write_log=lines.append, log_requests=True)
    records = [json.loads(line) for line in lines]
    assert list(records[0]) == [
        "asctime", "levelname", "name", "processName", "process", "message", "vllm_process_name",
    ]  # fmt: skip
    assert records[0]["asctime"] == "2027-01-15 08:00:00,000"
    texts = [record["message"] for record in records]
    assert "Chunked prefill is enabled with max_num_batched_tokens=2048." in texts
    assert any(
        text.startswith("GPU KV cache size: 32,768 tokens, Maximum concurrency for 8,192 tokens") for text in texts
    )
    stats = [record for record in records if record["name"] == "vllm.v1.metrics.loggers"]
    assert len(stats) == 3
    assert stats[0]["message"].startswith("Engine 000: Avg prompt throughput: ")
    assert stats[0]["asctime"] == "2027-01-15 08:00:10,000"
    assert sum("Generated response" in text for text in texts) > 20
    assert any("finish_reason: stop" in text for text in texts)


def test_an_idle_engine_falls_silent_after_one_line_of_zeros():
    lines = []
    world = World(replace(EMPTY, script=((0, Load(rate=1.0)), (20, Load()))), epoch=1.8e9)
    writer = LogWriter(lines.append, 1.8e9, "http://127.0.0.1:8000")
    for second in range(10, 110, 10):
        world.advance(second)
        writer.stats(world, second)
    assert 3 <= len(lines) <= 5
    assert b"Avg generation throughput: 0.0 tokens/s" in lines[-1]


def test_several_api_servers_write_no_statistics_line():
    lines = []
    world = World(scenario("api_servers"))
    world.advance(10)
    LogWriter(lines.append, 1.8e9, "").stats(world, 10)
    assert lines == []


def test_a_server_default_cap_is_said_at_start_up():
    texts = [text for _, text, _ in startup(scenario("truncation").settings, 1, 1, "http://x")]
    assert any("overridden" in text and "{'max_tokens': 256}" in text for text in texts)
    assert any("'override_generation_config': {'max_new_tokens': 256}" in text for text in texts)


def test_a_server_can_begin_in_the_middle_of_its_scenario():
    async def use(session, url, server, clock):
        async with session.get(f"{url}/metrics") as answer:
            (engine,) = normalise(await answer.read()).engines.values()
        assert 60 < engine.completions < 200

    with_server(scenario("healthy"), use, skip_s=60.0)


def test_pause_and_resume_are_answered_and_counted():
    async def use(session, url, server, clock):
        async with session.post(f"{url}/pause?mode=keep") as answer:
            assert answer.status == 200
        async with session.get(f"{url}/is_paused") as answer:
            assert await answer.json() == {"is_paused": True}
        waiting = asyncio.create_task(session.post(f"{url}/v1/completions", json={"prompt": "hi"}))
        await until(lambda: server.world.engines[0].requests)
        clock.time += 60
        server.sync()
        assert not waiting.done()
        async with session.post(f"{url}/resume") as answer:
            assert answer.status == 200
        clock.time += 10
        assert (await waiting).status == 200
        async with session.get(f"{url}/metrics") as answer:
            text = await answer.text()
        for handler, method in (("/pause", "POST"), ("/resume", "POST"), ("/is_paused", "GET")):
            assert f'http_requests_total{{handler="{handler}",method="{method}",status="2xx"}} 1.0' in text
        assert 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0' in text

    with_server(EMPTY, use)


def test_a_pause_in_another_mode_is_refused():
    async def use(session, url, server, clock):
        async with session.post(f"{url}/pause?mode=abort") as answer:
            assert (answer.status, "only mode=keep" in await answer.text()) == (400, True)
        assert not server.world.engines[0].paused

    with_server(EMPTY, use)


def test_refused_requests_are_counted_by_class():
    async def use(session, url, server, clock):
        await session.post(f"{url}/v1/completions", json={"prompt": "hi", "max_tokens": -1})
        await session.post(f"{url}/v1/chat/completions", json={"model": "other", "messages": []})
        async with session.get(f"{url}/metrics") as answer:
            text = await answer.text()
        assert 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0' in text
        assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 1.0' in text

    with_server(EMPTY, use)


def test_something_before_a_server_that_starts_answers_503():
    async def use(session, url, server, clock):
        async with session.get(f"{url}/metrics") as answer:
            assert answer.status == 503
        clock.time += 200
        async with session.get(f"{url}/metrics") as answer:
            assert answer.status == 200

    with_server(scenario("starting_503"), use)


def test_a_server_that_starts_logs_it_once_it_has():
    lines = []

    async def use(session, url, server, clock):
        server.sync()
        assert lines == []
        clock.time += 200
        server.sync()

    with_server(scenario("starting"), use, write_log=lines.append)
    assert json.loads(lines[0])["asctime"] == "2027-01-15 08:03:00,000"
