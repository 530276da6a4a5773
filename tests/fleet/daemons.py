"""A daemon under test, in the test's own loop and on its time (`tests.fed_time`)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests import fed_time
from tests.programs import DEADLINE_S
from vllm_vitals.config import loader
from vllm_vitals.config.loader import Config
from vllm_vitals.daemon import Daemon
from vllm_vitals.scrape.shards import WHOLE, Shard
from vllm_vitals.serve.web_config import WebConfig


def configured(*urls: str | dict[str, str], **more: Any) -> Config:
    # what these tests call down has had its time to load
    known = {"listen": "127.0.0.1:0", "interval": "100ms", "thresholds": {"starting_budget": "1ms"}}
    return loader.build("test", {**known, "targets": list(urls), **more})


class Running:
    """What a test asks of a daemon that runs."""

    def __init__(self, daemon: Daemon, url: str, session: aiohttp.ClientSession) -> None:
        self.daemon, self.url, self.session = daemon, url, session

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.post(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def reload(self) -> tuple[int, str]:
        return await self.post("/-/reload")

    async def targets(self) -> dict[str, dict[str, Any]]:
        _, text = await self.get("/api/v1/engines")
        return {target["target"]: target for target in json.loads(text)["targets"]}

    async def until(self, what: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not await what():
                await asyncio.sleep(0.02)

    async def until_watching(self, *names: str) -> None:
        async def are_they() -> bool:
            return set(await self.targets()) == set(names)

        await self.until(are_they)


@contextlib.asynccontextmanager
async def running(
    load: Callable[[], Config],
    shard: Shard = WHOLE,
    load_web: Callable[[], WebConfig] = WebConfig,
    scheme: str = "http",
) -> AsyncIterator[Running]:
    listening: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    daemon = Daemon(load, shard=shard, load_web=load_web, clock=fed_time.clock())
    task = asyncio.create_task(daemon.run(lambda host, port: listening.set_result((host, port))))
    await asyncio.wait([task, listening], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    async with aiohttp.ClientSession() as session:
        yield Running(daemon, f"{scheme}://localhost:{listening.result()[1]}", session)
    daemon.stop()
    await asyncio.wait_for(task, DEADLINE_S)


def write(file: Path, *targets: str, **labels: str) -> None:
    """A file_sd file, replaced whole as its writers should."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps([{"targets": [t.removeprefix("http://") for t in targets], "labels": labels}]))
    new.rename(file)
