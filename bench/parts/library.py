"""The obvious exporter, to compare with: prometheus_client's parser, the same HTTP client, one loop.

Arguments: interval in seconds, then addresses. It scrapes, parses and keeps each target's newest families; it judges
nothing and renders nothing, so its cost is a lower bound of what such an exporter takes.
"""

import asyncio
import sys

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


async def watch(session: aiohttp.ClientSession, address: str, interval: float, wait: float, seen: dict) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + wait
    while True:
        await asyncio.sleep(due - loop.time())
        async with session.get(f"http://{address}/metrics") as response:
            body = await response.text()
        seen[address] = [family for family in text_string_to_metric_families(body) if family.name.startswith("vllm:")]
        due = max(due + interval, loop.time())


async def main() -> None:
    interval, addresses = float(sys.argv[1]), sys.argv[2:]
    seen: dict = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        waits = [interval * n / len(addresses) for n in range(len(addresses))]
        await asyncio.gather(*(watch(session, a, interval, w, seen) for a, w in zip(addresses, waits, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
