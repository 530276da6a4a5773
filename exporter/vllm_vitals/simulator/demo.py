"""``vllm-vitals demo``: a simulated server and the daemon's own parts in one process, on one loop, at one fast clock.

Input: a scenario and a speed. Output: the states, the vital signs and the advice as they change, and the status page.
Invariant: the daemon's parts see what they would see of a real server; only their clock runs faster.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields, replace

from rich.console import Console

from vllm_vitals.cli import verdict
from vllm_vitals.clock import Clock
from vllm_vitals.config import loader
from vllm_vitals.core.snapshot import EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.daemon import Daemon
from vllm_vitals.log import get_logger
from vllm_vitals.scrape.target import joined
from vllm_vitals.serve import views
from vllm_vitals.serve.vitals import vitals
from vllm_vitals.simulator.scenario import Restart, Scenario
from vllm_vitals.simulator.server import SimulatedServer
from vllm_vitals.simulator.workload import Load
from vllm_vitals.terms import Explained
from vllm_vitals.top.memory import Book
from vllm_vitals.top.sources import Changed, Live
from vllm_vitals.top.view import View

_SCRAPE_EVERY_S = 5.0  # simulated
_SHORTEST_MS = 100  # real
_PATIENCE_S = 5.0  # real: a scrape on a busy machine may outlast an interval as short as that
_LOOK_EVERY_S = 0.1  # real
_DRAW_EVERY_S = 0.25  # real
_TERM_S = 4.0  # real: for so long each term is explained before the next
NEXT = """What next, with servers of your own:
  vllm-vitals check http://localhost:8000           a verdict in 30 s
  vllm-vitals check --prometheus URL                all that it scrapes
  vllm-vitals incident --prometheus URL --since 7d  what happened last week
  vllm-vitals run http://localhost:8000             this page for them"""


@dataclass(frozen=True, slots=True)
class Stage:
    """What is on stage: the scenario, its time, the page's address, and how to see the newest snapshot."""

    scenario: Scenario
    url: str
    elapsed: Callable[[], float]
    newest: Callable[[], TargetSnapshot | None]

    @property
    def over(self) -> bool:
        """Whether the scenario has ended."""
        return self.elapsed() >= self.scenario.duration_s


async def run(
    scenario: Scenario, speed: float, seed: int, listen: str, console: Console, clock: Clock | None = None
) -> None:
    """Tell the story to `console`; on a terminal it opens the live view, which stays until somebody quits it."""
    clock = clock or fast_clock(speed)
    server = SimulatedServer(scenario, clock.now, seed)
    begun = clock.now()
    async with server.serve("127.0.0.1", 0) as (host, port):
        interval = f"{max(_SHORTEST_MS, round(_SCRAPE_EVERY_S / speed * 1000))}ms"
        watched = {"url": f"http://{host}:{port}", "name": scenario.name}
        settings = loader.build("demo", {"listen": listen, "interval": interval, "targets": [watched]})
        settings = replace(settings, targets=(replace(settings.targets[0], timeout=_PATIENCE_S),))
        daemon = Daemon(lambda: settings, get_logger(), clock=clock)

        async def tell(url: str) -> None:
            stage = Stage(scenario, url, lambda: clock.now() - begun, lambda: next(iter(daemon.snapshots), None))
            console.print(f"A simulated vLLM plays {scenario.name!r} at {speed:g} times real time: {scenario.summary}.")
            console.print(f"Status page: {url}\n", soft_wrap=True)
            if console.is_terminal and sys.stdin.isatty():
                await _show(stage, console, clock.now)
            else:
                await _tell(stage, console)
            console.print(NEXT, soft_wrap=True)
            daemon.stop()

        await _with_daemon(daemon, tell)


async def _with_daemon(daemon: Daemon, tell: Callable[[str], Coroutine[None, None, None]]) -> None:
    """Run the daemon, and ``tell`` beside it once it listens; a failure of either ends both."""
    telling: list[asyncio.Task[None]] = []

    def ready(host: str, port: int) -> None:
        task = asyncio.create_task(tell(f"http://{joined(host, port)}/"))
        task.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else daemon.stop())
        telling.append(task)

    try:
        await daemon.run(ready)
    finally:
        for task in telling:
            if not task.done():
                task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*telling)


def fast_clock(speed: float) -> Clock:
    """Return a clock that starts now and runs `speed` times as fast."""
    began, epoch = time.monotonic(), time.time()

    def passed() -> float:
        return (time.monotonic() - began) * speed

    return Clock(monotonic=passed, wall=lambda: epoch + passed())


