"""A verdict for a terminal: state, evidence, first knob, vital signs, what was not known; and its exit code.

Input: snapshots, or a replay. Output: lines on a console. Invariant: everything is a snapshot's own, and nothing that a
server says can paint on the terminal.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from vllm_vitals.core.follow_up import FollowUp
from vllm_vitals.core.snapshot import Advice, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.serve import views
from vllm_vitals.serve.vitals import vitals

if TYPE_CHECKING:
    from vllm_vitals.recordings.replay import Replay

EXIT_CODES = {"critical": 2, "warning": 1, "unknown": 3, "ok": 0}  # in the order of `replay.SEVERITIES`
_COLOURS = {"critical": "bold red", "warning": "bold yellow", "ok": "bold green", "unknown": "bold magenta"}


def exit_code(snapshots: Iterable[TargetSnapshot]) -> int:
    """Return 0 healthy, 1 warning, 2 critical or 3 unknown, for the worst engine."""
    seen = {engine.state.severity for snapshot in snapshots for engine in snapshot.engines}
    return next((code for severity, code in EXIT_CODES.items() if severity in seen), EXIT_CODES["unknown"])


def answer(snapshots: Sequence[TargetSnapshot], now: float) -> dict[str, Any]:
    """Return what the JSON of servers and that of a recording have in common (docs/check.schema.json)."""
    engines = [engine for snapshot in snapshots for engine in snapshot.engines]
    order = list(EXIT_CODES)
    worst = min(engines, key=lambda e: (order.index(e.state.severity), e.state.rank), default=None)
    state = worst.state if worst is not None else State.UNKNOWN
    return {
        "schema": views.SCHEMA,
        "verdict": {
            "at": now,
            "state": state.value,
            "severity": state.severity,
            "headline": state.spec.headline,
            "exit_code": exit_code(snapshots),
            "target": worst.key.target if worst is not None else "",
            "model_name": worst.key.model_name if worst is not None else "",
            "engine": worst.key.engine if worst is not None else "",
        },
        "targets": [views.target(each, now) for each in views.worst_first(snapshots)],
    }


def print_verdict(console: Console, snapshots: Iterable[TargetSnapshot]) -> None:
    """Print the verdict per engine, worst first."""
    for snapshot in views.worst_first(snapshots):
        for engine in snapshot.engines:
            _print_engine(console, snapshot, engine)


def print_replay(console: Console, done: "Replay", moment: TargetSnapshot) -> None:
    """Print a recording's states over time, engine by engine, and the verdict at its worst moment."""
    for key, timeline in done.engines:
        who = " ".join(part for part in (key.target, key.model_name, f"engine {key.engine}") if part)
        console.print(Text(clean(who), style="bold"))
        for run in timeline.runs:
            times = f"{run.start - done.start:7.0f} s to {run.end - done.start:5.0f} s  "
            console.print(Text.assemble(times, (run.state.spec.label, _COLOURS[run.state.severity])))
        console.print()
    console.print(Text(f"Worst point, at {moment.at - done.start:.0f} s:\n"))
    print_verdict(console, [moment])


def after(follow: FollowUp | None) -> dict[str, Any]:
    """Return the JSON of whether a change worked; nothing where none was given."""
    if follow is None:
        return {}
    engines = [
        {"target": each.engine.target, "model_name": each.engine.model_name, "engine": each.engine.engine,
         "result": each.word, "text": each.text}
        for each in follow.outcomes()
    ]  # fmt: skip
    return {"after": {"knob": follow.change.knob, "value": follow.change.value, "engines": engines}}


def print_after(console: Console, follow: FollowUp | None) -> None:
    """Say whether a change worked, an engine a line."""
    for each in () if follow is None else follow.outcomes():
        key, made = each.engine, after(follow)["after"]
        who = " ".join(part for part in (key.target, key.model_name, key.engine and f"engine {key.engine}") if part)
        said = clean(f"after {made['knob']}={made['value']}, {who}: ")
        console.print(Text.assemble(said, (each.word, "bold"), clean(f": {each.text}")))


def headline(state: State) -> Text:
    """Return a state's name in capitals, in the colour of its severity."""
    return Text(state.spec.label.upper(), style=_COLOURS[state.severity])


def advice_line(item: Advice) -> Text:
    """Return when to turn which knob, which way and how far."""
    when = "now" if item.when == "now" else "at the next restart"
    direction = f" {item.direction}" if item.direction in ("up", "down") else ""
    return Text.assemble(f"  {when}: ", (f"{item.knob}{direction}", "bold"), clean(f": {item.size}"))


def clean(text: str) -> str:
    """Return text from a server without characters that a terminal would obey; a space that does not break is one."""
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    return "".join(ch if ch.isprintable() else "\N{REPLACEMENT CHARACTER}" for ch in text)


def _print_engine(console: Console, target: TargetSnapshot, engine: EngineSnapshot) -> None:
    key = engine.key
    who = " ".join(part for part in (key.target, key.model_name, f"engine {key.engine}" if key.engine else "") if part)
    console.print(Text.assemble(headline(engine.state), "  ", (clean(who), "bold")))
    console.print(Text(f"  {engine.state.spec.headline}"))
    if not target.up:
        console.print(Text(clean(f"  {target.reason}: {target.detail}")))
    for item in engine.evidence:
        console.print(Text(clean(f"  • {item.text}")))
    for contradiction in target.contradictions:
        console.print(Text(clean(f"  ! {contradiction.text}")))
    if engine.followed is not None:
        console.print(Text(clean(f"  {views.since(engine.followed)}"), "bold"))
    for when in ("now", "restart"):
        _print_advice(console, [advice for advice in engine.advice if advice.when == when])
    if engine.advice:
        console.print(Text("  how to set each: docs/knobs.md", style="dim"))
    numbers = [f"{v.name} {v.text}{v.note and f' ({v.note})'}" for v in vitals(engine) if v.text != "–"]
    if numbers:
        console.print(Text(f"  numbers: {', '.join(numbers)}", style="dim"))
    for line in engine.unknown:
        console.print(Text(clean(f"  not known: {line}"), style="dim"))
    console.print()


def _print_advice(console: Console, items: Sequence[Advice]) -> None:
    for item in items[:2]:
        console.print(advice_line(item))
        more = "; ".join(
            text
            for text in (
                f"why: {item.symptom}",
                item.watch and f"watch {item.watch}",
                item.cost and f"cost: {item.cost}",
            )
            if text
        )
        console.print(Text(f"    {more}", style="dim"))
