"""The ideas behind the product, each shown to hold where the product uses it: docs/background.md lists them.

What a published number says is reproduced by the simulated server or by the arithmetic that the product itself does.
The reference server below is two RTX 4090 with a 35B mixture of experts in Int4, as far as its figures were published.
"""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest

from tests.core import sequences
from vllm_vitals.core import vital_signs
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Advice
from vllm_vitals.core.states import State
from vllm_vitals.logs import response_limits
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.events import Decoded, RequestFinished, ServerSetting
from vllm_vitals.logs.server import ServerState
from vllm_vitals.planner.experiment.baseline import VITALS, Baseline, Measure
from vllm_vitals.planner.experiment.compare import compare
from vllm_vitals.planner.whatif import simulate_run
from vllm_vitals.planner.whatif.simulate_run import Gateway
from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.scenarios import scenario
from vllm_vitals.simulator.scheduler import Scheduler
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Lengths, Load
from vllm_vitals.simulator.world import World

A100 = StepTime()  # an 8B model on one data-centre GPU
REFERENCE = StepTime(base=0.008, prefill=1 / 11_400, decode=0.0014, context=0.0)
WINDOW = 262_144
REFERENCE_SERVER = ServerSettings(
    num_gpu_blocks=round(7.58 * WINDOW / 16), max_model_len=WINDOW, max_num_seqs=32, max_num_batched_tokens=8192,
    enable_prefix_caching=False,
)  # fmt: skip
SMALL = ServerSettings(
    num_gpu_blocks=513, max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=2048, enable_prefix_caching=False
)


def request(number: int, prompt: int, output: int, at: float = 0.0, **more: object) -> Request:
    return Request(number, at, prompt, output, **{"max_tokens": output, **more})  # type: ignore[arg-type]


def serve(settings: ServerSettings, time: StepTime, requests: list[Request]) -> Engine:
    """All requests through one engine, each added when it arrives."""
    engine = Engine(settings, time)
    for each in sorted(requests, key=lambda one: one.arrival):
        while engine.advance(each.arrival):
            pass
        engine.add(each)
    while engine.advance(1e9):
        pass
    return engine


def burst(settings: ServerSettings, time: StepTime, count: int, prompt: int, output: int) -> tuple[float, float, float]:
    """``count`` requests at once: output tokens/s, mean time to first token, mean tokens/s of one answer."""
    requests = [request(n, prompt, output) for n in range(count)]
    engine = serve(settings, time, requests)
    return count * output / engine.now, mean(r.first_token_at for r in requests), 1 / mean(map(per_token, requests))


def known(value: float | None) -> float:
    """A number that must be there."""
    assert value is not None
    return value


def per_token(one: Request) -> float:
    """Its time per output token."""
    return (one.finished_at - one.first_token_at) / (one.output - 1)


# ---------------------------------------------------------------- concurrency and long prompts


def test_time_per_output_token_grows_on_a_line_with_the_requests_that_decode() -> None:
    times = [1 / burst(SMALL, A100, n, 16, 100)[2] for n in (1, 11, 21, 31)]
    steps = [after - before for before, after in pairwise(times)]
    assert min(steps) > 0
    assert max(steps) == pytest.approx(min(steps), rel=0.1)


def test_short_prompts_say_raise_concurrency_from_4_to_32() -> None:
    four, many = (burst(REFERENCE_SERVER, REFERENCE, n, 1100, 400) for n in (4, 32))
    assert many[0] / four[0] - 1 == pytest.approx(0.92, abs=0.1)  # measured: +92 %


def test_the_same_server_with_the_real_prompts_gains_nothing_and_answers_later_and_slower() -> None:
    four, eight = (burst(REFERENCE_SERVER, REFERENCE, n, 39_812, 400) for n in (4, 8))
    assert four[0] == pytest.approx(82, rel=0.1)  # measured: 82 tokens/s
    assert eight[0] / four[0] - 1 < 0.1  # measured: +4 %
    assert eight[1] / four[1] - 1 > 0.5  # measured: +65 %
    assert eight[2] / four[2] - 1 < -0.4  # measured: -56 %


