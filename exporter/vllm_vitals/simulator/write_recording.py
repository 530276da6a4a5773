"""Writes a scenario as a recording, as fast as it can be simulated.

Input: a scenario and a seed. Output: scrapes at a fixed interval, the same for the same seed. Invariant: no clock is
read; times are the simulation's from a fixed epoch.
"""

from collections.abc import Iterator
from http import HTTPStatus
from math import inf

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.scrape import reasons
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.workload import Arrivals
from vllm_vitals.simulator.world import World

# What one scrape takes on a real server, in seconds.
_SCRAPE_S = 0.005
# How long what is left is worked off after the last request of a file, in seconds.
_DRAIN_S = 3600.0


def play(
    scenario: Scenario,
    seed: int = 0,
    interval_s: float = 5.0,
    dialect: Dialect = Dialect.V0_32,
    traffic: Arrivals | None = None,
    duration_s: float | None = None,
) -> Iterator[Scrape]:
    """Yield one scrape every `interval_s` simulated seconds until `duration_s`, by default the scenario's end.

    With a ``traffic`` of its own the default is until all is answered, but an hour after the last request at most.
    Raises `ScenarioError` at once.
    """
    world = World(scenario, seed, dialect=dialect, traffic=traffic)
    return _scrapes(world, interval_s, duration_s or (scenario.duration_s if traffic is None else None))


def _scrapes(world: World, interval_s: float, duration_s: float | None) -> Iterator[Scrape]:
    number, ends = 0, inf if duration_s is None else duration_s
    while (number + 1) * interval_s <= ends:
        number += 1
        at = number * interval_s
        body = world.scrape(at)
        if body is None and world.answers:
            status = HTTPStatus(world.answers)
            yield Scrape(
                world.epoch + at,
                _SCRAPE_S,
                None,
                reasons.of_status(status.value),
                f"HTTP {status.value} {status.phrase}",
            )
        elif body is None:
            yield Scrape(world.epoch + at, _SCRAPE_S, None, "refused", "connection refused")
        else:
            yield Scrape(world.epoch + at, _SCRAPE_S, body.encode())
        if duration_s is None:
            if world.over:
                return
            if world.arrived:
                ends = min(ends, at + _DRAIN_S)
