"""Engines that are loaded, full and preempting, and yet fine: none may ever read thrashing or death_spiral."""

import csv
import random
from collections import Counter
from pathlib import Path

import pytest

from vllm_vitals.core.engine_evaluator import EngineEvaluator
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import EngineKey
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

DATA = Path(__file__).parent.parent / "data"
ALARMS = {State.THRASHING, State.DEATH_SPIRAL, State.STALLED}
KEY = EngineKey("vllm:8000", "m", "0")
SERVED_TOKENS = 256  # every request of these runs produced so many
WEEK, SCRAPE = 7 * 86_400, 15


@pytest.mark.parametrize("gib", [8, 16, 24, 32])
def test_a_benign_overload_of_public_benchmark_logs_raises_no_alarm(gib: int) -> None:
    judge, made, prompts, states = EngineEvaluator(KEY, Thresholds()), 0.0, 0.0, set()
    with (DATA / f"hust_timeline_kv{gib}GiB_rep1.csv").open() as file:
        for row, fields in enumerate(csv.DictReader(file)):
            made += 10 * float(fields["gen_tps"])
            prompts += 10 * float(fields["prompt_tps"])
            sample = EngineSample(
                running=float(fields["running"]),
                waiting=float(fields["waiting"]),
                kv_usage=float(fields["kv_pct"]) / 100,
                preemptions=float(fields["preemptions_total"]),
                prompt_tokens=prompts,
                generation_tokens=made,
                responses={"length": float(int(made / SERVED_TOKENS))},
                prefix_caching=False,
            )
            states.add(judge.observe(1e9 + 10 * row, sample, {}).state)
    assert State.PREEMPTING in states
    assert not states & ALARMS


def fleet_engine(per_minute: float, seed: int) -> Counter[State]:
    """A week of one engine that finishes ``per_minute`` and preempts 0.15 as often, both by chance, with a queue."""
    dice, judge, seen = random.Random(seed), EngineEvaluator(KEY, Thresholds()), Counter[State]()
    finished = preempted = made = 0.0
    for at in range(0, WEEK, SCRAPE):
        completions = poisson(dice, per_minute * SCRAPE / 60)
        finished += completions
        preempted += poisson(dice, 0.15 * per_minute * SCRAPE / 60)
        made += 10 + 300 * per_minute * SCRAPE / 60
        sample = EngineSample(
            running=16.0,
            waiting=dice.choice((0.0, 2.0, 5.0)),
            kv_usage=0.97,
            kv_capacity_tokens=50_000.0,
            preemptions=preempted,
            prompt_tokens=made,
            generation_tokens=made,
            responses={"stop": finished},
            prefix_caching=False,
        )
        seen[judge.observe(1e9 + at, sample, {}).state] += 1
    return seen


def poisson(dice: random.Random, mean: float) -> int:
    """A Poisson count (Knuth's method; the means here are small)."""
    count, product, floor = 0, dice.random(), 2.718281828**-mean
    while product > floor:
        count, product = count + 1, product * dice.random()
    return count


@pytest.mark.parametrize("per_minute", [*(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 15)), 5, 60])
def test_a_week_of_a_calm_preempting_engine_raises_no_alarm(per_minute: int) -> None:
    seen = fleet_engine(per_minute, seed=per_minute)
    assert seen[State.PREEMPTING] > 0
    assert not ALARMS & set(seen)
