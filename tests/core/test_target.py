"""A target's judge: failures in a row, blindness that does not hide a proven state, engines that come and go."""

import gzip
import json
from pathlib import Path

from vllm_vitals.core.snapshot import Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def bodies(name: str) -> list[tuple[float, str]]:
    with gzip.open(RECORDINGS / name / "metrics.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    return [(line["t"], line["text"]) for line in lines if line["status"] == 200]


def good(at: float, text: str) -> Scrape:
    return Scrape(at, 0.01, text.encode())


def failed(at: float, reason: str) -> Scrape:
    return Scrape(at, 0.01, None, reason, "why")


def spiralling() -> tuple[TargetEvaluator, float, TargetSnapshot]:
    judge, last = TargetEvaluator("a:8000"), None
    for at, text in bodies("spiral_chunked")[:75]:
        last = judge.observe(good(at, text))
    assert last is not None
    assert last.engines[0].state is State.DEATH_SPIRAL
    return judge, at, last


def test_a_missed_scrape_or_two_change_nothing_and_the_third_refusal_is_down() -> None:
    judge, at, before = spiralling()
    for n in (1, 2):
        snapshot = judge.observe(failed(at + 5 * n, "refused"))
        assert snapshot.engines[0].state is State.DEATH_SPIRAL
        assert snapshot.engines[0].readings == before.engines[0].readings
        assert snapshot.up is False
    snapshot = judge.observe(failed(at + 15, "refused"))
    assert snapshot.engines[0].state is State.DOWN
    assert snapshot.engines[0].readings == {}
    assert snapshot.engines[0].sample is None
    assert snapshot.last_scrape_at == at


def test_blindness_never_hides_a_proven_spiral_until_it_is_5_minutes_old() -> None:
    judge, at, _ = spiralling()
    for n in range(1, 60):
        snapshot = judge.observe(failed(at + 5 * n, "timeout"))
    assert snapshot.engines[0].state is State.DEATH_SPIRAL
    assert snapshot.engines[0].at == at
    for n in range(60, 64):
        snapshot = judge.observe(failed(at + 5 * n, "timeout"))
    assert snapshot.engines[0].state is State.BLIND


def test_a_server_that_answers_without_metrics_is_blind_and_not_down() -> None:
    judge = TargetEvaluator("a:8000")
    for at, text in bodies("truncation_mix")[:10]:
        judge.observe(good(at, text))
    for n, body in enumerate((b"<html>login</html>", b"", b"up 1\n"), start=1):
        snapshot = judge.observe(Scrape(at + 5 * n, 0.01, body))
    assert snapshot.engines[0].state is State.BLIND
    assert sum(snapshot.errors.values()) == 3


def test_a_target_never_seen_shows_as_one_nameless_engine_that_goes_when_the_server_comes() -> None:
    judge = TargetEvaluator("a:8000", model_name="llama")
    for at in (0.0, 5.0, 10.0):
        snapshot = judge.observe(failed(at, "refused"))
    (engine,) = snapshot.engines
    assert (engine.key.model_name, engine.key.engine, engine.state) == ("llama", "", State.DOWN)
    assert snapshot.up is False
    assert snapshot.last_scrape_at is None
    at, text = bodies("truncation_mix")[0]
    assert [e.key.engine for e in judge.observe(good(at, text)).engines] == ["0"]


def test_a_target_that_turns_into_another_model_is_judged_anew() -> None:
    judge = TargetEvaluator("a:8000")
    scrapes = bodies("spiral_chunked")[:80]
    for at, text in scrapes:
        judge.observe(good(at, text))
    for n in range(1, 4):
        snapshot = judge.observe(
            good(at + 5 * n, scrapes[10 + n][1].replace('model_name="tiny"', 'model_name="other"'))
        )
    assert [engine.key.model_name for engine in snapshot.engines] == ["other"]
    assert snapshot.engines[0].state is not State.DEATH_SPIRAL


def test_the_worst_engine_speaks_first() -> None:
    judge = TargetEvaluator("a:8000")
    for at, text in bodies("dp2_pressure"):
        snapshot = judge.observe(good(at, text))
    ranks = [engine.state.rank for engine in snapshot.engines]
    assert len(ranks) == 2
    assert ranks == sorted(ranks)


def test_seconds_in_each_state_add_up_to_the_time_watched_and_spirals_are_counted() -> None:
    _, at, snapshot = spiralling()
    start = bodies("spiral_chunked")[0][0]
    engine = snapshot.engines[0]
    assert abs(sum(engine.state_seconds.values()) - (at - start)) < 1e-6
    assert engine.death_spirals == 1


def test_a_dp_rank_under_pressure_is_judged_apart_from_one_that_is_not() -> None:
    judge = TargetEvaluator("a:8000")
    idle = next(
        text for _, text in bodies("engine_hang") if 'num_requests_running{engine="0",model_name="tiny"} 0.0' in text
    )
    for at, text in bodies("spiral_chunked")[:75]:
        calm = idle.replace('engine="0"', 'engine="1"')
        own = "\n".join(line for line in calm.splitlines() if line.startswith("vllm:") and 'engine="1"' in line)
        snapshot = judge.observe(good(at, text + own + "\n"))
    states = {engine.key.engine: engine.state for engine in snapshot.engines}
    assert states["0"] is State.DEATH_SPIRAL
    assert states["1"] is State.IDLE
    assert snapshot.engines[0].key.engine == "0"


def test_a_v0_server_before_its_first_request_lists_no_engine_and_shows_as_unknown() -> None:
    judge = TargetEvaluator("a:8000")
    fresh = b'# TYPE vllm:num_requests_running gauge\nvllm:cache_config_info{num_gpu_blocks="512"} 1.0\n'
    snapshot = judge.observe(Scrape(0.0, 0.01, fresh))
    assert snapshot.up is True
    assert [(e.key.engine, e.state) for e in snapshot.engines] == [("", State.UNKNOWN)]
