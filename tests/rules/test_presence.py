"""Engines and models that do not answer: loops of crashes, restarts of the exporter, and who is taken for whom."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rules.cases import V
from tests.rules.courses import Row, firing, row, states, text_of, verdict
from tests.rules.scenario import STEP
from vllm_vitals.core.states import State

DOWN, UP = State.DOWN, State.HEALTHY
NAMELESS = {**V, "model_name": "", "engine": ""}
PAGE, TICKET = ("VLLMModelUnavailable", "page"), ("VLLMEngineDown", "ticket")


def checks(alert: tuple[str, str], on: range, total: int) -> list[Mapping[str, Any]]:
    """It fires in ``on`` and at no other time."""
    return [firing(*alert, at, at in on) for at in range(0, total, STEP)]


def test_a_loop_of_crashes_pages_and_opens_a_ticket_though_it_comes_back_each_time(tmp_path: Path) -> None:
    total = 5400
    rows = list(states(lambda at: DOWN if at >= 600 and at % 130 < 100 else UP, total))
    assert not verdict(rows, checks(PAGE, range(1350, total), total), tmp_path)
    assert not verdict(rows, checks(TICKET, range(1380, total), total), tmp_path)
    page, ticket = (text_of(rows, name, 5385, tmp_path) for name, _ in (PAGE, TICKET))
    assert "in the last 15 minutes (threshold: 3 minutes continuous, or 50 %): 11m 45s." in page
    assert "returns within the hour (above 1: a crash loop): 28." in page
    assert "within the hour it came back 28 times (limit: down for 10 minutes, or back 3 times)" in ticket


@pytest.mark.parametrize(
    ("down", "page", "ticket"),
    [
        ([(600, 765)], None, None),  # one quick restart
        ([(600, 765), (1200, 1365)], None, None),  # two
        ([(600, 1500)], range(780, 1680 + 600), range(1200, 1500)),  # one long outage: its page ends soon after it
        ([(0, 105)], None, None),  # as the exporter starts
    ],
)
def test_a_restart_is_no_loop_and_an_outage_that_is_over_is_over(
    down: Sequence[tuple[int, int]], page: range | None, ticket: range | None, tmp_path: Path
) -> None:
    rows = list(states(lambda at: DOWN if any(a <= at < b for a, b in down) else UP, 3000))
    for alert, on in ((PAGE, page), (TICKET, ticket)):
        assert not verdict(rows, checks(alert, on or range(0), 3000), tmp_path)


def restarted(at: int, until: int, total: int, before: Sequence[Row] = ()) -> list[Row]:
    """A model is down from 300 s on; the exporter restarts at ``at`` and does not know whom the server served."""
    named = states(lambda now: None if now >= at else DOWN if now >= 300 else UP, total)
    nameless = states(lambda now: DOWN if now >= until else None, total, NAMELESS)
    return [*before, *named, *nameless]


@pytest.mark.parametrize("away", [30, 600])
def test_a_page_outlasts_a_restart_of_the_exporter_while_the_model_is_down(away: int, tmp_path: Path) -> None:
    total = 7200
    rows = restarted(900, 900 + away, total)
    assert not verdict(rows, checks(PAGE, range(480, total), total), tmp_path)
    assert "Its engines now: 1 down" in text_of(rows, "VLLMModelUnavailable", total, tmp_path)
    assert "Servers: gpu1:8000" in text_of(rows, "VLLMModelUnavailable", total, tmp_path)
    # One ticket, on the engine by its name.
    named = 'ALERTS{alertname="VLLMEngineDown",alertstate="firing",model_name="llama",engine="0"}'
    one = [{"expr": f"count({named})", "eval_time": f"{total}s", "exp_samples": [{"labels": "{}", "value": 1}]}]
    assert not verdict(rows, [*one, firing(*TICKET, total, 1)], tmp_path)


def test_what_a_server_served_earlier_is_not_missed_and_a_server_that_came_back_is_not_down(tmp_path: Path) -> None:
    total = 4500
    earlier = states(lambda at: UP if at < 60 else None, total, {**V, "model_name": "mistral"})
    # From 60 s on it serves llama; that is down at 300 s, the exporter restarts at 900 s, and llama is back at 2700 s.
    named = states(lambda at: UP if at < 300 or at >= 2700 else DOWN if at < 900 else None, total)
    nameless = states(lambda at: DOWN if 930 <= at < 2700 else None, total, NAMELESS)
    rows = [*earlier, *named, *nameless]
    assert not verdict(rows, checks(PAGE, range(480, 2700 + 180 + 600), total), tmp_path)


@pytest.mark.parametrize("joins", ["new", "down", "restarted"])
def test_a_replica_that_has_just_joined_is_silent_only_after_its_five_minutes(joins: str, tmp_path: Path) -> None:
    """It joins at 900 s and gets its first request at 1080 s; one that gets none is told from 1260 s on."""
    total = 1500

    def tokens(at: int, first: int) -> float | None:
        if at < 900:
            return 10.0 * at if joins == "restarted" and at < 600 else None
        return max(0.0, 10.0 * (at - first))

    before = DOWN if joins in ("down", "restarted") else None
    rows: list[Row] = []
    for name, first in (("used", 1080), ("unused", 10**6)):
        engine = {**V, "target": name}
        rows += states(lambda at: UP if at >= 900 or (joins == "restarted" and at < 600) else before, total, engine)
        rows.append(row("generation_tokens_total", lambda at, first=first: tokens(at, first), total, engine))
    for number in range(5):
        peer = {**V, "target": f"peer{number}"}
        rows.append(row("generation_tokens_total", lambda at: 100.0 * at, total, peer))
        rows.append(row("responses_total", lambda at: 1.0 * at, total, peer, finished_reason="stop"))
    checks = [firing("VLLMEngineSilent", "ticket", at, at >= 1260) for at in range(900, total, STEP)]
    assert not verdict(rows, checks, tmp_path)
