"""The incidents of the field on edited real bodies, from text to verdict, in the spelling of every era."""

import random
from typing import Any

import pytest

from tests.cases.edit import (
    Edit,
    Server,
    gauge,
    judge,
    prefixed,
    processes,
    ranks,
    recording,
    states,
    without,
    without_zeros,
)
from vllm_vitals.cli.observe import hurried
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds

NEWEST = "recordings/same_load_reserved"
FORMS: dict[str, tuple[str, tuple[Edit, ...]]] = {
    "0.32": (NEWEST, ()),
    "0.20": ("versions/0.20.2", ()),
    "0.11": ("versions/0.11.2", ()),
    "v0": ("versions/0.8.5", ()),
    "ray": (NEWEST, (without_zeros, prefixed("ray_vllm_"))),
    "kserve": (NEWEST, (prefixed("kserve_vllm:"),)),
    "8 processes": (NEWEST, (lambda text: processes(text, 8),)),
}
SPIRAL = {"preempted": 20.0, "running": 0.0, "waiting": 27.0, "kv_usage": 0.98}
ALARMS = {State.STALLED, State.DEATH_SPIRAL, State.THRASHING}


@pytest.fixture(params=FORMS)
def server(request: pytest.FixtureRequest) -> Server:
    form, edits = FORMS[request.param]
    return Server(form, *edits)


def now(server: Server) -> list[str]:
    return [advice.knob for advice in server.engine.advice if advice.when == "now"]


def test_c1_every_request_preempted_again_and_no_token_is_a_spiral(server: Server) -> None:
    server.healthy()
    assert State.DEATH_SPIRAL in server.run(60, **SPIRAL)[:8]
    assert "without a generated token" in server.engine.evidence[0].text
    assert "present before the first preemption" in server.engine.advice[0].size
    assert now(server) == ["gateway_concurrency"]


@pytest.mark.parametrize("every", [2.0, 15.0, 30.0])
def test_c1_is_found_at_any_interval_that_people_scrape_at(every: float) -> None:
    server = Server()
    server.healthy(300, every)
    seen = server.run(300, every, **{**SPIRAL, "preempted": 4 * every})
    assert State.DEATH_SPIRAL in seen[: round(90 / every) + 1]
    assert State.STALLED not in seen


def test_c2_prompts_computed_again_and_again_without_arrivals_is_a_spiral(server: Server) -> None:
    server.healthy(180)
    seen = server.run(150, generated=100.0, prompts=3000.0, preempted=5.0, running=7.0, waiting=9.0, kv_usage=0.97)
    assert seen[-1] is State.DEATH_SPIRAL
    assert State.STALLED not in seen


def test_another_workload_that_generates_less_and_evicts_is_no_spiral() -> None:
    server = Server()
    server.healthy(300)
    seen = server.run(
        150, generated=300.0, prompts=6000.0, started=2.0, finished=0.1, preempted=2.0, running=20.0, waiting=3.0,
        kv_usage=0.97,
    )  # fmt: skip
    assert State.DEATH_SPIRAL not in seen


def test_c3_a_full_cache_that_recovers_is_overload(server: Server) -> None:
    server.healthy()
    seen = server.run(35, running=0.0, waiting=40.0, kv_usage=0.99)
    seen += server.run(60, generated=900.0, finished=4.0, running=30.0, waiting=20.0, kv_usage=0.99)
    assert not ALARMS & set(seen)


@pytest.mark.parametrize(
    "gauges",
    [
        pytest.param({"running": 30.0, "waiting": 60.0, "kv_usage": 0.93}, id="c4 empty schedules"),
        pytest.param({"running": 35.0, "waiting": 115.0, "kv_usage": 0.99}, id="c5 health answers"),
        pytest.param({"running": 0.0, "waiting": 6.0, "kv_usage": 0.0}, id="c7 queue on an empty cache"),
        pytest.param({"running": 0.0, "waiting": 3.0, "kv_usage": 0.0}, id="c9 engine core dead"),
        pytest.param({"running": 12.0, "waiting": 4.0, "kv_usage": 0.4}, id="c25 output loop died"),
    ],
)
def test_work_without_progress_is_stalled_and_not_before_45_s(server: Server, gauges: dict[str, float]) -> None:
    server.healthy()
    seen = server.run(60, **gauges)
    assert State.STALLED not in seen[:8]
    assert seen[-1] is State.STALLED
    assert now(server) == ["drain"]
    assert "without a token" in server.says


