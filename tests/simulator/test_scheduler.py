from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.reference import Job, Reference
from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.scheduler import Scheduler
from vllm_vitals.simulator.settings import ServerSettings, SettingsError
from vllm_vitals.simulator.steptime import StepTime

SMALL = ServerSettings(
    block_size=4, num_gpu_blocks=31, max_num_seqs=6, max_num_batched_tokens=16, max_model_len=100,
    enable_prefix_caching=False,
)  # fmt: skip
STEP = StepTime(base=0.01, prefill=1e-3, decode=5e-4, context=1e-5)


def run(engine, requests, until=1e9):
    done = []
    for request in sorted(requests, key=lambda each: each.arrival):
        while finished := engine.advance(request.arrival):
            done += finished
        engine.add(request)
    while finished := engine.advance(until):
        done += finished
    return done


def request(number, arrival=0.0, prompt=20, output=10, **more):
    return Request(number, arrival, prompt, output, output, "length", **more)


def head(number, prompt, tokens=16):
    return {"prefix": (number,), "prefix_tokens": min(prompt, tokens), "prefix_block": tokens}


lengths = st.tuples(st.floats(0, 2), st.integers(1, 60), st.integers(1, 40))
servers = st.builds(
    lambda seqs, budget, reserve, watermark: replace(
        SMALL, max_num_seqs=seqs, max_num_batched_tokens=max(seqs, budget), scheduler_reserve_full_isl=reserve,
        watermark=watermark,
    ),
    st.integers(1, 10), st.integers(4, 80), st.booleans(), st.sampled_from([0.0, 0.1]),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=14), servers)
def test_every_time_and_preemption_agrees_with_the_rules_written_out_plainly(work, server):
    requests = [request(n, at, prompt, output) for n, (at, prompt, output) in enumerate(work)]
    jobs = [Job(n, at, prompt, output) for n, (at, prompt, output) in enumerate(work)]
    engine, reference = Engine(server, STEP), Reference(server, STEP)

    run(engine, requests)
    reference.run(jobs)

    assert [r.preemptions for r in requests] == [j.preemptions for j in jobs]
    assert [r.finished_at for r in requests] == pytest.approx([j.finished_at for j in jobs])
    assert [r.first_token_at for r in requests] == pytest.approx([j.first_token_at for j in jobs])
    assert engine.stats.steps == reference.steps
    assert engine.stats.generation_tokens == sum(output for _, _, output in work)
    assert engine.stats.kv_usage == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=14), servers, st.booleans(), st.floats(0.003, 0.5))
def test_looking_at_it_more_often_changes_nothing(work, server, caching, stride):
    server = replace(server, enable_prefix_caching=caching)
    unwatched, watched = Engine(server, STEP), Engine(server, STEP)
    first = [request(n, at, prompt, output) for n, (at, prompt, output) in enumerate(work)]
    second = [request(n, at, prompt, output) for n, (at, prompt, output) in enumerate(work)]

    run(unwatched, first)
    todo, time = sorted(second, key=lambda each: each.arrival), 0.0
    while todo or watched.requests:
        time += stride
        while todo and todo[0].arrival <= time:
            while watched.advance(todo[0].arrival):
                pass
            watched.add(todo.pop(0))
        while watched.advance(time):
            pass

    assert [r.finished_at for r in second] == pytest.approx([r.finished_at for r in first])
    assert watched.stats.preemptions == unwatched.stats.preemptions
    for name, histogram in unwatched.stats.histograms.items():
        assert watched.stats.histograms[name].sum == pytest.approx(histogram.sum)
        assert sum(watched.stats.histograms[name].counts) == sum(histogram.counts)


@settings(max_examples=60, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=14), servers, st.booleans())
def test_with_prefix_caching_every_block_comes_back_and_every_request_ends(work, server, shared):
    server = replace(server, enable_prefix_caching=True)
    engine = Engine(server, STEP)
    requests = [
        request(n, at, prompt, output, **head(n % 2, prompt) if shared else {})
        for n, (at, prompt, output) in enumerate(work)
    ]

    done = run(engine, requests)

    assert len(done) == len(requests)
    assert engine.stats.kv_usage == 0
    assert engine.stats.generation_tokens == sum(output for _, _, output in work)
    assert engine.stats.prompt_tokens == sum(prompt for _, prompt, _ in work)
    assert engine.stats.device_hits == engine.stats.cached_tokens


def test_the_last_running_request_is_the_victim_and_goes_to_the_front_of_the_queue():
    scheduler = Scheduler(replace(SMALL, num_gpu_blocks=26, max_num_batched_tokens=64, max_num_seqs=3))
    first, second, third = (request(n, prompt=28, output=40) for n in range(3))
    for each in (first, second, third):
        scheduler.add(each)
    scheduler.commit(scheduler.plan())
    scheduler.commit(scheduler.plan())
    assert scheduler.running == [first, second, third]
    fourth = request(3, prompt=4)
    scheduler.add(fourth)
    while not (step := scheduler.plan()).victims:
        scheduler.commit(step)

    assert step.victims == [third]
    assert list(scheduler.waiting) == [third, fourth]
    assert step.admitted == []  # the small one would fit, but nothing is admitted in a step that preempted
    assert third.blocks == 0
    assert third.generated > 1