def test_where_prefill_fills_the_gpu_a_quarter_more_slots_gains_less_than_a_tenth() -> None:
    load = Load(clients=64, think_s=0.0, prompt=Lengths(10_000), output=Lengths(200))  # 50 prompt tokens an output one
    server = replace(SMALL, num_gpu_blocks=40_000, max_model_len=16_384)
    eight, ten = (simulate_run.run(replace(server, max_num_seqs=n), A100, load, 600, 1).generated for n in (8, 10))
    assert ten / eight - 1 < 0.1


def test_larger_prefill_steps_win_nothing_where_prefill_already_fills_the_gpu() -> None:
    small, large = (
        burst(replace(REFERENCE_SERVER, max_num_batched_tokens=n), REFERENCE, 4, 39_812, 400)[0] for n in (8192, 32_768)
    )
    assert large / small - 1 < 0.03  # measured: 82 to 84 tokens/s


def test_the_clients_concurrency_gives_the_curve_of_max_num_seqs_without_restarts() -> None:
    load = Load(clients=4, think_s=0.0, prompt=Lengths(600, 0.3), output=Lengths(200, 0.3))
    by_client = simulate_run.run(SMALL, A100, load, 300, 1)
    by_server = simulate_run.run(replace(SMALL, max_num_seqs=4), A100, replace(load, clients=16), 300, 1)
    assert by_client.generated == pytest.approx(by_server.generated, rel=0.05)


def test_a_benchmark_that_repeats_one_prompt_flatters_time_to_first_token() -> None:
    caching = replace(REFERENCE_SERVER, enable_prefix_caching=True)
    same = [
        request(n, 31_008, 20, at=10.0 * n, prefix=(1,), prefix_tokens=31_000, prefix_block=31_000) for n in range(3)
    ]
    fresh = [request(n, 31_008, 20, at=10.0 * n) for n in range(3)]
    serve(caching, REFERENCE, same)
    serve(caching, REFERENCE, fresh)
    assert same[1].first_token_at - same[1].arrival < 0.13
    assert fresh[1].first_token_at - fresh[1].arrival == pytest.approx(31_008 / 11_400, rel=0.05)


def test_a_burst_beyond_the_slots_only_queues_and_stands_before_everybody_else() -> None:
    polite, rude = report_with_a_chat_beside_it(4), report_with_a_chat_beside_it(12)
    assert rude[0] == pytest.approx(polite[0], rel=0.05)
    assert rude[1] > 2 * polite[1]


def report_with_a_chat_beside_it(at_once: int) -> tuple[float, float]:
    """36 blocks of a report, so many in flight, on four slots: when it is done, and how long one chat turn waits."""
    engine, turn = Engine(replace(REFERENCE_SERVER, max_num_seqs=4), REFERENCE), request(99, 2000, 100, at=2.0)
    left, until = [request(n, 2000, 100) for n in range(36)], turn.arrival
    for _ in range(at_once):
        engine.add(left.pop())
    while until < 1e9 or engine.requests:
        done = engine.advance(until)
        for _ in [one for one in done if one is not turn and left]:
            if left:
                engine.add(left.pop())
        if not done and until < 1e9:
            engine.add(turn)
            until = 1e9
    return engine.now, turn.first_token_at - turn.arrival


def test_more_calls_at_once_shorten_a_report_until_its_longest_block_is_what_remains() -> None:
    blocks = [1.0, 2.0, 1.5, 5.5, 2.5, 1.0, 1.5, 2.0, 1.5, 2.0, 2.5, 1.0] * 3  # seconds, about 2 on average
    waits = [makespan(blocks, n) for n in (4, 12, 16)]
    assert waits[0] > 2 * waits[1]
    assert waits[2] > 0.75 * waits[1]  # measured: 18.2, 6.5 and 5.7 s


def makespan(jobs: list[float], lanes: int) -> float:
    ends = [0.0] * lanes
    for job in jobs:
        first = ends.index(min(ends))
        ends[first] += job
    return max(ends)


# ---------------------------------------------------------------- KV blocks, admission, preemption


@pytest.mark.parametrize(("tokens", "blocks"), [(128, 8), (512, 32)])
def test_a_sequence_holds_a_block_for_each_16_tokens_it_has(tokens: int, blocks: int) -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(request(0, tokens, 1000))
    scheduler.commit(scheduler.plan())
    assert scheduler.pool.usable - scheduler.pool.free == blocks


