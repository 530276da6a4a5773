"""The truth gate of the dashboards: `python -m tests.dashboards.gate [WORLD ...]` asks every panel in every world.

A world is a Prometheus that holds what there would be: nothing; one engine in a state; 1, 10 or 200 engines with names
as people have them over 5 minutes to 30 days; the moment of a missed scrape. A check returns its faults, a line each.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.cases.edit import Server as Engine
from tests.dashboards import cost, draw, fleet, history, lint
from tests.dashboards.history import END, STEP, Server
from vllm_vitals.core import render
from vllm_vitals.core.states import State
from vllm_vitals.dashboards import levels, links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.promql import MOST
from vllm_vitals.dashboards.site import Site

MOST_SAMPLES = 10_000_000  # in memory at once; Prometheus fails a query at 50 million
FLEETS = (
    fleet.Shape(1, 1), fleet.Shape(10, 7), fleet.Shape(200, 7), fleet.Shape(20, 30),
    fleet.Shape(40, 1, ranks=16, models=20),
)  # fmt: skip
# What `make test` asks: a week of ten, and more models and ranks than anybody reads.
SUBSET = {FLEETS[1]: "7 d", FLEETS[-1]: "5 min"}
LOOKED_AT = "6 h"
RANGES = {"5 min": 300, "6 h": 21600, "7 d": 7 * 86400, "30 d": 30 * 86400}
Answers = Sequence[tuple[str, dict[str, Any], cost.Cost]]
# The narrowest screen, and what a legend's row needs beside its name (px): its line, and each number.
_SCREEN, _LETTER, _ICON, _NUMBER = 1366, 6.6, 30, 90
SILENT = {"running": 12, "generated": 0, "prompts": 0, "started": 0, "steps": 0, "finished": 0, "waiting": 4}
BUSY = {"generated": 2400, "prompts": 2500, "started": 5, "steps": 300, "running": 12, "finished": 5, "waiting": 0}
PAUSED = SILENT | {"running": 0, "waiting": 3}
STATES = {
    "healthy": (State.HEALTHY, BUSY), "stalled": (State.STALLED, SILENT), "paused": (State.PAUSED, PAUSED),
    "down": (State.DOWN, None), "spiral": (State.DEATH_SPIRAL, None),
}  # fmt: skip


@cache
def boards() -> dict[str, dict[str, Any]]:
    """Every dashboard by its uid."""
    return {name.removesuffix(".json"): json.loads(text) for name, text in build(Site()).items()}


def asked(server: Server, range_s: int) -> Iterator[tuple[str, dict[str, Any], cost.Cost]]:
    """Every open panel of every dashboard as somebody opens it: its uid, its JSON, what it answered."""
    for uid, board in boards().items():
        values = cost.chosen(server, board, range_s)
        for panel in lint.opened(board):
            yield uid, panel, cost.of(server, panel, range_s, values)


def failing(answers: Answers) -> Iterator[str]:
    """Queries that fail, or hold more samples in memory than they may."""
    for uid, _, one in answers:
        if one.error:
            yield f"{uid}: {one.title}: {one.error}"
        if one.peak > MOST_SAMPLES:
            yield f"{uid}: {one.title}: {one.peak / 1e6:.0f} million samples at once"


def lines(answers: Answers) -> Iterator[str]:
    """Charts with more lines than anybody reads, or whose legend would cut off its numbers."""
    for uid, panel, one in answers:
        if panel["type"] == "timeseries":
            names = list(_legends(panel, one))
            if len(names) > MOST:
                yield f"{uid}: {panel['title']}: {len(names)} lines"
            room = _SCREEN * panel["gridPos"]["w"] / 24 - _ICON
            room -= _NUMBER * len(panel["options"]["legend"]["calcs"])
            yield from (f"{uid}: {panel['title']}: cut: {name}" for name in names if len(name) * _LETTER > room)


def _legends(panel: dict[str, Any], one: cost.Cost) -> Iterator[str]:
    rename = next(each["options"] for each in panel["transformations"] if each["id"] == "renameByRegex")
    pattern = rename["renamePattern"].replace("$1", r"\1").replace("$2", r"\2")
    for target, found in zip(panel["targets"], one.found, strict=True):
        yield from (re.sub(rename["regex"], pattern, _named(target, series["metric"])) for series in found)


def _named(target: dict[str, Any], labels: Any) -> str:
    """A series' name, as Grafana makes it of the legend."""
    return re.sub(r"\{\{(\w+)\}\}", lambda of: str(labels.get(of[1], "")), target["legendFormat"])


