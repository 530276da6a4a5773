"""A real Prometheus scrapes every dialect, and has nothing to say about it."""

import asyncio
import contextlib
import json
import subprocess

import aiohttp
import yaml
from aiohttp import web

from tests.programs import DEADLINE_S, PATIENCE_S
from tests.rules import tools
from vllm_vitals.simulator.demo import fast_clock
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.scenarios import scenario
from vllm_vitals.simulator.server import SimulatedServer


async def scraped(address, jobs):
    """Return once each of `jobs` has been scraped well three times."""
    query = {"query": "sum_over_time(up[30m])"}
    async with aiohttp.ClientSession() as session, asyncio.timeout(DEADLINE_S):
        while True:
            await asyncio.sleep(0.1)
            try:
                async with session.get(f"http://{address}/api/v1/query", params=query) as response:
                    rows = (await response.json())["data"]["result"]
            except (aiohttp.ClientError, KeyError, json.JSONDecodeError):
                continue
            counts = {row["metric"]["job"]: float(row["value"][1]) for row in rows}
            if jobs <= counts.keys() and min(counts[job] for job in jobs) >= 3:
                return


def listening(log):
    """The address that Prometheus chose, from its own log."""
    for line in log.read_text().splitlines():
        if "Listening on" in line:
            return line.rpartition("address=")[2].strip()
    return None


@contextlib.asynccontextmanager
async def broken():
    """A server whose metrics Prometheus must complain of, so that its silence about ours says something."""

    async def metrics(_):
        return web.Response(text='vllm:num_requests_running{engine="0" 1\n')

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


async def watch(binary, folder):
    clock = fast_clock(20).now
    async with (
        SimulatedServer(scenario("death_spiral"), clock, dialect=Dialect.V0).serve("127.0.0.1", 0) as v0,
        SimulatedServer(scenario("api_servers"), clock, dialect=Dialect.V0_11).serve("127.0.0.1", 0) as v11,
        SimulatedServer(scenario("dp_imbalance"), clock).serve("127.0.0.1", 0) as v32,
        SimulatedServer(scenario("healthy"), clock).serve("127.0.0.1", 0) as plain,
        broken() as wrong,
    ):
        served = {"v0": v0, "v11": v11, "v32": v32, "plain": plain, "broken": wrong}
        jobs = {name: f"{host}:{port}" for name, (host, port) in served.items()}
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in jobs.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.dump(config))
        log = folder / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 "--web.listen-address=127.0.0.1:0", "--log.level=debug"], stderr=out, stdout=out,
            )  # fmt: skip
        try:
            async with asyncio.timeout(DEADLINE_S):
                while (address := listening(log)) is None:
                    assert process.poll() is None, log.read_text()
                    await asyncio.sleep(0.05)
            await scraped(address, jobs.keys() - {"broken"})
            said = [line for line in log.read_text().splitlines() if "scrape_pool=" in line]
            return [line for line in said if "deadline exceeded" not in line]  # the machine is busy, nobody is wrong
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def test_a_real_prometheus_complains_of_no_dialect(tmp_path):
    complaints = asyncio.run(watch(tools.find("prometheus"), tmp_path))
    assert {line.partition("scrape_pool=")[2].split()[0] for line in complaints} == {"broken"}