def test_c6_an_admission_that_stops_says_what_is_deferred_and_no_cause() -> None:
    server = Server()
    server.healthy()
    server.run(60, running=0.0, waiting=473.0, deferred=473.0, kv_usage=0.02)
    assert server.engine.state is State.STALLED
    assert "held by remote KV loads, the LoRA budget or grammar compilation" in server.says


def test_c8_dummy_batches_are_a_stall_although_steps_are_counted(server: Server) -> None:
    server.healthy()
    seen = server.run(230, steps=500.0, running=5.0, waiting=12.0, kv_usage=0.3)
    assert seen[-1] is State.STALLED


def test_c9_all_gauges_0_read_idle_and_say_that_nobody_can_tell_from_here(server: Server) -> None:
    server.healthy()
    server.run(90, running=0.0, waiting=0.0, kv_usage=0.0)
    assert server.engine.state is State.IDLE
    assert "only a canary or the gateway can tell" in server.says


def test_c10_a_scrape_that_fails_is_not_idle_and_a_restart_is_no_stall() -> None:
    server = Server()
    server.healthy()
    assert server.miss("timeout") is State.HEALTHY
    assert server.miss("refused", 4) is State.DOWN
    server.restart()
    assert State.STALLED not in server.run(170, running=1.0, waiting=3.0, kv_usage=0.1)
    assert server.run(20, running=1.0, waiting=3.0, kv_usage=0.1)[-1] is State.STALLED


def test_c11_slow_decode_is_a_queue_and_no_stall(server: Server) -> None:
    server.healthy()
    seen = [
        server.step(generated=27.0, gap=0.2, running=1.0, waiting=14.0, kv_usage=0.765 + n * 1e-4) for n in range(100)
    ]
    assert set(seen[15:]) == {State.SATURATED}
    assert "not the limit: max_num_seqs or the token budget is" in server.says


def test_c12_reasoning_to_the_cap_is_no_stall_and_is_counted_as_cut(server: Server) -> None:
    seen = server.run(420, generated=900.0, running=1.0, waiting=0.0, kv_usage=0.3)
    assert set(seen) <= {State.HEALTHY, State.UNKNOWN}
    inflight = server.engine.readings["inflight_output_tokens_estimate"].value
    assert inflight == pytest.approx(83 * 900.0)  # a runaway shows before it finishes
    server.step(generated=10.0, finished=1.0, cut=1.0, running=0.0, kv_usage=0.0)
    assert server.engine.readings["truncated_ratio"].value == 1.0


def test_a_runaway_is_not_seen_in_the_tokens_of_requests_whose_clients_left(server: Server) -> None:
    server.healthy()
    server.run(600, generated=500.0, started=2.0, running=10.0, waiting=0.0, kv_usage=0.3)
    inflight = server.engine.readings["inflight_output_tokens_estimate"].value
    assert inflight is not None
    assert inflight <= 500.0 / 2.0


