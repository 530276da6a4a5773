"""Many engines in one table, the worst first; and what changed since it was last drawn.

Input: snapshots. Output: a table, lines. Invariant: everything is a snapshot's own, and nothing that a server says can
paint on the terminal.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vllm_vitals.cli.verdict import clean, headline
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.serve.vitals import vitals

FEW = 3  # so many engines are told at length
MAX_ROWS = 60  # engines that are well and do not fit are counted
_SHOWN = {
    "running": "run",
    "waiting": "wait",
    "KV cache, max": "KV",
    "preemptions": "preempt",
    "first token p99": "TTFT p99",
}

Pair = tuple[TargetSnapshot, EngineSnapshot]


def pairs(snapshots: Sequence[TargetSnapshot]) -> list[Pair]:
    """Return engines, what is wrong first, then what cannot be judged."""
    found = [(snapshot, engine) for snapshot in snapshots for engine in snapshot.engines]
    return sorted(found, key=lambda p: (p[1].state.severity == "ok", p[1].state.rank, _names(p[1].key)))


def table(snapshots: Sequence[TargetSnapshot]) -> tuple[Table, str]:
    """Return the table, and the line below it: how many engines are in which state."""
    found = pairs(snapshots)
    drawn = Table(box=SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in ("state", "target", "model", "engine"):
        drawn.add_column(name, overflow="fold")
    for name in _SHOWN.values():
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("why", overflow="fold", ratio=1)
    for snapshot, engine in found[:MAX_ROWS]:
        numbers = {vital.name: vital.text for vital in vitals(engine)}
        drawn.add_row(
            headline(engine.state), *(Text(clean(part)) for part in _names(engine.key)),
            *(numbers.get(name, "–") for name in _SHOWN), Text(clean(why(snapshot, engine))),
        )  # fmt: skip
    counted = Counter(engine.state for _, engine in found)
    states = ", ".join(f"{counted[state]} {state.spec.label}" for state in State if counted[state])
    hidden = f"; {len(found) - MAX_ROWS} more are not shown" if len(found) > MAX_ROWS else ""
    return drawn, f"{len(found)} engines: {states or 'none'}{hidden}"


def _names(key: EngineKey) -> tuple[str, str, str]:
    return key.target, key.model_name, key.engine


def why(snapshot: TargetSnapshot, engine: EngineSnapshot) -> str:
    """Return the first proof of a state that is not well, else what keeps the target from answering."""
    if not snapshot.up:
        return f"{snapshot.reason}: {snapshot.detail}"
    if engine.state.severity == "ok" or not engine.evidence:
        return ""
    return engine.evidence[0].text


class Changes:
    """Tells which engines changed their state since the last time."""

    def __init__(self) -> None:
        self._states: dict[EngineKey, State] = {}

    def since(self, snapshots: Sequence[TargetSnapshot], now: float) -> Iterator[str]:
        """Yield a line for every engine whose state is another one."""
        for snapshot, engine in pairs(snapshots):
            if self._states.get(engine.key) is not engine.state:
                self._states[engine.key] = engine.state
                who = " ".join(part for part in _names(engine.key) if part)
                proof = why(snapshot, engine)
                at = datetime.fromtimestamp(now, UTC).strftime("%H:%M:%SZ")
                yield clean(f"{at} {engine.state.spec.label.upper()} {who}{f': {proof}' if proof else ''}")
        gone = self._states.keys() - {engine.key for _, engine in pairs(snapshots)}
        for key in gone:
            del self._states[key]


class Watch:
    """A table that is drawn again and again; where nobody looks on, lines of what changed. ``last``: what was drawn."""

    def __init__(self, console: Console) -> None:
        self._console, self._changes = console, Changes()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self.last: Sequence[TargetSnapshot] = ()

    def draw(self, snapshots: Sequence[TargetSnapshot], now: float) -> None:
        """Show what is known now."""
        self.last = list(snapshots)
        if self._live is None:
            for line in self._changes.since(snapshots, now):
                self._console.print(Text(line))
            return
        drawn, counted = table(snapshots)
        at = datetime.fromtimestamp(now, UTC).strftime("%H:%M:%S UTC")
        self._live.update(Group(drawn, Text(f"{counted}; at {at}, until Ctrl-C", style="dim")), refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
