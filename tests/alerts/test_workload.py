"""Tickets about load and answers in courses that their cases do not show."""

from pathlib import Path

import pytest

from tests.alerts.courses import WORKS, firing, served, text_of, verdict
from tests.alerts.scenario import STEP
from tests.cases.edit import Server


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
