"""What a canary without an answer proves, by the time at which the server last moved."""

from dataclasses import replace
from typing import Any

import pytest

from vllm_vitals.core.canary import CanaryVerdict, CanaryWatch
from vllm_vitals.core.sample import EngineSample, TargetSample
from vllm_vitals.core.snapshot import Canary

STILL = EngineSample(
    running=0.0, waiting=0.0, kv_usage=0.2, generation_tokens=5.0, prompt_tokens=5.0, responses={"stop": 1.0}
)


def page(*engines: EngineSample, first: int = 0) -> TargetSample:
    listed = engines or (STILL,)
    return TargetSample({("m", str(first + number)): one for number, one in enumerate(listed)}, "v")


def watching(*scrapes: tuple[float, TargetSample]) -> CanaryWatch:
    watch = CanaryWatch()
    for at, sample in scrapes:
        watch.feed(at, sample)
    return watch


def hung(sent: float = 20.0, took: float = 10.0) -> Canary:
    return Canary(sent, took, "timeout")


@pytest.mark.parametrize(("at", "proven"), [(29.9, None), (30.0, 20.0), (60.0, 20.0)])
def test_it_is_proven_by_a_scrape_from_the_end_of_its_wait_on(at: float, proven: float | None) -> None:
    watch = watching((0.0, page()))
    watch.tell(hung())
    assert watch.feed(at, page()) == CanaryVerdict(proven)


@pytest.mark.parametrize(("moved", "proven"), [(19.9, 20.0), (20.0, 20.0), (20.1, None), (25.0, None)])
def test_whatever_moved_since_it_was_sent_makes_it_a_late_answer(moved: float, proven: float | None) -> None:
    other = page(replace(STILL, generation_tokens=6.0))
    watch = watching((0.0, page()), (moved, other))
    watch.tell(hung())
    assert watch.feed(40.0, other).silent_since == proven
    assert watch.feed(50.0, other).silent_since == proven


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({"generation_tokens": 6.0}, True),
        ({"prompt_tokens": 6.0}, True),
        ({"responses": {"stop": 2.0}}, True),
        ({"kv_usage": 0.21}, True),
        ({"kv_usage": 0.2}, False),
        ({"kv_usage": 0.19}, False),
        ({"kv_usage": None}, False),
        ({"steps": 9.0}, False),
    ],
)
def test_progress_is_a_token_a_finish_or_kv_growth(change: dict[str, Any], moves: bool) -> None:
    watch = watching((0.0, page()))
    watch.tell(hung(1.0, 2.0))
    assert (watch.feed(10.0, page(replace(STILL, **change))).silent_since is None) is moves


def test_a_usage_that_was_not_known_has_grown_from_nothing() -> None:
    watch = watching((0.0, page(replace(STILL, kv_usage=None))))
    watch.tell(hung(1.0, 2.0))
    assert watch.feed(10.0, page(replace(STILL, kv_usage=0.01))).silent_since is None


def test_any_engine_that_moves_or_is_another_one_counts() -> None:
    for other in (page(STILL, replace(STILL, generation_tokens=9.0)), page(STILL), page(STILL, STILL, first=1)):
        watch = watching((0.0, page(STILL, STILL)))
        watch.tell(hung(1.0, 2.0))
        assert watch.feed(10.0, other).silent_since is None


def test_the_first_of_several_says_since_when_and_an_answer_ends_it() -> None:
    watch = watching((0.0, page()))
    assert watch.feed(5.0, page()) == CanaryVerdict(None, answered=False)
    for canary in (hung(20.0), hung(40.0)):
        watch.tell(canary)
    assert watch.feed(60.0, page()).silent_since == 20.0
    watch.tell(Canary(61.0, 0.1, "error"))
    assert watch.feed(65.0, page()) == CanaryVerdict(20.0, answered=False)
    watch.tell(Canary(66.0, 0.1, "ok"))
    assert watch.feed(70.0, page()) == CanaryVerdict(None, answered=True)
    assert watch.counts == {"ok": 1, "timeout": 2, "error": 1}
