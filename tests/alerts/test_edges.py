"""Troubles that the seven variants of a case do not show: noise, loops, restarts of the exporter."""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.core.render import TargetRenderer, join
from exporter.core.snapshot import State
from tests.alerts import rulesets
from tests.alerts.cases import P, V
from tests.alerts.scenario import SCRAPED, STEP, document
from tests.alerts.tools import promtool_test
from tests.cases.edit import Server

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


def text_of(rows: Sequence[Row], alert: str, at: int, folder: Path) -> str:
    """The description of the one alert of this name that fires."""
    none = {"eval_time": f"{at}s", "alertname": alert, "exp_alerts": []}
    test = {"interval": f"{STEP}s", "input_series": list(rows), "alert_rule_test": [none]}
    said = promtool_test(document([test], rulesets.DAEMON), folder, "text")
    (found,) = re.findall(r'description="((?:[^"\\]|\\.)*)"', said)
    return found.replace("\\n", "\n")


WORKS = {"generated": 1200.0, "prompts": 2500.0, "started": 5.0, "finished": 5.0, "steps": 150.0, "waiting": 0.0}
BARREN = {"preempted": 20.0, "running": 0.0, "waiting": 42.0, "kv_usage": 0.98}
COLLAPSED = {**BARREN, "running": 8.0, "waiting": 40.0, "generated": 150.0, "steps": 50.0}
REDOING = {
    "preempted": 40.0, "running": 30.0, "waiting": 42.0, "kv_usage": 0.98, "generated": 900.0, "prompts": 200.0,
    "started": 2.0, "finished": 2.0, "steps": 50.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("trouble", "told", "untold"),
    [
        (BARREN, r"no token for about .* \(limit 30 seconds\): nobody gets an answer", "It answers"),
        (COLLAPSED, r"generates 30 tokens/s, 1[0-9.]+% of the 23[0-9] before .* \(limit 30%\)", "no token"),
        (REDOING, r"It redoes about .*: R 20.00 \(limit 1\), and [0-9.]+% .* \(limit 40%\)", "It answers"),
    ],
)
def test_a_spiral_is_told_by_the_proof_that_holds_and_with_the_cap_of_the_status_page(
    trouble: Mapping[str, float], told: str, untold: str, tmp_path: Path
) -> None:
    server = Server()
    rows = served(server, [{**WORKS, "running": 42.0, "kv_usage": 0.85}] * 120 + [trouble] * 36)
    assert server.engine.state is State.DEATH_SPIRAL
    text = text_of(rows, "VLLMDeathSpiral", 765, tmp_path)
    assert re.search(told, text), text
    assert untold not in text
    (advice,) = (a.size for a in server.engine.advice if a.knob == "gateway_concurrency")
    assert re.findall(r"at the gateway (to \d+);", text) == [advice.partition(" (")[0]], (advice, text)


def test_a_cap_below_max_num_seqs_is_told_where_running_reaches_it_on_average(tmp_path: Path) -> None:
    """On every third look an evicting engine runs fewer, as victims have just left."""
    rows = [
        *states(lambda at: State.PREEMPTING, 300),
        row("requests_running", lambda at: 40.0 if at % 45 else 39.0, 300),
        row("kv_cache_usage_ratio", lambda at: 0.97, 300),
        row("server_setting", lambda at: 40.0, 300, {"target": V["target"]}, name="max_num_seqs"),
        row("generation_tokens_total", lambda at: 100.0 * at, 300),
    ]
    cap = "max(engine:vllm_vitals_gateway_cap:requests)"
    check = {"expr": cap, "eval_time": "300s", "exp_samples": [{"labels": "{}", "value": 30}]}
    assert not verdict(rows, [check], tmp_path)
