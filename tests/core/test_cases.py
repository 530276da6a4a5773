"""The incidents of the field, each as a small sequence of samples and the verdict that it demands."""

import pytest

from tests.core.sequences import Engine
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.states import State


def test_c1_zero_progress_preemption_cascade_is_a_spiral_within_two_windows() -> None:
    engine = Engine()
    engine.healthy()
    states = engine.run(60, preempted=20.0, running=0.0, waiting=27.0, kv_usage=0.98)
    assert State.DEATH_SPIRAL in states[:8]
    assert engine.snapshot.state is State.DEATH_SPIRAL
    assert "without a generated token" in engine.snapshot.evidence[0].text


def test_c2_resume_and_preempt_loop_with_few_requests_is_a_spiral_by_collapse() -> None:
    engine = Engine()
    engine.healthy(180)
    states = engine.run(120, generated=100.0, preempted=5.0, running=7.0, waiting=9.0, kv_usage=0.97)
    assert engine.snapshot.state is State.DEATH_SPIRAL
    assert State.STALLED not in states


def test_c3_full_cache_that_recovers_is_overload_and_one_that_stays_silent_is_stalled() -> None:
    recovers = Engine()
    recovers.healthy()
    states = recovers.run(30, running=0.0, waiting=40.0, kv_usage=0.99) + recovers.run(
        60, generated=900.0, finished=4.0, running=30.0, waiting=20.0, kv_usage=0.99
    )
    assert not {State.STALLED, State.DEATH_SPIRAL, State.THRASHING} & set(states)
    silent = Engine()
    silent.healthy()
    silent.run(60, running=0.0, waiting=40.0, kv_usage=0.0)
    assert silent.snapshot.state is State.STALLED


@pytest.mark.parametrize(
    ("name", "gauges"),
    [
        ("c4 empty schedules without any preemption", {"running": 30.0, "waiting": 60.0, "kv_usage": 0.93}),
        ("c5 health answers, no tokens", {"running": 35.0, "waiting": 115.0, "kv_usage": 0.99}),
        ("c7 a queue on an empty cache", {"running": 0.0, "waiting": 6.0, "kv_usage": 0.0}),
        ("c9 engine core dead, API server alive", {"running": 0.0, "waiting": 3.0, "kv_usage": 0.0}),
    ],
)
def test_work_without_progress_is_stalled_after_45_s_and_not_before(name: str, gauges: dict[str, float]) -> None:
    engine = Engine()
    engine.healthy()
    states = engine.run(40, **gauges)
    assert State.STALLED not in states, name
    assert engine.run(10, **gauges)[-1] is State.STALLED, name


def test_c6_admission_that_stops_for_good_names_what_is_deferred() -> None:
    engine = Engine()
    engine.healthy()
    engine.run(60, running=0.0, waiting=473.0, waiting_by_reason={"capacity": 0.0, "deferred": 473.0}, kv_usage=0.02)
    assert engine.snapshot.state is State.STALLED
    assert any(
        "held by remote KV loads, the LoRA budget or grammar compilation" in item.text
        for item in engine.snapshot.evidence
    )


def test_c8_dummy_batches_that_move_only_the_step_counter_are_a_stall_all_the_same() -> None:
    engine = Engine()
    engine.healthy()
    states = engine.run(200, steps=500.0, running=5.0, waiting=12.0, kv_usage=0.3)
    assert states[-1] is State.STALLED


def test_c10_restart_under_load_is_no_stall_while_the_engine_compiles() -> None:
    engine = Engine()
    assert State.STALLED not in engine.run(170, running=1.0, waiting=3.0, kv_usage=0.1)
    assert engine.run(15, running=1.0, waiting=3.0, kv_usage=0.1)[-1] is State.STALLED


def test_c11_slow_decode_is_not_stalled() -> None:
    engine = Engine()
    engine.healthy()
    usage = iter(0.765 + n * 0.0001 for n in range(1000))
    states = [engine.step(generated=27.0, running=1.0, waiting=14.0, kv_usage=next(usage)).state for _ in range(120)]
    assert set(states[20:]) == {State.SATURATED}


def test_c12_reasoning_to_the_cap_is_no_stall_and_counts_as_truncated() -> None:
    engine = Engine()
    engine.step(generated=0.0)
    states = engine.run(420, generated=900.0, running=1.0, waiting=0.0, kv_usage=0.3)
    assert set(states) <= {State.HEALTHY, State.UNKNOWN}
    engine.step(generated=10.0, finished=1.0, cut=1.0, running=0.0, kv_usage=0.0)
    assert engine.snapshot.readings["truncated_ratio"].value == 1.0


def test_c13_decode_starved_by_prefill_is_starved_and_never_a_spiral() -> None:
    engine = Engine()
    engine.healthy(300)
    states = engine.run(
        120, generated=33.0, prompts=8000.0, gap=0.45, tpot=0.45, running=3.0, waiting=2.0, kv_usage=0.5, finished=0.0
    )
    assert engine.snapshot.state is State.STARVED
    assert not {State.DEATH_SPIRAL, State.THRASHING, State.STALLED} & set(states)


def test_c17_gauges_frozen_after_a_mass_abort_are_called_stall_or_stale() -> None:
    engine = Engine()
    engine.healthy()
    frozen = {"running": 106.0, "waiting": 15.0, "kv_usage": 0.904}
    assert State.STALLED not in engine.run(25, **frozen)
    engine.run(60, **frozen)
    assert engine.snapshot.state is State.STALLED
    assert any("stale" in note for note in engine.snapshot.unknown)


