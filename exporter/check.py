"""`check`: look at servers for half a minute and give a verdict; and `record`.

Inputs: targets, how long, a clock. Outputs: the last snapshots, and for a person the verdict as text. Invariant: the
verdict is the daemon's own judge's, shortened holds apart, and everything that was not known is said.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import BinaryIO

from rich.console import Console
from rich.text import Text

from exporter import log as logs
from exporter import page, recording, replay, views
from exporter.clock import Clock
from exporter.core.snapshot import DOWN_REASONS, Advice, EngineSnapshot, State, TargetSnapshot
from exporter.core.thresholds import Thresholds
from exporter.fetch import Fetcher
from exporter.fleet import make_judge
from exporter.poller import Poller
from exporter.replay import Replay
from exporter.target import Target

EXIT_CODES = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
_WORST = ("critical", "warning", "unknown", "ok")
_COLOURS = {"critical": "bold red", "warning": "bold yellow", "ok": "bold green", "unknown": "bold magenta"}

Progress = Callable[[float, Sequence[TargetSnapshot]], None]


def hurried(limits: Thresholds, seconds: float) -> Thresholds:
    """Thresholds for a look of so many seconds: a window is the look, and what must hold holds for a part of it.

    Holding keeps a daemon from flapping; one look needs only to see the same thing twice.
    """
    return replace(
        limits,
        fast_window=min(limits.fast_window, 0.9 * seconds),
        hold=min(limits.hold, seconds / 10),
        stall_after=min(limits.stall_after, 0.7 * seconds),
        spiral_silence=min(limits.spiral_silence, seconds / 2),
    )


async def watch(targets: Sequence[Target], seconds: float, tell: Progress) -> list[TargetSnapshot]:
    """Scrape every target at its interval for ``seconds``; one where nothing ever answers is given up early."""
    clock, log = Clock(), logs.get()
    end = clock.now() + seconds
    async with Fetcher(clock.now) as fetcher:
        pollers = [_poller(target, fetcher, clock, log, seconds) for target in targets]

        async def look(poller: Poller) -> None:
            while True:
                begun = clock.now()
                await poller.poll()
                seen = [p.snapshot for p in pollers if p.snapshot is not None]
                tell(1 - max(0.0, end - clock.now()) / seconds, seen)
                wait = max(0.0, begun + poller.target.interval - clock.now())
                if clock.now() + wait > end or (poller.snapshot is not None and _hopeless(poller.snapshot)):
                    return
                await asyncio.sleep(wait)

        await asyncio.gather(*(look(poller) for poller in pollers))
        return [poller.snapshot for poller in pollers if poller.snapshot is not None]


def _poller(target: Target, fetcher: Fetcher, clock: Clock, log: logs.Logger, seconds: float) -> Poller:
    """A busy server may take seconds to answer: a person who asks waits longer than the daemon's next scrape does."""
    patient = replace(
        target, timeout=max(target.timeout, min(10.0, seconds)), thresholds=hurried(target.thresholds, seconds)
    )
    return Poller(patient, fetcher.fetch, make_judge(patient), clock, log, "none", fetcher.ask)


async def record(target: Target, file: BinaryIO, seconds: float) -> tuple[int, int, str]:
    """Write scrapes to ``file``; how many were good, how many failed, and what the last failure said."""
    clock, failed, last = Clock(), 0, ""
    end = clock.now() + seconds
    async with Fetcher(clock.now) as fetcher:
        with recording.Writer(file) as writer:
            while True:
                scrape = await fetcher.fetch(target)
                writer.write(scrape)
                if scrape.body is None:
                    failed, last = failed + 1, f"{scrape.reason}: {scrape.detail}"
                wait = max(0.0, scrape.at + target.interval - clock.now())
                if clock.now() + wait > end:
                    return writer.scrapes - failed, failed, last
                await asyncio.sleep(wait)