# ------------------------------------------------------------------ in a pipe: one verdict per change


async def _tell(stage: Stage, console: Console) -> None:
    before: State | None = None
    explained, acts = Explained(), happenings(stage.scenario)
    while not stage.over:
        while acts and acts[0][0] <= stage.elapsed():
            at, what = acts.pop(0)
            console.print(f">>> {_minutes(at)}: {what}\n")
        snapshot = stage.newest()
        if snapshot is not None and snapshot.engines and snapshot.engines[0].state is not before:
            before = snapshot.engines[0].state
            console.print(f"--- {_minutes(stage.elapsed())}")
            verdict.print_verdict(console, [snapshot])
            for term, line in explained.new_in(_texts(snapshot.engines[0])):
                console.print(f"  ({term}: {line})")
            console.print()
        await asyncio.sleep(_LOOK_EVERY_S)
    console.print("The scenario has ended.")


def happenings(scenario: Scenario) -> list[tuple[float, str]]:
    """Return what the script does to the server and its clients, in words, in order (s)."""
    found, settings = [], scenario.settings
    for at, action in scenario.script:
        if isinstance(action, Load):
            what = (
                f"{action.clients} clients" if action.clients else f"{action.rate:g} requests/s" if action.rate else ""
            )
            if what and at > 0:
                long = f"prompts of about {action.prompt.mean:g} tokens, answers of {action.output.mean:g}"
                found.append((at, f"the load changes: {what}, {long}"))
        elif isinstance(action, Restart):
            new = action.settings or settings
            changed = [f.name for f in fields(new) if getattr(new, f.name) != getattr(settings, f.name)]
            turned = ", ".join(f"{name} {getattr(new, name)} (was {getattr(settings, name)})" for name in changed)
            found.append((at, f"the knob is turned: restart with {turned}" if turned else "the server restarts"))
            settings = new
        else:
            found.append((at, type(action).__name__.lower()))
    return found


def _texts(engine: EngineSnapshot) -> list[str]:
    return [engine.state.spec.label, *(item.text for item in engine.evidence), *(v.name for v in vitals(engine))]


# ------------------------------------------------------------------ on a terminal: the live view, with the story above


class Story(Live):
    """What the live view shows: the daemon's newest snapshots, and above them what happens, in plain words."""

    def __init__(self, stage: Stage, now: Callable[[], float]) -> None:
        self._stage, self._now = stage, now
        self._explained, self._terms, self._read = Explained(), list[str](), 0.0
        self.title = f"demo: {stage.scenario.name.replace('_', ' ')}"

    async def run(self, book: Book, changed: Changed) -> None:
        """Tell it until cancelled; after its end everything stays as it was."""
        while True:
            snapshot = self._stage.newest()
            if snapshot is not None:
                self._explain(snapshot)
                book.take(self._now(), [views.target_or_fault(snapshot, self._now())])
            self.story = self._lines()
            changed()
            await asyncio.sleep(_DRAW_EVERY_S)
            self._next_term()

    def _next_term(self) -> None:
        """Go on to the next term, once this one was there for long enough; the last one stays."""
        self._read += _DRAW_EVERY_S
        if self._read >= _TERM_S and len(self._terms) > 1:
            self._read = 0.0
            del self._terms[0]

    def _explain(self, snapshot: TargetSnapshot) -> None:
        if snapshot.engines and snapshot.engines[0].state is not State.UNKNOWN:
            texts = [snapshot.engines[0].state.spec.label, *(each.text for each in snapshot.engines[0].evidence)]
            self._terms += [f"{term}: {line}" for term, line in self._explained.new_in(texts)]

    def _lines(self) -> list[str]:
        stage = self._stage
        if stage.over:
            return ["The scenario has ended.", *NEXT.splitlines()]
        elapsed = min(stage.elapsed(), stage.scenario.duration_s)
        acts = [f"{_minutes(at)}: {what}" for at, what in happenings(stage.scenario) if at <= elapsed]
        clock = f"{_minutes(elapsed)} of {stage.scenario.duration_s / 60:.0f}; status page: {stage.url}"
        return [clock, *acts[-1:], *self._terms[:1], ""]


async def _show(stage: Stage, console: Console, now: Callable[[], float]) -> None:
    from vllm_vitals.top.terminal import Screen  # noqa: PLC0415 - termios: not on every system

    await Screen(Story(stage, now), console, View(one=True)).run()


def _minutes(seconds: float) -> str:
    return f"minute {int(seconds // 60)}:{int(seconds % 60):02d}"