def test_without_the_full_input_reservation_a_chunk_is_enough_to_be_admitted():
    server = replace(SMALL, max_num_batched_tokens=8)
    for reserve, admitted in ((True, False), (False, True)):
        scheduler = Scheduler(replace(server, scheduler_reserve_full_isl=reserve))
        holder, long = request(0, prompt=80, output=20), request(1, prompt=90, output=5)
        scheduler.add(holder)
        while not holder.decoding:
            scheduler.commit(scheduler.plan())
        scheduler.add(long)
        scheduler.commit(scheduler.plan())
        assert (long in scheduler.running) is admitted


def test_nothing_is_reserved_for_max_tokens():
    scheduler = Scheduler(SMALL)
    scheduler.add(request(0, prompt=4, output=90))
    scheduler.commit(scheduler.plan())
    assert scheduler.pool.usable - scheduler.pool.free == 1


def test_a_watermark_keeps_blocks_from_the_queue_only_while_something_runs():
    scheduler = Scheduler(replace(SMALL, watermark=0.5, max_num_batched_tokens=80))
    first, second = request(0, prompt=76, output=4), request(1, prompt=4, output=4)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.commit(scheduler.plan())
    assert scheduler.running == [first]


def test_a_fenced_victim_frees_nothing_so_that_one_failure_evicts_the_batch_behind_it():
    fenced = Engine(replace(SMALL, fenced_release=True, max_num_batched_tokens=64), STEP)
    plain = Engine(replace(SMALL, max_num_batched_tokens=64), STEP)
    for engine in (fenced, plain):
        run(engine, [request(n, prompt=16, output=30) for n in range(6)])
    assert fenced.stats.preemptions > 2 * plain.stats.preemptions
    assert fenced.stats.kv_usage == 0


def test_a_resumed_victim_finds_its_own_blocks_in_the_prefix_cache():
    computed = {}
    for caching in (False, True):
        engine = Engine(replace(SMALL, enable_prefix_caching=caching, max_num_batched_tokens=64), STEP)
        run(engine, [request(n, prompt=16, output=30) for n in range(6)])
        assert engine.stats.preemptions
        assert engine.stats.prompt_tokens == 6 * 16  # recomputation is in no counter
        assert engine.stats.device_hits == 0  # nor are a victim's look-ups
        computed[caching] = engine.stats.prefilled
    assert computed[True] < computed[False]


def test_a_shared_prompt_head_is_computed_once_and_held_once():
    server = replace(SMALL, enable_prefix_caching=True, max_num_batched_tokens=20)
    scheduler = Scheduler(server)
    for number in range(3):
        scheduler.add(request(number, prompt=20, output=30, **head(1, 20)))
        step = scheduler.plan()
        assert step.prefill == (4 if number else 20)
        scheduler.commit(step)
    # Five blocks for the first prompt, one for each other one's own tail, and one each that decoding has entered.
    assert scheduler.pool.usable - scheduler.pool.free == 5 + 1 + 1 + 1 + 1


def test_a_preemption_in_mid_prefill_is_counted_with_the_next_token_and_never_if_the_client_leaves():
    server = replace(SMALL, max_num_batched_tokens=8, scheduler_reserve_full_isl=False)
    engine = Engine(server, STEP)
    holder, long = request(0, prompt=72, output=28), request(1, 0.2, prompt=90, output=3)
    run(engine, [holder, long], until=0.62)
    assert long.preemptions
    assert engine.stats.preemptions == 0
    engine.abort(long)
    run(engine, [])
    assert engine.stats.preemptions == 0
    assert engine.stats.responses["length"] == 1


def test_a_client_that_hangs_up_frees_its_blocks_and_counts_as_nothing():
    engine = Engine(SMALL, STEP)
    leaver, stayer = request(0, output=50), request(1, output=50)
    run(engine, [leaver, stayer], until=0.3)
    engine.abort(leaver)
    run(engine, [])
    assert engine.stats.responses == {"stop": 0, "length": 1, "abort": 0, "error": 0, "repetition": 0}
    assert sum(engine.stats.histograms["ttft_seconds"].counts) == 2
    assert engine.stats.kv_usage == 0


def test_gauges_keep_their_last_values_when_everybody_hangs_up():
    engine = Engine(SMALL, STEP)
    requests = [request(n, output=50) for n in range(3)]
    run(engine, requests, until=0.3)
    for each in requests:
        engine.abort(each)
    run(engine, [], until=100.0)
    assert engine.requests == []
    assert engine.stats.running == 3
    assert engine.stats.kv_usage > 0


def test_a_frozen_engine_moves_nothing_until_it_thaws():
    engine = Engine(SMALL, STEP)
    run(engine, [request(0, output=50)], until=0.3)
    engine.freeze()
    before = engine.stats.generation_tokens
    assert engine.advance(50.0) == []
    assert engine.stats.generation_tokens == before
    engine.thaw(60.0)
    run(engine, [])
    assert engine.stats.responses["length"] == 1
    assert engine.stats.histograms["inter_token_latency_seconds"].counts[-2] == 1  # one gap of a minute


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_num_batched_tokens": 2}, "max_num_batched_tokens must not be below max_num_seqs"),
        ({"max_model_len": 500}, "cannot hold one request"),
        ({"watermark": 1.0}, "watermark"),
    ],
)
def test_settings_that_vllm_would_refuse_are_refused_by_name(change, why):
    with pytest.raises(SettingsError, match=why):
        replace(SMALL, **change)
