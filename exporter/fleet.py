"""All targets: which are watched, and the pollers that watch them.

Inputs: a `Config`, a `Fetcher`. Output: pollers with their newest snapshots. Invariant: a slow, dead or absurd target
costs the others nothing, and a target that is removed leaves nothing behind.
"""

import asyncio
from collections.abc import Iterable, Mapping

from exporter import log as logs
from exporter.clock import Clock
from exporter.config import Config
from exporter.core.target import TargetJudge
from exporter.fetch import Fetcher
from exporter.poller import Hear, Poller, phase
from exporter.target import Target

FIRST_POLLS_PER_S = 50  # a handful of targets is tried at once, a thousand over an interval


def make_judge(target: Target) -> TargetJudge:
    """The judge of a configured target."""
    judge = TargetJudge(target.name, target.thresholds, target.role, target.model_name)
    judge.learn(target.settings)
    return judge


def _silence(_: str) -> Mapping[str, str]:
    return {}


class Fleet:
    """The pollers of all targets. ``hear`` tells a target's settings from elsewhere, such as its log."""

    def __init__(self, fetcher: Fetcher, clock: Clock, log: logs.Logger, hear: Hear = _silence) -> None:
        self._fetcher, self._clock, self._log, self._hear = fetcher, clock, log, hear
        self._running: dict[str, tuple[Poller, asyncio.Task[None]]] = {}
        self._histograms = ""

    @property
    def pollers(self) -> list[Poller]:
        """Every target's poller, in the config's order."""
        return [poller for poller, _ in self._running.values()]

    async def apply(self, config: Config) -> None:
        """Start what is new, stop what is gone or changed, leave alone what stays."""
        same = config.histograms == self._histograms
        stay = {
            target.name: self._running[target.name]
            for target in config.targets
            if same and target.name in self._running and self._running[target.name][0].target == target
        }
        await _end(task for name, (_, task) in self._running.items() if name not in stay)
        self._histograms = config.histograms
        self._running = {target.name: stay.get(target.name) or self._start(target, config) for target in config.targets}
        self._fetcher.settle(config.targets, config.limits.body)

    def _start(self, target: Target, config: Config) -> tuple[Poller, asyncio.Task[None]]:
        poller = Poller(
            target,
            self._fetcher.fetch,
            make_judge(target),
            self._clock,
            self._log,
            config.histograms,
            self._fetcher.ask,
        )
        spread = min(target.interval, len(config.targets) / FIRST_POLLS_PER_S)
        return poller, asyncio.create_task(poller.run(spread * phase(target.name)), name=f"poll {target.name}")

    async def stop(self) -> None:
        """End every poller."""
        await _end(task for _, task in self._running.values())
        self._running = {}


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
