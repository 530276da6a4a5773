"""What a queue is answered with that slots do not shorten, whatever state it stands beside."""

import pytest

from tests.cases.edit import Server
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.states import State

BUSY = {"generated": 1200.0, "prompts": 2500.0, "started": 5.0, "finished": 5.0, "running": 8.0}


def knobs(server: Server) -> set[str]:
    return {advice.knob for advice in server.engine.advice}


@pytest.mark.parametrize("preempted", [0.0, 1.0, 6.0])
def test_a_deferred_queue_is_named_beside_evictions_too_and_never_answered_with_slots(preempted: float) -> None:
    server = Server()
    server.healthy()
    server.run(180, **BUSY, waiting=20.0, deferred=20.0, preempted=preempted, kv_usage=0.95)
    assert "deferred: 100%" in server.says
    assert "deferred_requests" in knobs(server)
    assert not {"max_num_seqs", "replicas"} & knobs(server)
    assert "overload" not in server.says


def test_a_part_of_the_queue_that_is_deferred_is_said() -> None:
    server = Server()
    server.healthy()
    server.run(120, **BUSY, waiting=20.0, deferred=8.0, kv_usage=0.4)
    assert "deferred: 40%" in server.says


def test_a_stall_whose_queue_is_deferred_says_where_to_look() -> None:
    server = Server()
    server.healthy()
    server.run(100, running=0.0, waiting=20.0, deferred=20.0, kv_usage=0.4)
    assert server.engine.state is State.STALLED
    assert {"drain", "deferred_requests"} <= knobs(server)


def test_a_prefill_engine_that_is_full_is_answered_with_its_decode_side() -> None:
    server = Server(role=Role.PREFILL)
    server.healthy()
    server.run(100, running=0.0, waiting=20.0, kv_usage=0.99)
    assert server.engine.state is State.STALLED
    assert "check the decode side first" in server.engine.advice[0].size


def test_three_errors_an_hour_are_said_and_are_no_failure() -> None:
    server = Server()
    for number in range(240):
        server._add("request_success_total", float(number % 80 == 79), 'finished_reason="error"')
        state = server.step(15.0, running=0.0, waiting=0.0)
    assert state is State.IDLE
    assert "finished requests that end in error: 1 of 1" in server.says