def test_a_small_max_tokens_admits_no_more_requests_since_v1_reserves_nothing_for_it() -> None:
    admitted = []
    for cap in (128, 7000):
        scheduler = Scheduler(SMALL)
        for n in range(40):
            scheduler.add(request(n, 300, 100, max_tokens=cap))
        for _ in range(20):
            scheduler.commit(scheduler.plan())
        admitted.append(len(scheduler.running))
    assert admitted[0] == admitted[1]


# Output lengths with a CV above 1, at a rate that just fills the cache.
WIDE = Load(rate=1.0, prompt=Lengths(300, 0.5), output=Lengths(700, 1.1), max_tokens=4000)


def test_requests_that_are_let_in_freely_evict_each_other_and_fewer_slots_turn_that_into_waiting() -> None:
    free, held = (simulate_run.run(replace(SMALL, max_num_seqs=n), A100, WIDE, 600, 1) for n in (64, 5))
    assert free.preemptions > 10 * held.preemptions
    assert known(held.tpot_p99) < known(free.tpot_p99) / 2
    assert known(held.ttft_p50) > known(free.ttft_p50)


def test_what_the_requests_hold_together_decides_whether_any_is_evicted() -> None:
    for clients, evicts in ((6, False), (12, True)):
        load = Load(clients=clients, think_s=0.0, prompt=Lengths(900), output=Lengths(200))
        needed = clients * 1000  # concurrency x mean context
        assert (needed > SMALL.capacity_tokens) is evicts
        assert (simulate_run.run(SMALL, A100, load, 120, 1).preemptions > 0) is evicts


def test_four_slots_of_whole_windows_need_a_cache_of_four_windows() -> None:
    sample = EngineSample(kv_capacity_tokens=7.58 * WINDOW)
    told = {"max_model_len": str(WINDOW)}
    assert vital_signs.full_windows(sample, told).value == pytest.approx(7.58)
    halved = vital_signs.full_windows(replace(sample, kv_capacity_tokens=7.58 / 2 * WINDOW), told).value
    assert known(halved) < 4
    for windows, evicts in ((7.58, False), (7.58 / 2, True)):
        server = replace(SMALL, max_model_len=2048, num_gpu_blocks=int(windows * 2048 / 16), max_num_seqs=4)
        engine = serve(server, A100, [request(n, 1900, 148) for n in range(4)])
        assert bool(engine.stats.preemptions) is evicts


def test_8000_tokens_take_a_fifth_to_two_fifths_of_a_second_to_compute_again_and_a_tenth_of_that_to_load() -> None:
    assert 0.2 <= A100.prefill * 8000 <= 0.4
    assert A100.load * 8000 == pytest.approx(8000 * 128 * 1024 / 32e9, rel=0.01)
    ends = {}
    for offload in (False, True):
        requests = [request(0, 3000, 1500), request(1, 4000, 1500)]
        engine = serve(replace(SMALL, kv_offload=offload), A100, requests)
        assert requests[1].preemptions == 1
        ends[offload] = engine.now
        assert (engine.stats.prefilled > 11_000) is not offload
    assert ends[True] < ends[False] - 0.1


def test_most_of_the_distance_from_median_to_p99_is_made_by_preemption() -> None:
    tight, roomy = (simulate_run.run(replace(SMALL, num_gpu_blocks=n), A100, WIDE, 600, 1) for n in (513, 8192))
    assert tight.preemptions > 0
    assert roomy.preemptions == 0
    assert 3 < known(tight.tpot_p99) / known(tight.tpot_p50) < 5  # reported from production: 3.8
    distances = [known(one.tpot_p99) - known(one.tpot_p50) for one in (roomy, tight)]
    assert 1 - distances[0] / distances[1] >= 0.7  # reported: about 70 %


def test_preemption_shows_as_gaps_of_many_seconds_in_answers_that_had_none_of_a_fifth() -> None:
    world, longest = World(scenario("thrashing")), []
    for until in (119.0, 600.0):
        world.advance(until)
        gaps = world.engines[0].stats.histograms["inter_token_latency_seconds"]
        longest.append(max(edge for edge, n in zip(gaps.bounds, gaps.counts, strict=False) if n))
    assert longest[0] <= 0.2
    assert longest[1] > 5  # the upper edge of its bucket; reported from production: from 200 ms to 8 s