def _hopeless(snapshot: TargetSnapshot) -> bool:
    """Nothing has ever answered, often enough to call it down."""
    failures = sum(snapshot.errors.get(reason, 0) for reason in DOWN_REASONS)
    return snapshot.last_scrape_at is None and failures >= Thresholds().failures


def exit_code(snapshots: Iterable[TargetSnapshot]) -> int:
    """0 healthy, 1 warning, 2 critical, 3 unknown: the worst engine speaks."""
    seen = {engine.state.severity for snapshot in snapshots for engine in snapshot.engines}
    return EXIT_CODES[next((severity for severity in _WORST if severity in seen), "unknown")]


def print_verdict(console: Console, snapshots: Iterable[TargetSnapshot]) -> None:
    """The verdict per engine, worst first: state, evidence, first knob, vital signs, what was not known."""
    for snapshot in views.worst_first(snapshots):
        for engine in snapshot.engines:
            _print_engine(console, snapshot, engine)


def print_replay(console: Console, done: Replay) -> None:
    """A recording's story, engine by engine, and the verdict at its end."""
    start = done.polls[0].at if done.polls else 0.0
    for engine in replay.engines(done):
        who = " ".join(part for part in (engine["target"], engine["model_name"], f"engine {engine['engine']}") if part)
        console.print(Text(_clean(who), style="bold"))
        for run in engine["timeline"]:
            state = State(run["state"])
            times = f"{run['from'] - start:7.0f} s to {run['to'] - start:5.0f} s  "
            console.print(Text.assemble(times, (page.words(state), _COLOURS[state.severity])))
        console.print()
    worst = min((engine.state.rank for poll in done.polls for engine in poll.engines), default=0)
    at_worst = [poll for poll in done.polls if poll.engines and poll.engines[0].state.rank == worst]
    if at_worst:
        moment = at_worst[len(at_worst) // 2]
        console.print(Text(f"In the middle of its worst, at {moment.at - start:.0f} s:\n"))
        print_verdict(console, [moment])


def _clean(text: str) -> str:
    """Text from a server without characters that a terminal would obey."""
    return "".join(ch if ch.isprintable() else "\N{REPLACEMENT CHARACTER}" for ch in text)


def _print_engine(console: Console, target: TargetSnapshot, engine: EngineSnapshot) -> None:
    key = engine.key
    who = " ".join(part for part in (key.target, key.model_name, f"engine {key.engine}" if key.engine else "") if part)
    state = Text(page.words(engine.state).upper(), style=_COLOURS[engine.state.severity])
    console.print(Text.assemble(state, "  ", (_clean(who), "bold")))
    console.print(Text(f"  {page.HEADLINES[engine.state]}"))
    if not target.up:
        console.print(Text(_clean(f"  {target.reason}: {target.detail}")))
    for item in engine.evidence:
        console.print(Text(_clean(f"  • {item.text}")))
    for title, when in (("now", "now"), ("at the next restart", "restart")):
        _print_advice(console, title, [advice for advice in engine.advice if advice.when == when])
    numbers = [f"{v.name} {v.text}" for v in page.vitals(engine) if v.text != "–"]
    if numbers:
        console.print(Text(f"  numbers: {', '.join(numbers)}", style="dim"))
    for line in engine.unknown:
        console.print(Text(_clean(f"  not known: {line}"), style="dim"))
    console.print()


def _print_advice(console: Console, title: str, items: Sequence[Advice]) -> None:
    for item in items[:2]:
        direction = f" {item.direction}" if item.direction in ("up", "down") else ""
        console.print(Text.assemble(f"  {title}: ", (f"{item.knob}{direction}", "bold"), _clean(f": {item.size}")))
        more = "; ".join(
            text for text in (item.watch and f"watch {item.watch}", item.cost and f"cost: {item.cost}") if text
        )
        if more:
            console.print(Text(f"    {more}", style="dim"))
