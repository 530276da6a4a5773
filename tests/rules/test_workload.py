"""Tickets about load and answers in courses that their cases do not show."""

import re
from pathlib import Path

import pytest

from tests.cases.edit import Server
from tests.rules.courses import WORKS, firing, row, served, states, text_of, verdict
from tests.rules.scenario import STEP
from vllm_vitals.core.states import State


@pytest.mark.parametrize("speed", [50.0, 150.0])
def test_a_runaway_alone_on_its_engine_is_told_before_it_ends_and_while_it_lasts(speed: float, tmp_path: Path) -> None:
    """Nothing else finishes, so the exporter soon knows no mean."""
    server, alone = Server(), {"generated": 5 * speed, "steps": 5 * speed, "running": 1.0, "waiting": 0.0}
    busy, last = {**WORKS, "running": 8.0, "kv_usage": 0.4}, {**WORKS, "running": 1.0, "kv_usage": 0.2}
    rows = served(server, [busy] * 60 + [last] + [{**alone, "kv_usage": 0.2}] * 300)
    assert server.engine.readings["output_tokens_mean"].value is None
    ends = 300 + int(32768 / speed)
    told = (ends - ends % STEP, 1800)
    checks = [firing("VLLMRunawayRequest", "ticket", at, at in told) for at in (*range(0, 300, STEP), *told)]
    assert not verdict(rows, checks, tmp_path)
    text = text_of(rows, "VLLMRunawayRequest", 1785, tmp_path)
    assert "the mean answer has 200 (limit 8 times that, and at least 4096)" in text


QUEUE = ("VLLMLongQueue", "ticket")


def test_a_queue_is_long_though_requests_finish_four_at_a_time_every_four_minutes(tmp_path: Path) -> None:
    server = Server()
    long = {"generated": 660.0, "steps": 165.0, "running": 4.0, "waiting": 50.0, "kv_usage": 0.3}
    done = {**long, "started": 4.0, "finished": 4.0, "prompts": 2000.0}
    rows = served(server, [done if number % 48 == 47 else long for number in range(720)])
    assert not verdict(rows, [firing(*QUEUE, at, 1) for at in range(1800, 3600, STEP)], tmp_path)
    assert re.search(r"has had to expect (1h )?\d+m \d+s in the queue", text_of(rows, "VLLMLongQueue", 3585, tmp_path))


@pytest.mark.parametrize(
    ("state", "waiting", "fires"),
    [(State.SATURATED, 3.0, True), (State.HEALTHY, 0.0, False), (State.ASLEEP, 3.0, False)],
)
def test_a_queue_is_long_where_nothing_finishes_at_all(
    state: State, waiting: float, fires: bool, tmp_path: Path
) -> None:
    """The exporter knows no wait then. All finished until 600 s."""
    rows = [
        *states(lambda at: state, 3600),
        row("requests_running", lambda at: 1.0, 3600),
        row("requests_waiting", lambda at: waiting if at > 600 else 0.0, 3600, reason="capacity"),
        row("responses_total", lambda at: min(at, 600.0), 3600, finished_reason="stop"),
        row("expected_wait_seconds", lambda at: None if at > 600 and waiting else 0.0, 3600),
    ]
    assert not verdict(rows, [firing(*QUEUE, 3000, fires)], tmp_path)
    if fires:
        text = text_of(rows, "VLLMLongQueue", 3000, tmp_path)
        assert "has had to wait without an end in sight, as none has finished in 10 minutes, in the queue" in text