# ---------------------------------------------------------------- unknown output lengths


def test_one_straggler_makes_a_static_batch_nearly_twenty_times_slower_and_continuous_batching_does_not() -> None:
    steps = StepTime(base=0.001, prefill=0.0, decode=0.0, context=0.0)
    batch = [request(n, 16, 100) for n in range(31)] + [request(31, 16, 2000)]
    engine = serve(SMALL, steps, batch)
    step = per_token(batch[31])
    static = mean(engine.now / one.output for one in batch)  # a static batch gives nothing back before its end
    assert static / step == pytest.approx((31 * 20 + 1) / 32, rel=0.01)  # 19.4
    assert mean(map(per_token, batch)) / step == pytest.approx(1, rel=0.01)


def test_a_straggler_keeps_its_blocks_when_everybody_else_has_left() -> None:
    scheduler = Scheduler(SMALL)
    for n in range(31):
        scheduler.add(request(n, 16, 100))
    scheduler.add(request(31, 16, 2000))
    for _ in range(1000):
        scheduler.commit(scheduler.plan())
    assert len(scheduler.running) == 1
    assert scheduler.pool.usable - scheduler.pool.free >= 1000 // 16


def test_an_answer_that_ends_by_itself_gives_all_its_blocks_back_at_once() -> None:
    scheduler = Scheduler(SMALL)
    scheduler.add(request(0, 16, 5, max_tokens=4000))
    for _ in range(5):
        done = scheduler.commit(scheduler.plan())
    assert [one.id for one in done] == [0]
    assert scheduler.pool.free == scheduler.pool.usable


def test_a_small_prefill_chunk_shortens_the_gap_for_those_who_read_and_delays_the_long_prompt() -> None:
    gaps, firsts = [], []
    for budget in (8192, 512):
        reader, long = request(0, 64, 400), request(1, 7900, 10, at=0.5)
        engine = serve(replace(SMALL, max_num_batched_tokens=budget), A100, [reader, long])
        histogram = engine.stats.histograms["inter_token_latency_seconds"]
        gaps.append(max(edge for edge, n in zip(histogram.bounds, histogram.counts, strict=False) if n))
        firsts.append(long.first_token_at - long.arrival)
    assert gaps[1] < gaps[0] / 5
    assert firsts[1] > firsts[0]


OVERLOAD = Load(rate=3.0, prompt=Lengths(200, 0.3), output=Lengths(500, 1.2), max_tokens=4000)


def test_knowing_which_answers_will_be_short_lets_them_go_first() -> None:
    blind, oracle = (simulate_run.run(SMALL, A100, OVERLOAD, 300, 1, gateway=Gateway(predict=p)) for p in (False, True))
    assert known(oracle.ttft_p50) < known(blind.ttft_p50) / 2
    assert oracle.preemptions < blind.preemptions / 2


def test_knowing_only_short_medium_or_long_is_nearly_as_good() -> None:
    blind, coarse = (
        simulate_run.run(SMALL, A100, OVERLOAD, 300, 1, gateway=gateway)
        for gateway in (Gateway(), Gateway(predict=True, classes=4.0))
    )
    assert known(coarse.ttft_p50) < known(blind.ttft_p50) / 2
    assert coarse.preemptions < blind.preemptions / 2


def test_predicting_too_short_costs_more_than_predicting_too_long() -> None:
    short, long = (
        simulate_run.run(SMALL, A100, OVERLOAD, 300, 1, gateway=Gateway(predict=True, noise=0.3, bias=b))
        for b in (0.5, 1.5)
    )
    assert short.preemptions > 2 * long.preemptions


def test_kinds_of_requests_apart_are_even_and_mixed_they_are_not() -> None:
    judge = LogAggregator({"gw": SourceInfo()})
    for n in range(50):
        for route, length in (("label", 12 + n % 3), ("code", 1500 + 10 * (n % 7))):
            answer = RequestFinished(float(n), model="m", route=route, completion_tokens=length, finish_reason="stop")
            judge.observe("gw", Decoded("response", (answer,)), float(n))
    (split,) = judge.snapshot(60.0).splits
    assert split.helps
    assert split.within_cv < 0.1
    assert split.mixed_cv > 0.9


