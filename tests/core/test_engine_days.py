"""An engine's own past, scrape by scrape: usual days are no slowdown, longer steps are. `python -m bench.degraded` is
the month of it."""

import pytest

from tests.core.engine_days import DAY, ENGINES, HOUR, Engine, Slowdown, samples
from vllm_vitals.core.engine_evaluator import EngineEvaluator
from vllm_vitals.core.snapshot import EngineKey
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

BY_NAME = {engine.name: engine for engine in ENGINES}


@pytest.mark.parametrize("name", ["8B, A10, chat"])
def test_a_day_of_traffic_is_no_slowdown_and_steps_of_1_6_times_as_long_are_found_in_two_hours(name: str) -> None:
    """From 06:00 on, a scrape a minute; steps take longer from 15:00 on."""
    slower = 15 * HOUR
    judge = EngineEvaluator(EngineKey("vllm:8000", "m", "0"), Thresholds().at_interval(60.0))
    told = [
        (at, judge.observe(at, sample, {}).state)
        for at, sample in samples(BY_NAME[name], 7, 11 / 24, 60.0, Slowdown(slower, DAY, 1.6), start=6 * HOUR)
    ]
    found = [at for at, state in told if state is State.DEGRADED]
    assert slower < found[0] <= slower + 2 * HOUR


def test_the_made_up_engine_adds_up() -> None:
    """A token takes a step at least, and what runs holds its prompt at least."""
    engine = Engine("one", rate=0.3)
    *_, (_, last) = samples(engine, 1, 0.1, 60.0, start=12 * HOUR)
    gaps, prompts = (last.histograms[name] for name in ("inter_token_latency_seconds", "request_prompt_tokens"))
    assert engine.base <= gaps.sum / gaps.count <= 1.5 * engine.base
    assert last.generation_tokens == pytest.approx(gaps.count)
    assert last.responses == {"stop": prompts.count}
    for _, sample in samples(engine, 1, 0.1, 60.0, start=12 * HOUR):
        assert bool(sample.running) == bool(sample.kv_usage)
