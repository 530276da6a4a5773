"""All targets: which are watched, and the pollers that watch them.

Inputs: a `Config`, a `Fetcher`. Output: pollers with their newest snapshots. Invariant: a slow, dead or absurd target
costs the others nothing, and a target that is removed leaves nothing behind.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import Scrape, TargetSnapshot
from vllm_vitals.log import Logger
from vllm_vitals.recordings.flight import Flight, FlightRecorder
from vllm_vitals.scrape import canary
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.last_seen import LastSeen
from vllm_vitals.scrape.poller import Poller, SettingsFromLogs, make_evaluator, phase
from vllm_vitals.scrape.target import Target
from vllm_vitals.scrape.worker_thread import Beside

if TYPE_CHECKING:
    from vllm_vitals.config.loader import Config

FIRST_POLLS_PER_S = 50  # a handful of targets is tried at once, a thousand over an interval
SAVE_S = 60.0
CLOSE_S = 3.0  # for recordings to reach the disk when we end


def _silence(_: str) -> Mapping[str, str]:
    return {}


class Fleet:
    """The pollers of all targets. ``settings_from_logs`` tells a target's settings from elsewhere, such as its log."""

    def __init__(
        self,
        fetcher: Fetcher,
        clock: Clock,
        log: Logger,
        settings_from_logs: SettingsFromLogs = _silence,
        observe: Callable[[TargetSnapshot], None] = lambda snapshot: None,
    ) -> None:
        self._observe = observe
        self._fetcher, self._clock, self._log, self._settings_from_logs = fetcher, clock, log, settings_from_logs
        self._beside = Beside()
        self._running: dict[str, tuple[Poller, list[asyncio.Task[None]]]] = {}
        self._histograms = ""
        self._last_seen = LastSeen(None, log)
        self._saving: asyncio.Task[None] | None = None
        self._flight: Flight | None = None
        self._recorder: FlightRecorder | None = None

    @property
    def pollers(self) -> list[Poller]:
        """Every target's poller, in the config's order."""
        return [poller for poller, _ in self._running.values()]

    async def apply(self, config: "Config") -> None:
        """Start what is new, stop what is gone or changed, leave alone what stays."""
        same = config.histograms == self._histograms
        stay = {
            target.name: self._running[target.name]
            for target in config.targets
            if same and target.name in self._running and self._running[target.name][0].target == target
        }
        gone = [name for name in self._running if name not in stay]
        await _end(task for name in gone for task in self._running[name][1])
        await self._record_as(config.flight, gone)
        await self._remember_in(config.state_file)
        self._histograms = config.histograms
        self._running = {target.name: stay.get(target.name) or self._start(target, config) for target in config.targets}
        await self._fetcher.settle(config.targets, config.limits.body)

    def _start(self, target: Target, config: "Config") -> tuple[Poller, list[asyncio.Task[None]]]:
        evaluator = make_evaluator(target, may_start=True)
        self._last_seen.prepare(evaluator, target.name, target.model_name, self._clock.now())
        poller = Poller(
            target,
            self._fetcher.fetch,
            evaluator,
            self._clock,
            self._log,
            config.histograms,
            self._fetcher.ask,
            self._settings_from_logs,
            self._record,
            self._beside,
        )
        spread = min(target.interval, len(config.targets) / FIRST_POLLS_PER_S)
        wait = spread * phase(target.name)
        tasks = [asyncio.create_task(poller.run(wait), name=f"poll {target.name}")]
        plan = target.canary
        if plan is not None:
            sending = canary.run(
                target, plan, self._fetcher.post, self._clock.now, lambda: poller.snapshot, poller.on_canary,
                wait + plan.interval * phase(f"canary {target.name}"),
            )  # fmt: skip
            tasks.append(asyncio.create_task(sending, name=f"canary {target.name}"))
        return poller, tasks

    def _record(self, scrape: Scrape, snapshot: TargetSnapshot) -> None:
        self._observe(snapshot)
        self._last_seen.note(snapshot)
        if self._recorder is not None:
            self._recorder.observe(scrape, snapshot)

    async def _record_as(self, flight: Flight | None, gone: list[str]) -> None:
        """Forget targets; with another flight recorder in the config, end the old one first."""
        if flight != self._flight:
            await self._close_recorder()
            self._flight, self._recorder = flight, None
            if flight is not None:
                self._recorder = FlightRecorder(flight, self._log, impairment=self._fetcher.impairment)
        if self._recorder is not None:
            self._recorder.forget(gone)

    async def _remember_in(self, path: Path | None) -> None:
        """Keep in this file when targets last answered; another file begins with what it holds."""
        if path == self._last_seen.path:
            return
        await self._end_saving()
        self._last_seen = await asyncio.to_thread(LastSeen, path, self._log)
        if path is not None:
            self._saving = asyncio.create_task(self._save_on(self._last_seen), name="state file")

    @staticmethod
    async def _save_on(last_seen: LastSeen) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            await last_seen.save()

    async def _end_saving(self) -> None:
        if self._saving is not None:
            saving, self._saving = self._saving, None
            await _end([saving])
            with contextlib.suppress(TimeoutError):  # a disk that hangs must not keep us
                await asyncio.wait_for(self._last_seen.save(), CLOSE_S)

    async def _close_recorder(self) -> None:
        if self._recorder is not None:
            recorder, self._recorder = self._recorder, None
            with contextlib.suppress(TimeoutError):  # a disk that hangs must not keep us
                await asyncio.wait_for(asyncio.to_thread(recorder.close), CLOSE_S)

    async def stop(self) -> None:
        """End every poller, and every recording with them."""
        await _end(task for _, tasks in self._running.values() for task in tasks)
        self._running = {}
        self._beside.close()
        await self._end_saving()
        await self._close_recorder()


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
