"""One incident is one page, whatever the number of engines; one engine of many is a ticket; losing sight is loud."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rules import rulesets
from tests.rules.cases import V
from tests.rules.courses import Row, firing, row, states, text_of, verdict
from tests.rules.scenario import STEP, document
from tests.rules.tools import promtool_test
from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State

UP, DOWN = State.HEALTHY, State.DOWN


def fleet(number: int, bad: int, state: State, seconds: int, since: int = 300) -> list[Row]:
    """Engines of one model, of which the first ``bad`` are in a state from ``since`` on, with ever more requests."""
    rows: list[Row] = []
    for i in range(number):
        victim = {**V, "target": f"gpu-{i}:8000"}
        course = (lambda at: state if at >= since else UP) if i < bad else (lambda at: UP)
        rows += states(course, seconds, victim)
        rows.append(row("requests_running", lambda at, i=i: 4.0 + i, seconds, victim))
        rows.append(row("requests_waiting", lambda at: 0.0, seconds, victim, reason="capacity"))
    return rows


def pages(at: int, *names: str) -> Mapping[str, Any]:
    """At ``at`` exactly these pages fire."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
    return {"expr": 'count by (alertname) (ALERTS{alertstate="firing",severity="page"})', "eval_time": f"{at}s",
            "exp_samples": samples}  # fmt: skip


@pytest.mark.parametrize(
    ("number", "bad", "page"), [(1, 1, True), (3, 1, False), (2, 1, True), (9, 3, True), (9, 2, False)]
)
@pytest.mark.parametrize(
    ("state", "name"),
    [(State.DEATH_SPIRAL, "VLLMDeathSpiral"), (State.STALLED, "VLLMStalled"), (State.FAILING, "VLLMFailing")],
)
def test_a_share_of_the_model_is_one_page_and_one_engine_of_many_a_ticket(
    number: int, bad: int, page: bool, state: State, name: str, tmp_path: Path
) -> None:
    checks = [pages(600, *([name] if page else [])), firing(name, "ticket", 600, bad)]
    assert not verdict(fleet(number, bad, state, 600), checks, tmp_path)


def test_a_page_of_150_victims_names_the_worst_in_fewer_than_2000_characters(tmp_path: Path) -> None:
    # Of more, promtool cannot hold the samples: it stops at 10,000 a query.
    rows = fleet(150, 150, State.DEATH_SPIRAL, 360, since=60)
    text = text_of(rows, "VLLMDeathSpiral", 105, tmp_path, severity="page")
    assert len(text) < 2000
    assert text.startswith("150 engine(s) of llama")
    assert "Worst first: gpu-149:8000 engine 0 (death_spiral, 153 requests), gpu-148:8000" in text


def test_nine_of_ten_dead_and_the_tenth_drowning_is_one_page(tmp_path: Path) -> None:
    rows = fleet(10, 9, DOWN, 3900)
    last = {**V, "target": "gpu-9:8000"}
    rows = [r for r in rows if not ("gpu-9:" in r["series"] and "requests_waiting" in r["series"])]
    rows += [
        row("requests_waiting", lambda at: max(0.0, at - 300.0) * 1.3, 3900, last, reason="capacity"),
        row("expected_wait_seconds", lambda at: 0.0 if at < 300 else 60 + at / 1.5, 3900, last),
        row("responses_total", lambda at: 2.0 * at, 3900, last, finished_reason="stop"),
    ]
    # Overload of the tenth is inhibited by the lost engines: one notification.
    checks = [pages(at, "VLLMCapacityLost") for at in (600, 900)]
    assert not verdict(rows, checks, tmp_path)


@pytest.mark.parametrize("state", [State.STARTING, State.PAUSED, State.ASLEEP])
def test_engines_that_start_or_were_stopped_on_purpose_page_nobody(state: State, tmp_path: Path) -> None:
    rows = fleet(3, 3, state, 1500)
    assert not verdict(rows, [pages(at) for at in range(300, 1200, 60)], tmp_path)


def test_a_model_that_is_paused_for_a_quarter_of_an_hour_is_unavailable(tmp_path: Path) -> None:
    rows = [*states(lambda at: State.PAUSED if at >= 300 else UP, 2400)]
    rows.append(row("state_since_timestamp_seconds", lambda at: 300.0 if at >= 300 else 0.0, 2400))
    checks = [pages(1200), pages(1500, "VLLMModelUnavailable"), firing("VLLMPaused", "ticket", 1500, 1)]
    assert not verdict(rows, checks, tmp_path)


