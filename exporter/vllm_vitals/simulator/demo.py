"""``vllm-vitals demo``: a simulated server and the daemon's own parts in one process, on one loop, at one fast clock.

Input: a scenario and a speed. Output: the states, the vital signs and the advice as they change, and the status page.
Invariant: the daemon's parts see what they would see of a real server; only their clock runs faster.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, fields, replace

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vllm_vitals.cli import verdict
from vllm_vitals.clock import Clock
from vllm_vitals.config import loader
from vllm_vitals.core.snapshot import EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.daemon import Daemon
from vllm_vitals.log import get_logger
from vllm_vitals.scrape.target import joined
from vllm_vitals.serve import page
from vllm_vitals.simulator.scenario import Restart, Scenario
from vllm_vitals.simulator.server import SimulatedServer
from vllm_vitals.simulator.workload import Load
from vllm_vitals.terms import Explained

_SCRAPE_EVERY_S = 5.0  # simulated
_SHORTEST_MS = 100  # real
_PATIENCE_S = 5.0  # real: a scrape on a busy machine may outlast an interval as short as that
_LOOK_EVERY_S = 0.1  # real
_DRAW_PER_S = 8
_MOST_ADVICE = 4
_TERMS = 3  # explained at a time
NEXT = """What next, with servers of your own:
  vllm-vitals check http://localhost:8000        a verdict in 30 s; --auto finds servers on this machine
  vllm-vitals check --prometheus URL             all servers that your Prometheus scrapes
  vllm-vitals incident --prometheus URL --since 7d    what happened last week
  vllm-vitals run http://localhost:8000          this page for them"""

# Column titles, and the page's numbers that each shows.
_VITAL_SIGNS = (
    ("preemptions/s, per finish, redone", ("preemptions", "preemptions per finish", "recomputed work")),
    ("KV cache, max", ("KV cache, max",)),
    ("TPOT p99, p50", ("TPOT p99", "TPOT p50")),
    ("truncated at cap", ("truncated at cap",)),
)


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
    """Tell the story to `console`; on a terminal the page then stays until it is interrupted."""
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
            await (_draw if console.is_terminal else _tell)(stage, console)
            console.print(NEXT, soft_wrap=True)
            if console.is_terminal:
                console.print(f"The scenario has ended. The page stays at {url} until Ctrl-C.", soft_wrap=True)
            else:
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
    return [engine.state.spec.label, *(item.text for item in engine.evidence), *(v.name for v in page.vitals(engine))]


# ------------------------------------------------------------------ on a terminal: a picture that changes


async def _draw(stage: Stage, console: Console) -> None:
    explained, seen = Explained(), list[str]()
    with Live(console=console, refresh_per_second=_DRAW_PER_S) as live:
        while not stage.over:
            snapshot = stage.newest()
            if snapshot is not None and snapshot.engines and snapshot.engines[0].state is not State.UNKNOWN:
                texts = [snapshot.engines[0].state.spec.label, *(e.text for e in snapshot.engines[0].evidence)]
                seen += [f"{term}: {line}" for term, line in explained.new_in(texts)]
            live.update(picture(stage, seen[-_TERMS:]))
            await asyncio.sleep(1 / _DRAW_PER_S)


def picture(stage: Stage, terms: Sequence[str] = ()) -> Group:
    """Draw how far the scenario is, and the worst engine: state, evidence, the five vital signs, advice; and terms."""
    elapsed = min(stage.elapsed(), stage.scenario.duration_s)
    bar = ProgressBar(total=stage.scenario.duration_s, completed=elapsed, width=60)
    parts: list[Text | Table | ProgressBar] = [Text(f"{_minutes(elapsed)}   {stage.url}"), bar]
    acts = [f"{_minutes(at)}: {what}" for at, what in happenings(stage.scenario) if at <= elapsed]
    parts += [Text(acts[-1] if acts else "", style="bold cyan"), Text()]
    snapshot = stage.newest()
    if snapshot is not None and snapshot.engines:
        engine = snapshot.engines[0]
        parts.append(Text.assemble(verdict.headline(engine.state), f"  {engine.state.spec.headline}"))
        parts += [Text(f"  • {item.text}") for item in engine.evidence]
        parts += [Text(), _vital_signs(engine), Text()]
        parts += [verdict.advice_line(item) for item in engine.advice[:_MOST_ADVICE]]
    parts += [Text(), *(Text(line, style="dim") for line in terms)] if terms else []
    return Group(*parts)


def _vital_signs(engine: EngineSnapshot) -> Table:
    shown = {vital.name: vital.text for vital in page.vitals(engine)}
    table = Table(header_style="dim", box=SIMPLE)
    for title, names in _VITAL_SIGNS:
        table.add_column(title)
        shown[title] = ", ".join(shown.get(name, "–") for name in names)
    spiral = engine.state is State.DEATH_SPIRAL
    table.add_column("death spiral")
    table.add_row(*(shown[title] for title, _ in _VITAL_SIGNS), Text("yes", "bold red") if spiral else Text("no"))
    return table


def _minutes(seconds: float) -> str:
    return f"minute {int(seconds // 60)}:{int(seconds % 60):02d}"
