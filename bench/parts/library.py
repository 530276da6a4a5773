"""The obvious exporter, to compare with: prometheus_client's parser and writer, the same HTTP client, one loop.

Arguments: interval in seconds, then addresses. After each scrape it parses, and renders vLLM's families under the
target's label, as ours renders after each poll. It judges nothing and derives nothing.
"""

import asyncio
import sys
from collections.abc import Iterator

import aiohttp
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class Seen(Collector):
    """One target's newest families."""

    def __init__(self, target: str) -> None:
        self.target, self.families = target, []

    def collect(self) -> Iterator[Metric]:
        yield from self.families

    def take(self, body: str) -> None:
        self.families = []
        for family in text_string_to_metric_families(body):
            if family.name.startswith("vllm:"):
                renamed = Metric(family.name.replace("vllm:", "vllm_"), family.documentation, family.type)
                for sample in family.samples:
                    labels = {**sample.labels, "target": self.target}
                    renamed.add_sample(sample.name.replace("vllm:", "vllm_"), labels, sample.value)
                self.families.append(renamed)


async def watch(session: aiohttp.ClientSession, address: str, interval: float, wait: float, pages: dict) -> None:
    loop, seen, registry = asyncio.get_running_loop(), Seen(address), CollectorRegistry()
    registry.register(seen)
    due = loop.time() + wait
    while True:
        await asyncio.sleep(due - loop.time())
        async with session.get(f"http://{address}/metrics") as response:
            seen.take(await response.text())
        pages[address] = generate_latest(registry)
        due = max(due + interval, loop.time())


async def main() -> None:
    interval, addresses = float(sys.argv[1]), sys.argv[2:]
    pages: dict = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        waits = [interval * n / len(addresses) for n in range(len(addresses))]
        await asyncio.gather(*(watch(session, a, interval, w, pages) for a, w in zip(addresses, waits, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