# ---------------------------------------------------------------- caps, thinking, runaways


def test_one_answer_without_an_end_takes_a_quarter_of_a_server_of_four_until_a_default_cap_stops_it() -> None:
    times, four = StepTime(base=0.02, prefill=1e-5, decode=0.0, context=0.0), replace(SMALL, max_num_seqs=4)
    ends = {}
    for runaway in (20, 6000):
        others = [request(n, 100, 200) for n in range(1, 61)]
        serve(four, times, [request(0, 100, runaway), *others])
        ends[runaway] = max(one.finished_at for one in others)
    assert ends[6000] / ends[20] == pytest.approx(4 / 3, rel=0.05)
    capped = simulate_run.run(
        replace(four, default_max_tokens=256), times, Load(clients=4, output=Lengths(6000), max_tokens=None), 60, 1
    )
    assert capped.truncated == 1.0
    assert 0.01 * (WINDOW - 1000) / 60 > 30  # at 10 ms a token: more than half an hour to the window's end


def test_without_any_cap_an_answer_may_fill_what_its_prompt_leaves_of_the_window() -> None:
    server = response_limits.ServerLimits(max_model_len=WINDOW)
    filled = RequestFinished(0.0, prompt_tokens=40_000, completion_tokens=WINDOW - 40_000, finish_reason="length")
    assert response_limits.cap_of(filled, server) == "context_window"
    capped = replace(filled, completion_tokens=32_768)
    assert response_limits.cap_of(capped, replace(server, default_max_tokens=32_768)) == "server_default"


@pytest.mark.parametrize(
    ("version", "in_force", "taken"), [("0.29.0", {}, False), ("0.32.0", {"presence_penalty": 1.5}, True)]
)
def test_a_presence_penalty_that_a_release_drops_in_silence_is_found(
    version: str, in_force: dict[str, float], taken: bool
) -> None:
    server = ServerState()
    for name, value in (
        ("version", version),
        ("override_generation_config", {"max_new_tokens": 32_768, "presence_penalty": 1.5}),
        ("default_sampling_params", {"max_tokens": 32_768, **in_force}),
    ):
        server.apply(ServerSetting(0.0, name, value))
    audit = server.overrides()
    assert audit["presence_penalty"].confirmed is taken
    assert audit["max_new_tokens"].confirmed is True


def test_cutting_after_the_fact_pays_for_2000_tokens_and_gives_512() -> None:
    cut = RequestFinished(0.0, completion_tokens=2000, returned_tokens=512, finish_reason="stop")
    assert response_limits.unreturned(cut) == 1488


def test_thinking_that_meets_the_cap_is_not_an_ordinary_cut() -> None:
    thinking = RequestFinished(0.0, completion_tokens=512, reasoning_tokens=512, max_tokens=512, finish_reason="length")
    assert response_limits.reasoning_truncated(thinking)
    assert not response_limits.reasoning_truncated(replace(thinking, reasoning_tokens=200))


# ---------------------------------------------------------------- what is advised


def settled(**each: float) -> tuple[State, dict[str, Advice]]:
    """State and advice by knob of an engine that did the same for three minutes."""
    engine = sequences.Engine()
    engine.run(180, **each)
    return engine.snapshot.state, {one.knob: one for one in engine.snapshot.advice}


def test_a_queue_of_long_prompts_is_not_answered_with_more_slots() -> None:
    queue = {"running": 4.0, "waiting": 6.0, "kv_usage": 0.4, "started": 1.0, "finished": 1.0, "generated": 400.0}
    state, advice = settled(**queue, prompts=600.0)
    assert state is State.SATURATED
    assert set(advice) == {"replicas", "max_num_seqs"}
    state, advice = settled(**queue, prompts=40_000.0)
    assert set(advice) == {"replicas"}
    assert "100 prompt tokens are computed per generated one" in advice["replicas"].size


