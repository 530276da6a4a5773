"""Writes a scenario as a recording, as fast as it can be simulated.

Input: a scenario and a seed. Output: scrapes at a fixed interval, the same for the same seed. Invariant: no clock is
read; times are the simulation's from a fixed epoch.
"""

from collections.abc import Iterator

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.simulator.families import Dialect
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.world import World

# What one scrape takes on a real server, in seconds.
_SCRAPE_S = 0.005


def play(
    scenario: Scenario, seed: int = 0, interval_s: float = 5.0, dialect: Dialect = Dialect.V0_32
) -> Iterator[Scrape]:
    """One scrape every `interval_s` simulated seconds until the scenario's end. Raises `ScenarioError` at once."""
    return _scrapes(World(scenario, seed, dialect=dialect), interval_s)


def _scrapes(world: World, interval_s: float) -> Iterator[Scrape]:
    for number in range(1, int(world.scenario.duration_s / interval_s) + 1):
        at = number * interval_s
        body = world.scrape(at)
        if body is None:
            yield Scrape(world.epoch + at, _SCRAPE_S, None, "refused", "connection refused")
        else:
            yield Scrape(world.epoch + at, _SCRAPE_S, body.encode())
