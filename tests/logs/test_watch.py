"""Metrics and logs side by side, where a person reads them."""

import asyncio
import json
from pathlib import Path

import pytest

from tests import fed_time
from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Reading, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.log import get_logger
from vllm_vitals.logs.config import LogsConfig, LogSource
from vllm_vitals.logs.watch import LogWatch
from vllm_vitals.serve import page


def engine(rank: str, cut: float) -> EngineSnapshot:
    readings = {"truncated_ratio": Reading(cut)}
    return EngineSnapshot(EngineKey("gpu-0", "m", rank), State.HEALTHY, 1.0, 1.0, readings=readings)


def target(*engines: EngineSnapshot) -> TargetSnapshot:
    return TargetSnapshot("gpu-0", True, 1.0, 0.1, 1.0, engines=engines)


def answers(cut: int, whole: int, **more: str) -> str:
    reasons = ["length"] * cut + ["stop"] * whole
    return "".join(
        json.dumps({"id": "a", "usage": {"completion_tokens": 9}, "choices": [{"finish_reason": reason}], **more})
        + "\n"
        for reason in reasons
    )


@pytest.mark.parametrize("named", [{"model": "m"}, {}], ids=["a log that names the model", "one that does not"])
def test_the_page_shows_what_metrics_and_logs_say_of_truncation_and_that_they_disagree(
    tmp_path: Path, named: dict[str, str]
) -> None:
    (tmp_path / "gateway.log").write_text(answers(30, 30, **named))
    source = LogSource(name="gateway", target="gpu-0", paths=[str(tmp_path / "gateway.log")])
    one, two = target(engine("0", 0.1)), target(engine("0", 0.1), engine("1", 0.1))

    async def story() -> None:
        watch = LogWatch(Clock(), get_logger())
        assert watch.truncation(one) == {}
        await watch.apply(LogsConfig(sources=[source]))
        async with asyncio.timeout(60):
            while not watch.truncation(one):
                await asyncio.sleep(0.05)
        (card,) = page.build([one], 1.0, watch.truncation).cards
        (line,) = card.evidence
        assert line.startswith("truncated at cap: 10% by metrics, 50% of 60 by gateway: they disagree")
        assert watch.truncation(two) == {}
        await watch.apply(LogsConfig())
        assert watch.truncation(one) == {}

    fed_time.run(story())
