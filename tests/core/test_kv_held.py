"""Lull after lull: what is held while nobody is present, what a request takes back, and what it does not."""

from tests.cases.edit import Server
from tests.core.sequences import Engine
from vllm_vitals.core.states import State

REQUEST = {"generated": 40.0, "prompts": 100.0, "started": 1.0, "finished": 1.0, "running": 1.0, "waiting": 0.0}


def lulls(engine: Engine, floors: list[float], seconds: float, busy: float = 5.0) -> None:
    for floor in floors:
        engine.run(seconds, running=0.0, waiting=0.0, kv_usage=floor)
        engine.run(busy, kv_usage=0.4, **REQUEST)
    engine.run(seconds, running=0.0, waiting=0.0, kv_usage=floors[-1])


def test_a_floor_that_rises_by_less_than_a_point_a_lull_is_found_by_what_it_rose_in_all() -> None:
    engine = Engine()
    lulls(engine, [0.02 + 0.006 * n for n in range(8)], 30)
    assert engine.snapshot.state is State.KV_HELD
    assert any("idle floor rises" in item.text for item in engine.snapshot.evidence)


def test_a_gauge_that_steps_left_behind_goes_up_and_down_and_is_no_leak() -> None:
    engine = Engine()
    lulls(engine, [0.04, 0.06, 0.05, 0.07, 0.06, 0.08, 0.05, 0.09], 20)
    assert engine.snapshot.state is not State.KV_HELD


def test_requests_that_come_and_go_take_nothing_back_and_the_lulls_between_them_add_up() -> None:
    engine = Engine()
    for _ in range(4):
        engine.run(45, running=0.0, waiting=0.0, kv_usage=0.3)
        engine.step(5.0, kv_usage=0.31, **REQUEST)
    assert engine.snapshot.state is State.KV_HELD
    assert "until the request that is present now" in engine.snapshot.evidence[0].text
    engine.run(10, running=0.0, waiting=0.0, kv_usage=0.0)
    assert engine.snapshot.state is not State.KV_HELD


def test_blocks_that_wait_for_a_transfer_within_its_lease_are_not_held() -> None:
    engine = Engine()
    for _ in range(12):
        engine.run(20, running=0.0, waiting=0.0, kv_usage=0.3)
        engine.step(5.0, kv_usage=0.4, **REQUEST)
    assert engine.snapshot.state is not State.KV_HELD


def test_a_minute_of_requests_ends_what_lulls_had_shown() -> None:
    server = Server()
    server.run(120, running=0.0, waiting=0.0, kv_usage=0.3)
    assert server.engine.state is State.KV_HELD
    assert server.healthy(90)[-1] is State.HEALTHY
