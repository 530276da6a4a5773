"""Prompt blocks that requests share, by name: what is found, what is held once, and what is lost first."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime

STEP = StepTime(base=0.01, prefill=1e-3, decode=5e-4, context=1e-5)
SERVER = ServerSettings(
    block_size=4, num_gpu_blocks=1001, max_num_seqs=8, max_num_batched_tokens=4000, max_model_len=400
)
BLOCK = 16
MOONCAKE = Path(__file__).parents[1] / "data" / "requests" / "mooncake.jsonl"


def ask(number, names, prompt=None, at=0.0, output=4, block=BLOCK):
    prompt = len(names) * block + 3 if prompt is None else prompt
    tokens = min(prompt, len(names) * block)
    return Request(
        number, at, prompt, output, output, prefix=tuple(names), prefix_tokens=tokens, prefix_block=block
    )  # fmt: skip


def serve(engine, requests, apart=None):
    """Run them: all at their times, or one after the other where `apart` says how far."""
    for index, request in enumerate(requests):
        if apart is not None:
            request.arrival = index * apart
        while engine.advance(request.arrival):
            pass
        engine.add(request)
    while engine.advance(1e9):
        pass
    return engine


def test_a_prompt_finds_the_longest_head_that_was_computed_before():
    requests = [ask(0, "abc"), ask(1, "abd"), ask(2, "abdx"), ask(3, "q")]
    serve(Engine(SERVER, STEP), requests, apart=10.0)
    assert [r.cached for r in requests] == [0, 2 * BLOCK, 3 * BLOCK, 0]


def test_two_in_one_step_share_what_the_first_of_them_computes():
    requests = [ask(0, "ab"), ask(1, "ab")]
    serve(Engine(SERVER, STEP), requests)
    assert [r.cached for r in requests] == [0, 2 * BLOCK]


def test_the_last_token_is_always_computed_so_that_an_equal_prompt_misses_its_last_block():
    requests = [ask(0, "ab", prompt=2 * BLOCK), ask(1, "ab", prompt=2 * BLOCK)]
    serve(Engine(SERVER, STEP), requests, apart=10.0)
    assert requests[1].cached == 2 * BLOCK - SERVER.block_size


def test_a_last_block_that_is_not_whole_is_found_as_far_as_it_goes():
    requests = [ask(0, "ab", prompt=BLOCK + 10), ask(1, "ab", prompt=BLOCK + 10)]
    serve(Engine(SERVER, STEP), requests, apart=10.0)
    assert requests[1].cached == BLOCK + 8


@pytest.mark.parametrize("block", [16, 10, 3])
def test_names_may_stand_for_blocks_that_are_no_multiple_of_the_servers_own(block):
    requests = [ask(0, "abcd", block=block), ask(1, "abcx", block=block)]
    engine = serve(Engine(SERVER, STEP), requests, apart=10.0)
    assert requests[1].cached == 3 * block // SERVER.block_size * SERVER.block_size
    assert engine.stats.kv_usage == 0


def test_shared_blocks_are_held_once():
    engine = Engine(SERVER, STEP)
    for number in range(3):
        engine.add(ask(number, "abcd", output=100))
    engine.advance(0.2)
    own = 3 * 3  # three tokens beyond the head, and what decoding has entered: three blocks each at most
    held = round(engine.stats.kv_usage * SERVER.usable_blocks)
    assert 4 * BLOCK // SERVER.block_size <= held <= 4 * BLOCK // SERVER.block_size + own


def test_the_end_of_a_chain_is_lost_before_its_beginning():
    small = replace(SERVER, num_gpu_blocks=26, max_model_len=80, max_num_batched_tokens=80)
    first, other, again = ask(0, "abcd"), ask(1, "wxy"), ask(2, "abcd")
    serve(Engine(small, STEP), [first, other, again], apart=10.0)
    assert 0 < again.cached < 4 * BLOCK


def test_without_prefix_caching_nothing_is_found():
    requests = [ask(0, "ab"), ask(1, "ab")]
    engine = serve(Engine(replace(SERVER, enable_prefix_caching=False), STEP), requests, apart=10.0)
    assert requests[1].cached == 0
    assert (engine.stats.prefix_queries, engine.stats.device_hits) == (0, 0)  # as vLLM: none are counted


# Chains as of conversations: each goes on from an earlier one or begins anew; a name always has the same before it.
chains = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=14)


def conversations(drawn):
    made, fresh = [()], iter(range(10_000))
    for parent, kept, more in drawn:
        base = made[parent % len(made)]
        made.append((*base[: max(0, len(base) - kept)], *(next(fresh) for _ in range(more)))[:20])
    return made[1:]


@settings(max_examples=80, deadline=None)
@given(chains, st.integers(22, 300), st.floats(0, 2.0), st.booleans())
def test_under_any_pressure_every_block_comes_back_and_nothing_is_found_that_was_never_computed(
    drawn, blocks, gap, reserve
):
    names = conversations(drawn)
    server = replace(
        SERVER, num_gpu_blocks=max(blocks, 102), max_model_len=400, max_num_batched_tokens=64,
        scheduler_reserve_full_isl=reserve,
    )  # fmt: skip
    requests = [ask(n, chain, at=n * gap, output=1 + n % 30) for n, chain in enumerate(names)]
    engine = serve(Engine(server, STEP), requests)
    assert engine.stats.kv_usage == 0
    assert sum(engine.stats.responses.values()) == len(requests)
    earlier = Counter()
    for request in requests:  # they are admitted in order of arrival
        known = sum(1 for name in request.prefix if earlier[name])
        assert request.cached <= known * BLOCK
        earlier.update(request.prefix)
    assert engine.stats.device_hits == sum(r.cached for r in requests)


def test_a_trace_finds_in_a_large_cache_what_can_be_counted_by_hand():
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    server = ServerSettings(num_gpu_blocks=200_000, max_model_len=131_072, max_num_batched_tokens=8192)
    requests = [
        ask(n, row["hash_ids"], row["input_length"], output=1, block=512) for n, row in enumerate(rows)
    ]  # fmt: skip
    serve(Engine(server, StepTime()), requests, apart=100.0)
    seen, expected = set(), []
    for row in rows:
        run = next((i for i, name in enumerate(row["hash_ids"]) if name not in seen), len(row["hash_ids"]))
        seen.update(row["hash_ids"])
        expected.append(min(run * 512, (row["input_length"] - 1) // 16 * 16))
    assert [r.cached for r in requests] == expected
    assert sum(expected) > 0.2 * sum(row["input_length"] for row in rows)
