"""Troubles that the seven variants of a case do not show: noise, loops, restarts of the exporter."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.core.snapshot import State
from tests.alerts import rulesets
from tests.alerts.cases import P, V
from tests.alerts.scenario import SCRAPED, STEP, document
from tests.alerts.tools import promtool_test

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


HOUR = range(0, 3600, STEP)


@pytest.mark.parametrize("falls", [0.0, 0.2])
def test_thrashing_with_a_wait_that_is_only_noisy_never_pages(falls: float, tmp_path: Path) -> None:
    noise = random.Random(1)
    wait = {at: 120 * (1 - falls * at / 3600) * (1 + noise.uniform(-0.05, 0.05)) for at in (*HOUR, 3600)}
    rows = [
        *states(lambda at: State.THRASHING if at >= 300 else State.PREEMPTING, 3600),
        row("expected_wait_seconds", wait.get, 3600),
        row("requests_waiting", lambda at: 40 + at % 7, 3600, reason="capacity"),
    ]
    assert not verdict(rows, [firing("VLLMThrashing", "page", at, 0) for at in HOUR], tmp_path)


@pytest.mark.parametrize(
    ("wait", "queue", "pages"),
    [
        (lambda minutes: 120.0, lambda minutes: 40.0, False),  # long, but no longer than before
        (lambda minutes: 30 + 5 * minutes, lambda minutes: 10 + minutes, True),  # both grow
        (lambda minutes: 30 + 5 * minutes, lambda minutes: 20.0, False),  # noise of the completions may do that
        (lambda minutes: 12 * 1.16**minutes, lambda minutes: 20.0, True),  # it doubles in five minutes
        (lambda minutes: 4 + 0.3 * minutes, lambda minutes: 10 + minutes, False),  # below the objective
    ],
)
def test_thrashing_pages_where_the_wait_truly_rises(
    wait: Callable[[float], float], queue: Callable[[float], float], pages: bool, tmp_path: Path
) -> None:
    rows = [
        *states(lambda at: State.THRASHING, 900),
        row("expected_wait_seconds", lambda at: wait(at / 60), 900),
        row("requests_waiting", lambda at: queue(at / 60), 900, reason="capacity"),
    ]
    assert not verdict(rows, [firing("VLLMThrashing", "page", 630, pages)], tmp_path)
