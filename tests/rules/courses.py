"""Courses that the seven variants of a case do not show, as promtool input: each series is a function of time."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cases.edit import Server
from tests.rules import rulesets
from tests.rules.cases import P, V
from tests.rules.scenario import SCRAPED, STEP, document
from tests.rules.tools import promtool_test
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.states import State

Row = Mapping[str, str]
# What a series is at a second; None: it is not there.
Course = Callable[[int], float | None]


def row(name: str, course: Course, seconds: int, victim: Mapping[str, str] = V, /, **labels: str) -> Row:
    """One series of the exporter, scraped every `STEP` seconds; where it ends, it goes stale at once."""
    cells, there = [], False
    for at in range(0, seconds + STEP, STEP):
        level = course(at)
        cells.append(f"{level:.10g}" if level is not None else "stale" if there else "_")
        there = level is not None
    inside = ",".join(f'{k}="{v}"' for k, v in sorted({**SCRAPED, **victim, **labels}.items()))
    return {"series": f"{P}{name}{{{inside}}}", "values": " ".join(cells)}


def states(course: Callable[[int], State | None], seconds: int, victim: Mapping[str, str] = V) -> Iterator[Row]:
    """Every state of an engine: 1 for the one that holds."""
    for state in State:
        yield row(
            "state", lambda at, s=state: None if course(at) is None else float(course(at) is s), seconds, victim,
            state=str(state),
        )  # fmt: skip


def verdict(rows: Sequence[Row], checks: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """What promtool says of the committed rules: "" where every check holds."""
    test = {"interval": f"{STEP}s", "input_series": list(rows), "promql_expr_test": list(checks)}
    return promtool_test(document([test], rulesets.DAEMON), folder, "edge")


def firing(alert: str, severity: str, at: int, victims: int) -> Mapping[str, Any]:
    """At ``at`` so many victims fire this alert."""
    samples = [{"labels": "{}", "value": int(victims)}] if victims else []
    expr = f'count(ALERTS{{alertname="{alert}",severity="{severity}",alertstate="firing"}})'
    return {"expr": expr, "eval_time": f"{at}s", "exp_samples": samples}


def served(server: Server, steps: Sequence[Mapping[str, float]]) -> list[Row]:
    """What the exporter serves of a server that takes these steps of 5 s, every 15 s."""
    renderer, rows = TargetRenderer(), dict[str, list[str]]()
    for number, step in enumerate(steps):
        server.step(5, **step)
        if number % 3:
            continue
        for line in join([renderer.render(server.told[-1])]).decode().splitlines():
            series, _, value = line.rpartition(" ")
            if not line.startswith("#") and "_bucket{" not in series:
                cells = rows.setdefault(series, [])
                cells += ["_"] * (number // 3 - len(cells)) + [value]
    return [{"series": series, "values": " ".join(cells)} for series, cells in rows.items()]


def text_of(
    rows: Sequence[Row],
    alert: str,
    at: int,
    folder: Path,
    which: str = "description",
    severity: str = "",
    rules: Sequence[str] = rulesets.DAEMON,
) -> str:
    """An annotation of the one alert of this name that fires."""
    none = {"eval_time": f"{at}s", "alertname": alert, "exp_alerts": []}
    test = {"interval": f"{STEP}s", "input_series": list(rows), "alert_rule_test": [none]}
    said = promtool_test(document([test], rules), folder, "text")
    ours = [part for part in said.split("Labels:{")[1:] if f'severity="{severity}' in part.partition("}")[0]]
    (found,) = re.findall(rf'{which}="((?:[^"\\]|\\.)*)"', "".join(ours))
    return found.replace("\\n", "\n")


# A step of a server that works (see `Server.step`).
WORKS = {"generated": 1200.0, "prompts": 2500.0, "started": 5.0, "finished": 5.0, "steps": 150.0, "waiting": 0.0}