@pytest.mark.parametrize("since_idle", [False, True])
def test_where_little_finishes_the_wait_is_told_from_all_the_time_that_there_was_work(since_idle: bool) -> None:
    server, waits = Server(), []
    if since_idle:
        server.run(600, running=0.0, waiting=0.0, kv_usage=0.0)
    for at in range(0, 960, 5):
        server.step(
            generated=400.0, steps=100.0, finished=4.0 * (at % 240 == 235), running=4.0, waiting=50.0, kv_usage=0.5
        )
        if at:
            waits.append(server.engine.readings["expected_wait_seconds"].value)
    late = waits[600 // 5 :]
    assert None not in late
    assert all(2000 <= wait <= 4500 for wait in late)  # 50 / (4 / 240 s) = 3000 s
    server.run(700, generated=400.0, running=4.0, waiting=50.0, kv_usage=0.5)
    assert "no end in sight" in server.engine.readings["expected_wait_seconds"].why


def test_prefill_work_counts_a_prompt_once_that_fills_the_cache_as_well() -> None:
    server = Server()
    server.healthy(300)
    for n in range(13):  # in a minute 12 prompts of 500 tokens and 1,200 generated tokens, all of which stay
        server.step(generated=100.0, prompts=500.0, started=1.0, gap=2.0, running=8.0, kv_usage=0.2 + n * 600 / 8192)
    assert "prompt tokens computed per generated one: 5 " in server.says


def test_one_scrape_with_a_queue_after_a_gap_is_not_saturated(server: Server) -> None:
    server.healthy(300)
    server.miss("timeout", 20)
    assert server.step(generated=24_000.0, started=50.0, finished=50.0, running=8.0, waiting=1.0) is State.HEALTHY


@pytest.mark.parametrize(("family", "spirals"), [("nixl_", True), ("kv_offload_", False)])
def test_a_victim_of_a_decode_server_is_computed_again_and_one_of_an_offloading_server_is_not(
    family: str, spirals: bool
) -> None:
    row = f'vllm:{family}failed_total{{engine="0",model_name="tiny"}} 0.0\n'
    seen = states(judge((at, text + row) for at, text in recording("recordings/spiral_chunked")))
    assert State.THRASHING in seen
    assert (State.DEATH_SPIRAL in seen) is spirals


def test_c13_decode_starved_by_long_prompts_is_starved_and_never_a_spiral(server: Server) -> None:
    server.healthy(300)
    seen = server.run(
        150, generated=33.0, prompts=8000.0, gap=0.45, tpot=0.45, running=3.0, waiting=2.0, kv_usage=0.5
    )  # fmt: skip
    assert seen[-1] is State.STARVED
    assert not ALARMS & set(seen)
    assert now(server) == ["route_long_prompts"]


def test_c13_a_prefill_that_only_the_kv_cache_shows_is_starved_too() -> None:
    server = Server()
    server.healthy(300)
    seen = [server.step(generated=10.0, gap=1.2, running=9.0, waiting=0.0, kv_usage=0.1 + n * 0.03) for n in range(25)]
    assert seen[-1] is State.STARVED
    assert State.STALLED not in seen


def test_one_long_prefill_alone_is_no_stall() -> None:
    server = Server()
    server.healthy()
    seen = [server.step(running=1.0, waiting=0.0, kv_usage=0.41 + n * 0.01) for n in range(40)]
    assert State.STALLED not in seen


def test_c16_refused_requests_are_said_although_nothing_waits_longer() -> None:
    server = Server()
    server.healthy()
    assert "refused" not in server.says
    for _ in range(12):
        server.step(
            generated=500.0, started=4.0, finished=4.0, running=8.0, waiting=16.0, refused=7.0
        )  # for each of two reasons
    assert server.engine.state is State.SATURATED
    assert "requests refused: 168 in 60 s" in server.says


def test_c17_gauges_frozen_by_a_mass_abort_are_stall_or_stale(server: Server) -> None:
    server.healthy()
    frozen = {"running": 106.0, "waiting": 15.0, "kv_usage": 0.904}
    assert State.STALLED not in server.run(25, **frozen)
    server.run(40, **frozen)
    assert server.engine.state is State.STALLED
    assert "If the gateway has no request in flight, they are stale" in server.says


def test_c18_aborts_that_nobody_counts_show_as_abandoned(server: Server) -> None:
    server.healthy()
    server.run(65, generated=1000.0, prompts=2500.0, started=10.0, finished=5.0, running=8.0, waiting=0.0, kv_usage=0.4)
    assert server.engine.readings["abandoned_requests_per_second"].value == pytest.approx(1.0)
    assert "client disconnects" in server.says


def test_c19_no_share_ever_exceeds_one(server: Server) -> None:
    server.healthy(60)
    server.run(60, generated=500.0, started=100.0, finished=5.0, cut=5.0, looked_up=10.0, found=12.0, running=8.0)
    for name in ("truncated_ratio", "repeat_preemption_ratio", "prefix_cache_hit_ratio", "recompute_tax_ratio"):
        value = server.engine.readings[name].value
        assert value is None or 0 <= value <= 1, name


@pytest.mark.parametrize("value", ["-0.3875", "NaN", "+Inf", "38.75", "1e300"])
def test_c20_an_impossible_kv_usage_is_dropped_counted_and_called_invalid(value: str) -> None:
    server = Server()
    server.healthy()
    server.edits.append(gauge("vllm:kv_cache_usage_perc", value))
    seen = server.healthy(90)
    reading = server.engine.readings["kv_cache_usage_max_ratio"]
    assert (reading.status, reading.value) == ("invalid", None)
    assert set(seen) == {State.HEALTHY}
    assert server.told[-1].invalid["kv_cache_usage_ratio"] == 18
    assert "KV usage is not between 0 and 1" in server.says


def test_c20_one_impossible_value_among_good_ones_changes_nothing() -> None:
    server = Server()
    server.healthy()
    server.edits.append(gauge("vllm:kv_cache_usage_perc", "-0.3875"))
    server.healthy(5)
    server.edits.clear()
    server.healthy(5)
    assert server.engine.readings["kv_cache_usage_max_ratio"].value == 0.4


def test_c21_usage_that_one_process_knows_is_neither_averaged_nor_overwritten() -> None:
    server = Server(NEWEST, lambda text: processes(text, 8))
    server.healthy(60)
    server.run(30, generated=500.0, running=20.0, waiting=2.0, kv_usage=0.65)
    sample = server.engine.sample
    assert sample is not None
    assert (sample.kv_usage, sample.running, sample.waiting) == (0.65, 20.0, 2.0)
    assert server.engine.readings["kv_cache_usage_max_ratio"].value == 0.65


def test_c22_a_cache_that_reads_0_between_requests_is_no_fault(server: Server) -> None:
    seen = server.run(120, generated=200.0, started=1.0, finished=1.0, prompts=100.0, running=0.0, kv_usage=0.0)
    assert set(seen[1:]) == {State.HEALTHY}


def test_c23_gauges_that_lag_do_not_read_idle(server: Server) -> None:
    assert set(server.run(30, generated=50.0, running=0.0, waiting=0.0)[1:]) == {State.HEALTHY}


def test_c24_a_hit_rate_that_preemption_raises_stands_beside_the_tax() -> None:
    server = Server()
    server.healthy()
    server.run(
        60, generated=1000.0, preempted=2.0, finished=5.0, running=8.0, waiting=3.0, kv_usage=0.95, looked_up=1000.0,
        found=320.0,
    )  # fmt: skip
    readings = server.engine.readings
    assert readings["prefix_cache_hit_ratio"].value == pytest.approx(0.32)
    assert (readings["recompute_tax_ratio"].value or 0.0) > 0
    assert server.engine.state is State.PREEMPTING


def test_c26_everything_in_the_first_bucket_has_bounds_and_no_ratio() -> None:
    server = Server()
    server.run(60, generated=1000.0, finished=30.0, tpot=0.00607, running=64.0, waiting=64.0, kv_usage=0.112)
    p99, ratio = (server.engine.readings[name] for name in ("tpot_p99_seconds", "tpot_p99_p50_ratio"))
    assert (p99.value, p99.lower, p99.upper) == (None, 0.0, 0.01)
    assert (ratio.value, ratio.lower) == (None, 1.0)
    assert "below resolution" in ratio.why


def test_c27_above_the_last_bucket_there_is_a_lower_bound_and_no_number() -> None:
    server = Server()
    server.run(60, generated=100.0, finished=30.0, tpot=0.03, running=64.0)
    server.run(60, generated=100.0, finished=10.0, tpot=5000.0, ttft=1e6, started=30.0, running=64.0)
    p99, ratio = (server.engine.readings[name] for name in ("tpot_p99_seconds", "tpot_p99_p50_ratio"))
    assert (p99.value, p99.lower) == (None, 80.0)
    assert (ratio.value, ratio.lower) == (None, 80.0 / 0.05)
    assert server.engine.readings["ttft_p99_seconds"].value is None


def test_no_traffic_is_absent_and_never_0_or_nan(server: Server) -> None:
    server.run(60, running=0.0)
    for name in ("tpot_p50_seconds", "tpot_p99_p50_ratio", "truncated_ratio", "output_tokens_cv", "ttft_p99_seconds"):
        assert (server.engine.readings[name].status, server.engine.readings[name].value) == ("absent", None), name
    assert server.engine.state is State.IDLE


def test_c38_one_crowded_rank_is_judged_apart_named_first_and_called_uneven() -> None:
    crowded, free = Server(judged=False), Server(judged=False)
    judging = TargetEvaluator("vllm:8000")
    for _ in range(30):
        crowded.step(
            generated=2000.0, finished=4.0, started=4.0, preempted=0.5, running=51.0, waiting=117.0, kv_usage=1.0
        )
        free.step(generated=100.0, finished=1.0, started=1.0, running=2.0, waiting=0.0, kv_usage=0.05)
        (told,) = judge([(crowded.at, ranks([crowded.text, *[free.text] * 7]))], judging)
    assert [engine.key.engine for engine in told.engines] == ["0", *"1234567"]
    assert [engine.state for engine in told.engines] == [State.PREEMPTING] + [State.HEALTHY] * 7
    (said,) = [item.text for item in told.engines[0].evidence if "uneven" in item.text]
    assert "168 of 182 requests are on 1 of 8 engines" in said
    assert not any("uneven" in item.text for engine in told.engines[1:] for item in engine.evidence)


def test_c38_ranks_that_all_queue_are_not_called_uneven() -> None:
    one = Server(judged=False)
    judging = TargetEvaluator("vllm:8000")
    for _ in range(20):
        one.step(generated=2000.0, finished=4.0, running=51.0, waiting=20.0, kv_usage=0.5)
        (told,) = judge([(one.at, ranks([one.text] * 4))], judging)
    assert {engine.state for engine in told.engines} == {State.SATURATED}
    assert not any("uneven" in item.text for engine in told.engines for item in engine.evidence)


def test_c42_a_sleeping_engine_is_asleep_and_awake_again_without_a_trace() -> None:
    server = Server()
    server.healthy()
    server.run(90, **SPIRAL)
    server.sleep(True)
    assert set(server.run(300, running=4.0, waiting=2.0, kv_usage=0.4)) == {State.ASLEEP}
    assert "wake it" in server.says
    server.sleep(False)
    seen = server.healthy(60)
    assert not ALARMS & set(seen)
    assert seen[-1] is State.HEALTHY


def test_c42_the_planned_shape_of_the_gauge_is_read_too() -> None:
    lines = "# HELP vllm:engine_sleep_state s\n# TYPE vllm:engine_sleep_state gauge\nvllm:engine_sleep_state"
    shape = lines + '{engine="0",model_name="tiny"} 1.0\n'
    server = Server(NEWEST, without("engine_sleep_state"), lambda text: text + shape)
    assert set(server.run(60, running=4.0, waiting=2.0)) == {State.ASLEEP}


@pytest.mark.parametrize("operation", ["rl_weight_update_operations_in_flight", "sleep_mode_operations_in_flight"])
def test_weights_that_are_updated_or_moved_are_no_stall_and_are_said(operation: str) -> None:
    shown = f'# HELP vllm:{operation} o\n# TYPE vllm:{operation} gauge\nvllm:{operation}{{operation="x"}} 1.0\n'
    server = Server()
    server.healthy()
    server.edits.append(lambda text: text + shown)
    assert State.STALLED not in server.run(120, running=4.0, waiting=2.0, kv_usage=0.4)
    assert "weights are being updated" in server.says
    server.edits.clear()
    assert server.run(60, running=4.0, waiting=2.0, kv_usage=0.4)[-1] is State.STALLED


def test_a_prefill_engine_has_no_truncation_and_says_when_decode_does_not_pull(server: Server) -> None:
    server.run(
        90, generated=20.0, prompts=20_000.0, started=20.0, finished=20.0, cut=20.0, lengths=(900.0, 1.0), running=2.0,
        kv_usage=0.5,
    )  # fmt: skip
    assert server.engine.role is Role.PREFILL
    absent = ("truncated_ratio", "tpot_p50_seconds", "tpot_p99_p50_ratio", "output_tokens_cv")
    assert {server.engine.readings[name].status for name in absent} == {"absent"}
    server.run(30, running=0.0, waiting=0.0, kv_usage=0.97)
    assert "the decode side is not pulling" in server.says


def test_a_prefill_engine_with_little_to_do_is_still_known_by_all_that_it_has_done(server: Server) -> None:
    one: dict[str, Any] = {
        "started": 1.0,
        "finished": 1.0,
        "cut": 1.0,
        "lengths": (900.0, 1.0),
        "generated": 1.0,
        "prompts": 900.0,
    }
    server.run(150, **one)
    for _ in range(60):
        server.step(15.0, running=0.0)
    server.run(30, **one)
    assert server.engine.role is Role.PREFILL
    assert server.engine.readings["truncated_ratio"].status == "absent"


def test_an_embedding_server_whose_gauges_are_always_caught_at_0_works_all_the_same(server: Server) -> None:
    seen = server.run(90, prompts=3000.0, finished=30.0, lengths=(100.0, 0.0), running=0.0, waiting=0.0)
    assert set(seen[1:]) == {State.HEALTHY}
    assert server.engine.role is Role.POOLING


def test_requests_that_v0_swapped_out_are_work_that_waits() -> None:
    swapped = "# HELP vllm:num_requests_swapped s\n# TYPE vllm:num_requests_swapped gauge\nvllm:num_requests_swapped"
    server = Server("versions/0.8.5", lambda text: text + swapped + '{model_name="tiny"} 9.0\n')
    server.healthy()
    server.run(60, running=0.0, waiting=0.0, kv_usage=0.99)
    assert server.engine.state is State.STALLED
    assert "0 running, 9 waiting" in server.says


def test_a_spiral_that_ends_is_taken_back_within_three_minutes_and_says_that_it_eases(server: Server) -> None:
    server.healthy()
    server.run(90, **SPIRAL)
    server.healthy(65)
    assert server.engine.state is State.DEATH_SPIRAL
    assert "recovering:" in server.engine.evidence[0].text
    assert server.healthy(115)[-1] is State.HEALTHY
    assert server.engine.death_spirals == 1


def test_a_spiral_that_freezes_altogether_becomes_a_stall(server: Server) -> None:
    server.healthy()
    server.run(90, **SPIRAL)
    assert server.run(120, running=3.0, waiting=27.0, kv_usage=0.98)[-1] is State.STALLED


def test_a_blind_spell_keeps_the_proven_state_without_numbers_and_forgets_it_after_5_minutes() -> None:
    server = Server()
    server.healthy()
    server.run(90, **SPIRAL)
    assert server.miss("http_error", 10) is State.DEATH_SPIRAL
    assert (server.engine.sample, server.engine.readings) == (None, {})
    assert "unreadable for 50 s" in server.says
    assert server.run(10, **SPIRAL)[-1] is State.DEATH_SPIRAL
    assert server.miss("http_error", 70) is State.BLIND
    assert not ALARMS & set(server.healthy(60))
    assert server.engine.death_spirals == 1


def test_scrapes_that_time_out_under_load_hide_nothing() -> None:
    server, dice = Server(), random.Random(1)
    server.healthy()
    seen = []
    for _ in range(60):
        busy = {"generated": 600.0, "prompts": 600.0, "started": 1.2, "finished": 1.2, "twice": 1.0, "preempted": 24.0}
        seen.append(server.step(running=6.0, waiting=27.0, kv_usage=0.98, **busy))  # type: ignore[arg-type]
        seen.append(server.miss("timeout", dice.choice((0, 1, 2))))
    assert seen[-1] is State.DEATH_SPIRAL
    assert State.BLIND not in seen


@pytest.mark.parametrize("gap", [60.0, 600.0])
def test_a_gap_in_the_record_changes_no_verdict(server: Server, gap: float) -> None:
    server.healthy()
    server.step(gap, generated=240 * gap, prompts=500 * gap, finished=gap, started=gap, running=8.0, kv_usage=0.4)
    assert set(server.healthy(60)) == {State.HEALTHY}
    server.run(90, **SPIRAL)
    assert server.engine.state is State.DEATH_SPIRAL


def test_a_clock_that_steps_back_an_hour_stops_no_judgement(server: Server) -> None:
    server.healthy()
    server.at -= 3600
    assert set(server.healthy(60)) == {State.HEALTHY}
    assert State.DEATH_SPIRAL in server.run(60, **SPIRAL)
    times = [told.at for told in server.told]
    assert times == sorted(times)


def test_a_model_renamed_in_mid_way_is_judged_anew_and_the_old_name_goes() -> None:
    server = Server()
    server.healthy()
    server.run(90, **SPIRAL)
    server.edits.append(lambda text: text.replace('model_name="tiny"', 'model_name="other"'))
    server.restart()
    server.healthy(30)
    assert [(e.key.model_name, e.state) for e in server.told[-1].engines] == [("other", State.HEALTHY)]


def test_adapters_are_one_engine_whatever_name_their_series_carry() -> None:
    """V0 put an adapter's name on the series of its requests (vllm#11117)."""

    def adapters(text: str) -> str:
        adapted = "\n".join(
            line.replace('model_name="tiny"', 'model_name="tiny-sql"').rsplit(" ", 1)[0] + " 0.0"
            for line in text.split("\n")
            if line.startswith("vllm:") and "success" in line and "created" not in line
        )
        return text.rstrip("\n") + "\n" + adapted + "\n"

    server = Server(NEWEST, adapters)
    server.healthy()
    assert [(e.key.model_name, e.state) for e in server.told[-1].engines] == [("tiny", State.HEALTHY)]


def test_two_completions_a_minute_with_their_evictions_raise_no_alarm() -> None:
    server, dice = Server(), random.Random(7)
    seen = []
    for _ in range(1000):
        seen.append(
            server.step(
                15.0, generated=9000.0, prompts=1000.0, started=float(dice.random() < 0.5),
                finished=float(dice.random() < 0.5), preempted=float(dice.random() < 0.075), running=16.0,
                waiting=float(dice.choice((0, 2, 5))), kv_usage=0.97,
            )
        )  # fmt: skip
    assert not ALARMS & set(seen)
    assert State.PREEMPTING in seen


def test_a_spiral_with_prefix_caching_is_found_by_what_it_keeps_repeating() -> None:
    caching = 'enable_prefix_caching="True"'
    odds = []
    for server in (Server(), Server(NEWEST, lambda text: text.replace('enable_prefix_caching="False"', caching))):
        server.healthy()
        server.run(
            120, generated=1000.0, prompts=1000.0, started=2.0, finished=2.0, twice=1.6, preempted=60.0, running=6.0,
            waiting=34.0, kv_usage=0.98,
        )  # fmt: skip
        assert server.engine.state is State.DEATH_SPIRAL
        tax = server.engine.readings["recompute_tax_ratio"].value or 0.0
        odds.append(tax / (1 - tax))
    assert odds[0] > 2 * odds[1]  # most of a victim's context comes back from the cache


def test_buckets_of_ones_own_give_what_they_can_and_say_what_they_cannot() -> None:
    """A server with other edges: none at 1 s, none at one preemption."""

    def own(text: str) -> str:
        return text.replace('le="1.0"', 'le="1.5"')

    server = Server(NEWEST, own)
    server.healthy()
    readings = server.engine.readings
    assert "no bucket edge at 1 s" in readings["stall_gaps_per_second"].why
    assert readings["repeat_preemption_ratio"].value is None
    assert readings["tpot_p50_seconds"].value is not None
    assert server.engine.state is State.HEALTHY


@pytest.mark.parametrize("family", ["num_requests_running", "num_requests_waiting", "generation_tokens"])
def test_a_server_that_lacks_what_a_state_needs_is_unknown_and_says_what_is_missing(family: str) -> None:
    server = Server(NEWEST, without(family))
    server.healthy(60)
    assert server.engine.state is State.UNKNOWN
    assert f"{family.replace('num_', '')}" in server.says
    assert "missing" in server.says


def test_a_server_without_a_preemption_counter_says_so_and_can_still_be_starved() -> None:
    server = Server(NEWEST, without("num_preemptions"))
    server.healthy(300)
    assert server.engine.readings["preemptions_per_completion"].why == "the server has no preemption counter"
    server.run(120, generated=33.0, prompts=8000.0, gap=0.45, running=3.0, waiting=2.0, kv_usage=0.5)
    assert server.engine.state is State.STARVED


def test_a_real_spiral_that_freezes_in_mid_way_is_a_stall_and_then_thaws() -> None:
    scrapes = recording("recordings/spiral_chunked")
    head, frozen = scrapes[:60], [(scrapes[59][0] + 2 * n, scrapes[59][1]) for n in range(1, 61)]
    tail = [(at + 120, text) for at, text in scrapes[60:]]
    seen = states(judge([*head, *frozen, *tail]))
    assert seen[59 + 60] is State.STALLED
    assert State.STALLED not in seen[:59]
    assert State.STALLED not in seen[-40:]


def test_what_is_about_to_be_proven_is_said_before_it_is() -> None:
    server = Server()
    server.healthy()
    said = []
    while server.run(5, generated=600.0, prompts=600.0, started=1.2, finished=1.2, twice=1.0, preempted=24.0,
                     running=6.0, waiting=27.0, kv_usage=0.98)[-1] is not State.THRASHING:  # fmt: skip
        said.append(server.engine.evidence[0].text)
    told = [text for text in said if text.startswith("pending ")]
    assert told[0] == "pending thrashing: 0 s of 30 s"
    assert told[-1].startswith("pending death spiral: ")
    assert said[-6:] == told


def test_a_server_that_has_served_long_is_known_by_its_life_from_the_first_minute() -> None:
    """Starved before anybody looked: the counters of its life say what is usual."""
    server = Server(judged=False)
    server.healthy(600)
    server.judged = True
    seen = server.run(70, generated=33.0, prompts=8000.0, gap=0.45, running=3.0, waiting=2.0, kv_usage=0.5)
    assert seen[-1] is State.STARVED
    unknown = Server()
    unknown.run(25, generated=33.0, prompts=8000.0, gap=0.45, running=3.0, waiting=2.0, kv_usage=0.5)
    assert unknown.engine.state is not State.STARVED
    assert "there is no baseline of inter-token latency yet" in unknown.says


LOOKS: dict[State, dict[str, float]] = {
    State.DEATH_SPIRAL: {"generated": 400.0, "prompts": 400.0, "started": 2.0, "finished": 2.0, "twice": 1.6,
                         "preempted": 16.0, "running": 7.0, "waiting": 40.0, "kv_usage": 0.98},
    State.THRASHING: {"generated": 4000.0, "prompts": 2000.0, "started": 8.0, "finished": 8.0, "twice": 3.0,
                      "preempted": 14.0, "running": 47.0, "waiting": 490.0, "kv_usage": 0.99},
    State.STALLED: {"running": 4.0, "waiting": 0.0, "kv_usage": 0.07},
    State.STARVED: {"generated": 13.0, "prompts": 8000.0, "gap": 0.45, "running": 6.0, "kv_usage": 0.35},
    State.SATURATED: {"generated": 500.0, "started": 4.0, "finished": 4.0, "running": 8.0, "waiting": 500.0},
    State.PREEMPTING: {"generated": 9000.0, "prompts": 9000.0, "started": 20.0, "finished": 20.0, "preempted": 2.0,
                       "running": 50.0, "waiting": 1.0, "kv_usage": 0.97},
}  # fmt: skip


@pytest.mark.parametrize("state", LOOKS)
def test_half_a_minute_is_enough_to_see_it(state: State) -> None:
    """What `check` does: a look of 30 s, every 2 s, at a server that has been so for a while."""
    server = Server(judged=False)
    server.healthy(600)
    server.judging, server.judged = TargetEvaluator("vllm:8000", hurried(Thresholds(), 30.0)), True
    assert server.run(30, 2.0, **LOOKS[state])[-1] is state