def lost_spells(server: Server, range_s: int, answers: Answers) -> Iterator[str]:
    """Days whose spell of two minutes is not in the timeline."""
    [(panel, one)] = [(panel, one) for _, panel, one in answers if panel["title"] == "State of each engine"]
    step = cost.step_of(range_s, panel["gridPos"]["w"])
    seen = {
        int((float(at) - server.start - fleet.SPELL_AT + step) // 86400)
        for series in one.found[0]
        for at, rank in series["values"]
        if int(rank) == State.DEATH_SPIRAL.rank
    }
    days = range_s // 86400
    if len(seen) < days:
        yield f"{days - len(seen)} of {days} spells are lost in {days} days, at steps of {step} s"


def tiles(server: Server, board: dict[str, Any], at: float, values: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """(words, colour) of what each tile shows; nothing where it says why not."""
    found = {}
    for panel in lint.opened(board):
        if panel["type"] != "stat":
            continue
        shown = found.setdefault(panel["title"], [])
        for target in panel["targets"]:
            expr = cost.fill(target["expr"], 15, 3600, values)
            for row in server.ask("query", query=expr, time=at):
                name = _named(target, row["metric"])
                shown.append((name, _colour(panel, name, float(row["value"][1]))))  # type: ignore[index]
    return found


def _colour(panel: dict[str, Any], name: str, value: float) -> str:
    """The colour in which Grafana draws this number."""
    look = dict(panel["fieldConfig"]["defaults"])
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == name:
            look |= {each["id"]: each["value"] for each in override["properties"]}
    for mapping in look.get("mappings", ()):
        options = mapping["options"]
        if mapping["type"] == "value" and f"{value:g}" in options:
            return str(options[f"{value:g}"]["color"])
        if mapping["type"] == "range" and value >= options["from"]:
            return str(options["result"]["color"])
    if look["color"]["mode"] == "fixed":
        return str(look["color"]["fixedColor"])
    passed = [step["color"] for step in look["thresholds"]["steps"] if step["value"] is None or value >= step["value"]]
    return str(passed[-1])


def green_nothing(server: Server) -> Iterator[str]:
    """Tiles that are green, or show a number, where there is nothing."""
    for uid, board in boards().items():
        for title, shown in tiles(server, board, server.end, {}).items():
            yield from (f"{uid}: {title}: {words} is {colour} where nothing is" for words, colour in shown)


def untrue_state(server: Server, state: State) -> Iterator[str]:
    """Tiles that do not show the state that every engine is in, or call its wait or its tokens fine."""
    overview, engine = (boards()[uid] for uid in (links.OVERVIEW, links.ENGINE))
    for board, title in ((overview, "Worst model"), (engine, "5 · State")):
        shown = tiles(server, board, server.end, {})[title]
        if [colour for _, colour in shown] != [state.spec.colour]:
            yield f"{title}: {shown}, not {state}"
    fine = [colour for _, colour in tiles(server, overview, server.end, {})["Expected wait"]]
    if state is State.STALLED and fine != [levels.RED]:
        yield f"Expected wait of a stalled engine is {fine}"
    if state is State.DOWN and levels.GREEN in fine:
        yield "Expected wait of an engine that is down is green"


def changed_by_a_missed_scrape(server: Server) -> Iterator[str]:
    """Tiles and tables that show something else at the moment of the missed scrape than a minute before."""
    for uid, board in boards().items():
        values = cost.chosen(server, board, 3600)
        for panel in lint.opened(board):
            for target in panel["targets"]:
                if target["instant"]:
                    expr = cost.fill(target["expr"], 15, 3600, values)
                    rows = [len(server.ask("query", query=expr, time=server.end - ago)) for ago in (60, 0)]
                    if rows[0] and not rows[1]:
                        yield f"{uid}: {panel['title']} {target['refId']}: empty"


@contextmanager
def of_state(folder: Path, name: str) -> Iterator[Server]:
    """One engine that has been in this state for minutes; or nothing at all."""
    if name == "spiral":
        samples = history.of_daemon("spiral_chunked")
    else:
        samples = iter((f"nothing 1 {END}\n",)) if name == "empty" else _of(*STATES[name])
    with contextmanager(history.serve)(folder, samples, ruled=name != "empty") as server:
        yield server


def _of(state: State, does: dict[str, float] | None) -> Iterator[str]:
    orders = [0]
    asked = 'http_requests_total{handler="/pause",method="POST",status="2xx"}'
    engine, renderer = (
        Engine("recordings/same_load_reserved", lambda text: f"{text}\n{asked} {orders[0]}\n"),
        render.TargetRenderer(),
    )
    engine.run(300, **BUSY)
    orders[0] = int(state is State.PAUSED)
    if does is None:
        engine.miss("refused", 24)
    else:
        engine.run(300, **does)
    assert engine.told[-1].engines[0].state is state, engine.told[-1]
    for ago, snapshot in reversed(list(enumerate(reversed(engine.told[-120:])))):
        text = render.join([renderer.render(snapshot)])
        yield from history.stamped(text, END - STEP * ago, 'job="vllm-vitals",instance="vitals:9840"')


def drawn(server: Server, range_s: int, folder: str, *, empty: bool = False) -> tuple[str, list[str]]:
    """What was asked of the drawing, and its faults; without a program that draws, that."""
    if not draw.program():
        return f"panels draw, dark and light ({draw.NOT_DRAWN})", []
    return "panels draw, dark and light", list(draw.faults(server, range_s, Path(folder), empty=empty))


def worlds(*, whole: bool, only: Sequence[str] = ()) -> Iterator[tuple[str, str, list[str]]]:
    """(world, what was asked, faults); ``only``: names of worlds, of all where there are none."""
    named = ("empty", *(STATES if whole else ("stalled",)))
    for name in (one for one in named if not only or one in only):
        with tempfile.TemporaryDirectory() as folder, of_state(Path(folder), name) as server:
            yield name, "no query fails", list(failing(list(asked(server, 300))))
            if name == "empty":
                yield name, "no tile shows a number or is green", list(green_nothing(server))
            else:
                yield name, "tiles show the state", list(untrue_state(server, STATES[name][0]))
            if whole:
                yield name, *drawn(server, 300, folder, empty=name == "empty")
    for shape in (one for one in (FLEETS if whole else SUBSET) if not only or str(one) in only):
        with tempfile.TemporaryDirectory() as folder, fleet.running(Path(folder), shape) as server:
            for words, range_s in RANGES.items():
                if range_s > shape.days * 86400 or (not whole and words != SUBSET[shape]):
                    continue
                answers = list(asked(server, range_s))
                world = f"{shape}, {words}"
                yield world, "no query fails or holds more than 10 M samples", list(failing(answers))
                yield world, f"legends keep their numbers, at most {MOST} lines", list(lines(answers))
                if range_s >= 86400 and shape.engines > fleet.TROUBLED:
                    yield world, "no spell is lost", list(lost_spells(server, range_s, answers))
                if whole and words == LOOKED_AT:
                    yield world, *drawn(server, range_s, folder)
            missed = list(changed_by_a_missed_scrape(server))
            yield f"{shape}, a missed scrape", "no tile or table is emptied", missed


def main() -> int:
    """Print a row a check, of all worlds or of those that are named. Return 1 where a world has a fault."""
    broken = False
    print("| world | what is asked | |\n|---|---|---|")
    for world, asked, faults in worlds(whole=True, only=sys.argv[1:]):
        broken = broken or bool(faults)
        print(f"| {world} | {asked} | {'; '.join(faults) or 'holds'} |", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
