"""What the world does to a fleet: slow and dead targets, clocks that jump, another model at an address, kill -9."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import CapturingLogger

from tests import fed_time
from tests.edges.servers import RECORDINGS, bodies, http, serving
from tests.fleet.daemons import configured, running
from tests.programs import DEADLINE_S
from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import recording
from vllm_vitals.scrape.poller import MAX_TICK_S, Poller, on_tick
from vllm_vitals.scrape.target import Target

ROOT = Path(__file__).parent.parent.parent


@given(st.floats(0.05, 60.0), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=50))
def test_polls_start_together_and_each_target_keeps_its_interval(interval: float, phases: list[float]) -> None:
    tick = min(MAX_TICK_S, interval / 4)
    for due in (phase * interval for phase in phases):
        starts = [on_tick(due + turn * interval, interval) for turn in range(3)]
        assert all(-1e-9 <= start - due - turn * interval <= tick + 1e-9 for turn, start in enumerate(starts))
    starts_of_all = {round(on_tick(phase * interval, interval), 6) for phase in phases}
    assert len(starts_of_all) <= interval / tick + 2


def test_three_of_ten_targets_slow_or_dead_cost_the_others_no_scrape() -> None:
    asked: Counter[int] = Counter()

    def good(number: int) -> object:
        async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
            if request.startswith(b"GET /metrics"):
                asked[number] += 1
            writer.write(http(bodies()[asked[number] % 50]))
            await writer.drain()

        return reply

    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def dribble(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"# x\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(good(n))) for n in range(7)]  # type: ignore[arg-type]
            bad = [await stack.enter_async_context(serving(reply)) for reply in (silent, dribble)]
            bad.append("http://127.0.0.1:1")
            loaded = configured(*urls, *bad, timeout="90ms")
            daemon = await stack.enter_async_context(running(lambda: loaded))

            async def everyone_is_judged() -> bool:
                found = await daemon.targets()
                failed = [found[url.removeprefix("http://")]["engines"][0]["state"] for url in bad if len(found) == 10]
                return failed == ["blind", "blind", "down"] and min(asked[n] for n in range(7)) >= 15

            await daemon.until(everyone_is_judged)
            # over the same time each good target was asked as often as any other
            assert max(asked.values()) - min(asked[n] for n in range(7)) <= 3
            found = await daemon.targets()
            assert all(found[url.removeprefix("http://")]["up"] for url in urls)

    fed_time.run(story())


# clocks


class Time:
    """A monotonic and a wall clock that a test moves."""

    def __init__(self) -> None:
        self.passed, self.step = 0.0, 0.0

    def monotonic(self) -> float:
        return self.passed

    def wall(self) -> float:
        return 1_800_000_000.0 + self.passed + self.step


def states_under(steps: dict[int, float]) -> tuple[list[str], list[float]]:
    """States of the spiral recording, with the wall clock stepped before some polls; and the timestamps served."""
    time, scrapes = Time(), list(recording.read(RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz"))
    clock = Clock(time.monotonic, time.wall)
    feed = iter(scrapes)

    async def fetch(_: Target) -> Scrape:
        return Scrape(clock.now(), 0.1, next(feed).body)

    poller = Poller(Target("a", "http://a/metrics"), fetch, TargetEvaluator("a"), clock, CapturingLogger())  # type: ignore[arg-type]

    async def story() -> tuple[list[str], list[float]]:
        seen, shown = [], []
        for number, scrape in enumerate(scrapes):
            time.passed = scrape.at - scrapes[0].at
            time.step += steps.get(number, 0.0)
            snapshot = await poller.poll()
            assert snapshot is not None
            seen.append(snapshot.engines[0].state.value)
            text = poller.families["last_scrape_timestamp_seconds"].decode()
            shown.append(float(text.split()[-1]) - time.wall())
        return seen, shown

    return asyncio.run(story())


@pytest.mark.parametrize("step", [3_600.0, -3_600.0, 86_400.0 * 400, 2.0])
def test_a_clock_that_is_stepped_changes_no_state_and_timestamps_follow_it(step: float) -> None:
    calm, _ = states_under({})
    stepped, shown = states_under({30: step, 60: -step / 2})
    assert stepped == calm
    assert "death_spiral" in calm
    assert max(map(abs, shown)) < 0.6


def test_rules_can_read_whether_the_users_of_a_server_can_wait() -> None:
    async def fetch(_: Target) -> Scrape:
        return Scrape(1.0, 0.1, None, "refused", "no")

    target = Target("a", "http://a/metrics", service_class="batch", labels={"cluster": "x"})
    poller = Poller(target, fetch, TargetEvaluator("a"), Clock(Time().monotonic, Time().wall), CapturingLogger())  # type: ignore[arg-type]
    asyncio.run(poller.poll())
    served = poller.families["target_service_class"].decode()
    assert served == 'vllm_vitals_target_service_class{target="a",cluster="x",service_class="batch"} 1\n'


# another model


def test_a_target_that_turns_into_another_model_starts_anew_and_the_old_one_vanishes() -> None:
    judge, at = TargetEvaluator("a"), 1_000.0
    for body in bodies("spiral_chunked"):
        last = judge.observe(Scrape(at, 0.1, body))
        at += 2.0
    assert last.engines[0].state is State.DEATH_SPIRAL
    spirals = last.engines[0].death_spirals
    others = [body.replace(b'model_name="tiny"', b'model_name="other"') for body in bodies("restart_under_load")]
    assert others[0] != bodies("restart_under_load")[0]
    for number, body in enumerate(others):
        last = judge.observe(Scrape(at, 0.1, body))
        at += 2.0
        new = next(engine for engine in last.engines if engine.key.model_name == "other")
        assert new.state not in (State.STALLED, State.DEATH_SPIRAL, State.THRASHING)
        assert new.death_spirals == 0
        if number >= 3:
            assert [engine.key.model_name for engine in last.engines] == ["other"]
    assert spirals >= 1


# kill -9


class Program:
    """The daemon as a process, with its log."""

    def __init__(self, config: Path, errors: Path) -> None:
        self.config, self.errors, self.process, self.url = config, errors, None, ""

    async def start(self) -> None:
        with self.errors.open("w") as errors:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "vllm_vitals", "run", "--config", str(self.config), stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT / "exporter")},
            )  # fmt: skip

        async def listening() -> bool:
            events = [json.loads(line) for line in self.errors.read_text().splitlines()]
            self.url = next((event["url"] for event in events if event["event"] == "listening"), "")
            return bool(self.url)

        await until(listening)

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def counted(self) -> float:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            found = re.findall(r"^vllm_vitals_log_responses_total\{.*\} (\S+)$", await answer.text(), re.MULTILINE)
        return sum(map(float, found))


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await what():  # type: ignore[misc]
            await asyncio.sleep(0.02)


def test_kill_9_in_the_middle_of_logs_loses_no_line_and_counts_none_twice(tmp_path: Path) -> None:
    log, config = tmp_path / "gateway.log", tmp_path / "c.yaml"
    config.write_text(
        f"listen: '127.0.0.1:0'\nlogs:\n  checkpoint: {tmp_path / 'checkpoint'}\n"
        f"  limits: {{poll: 10ms, checkpoint: 20ms}}\n  sources:\n    - {{name: gw, paths: ['{log}']}}\n"
    )
    written = 0

    def write(count: int) -> None:
        nonlocal written
        with log.open("a") as file:
            for _ in range(count):
                written += 1
                usage = {"completion_tokens": 1, "prompt_tokens": 2}
                file.write(json.dumps({"id": f"chatcmpl-{written}", "model": "m", "usage": usage}) + "\n")

    async def story() -> float:
        program = Program(config, tmp_path / "stderr")
        try:
            for _ in range(4):
                await program.start()
                write(200)

                async def under_way() -> bool:
                    return await program.counted() > written - 150

                await until(under_way)
                write(57)
                await program.kill()
                write(13)
            await program.start()

            async def all_counted() -> bool:
                return await program.counted() >= written

            await until(all_counted)
            write(1)
            await until(all_counted)
            return await program.counted()
        finally:
            await program.kill()

    assert asyncio.run(story()) == written == 4 * 270 + 1