def test_twenty_replicas_asked_every_five_minutes_are_not_silent(tmp_path: Path) -> None:
    chance, seconds, rows = random.Random(7), 8 * 3600, list[Row]()
    for number in range(20):
        victim, asked, at = {**V, "target": f"gpu-{number}:8000"}, list[float](), 0.0
        while at < seconds:
            at += chance.expovariate(1 / 300)
            asked.append(at)
        rows += [
            row("generation_tokens_total", lambda at, a=asked: 250.0 * sum(t <= at for t in a), seconds, victim),
            row(
                "responses_total", lambda at, a=asked: sum(t <= at for t in a), seconds, victim, finished_reason="stop"
            ),
            row("state", lambda at: 1.0, seconds, victim, state="healthy"),
        ]
    silent = 'count_over_time(ALERTS{alertname="VLLMEngineSilent"}[8h])'
    assert not verdict(rows, [{"expr": silent, "eval_time": "28785s", "exp_samples": []}], tmp_path)


@pytest.mark.parametrize(("begins", "away", "read"), [(300, None, 315), (0, range(300, 900, STEP), 930)])
def test_a_series_that_is_young_or_was_not_seen_for_a_while_is_not_called_silent(
    begins: int, away: range | None, read: int, tmp_path: Path
) -> None:
    """20 s old, and after an outage of Prometheus of ten minutes: that it makes tokens is told, or nothing is."""

    def seen(at: int) -> bool:
        return at >= begins and (away is None or at not in away)

    rows = [
        *states(lambda at: State.DEATH_SPIRAL if seen(at) else None, read),
        row("generation_tokens_total", lambda at: 100_000 + 1000.0 * at if seen(at) else None, read),
    ]
    text = text_of(rows, "VLLMDeathSpiral", read, tmp_path, severity="page")
    told = re.search(r"generated tokens/s on these engines [^:]*: ([\d.]+)\.", text)
    assert told is None or 100 < float(told[1]) <= 1500, text  # a rate of two samples is less than the whole
    assert not re.search(r"\b(1h|1 hour|10m|10 minutes)\b", text), text


@pytest.mark.parametrize("wanted", [None, 0, 10])
def test_a_discovery_that_empties_pages_unless_no_engine_is_wanted(wanted: int | None, tmp_path: Path) -> None:
    query = 'kube_deployment_spec_replicas{deployment="vllm"}'
    built = rulesets.build(replace(Config(), desired_replicas=query), tmp_path)
    rows = [row("state", lambda at: 1.0 if at < 600 else None, 1500, {**V, "target": f"g{i}"}, state="healthy")
            for i in range(10)]  # fmt: skip
    if wanted is not None:
        rows.append({"series": query, "values": f"{wanted}x100"})
    checks = [pages(at) for at in (585, 750)] + [pages(900, *([] if wanted == 0 else ["VLLMSightLost"]))]
    test = {"interval": f"{STEP}s", "input_series": rows, "promql_expr_test": checks}
    assert not promtool_test(document([test], built), tmp_path, "gone")


def test_a_model_below_its_least_number_of_engines_pages(tmp_path: Path) -> None:
    built = rulesets.build(replace(Config(), min_engines={"llama": 2, "never-seen": 1}), tmp_path)
    rows: Sequence[Row] = [row("state", lambda at, i=i: 1.0 if i == 0 or at < 600 else None, 1500,
                               {**V, "target": f"g{i}"}, state="healthy") for i in range(2)]  # fmt: skip

    def named(at: int, *models: str) -> Mapping[str, Any]:
        expr = 'count by (model_name) (ALERTS{alertname="VLLMTooFewEngines",alertstate="firing"})'
        samples = [{"labels": f'{{model_name="{name}"}}', "value": 1} for name in models]
        return {"expr": expr, "eval_time": f"{at}s", "exp_samples": samples}

    checks = [named(585, "never-seen"), named(840, "llama", "never-seen")]
    test = {"interval": f"{STEP}s", "input_series": list(rows), "promql_expr_test": checks}
    assert not promtool_test(document([test], built), tmp_path, "few")
