"""Advice names one knob, its size with the arithmetic, and never what makes it worse."""

import re
from pathlib import Path

from tests.core.sequences import Engine
from vllm_vitals.core import advice
from vllm_vitals.core.snapshot import Advice
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings.recording import read

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def advice_in(recording: str, state: State) -> tuple[Advice, ...]:
    """The last advice given while an engine of the recording was in ``state``."""
    judge, said = TargetEvaluator(recording), ()
    for scrape in read(RECORDINGS / recording / "metrics.jsonl.gz"):
        said = next((e.advice for e in judge.observe(scrape).engines if e.state is state), said)
    return said


def knobs(advice: tuple[Advice, ...]) -> dict[str, str]:
    return {item.knob: item.direction for item in advice}


def test_a_spiral_fed_by_long_inputs_is_capped_at_the_gateway_and_then_reserved() -> None:
    advice = advice_in("spiral_chunked", State.DEATH_SPIRAL)
    assert knobs(advice) == {"gateway_concurrency": "down", "scheduler_reserve_full_isl": "set"}
    assert "0.9 x" in advice[0].size


def test_where_all_input_is_reserved_already_the_watermark_is_next() -> None:
    judge, said = TargetEvaluator("spiral_chunked"), set()
    judge.learn({"scheduler_reserve_full_isl": "True"})
    for scrape in read(RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz"):
        (engine,) = judge.observe(scrape).engines
        said |= {item.knob for item in engine.advice} if engine.state is State.DEATH_SPIRAL else set()
    assert "watermark" in said
    assert "scheduler_reserve_full_isl" not in said


def test_thrashing_lowers_max_num_seqs_to_what_fits() -> None:
    advice = advice_in("overcommit_thrash", State.THRASHING)
    assert knobs(advice) == {"gateway_concurrency": "down", "max_num_seqs": "down"}
    assert "running on average while the KV cache is full" in advice[1].size


def test_a_queue_on_a_half_empty_cache_raises_max_num_seqs() -> None:
    assert knobs(advice_in("saturated_no_preemption", State.SATURATED)) == {"replicas": "up", "max_num_seqs": "up"}


def test_productive_preemption_asks_for_nothing_now() -> None:
    assert all(item.when == "restart" for item in advice_in("preempting_productive", State.PREEMPTING))


def test_a_hang_has_no_knob() -> None:
    engine = Engine()
    engine.healthy()
    engine.run(60, running=35.0, waiting=115.0, kv_usage=0.99)
    assert knobs(engine.snapshot.advice) == {"drain": "do"}


def test_running_at_the_cap_takes_a_quarter_off_it() -> None:
    engine = Engine()
    settings = {"max_num_seqs": "16"}
    for _ in range(40):
        engine.step(
            generated=500.0, preempted=4.0, finished=5.0, started=5.0, running=16.0, waiting=20.0, kv_usage=0.99
        )
        said = engine.judge.observe(engine.at + 0.5, engine.sample, settings)
        if said.state is State.THRASHING:
            break
    assert said.state is State.THRASHING
    assert said.advice[0].size.startswith("to 12 (25 % below max_num_seqs 16")


def test_late_first_tokens_of_long_inputs_raise_the_token_budget_and_nothing_else() -> None:
    engine = Engine()
    for _ in range(30):
        engine.step(
            generated=500.0,
            prompts=40_000.0,
            started=2.0,
            finished=2.0,
            lengths=(20_000.0, 250.0),
            running=2.0,
            ttft=7.0,
        )
    assert knobs(engine.snapshot.advice) == {"max_num_batched_tokens": "up"}


def test_a_cap_says_what_it_does_not_touch_and_how_long_that_takes() -> None:
    """Of 40 clients, those that do not run wait inside."""
    judge, found = TargetEvaluator("spiral"), []
    for scrape in read(RECORDINGS / "spiral_chunked/metrics.jsonl.gz"):
        for engine in judge.observe(scrape).engines:
            watch = next((item.watch for item in engine.advice if item.knob == "gateway_concurrency"), "")
            found += re.findall(r"once the (\d+) that wait inside vLLM are through \(about (\d+) s at this rate", watch)
    assert len(found) > 20
    assert all(1 <= int(waiting) <= 40 and int(seconds) > 0 for waiting, seconds in found)


def test_no_more_is_promised_than_was_measured() -> None:
    """A cap ended the loop and first tokens came 25 times as fast; useful tokens/s fell from 975 to 797."""
    for name, state in (("spiral_chunked", State.DEATH_SPIRAL), ("overcommit_thrash", State.THRASHING)):
        texts = " ".join(f"{item.watch} {item.cost}" for item in advice_in(name, state))
        assert "rises" not in texts
        assert "tokens/s may fall" in texts


def test_nothing_ever_advises_a_smaller_gpu_memory_share() -> None:
    for name, state in (("spiral_chunked", State.DEATH_SPIRAL), ("overcommit_thrash", State.THRASHING)):
        assert not any("gpu_memory_utilization" in str(item) for item in advice_in(name, state))


def test_what_needs_no_restart_is_listed_once_for_the_rules_that_tell_it_apart() -> None:
    now = re.findall(r'"now",\s+"(\w+)"', Path(advice.__file__).read_text())
    assert set(now) == set(advice.NOW_KNOBS)
    assert len(set(advice.NOW_KNOBS)) == len(advice.NOW_KNOBS)
