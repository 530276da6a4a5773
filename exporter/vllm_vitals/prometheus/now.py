"""Every server as it is now, judged from the raw samples that a Prometheus keeps of it.

Input: API clients, servers, a time, how far to look back. Output: snapshots, and a line for each server that has none.
Invariant: the judge is the daemon's; a server that cannot be read costs no other its own.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.prometheus.promapi import PromError
from vllm_vitals.prometheus.raw import Ask, Reader, Server

MISSED = 4  # scrapes without a sample: a server that Prometheus has stopped to ask
LEAST_S = 120.0  # a server asked more often than every 30 s is gone after so long


def judged_now(
    asks: Sequence[Ask],
    servers: Sequence[Server],
    at: float,
    look_back: float,
    limits: Thresholds,
    tell: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> tuple[list[TargetSnapshot], list[str]]:
    """Return the last snapshot of each server, and why others have none. As many at a time as there are ``asks``.

    Raises `PromError` where no query will ever succeed.
    """
    free: SimpleQueue[Ask] = SimpleQueue()
    for ask in asks:
        free.put(ask)

    def one(server: Server) -> TargetSnapshot | str:
        ask = free.get()
        try:
            return judged(ask, server, at, look_back, limits)
        except PromError as error:
            if error.fatal:
                raise
            return f"{server.name}: {error}"
        finally:
            free.put(ask)

    snapshots, problems = [], []
    with ThreadPoolExecutor(len(asks)) as pool:
        for number, found in enumerate(pool.map(one, servers), 1):
            tell(number, len(servers), servers[number - 1].name)
            if isinstance(found, str):
                problems.append(found)
            else:
                snapshots.append(found)
    return snapshots, problems


def judged(ask: Ask, server: Server, at: float, look_back: float, limits: Thresholds) -> TargetSnapshot | str:
    """Return one server's last snapshot, or why there is none. Raises `PromError`."""
    reader = Reader(ask, server)
    interval = reader.probe(at - look_back, at)
    judge = TargetEvaluator(server.name, limits.at_interval(interval), may_start=True)
    last = None
    for scrape in reader.scrapes(at - look_back, at):
        last = judge.observe(scrape)
    if last is None or at - last.at > max(LEAST_S, MISSED * interval):
        ago = f"no sample for {at - last.at:.0f} s" if last is not None else f"no sample in the last {look_back:.0f} s"
        return f"{server.name}: {ago}: it is not scraped any more"
    return last
