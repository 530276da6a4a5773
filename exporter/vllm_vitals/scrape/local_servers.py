"""vLLM servers on this machine: what listens here and answers with vLLM's metrics.

Input: a way to fetch. Output: addresses. Invariant: only this machine is asked, and only ports that listen (Linux says
which; elsewhere vLLM's usual ones), so many at most, each for a short time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.scrape.target import DEFAULT_VLLM_PORT, Target
from vllm_vitals.vllm.lookup import PREFIXES

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
USUAL = range(DEFAULT_VLLM_PORT, DEFAULT_VLLM_PORT + 10)
MAX_PORTS = 256
DEADLINE_S = 2.0
_LISTENS = "0A"  # TCP_LISTEN, include/net/tcp_states.h


def listening(tables: Iterable[Path] = TABLES) -> list[int]:
    """Return the ports that listen on this machine, vLLM's usual ones first; only those where none is known."""
    found = set()
    for table in tables:
        try:
            rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]]
        except OSError:
            continue
        found |= {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == _LISTENS}
    return sorted(found or USUAL, key=lambda port: (port not in USUAL, port))[:MAX_PORTS]


async def vllm_servers(fetch: Callable[[Target], Awaitable[Scrape]], ports: Iterable[int]) -> list[str]:
    """Return the addresses among these ports of this machine that answer with vLLM's metrics."""

    async def ask(port: int) -> str:
        address = f"127.0.0.1:{port}"
        scrape = await fetch(Target(address, f"http://{address}/metrics", timeout=DEADLINE_S))
        return address if scrape.body is not None and is_vllm(scrape.body) else ""

    return [address for address in await asyncio.gather(*map(ask, ports)) if address]


def is_vllm(body: bytes) -> bool:
    """Return whether a page holds a series of vLLM's own; a page of ours holds only our names for them."""
    lines = body.splitlines()
    return any(
        line.startswith(tuple(p.encode() for p in PREFIXES)) and not line.startswith(b"vllm_vitals") for line in lines
    )