def test_a_runaway_is_cancelled_and_then_capped_by_a_server_default() -> None:
    engine = sequences.Engine()
    engine.healthy()
    engine.step(generated=200.0, finished=3.0, running=1.0, kv_usage=0.3)  # all others end
    for seconds in (300, 900):  # also when nothing has finished for longer than any window
        engine.run(seconds, generated=200.0, running=1.0, kv_usage=0.3)
        advice = {one.knob: one for one in engine.snapshot.advice}
        assert set(advice) == {"cancel_oldest_request", "default_max_tokens"}
    assert "override_generation_config" in advice["default_max_tokens"].size


@pytest.mark.parametrize(("lengths", "rule"), [((900, 930, 960, 920), "x the mean"), ((20, 30, 40, 3000), "x the p90")])
def test_max_tokens_follow_the_mean_of_even_answers_and_the_p90_of_uneven_ones(
    lengths: tuple[int, ...], rule: str
) -> None:
    engine = sequences.Engine()
    for n in range(120):
        engine.step(
            generated=500.0, started=5.0, finished=5.0, cut=0.4, running=2.0, lengths=(100.0, float(lengths[n % 4]))
        )
    (advice,) = engine.snapshot.advice
    assert advice.knob == "max_tokens"
    assert rule in advice.size
    assert advice.size[0].isdigit()


def test_a_p99_of_ten_times_the_mean_is_seen_so_that_an_objective_can_state_its_lengths() -> None:
    engine = sequences.Engine()
    for n in range(120):
        long = n % 40 == 0
        engine.step(generated=500.0, started=5.0, finished=5.0, running=2.0, lengths=(100.0, 9000.0 if long else 90.0))
    ratio = engine.snapshot.readings["output_tokens_straggler_ratio"]
    assert known(ratio.lower) >= 3
    assert known(ratio.upper) >= 10


# ---------------------------------------------------------------- turning one knob


def measured(generated: float, ttft: float, *, hits: float = 0.0, **settings: str) -> Baseline:
    """Nine repeats of one load on a server with these settings."""
    figures = {"generated tokens": generated, "time to first token, p95": ttft}
    return Baseline(
        name="b", taken_at=0.0, start=0.0, end=900.0, source="s", model_name="m", engines=1, version="0.32.0",
        settings={"max_num_seqs": "4", "max_num_batched_tokens": "8192", **settings},
        workload={
            "prompt tokens, mean": 39_812.0, "output tokens, mean": 400.0, "requests/s": 0.2, "prefix-cache hits": hits,
        },
        vitals={
            name: Measure(repeats=[value * x for x in 3 * (0.99, 1.0, 1.01)], weights=[100.0] * 9, value=value)
            for name, value in ((name, figures.get(name, 1.0)) for name in VITALS)
        },
        by_length=[], parts=[100.0 * part for part in range(9)], seconds=900.0,
    )  # fmt: skip


def test_two_knobs_at_once_prove_nothing() -> None:
    told = compare(measured(82, 9.0), measured(90, 9.0, max_num_seqs="3", max_num_batched_tokens="16384"))
    assert told.decision == "not comparable"
    assert "2 knobs changed at once" in told.why


def test_four_per_cent_more_for_first_tokens_that_come_later_is_rolled_back() -> None:
    told = compare(measured(82, 9.0), measured(82 * 1.04, 9.0 * 1.65, max_num_seqs="8"))
    assert told.decision == "roll back"


def test_a_run_that_the_prefix_cache_answered_is_not_compared_with_one_that_it_did_not() -> None:
    told = compare(measured(82, 9.0), measured(300, 0.13, hits=0.99, max_num_seqs="8"))
    assert told.decision == "not comparable"
    assert "prefix-cache hits" in told.why


def test_a_smaller_cache_is_told_as_the_price_of_larger_steps_and_not_as_a_second_knob() -> None:
    before = measured(82, 9.0, kv_cache_size_tokens="1986000")
    told = compare(before, measured(84, 9.0, kv_cache_size_tokens="1648000", max_num_batched_tokens="32768"))
    assert set(told.changed) == {"max_num_batched_tokens"}
    assert not told.refusals


def test_every_proof_that_the_page_names_exists() -> None:
    here = Path(__file__).parent
    there = {name for path in here.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    there |= {path.stem for path in here.rglob("test_*.py")}
    named = re.findall(r"test_\w+", (here.parent / "docs" / "background.md").read_text())
    assert len(named) > 30
    assert set(named) <= there
