"""One target: fetch, judge, render, on its own schedule.

Inputs: a `Target`, a way to fetch it, its judge. Outputs: the newest `TargetSnapshot` and its rendered families,
replaced whole after each poll. Invariant: polls of one target never overlap, whatever happens in one, the next comes,
and what is large or costly is read beside the event loop.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import ceil, floor
from time import thread_time

from vllm_vitals.clock import Clock
from vllm_vitals.core.render import Families, Histograms, TargetRenderer
from vllm_vitals.core.snapshot import Canary, Scrape, TargetSnapshot
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.log import Logger, log_transitions
from vllm_vitals.scrape.budget import Budget
from vllm_vitals.scrape.target import Target
from vllm_vitals.scrape.worker_thread import Beside

MAX_TICK_S = 0.25
TOO_MUCH_WAITS = "too many large bodies wait to be read"

Fetch = Callable[[Target], Awaitable[Scrape]]
ProbeServer = Callable[[Target], Awaitable[tuple[Mapping[str, str], str]]]  # settings and version that the server tells
SettingsFromLogs = Callable[
    [str], Mapping[str, str]
]  # settings of the target by that name from elsewhere, such as its log
Record = Callable[[Scrape, TargetSnapshot], None]


def phase(name: str) -> float:
    """Return where in its interval a target is polled, 0 to 1: stable, and spread evenly over many targets."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def next_due(now: float, interval: float, offset: float) -> float:
    """Return the first point of a target's grid that lies at least half an interval ahead."""
    return (floor((now + interval / 2 - offset) / interval) + 1) * interval + offset


def on_tick(at: float, interval: float) -> float:
    """Return the next point at which polls start: polls of many targets start together, a third cheaper.

    Every poll of a target is off its grid by the same: what lies between two of them is its interval.
    """
    tick = min(MAX_TICK_S, interval / 4)
    return ceil(at / tick) * tick


def make_evaluator(target: Target, *, may_start: bool = False) -> TargetEvaluator:
    """Make the evaluator of a configured target; ``may_start``: it may still be loading when it is first watched."""
    evaluator = TargetEvaluator(target.name, target.thresholds, target.role, target.model_name, may_start=may_start)
    evaluator.learn(target.settings)
    return evaluator


class Poller:
    """Polls one target for ever."""

    def __init__(
        self,
        target: Target,
        fetch: Fetch,
        evaluator: TargetEvaluator,
        clock: Clock,
        log: Logger,
        histograms: Histograms = "all",
        probe_server: ProbeServer | None = None,
        settings_from_logs: SettingsFromLogs | None = None,
        record: Record | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.target = target
        self.snapshot: TargetSnapshot | None = None
        self.families: Families = {}
        self._fetch, self._evaluator, self._clock, self._log = fetch, evaluator, clock, log
        self._probe_server, self._settings_from_logs = probe_server, settings_from_logs
        self._record, self._beside = record, beside
        self._canaries: list[Canary] = []
        self._budget, self._is_slowed = Budget(target.interval), False
        self._renderer = TargetRenderer(target.labels, histograms, target.service_class)

    async def run(self, first_wait: float) -> None:
        """Poll after ``first_wait`` seconds, then on the target's grid, until cancelled."""
        loop, interval = asyncio.get_running_loop(), self.target.interval
        offset = phase(self.target.name) * interval
        due = loop.time() + first_wait
        while True:
            await asyncio.sleep(on_tick(due, interval) - loop.time())
            await self.poll()
            # a poll may end after its next point was due: that one is skipped, not made up for
            usual = next_due(max(due, loop.time() - interval / 2), interval, offset)
            due = max(usual, next_due(self._budget.free_at - interval, interval, offset))
            self._slow_down(round((due - usual) / interval), due - loop.time())

    def on_canary(self, result: Canary) -> None:
        """Hand the evaluator a canary's end; one event a change of outcome."""
        before = self.snapshot.canary if self.snapshot is not None else None
        self._canaries.append(result)
        if result.outcome != (before.outcome if before is not None else "ok"):
            say = self._log.info if result.outcome == "ok" else self._log.warning
            say("canary", target=self.target.name, outcome=result.outcome, why=result.detail)

    async def poll(self) -> TargetSnapshot | None:
        """Scrape and evaluate once; a fault of ours is one log line, and the last snapshot stays."""
        scrape = await self._fetch(self.target)
        if self._probe_server is not None and scrape.body is not None and not (self.snapshot and self.snapshot.up):
            self._evaluator.learn(*await self._probe_server(self.target), source="probe")
        try:
            if self._settings_from_logs is not None:
                self._evaluator.learn(self._settings_from_logs(self.target.name), source="log")
            now, families, cost = await self._judged(scrape)
            self.families = families
            self._budget.spend(asyncio.get_running_loop().time(), cost)
            if self._record is not None:
                self._record(scrape, now)
        except Exception as error:  # the one place where a bug must not end the watch
            self._log.error("poll_failed", target=self.target.name, error=f"{type(error).__name__}: {error}"[:300])
            return None
        before, self.snapshot = self.snapshot, now
        log_transitions(self._log, before, now)
        return now

    async def _judged(self, scrape: Scrape) -> tuple[TargetSnapshot, Families, float]:
        """Judge here, or beside the event loop what is costly; where too much waits there, this scrape is left out."""
        size = len(scrape.body or b"")
        if self._beside is None or self._budget.is_light(size):
            return self._judge(scrape)
        if not self._beside.has_room(size):
            scrape = Scrape(scrape.at, scrape.duration_s, None, "over_budget", TOO_MUCH_WAITS)
        return await self._beside.run(size if scrape.body is not None else 0, partial(self._judge, scrape))

    def _judge(self, scrape: Scrape) -> tuple[TargetSnapshot, Families, float]:
        """Judge and render; also what that cost in CPU seconds. Runs in one thread at a time."""
        begun = thread_time()
        canaries, self._canaries = self._canaries, []
        for result in canaries:
            self._evaluator.canary(result)
        now = self._evaluator.observe(scrape)
        return now, self._renderer.render(now, self._clock.skew), thread_time() - begun

    def _slow_down(self, skipped: int, wait: float) -> None:
        """Say that polls are left out, once, and once that none are any more."""
        if skipped <= 0 and not self._is_slowed:
            return
        why = f"its answers cost too much to read: the next look is in {wait:.0f} s" if skipped > 0 else ""
        self._evaluator.slow_down(max(0, skipped), why)
        if bool(why) != self._is_slowed:
            self._is_slowed = bool(why)
            say, event = (self._log.warning, "over_budget") if why else (self._log.info, "within_budget")
            say(event, target=self.target.name, why=why or "it is polled at its interval again")