def test_c18_aborts_that_vllm_does_not_count_show_as_abandoned() -> None:
    engine = Engine()
    engine.healthy()
    engine.run(60, generated=1000.0, prompts=2500.0, started=10.0, finished=5.0, running=8.0, waiting=0.0, kv_usage=0.4)
    assert engine.snapshot.readings["abandoned_requests_per_second"].value == pytest.approx(1.0, rel=0.1)
    assert any("disconnects" in note for note in engine.snapshot.unknown)


def test_c19_more_first_tokens_than_finishes_never_gives_a_share_above_one() -> None:
    engine = Engine()
    engine.healthy(60)
    engine.run(60, generated=500.0, started=100.0, finished=5.0, cut=5.0, running=8.0)
    shares = ("truncated_ratio", "repeat_preemption_ratio", "prefix_cache_hit_ratio", "recompute_tax_ratio")
    for name in shares:
        number = engine.snapshot.readings[name].value
        assert number is None or 0 <= number <= 1, name


def test_c22_a_cache_that_reads_0_between_requests_is_no_fault() -> None:
    engine = Engine()
    states = engine.run(120, generated=200.0, started=1.0, finished=1.0, prompts=100.0, running=0.0, kv_usage=0.0)
    assert set(states[1:]) == {State.HEALTHY}


def test_c23_gauges_that_lag_do_not_read_idle_while_tokens_flow() -> None:
    engine = Engine()
    assert set(engine.run(20, generated=50.0, running=0.0, waiting=0.0)) == {State.HEALTHY}


def test_c24_hit_rate_that_rises_under_preemption_stands_beside_the_tax() -> None:
    engine = Engine(prefix_caching=True, prefix_cache_queries=0.0, prefix_cache_hits=0.0)
    engine.healthy()
    engine.run(
        60,
        generated=1000.0,
        preempted=2.0,
        finished=5.0,
        running=8.0,
        waiting=3.0,
        kv_usage=0.95,
        prefix_cache_queries=1000.0,
        prefix_cache_hits=320.0,
    )
    readings = engine.snapshot.readings
    assert readings["prefix_cache_hit_ratio"].value == pytest.approx(0.32)
    assert (readings["recompute_tax_ratio"].value or 0) > 0
    assert engine.snapshot.state is State.PREEMPTING


def test_c25_counters_that_go_flat_with_work_present_are_a_stall() -> None:
    engine = Engine()
    engine.healthy()
    engine.run(60, running=12.0, waiting=4.0, kv_usage=0.4)
    assert engine.snapshot.state is State.STALLED


def test_c26_everything_in_the_first_bucket_is_below_resolution_and_has_no_ratio() -> None:
    engine = Engine()
    engine.run(60, generated=1000.0, finished=30.0, tpot=0.00607, running=64.0, waiting=64.0, kv_usage=0.112)
    readings = engine.snapshot.readings
    assert readings["tpot_p99_p50_ratio"].value is None
    assert "below resolution" in readings["tpot_p99_p50_ratio"].why
    assert (readings["tpot_p50_seconds"].lower, readings["tpot_p50_seconds"].upper) == (0.0, 0.01)


def test_c27_everything_above_the_last_bucket_gives_a_lower_bound_only() -> None:
    engine = Engine()
    engine.healthy(60)
    engine.run(600, generated=1000.0, finished=30.0, tpot=200.0, running=64.0, kv_usage=0.1)
    p99 = engine.snapshot.readings["tpot_p99_seconds"]
    assert p99.value is None
    assert p99.lower == 80.0
    assert engine.snapshot.readings["tpot_p99_p50_ratio"].value is None


def test_no_traffic_gives_no_quantile_and_no_share_rather_than_0() -> None:
    engine = Engine()
    engine.run(60)
    readings = engine.snapshot.readings
    for name in ("tpot_p50_seconds", "tpot_p99_p50_ratio", "truncated_ratio", "output_tokens_cv", "ttft_p99_seconds"):
        assert readings[name].status == "absent", name
        assert readings[name].value is None, name
    assert engine.snapshot.state is State.IDLE


def test_c42_a_sleeping_engine_is_asleep_whatever_its_gauges_froze_at() -> None:
    engine = Engine()
    engine.healthy()
    states = engine.run(120, asleep=True, running=4.0, waiting=2.0, kv_usage=0.4)
    assert set(states) == {State.ASLEEP}
    assert any("wake it" in item.text for item in engine.snapshot.evidence)
    assert engine.step(generated=100.0, asleep=False, running=4.0).state is not State.STALLED


def test_weights_that_are_being_updated_are_no_stall() -> None:
    engine = Engine()
    engine.healthy()
    assert State.STALLED not in engine.run(120, updating_weights=True, running=4.0, waiting=2.0)


def test_c32_a_prefill_engine_has_no_truncation_and_says_when_decode_does_not_pull() -> None:
    engine = Engine()
    engine.run(
        60, generated=20.0, prompts=20_000.0, finished=20.0, cut=20.0, lengths=(900.0, 1.0), running=2.0, kv_usage=0.5
    )
    assert engine.snapshot.role is Role.PREFILL
    assert engine.snapshot.readings["truncated_ratio"].status == "absent"
    engine.run(30, running=0.0, waiting=0.0, kv_usage=0.97)
    assert any("decode side is not pulling" in item.text for item in engine.snapshot.evidence)
