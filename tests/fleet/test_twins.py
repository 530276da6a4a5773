"""Two daemons watch one fleet, two Prometheis scrape both: folded sums are those of one daemon and one Prometheus."""

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from itertools import chain, repeat
from pathlib import Path

import aiohttp
import pytest

from tests import programs
from tests.edges.servers import bodies, plays, serving
from tests.fleet.daemons import configured, running
from tests.programs import DEADLINE_S

IDENTITY = "target, model_name, engine"
FOLDED = {
    "preemptions": f"sum(max by ({IDENTITY}) (vllm_vitals_preemptions_total))",
    "tokens": f"sum(max by ({IDENTITY}) (vllm_vitals_generation_tokens_total))",
    "finished": f"sum(max by ({IDENTITY}, finished_reason) (vllm_vitals_responses_total))",
    "engines": f"count(max by ({IDENTITY}) (vllm_vitals_state_since_timestamp_seconds))",
    "states": f"sum(max by ({IDENTITY}, state) (vllm_vitals_state))",
    "up": "sum(max by (target) (vllm_vitals_target_up))",
}


def played(name: str) -> Iterator[bytes]:
    """A recording's last bodies, then the very last for ever: an end that stands still can be compared exactly."""
    return chain(bodies(name)[-4:], repeat(bodies(name)[-1]))


@contextlib.asynccontextmanager
async def prometheus(program: str, folder: Path, daemons: list[str]) -> AsyncIterator[str]:
    folder.mkdir()
    config = folder / "prometheus.yml"
    job = {"job_name": "vitals", "scrape_interval": "1s", "static_configs": [{"targets": daemons}]}
    config.write_text(json.dumps({"scrape_configs": [job]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (program, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
               f"--web.listen-address=127.0.0.1:{port}")  # fmt: skip
    with (folder / "log").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


async def ask(session: aiohttp.ClientSession, url: str, query: str) -> float | None:
    try:
        async with session.get(f"{url}/api/v1/query", params={"query": query}) as answer:
            result = (await answer.json())["data"]["result"]
    except (aiohttp.ClientError, KeyError):
        return None
    return float(result[0]["value"][1]) if result else None


def test_twins_and_two_prometheis_say_what_one_of_each_says(tmp_path: Path) -> None:
    program = programs.find("prometheus")

    async def story() -> tuple[list[dict[str, float | None]], float | None]:
        async with contextlib.AsyncExitStack() as stack:
            enter = stack.enter_async_context
            names = ("spiral_chunked", "dp2_pressure", "truncation_mix")
            servers = [[await enter(serving(plays(played(name)))) for name in names] for _ in "ab"]
            named = [[{"url": url, "name": name} for url, name in zip(urls, names, strict=True)] for urls in servers]
            twins = [await enter(running(lambda mine=mine: configured(*mine, interval="1s"))) for mine in named]  # type: ignore[misc]
            addresses = [twin.url.removeprefix("http://").replace("localhost", "127.0.0.1") for twin in twins]
            one = await enter(prometheus(program, tmp_path / "one", addresses[:1]))
            both = [await enter(prometheus(program, tmp_path / f"both{n}", addresses)) for n in (1, 2)]
            session = await enter(aiohttp.ClientSession())
            # until each Prometheus has the servers' last words from each daemon that it scrapes
            ended = f"count(sum by (instance) (vllm_vitals_generation_tokens_total) == {truth(names)})"
            async with asyncio.timeout(2 * DEADLINE_S):
                while [await ask(session, url, ended) for url in (one, *both)] != [1.0, 2.0, 2.0]:
                    await asyncio.sleep(0.2)
            unfolded = "sum(vllm_vitals_generation_tokens_total)"
            async with asyncio.timeout(DEADLINE_S):
                while True:  # until the states stand still as well, and no scrape of a busy machine is late
                    said = [{k: await ask(session, url, q) for k, q in FOLDED.items()} for url in (one, *both)]
                    total = await ask(session, both[0], unfolded)
                    settled = None not in said[0].values() and said[0] == said[1] == said[2]
                    if settled and total is not None:
                        return said, total
                    await asyncio.sleep(0.2)

    said, unfolded = asyncio.run(story())
    assert said[0] == said[1] == said[2]
    assert said[0]["states"] == 4.0
    assert said[0]["up"] == 3.0
    assert unfolded == pytest.approx(2 * (said[0]["tokens"] or 0.0))


def truth(names: tuple[str, ...]) -> float:
    """What the servers themselves say at the end."""
    lines = [line for name in names for line in bodies(name)[-1].decode().splitlines()]
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total{"))
