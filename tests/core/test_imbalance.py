"""Uneven load between the engines of a server: what counts as such, from both sides."""

import pytest

from vllm_vitals.core.dp_imbalance import flag_imbalance
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot
from vllm_vitals.core.states import State

Load = tuple[float, float]  # running, waiting


def engines(*loads: Load | None, model: str = "m") -> list[EngineSnapshot]:
    return [
        EngineSnapshot(
            EngineKey("t", model, str(number)), State.HEALTHY, 1.0, 1.0,
            sample=None if load is None else EngineSample(running=load[0], waiting=load[1]),
        )
        for number, load in enumerate(loads)
    ]  # fmt: skip


def said(given: list[EngineSnapshot]) -> list[str]:
    """The engines that have a word on it."""
    return [e.key.engine for e in flag_imbalance(given) if any("uneven load" in word.text for word in e.evidence)]


@pytest.mark.parametrize(
    ("loads", "crowded"),
    [
        ([(7.0, 1.0), (4.0, 0.0)], ["0"]),  # twice as many
        ([(6.9, 1.0), (4.0, 0.0)], []),
        ([(4.0, 0.0), (7.0, 1.0)], ["1"]),
        ([(1.0, 1.0), (0.0, 0.0)], ["0"]),  # a free engine counts as one request, so that two are uneven beside none
        ([(0.9, 1.0), (0.0, 0.0)], []),
        ([(9.0, 1.0), (9.0, 1.0)], []),  # all queue
        ([(9.0, 0.0), (1.0, 0.0)], []),  # none does
        ([(9.0, 1.0), None], []),
        ([(9.0, 1.0)], []),
        ([(9.0, 1.0), (5.0, 1.0), (2.0, 0.0), (4.0, 0.0)], ["0", "1"]),  # means: 8 and 3
        ([(6.0, 1.0), (3.0, 1.0), (2.0, 0.0), (4.0, 0.0)], []),  # 5.5 and 3
    ],
)
def test_a_crowded_engine_holds_twice_what_a_free_one_does(loads: list[Load | None], crowded: list[str]) -> None:
    assert said(engines(*loads)) == crowded


def test_who_sleeps_is_no_free_engine() -> None:
    given = engines((9.0, 1.0), (0.0, 0.0))
    given[1] = EngineSnapshot(given[1].key, State.ASLEEP, 1.0, 1.0, sample=given[1].sample)
    assert said(given) == []


def test_engines_of_different_models_are_not_compared() -> None:
    assert said([*engines((9.0, 1.0)), *engines((0.0, 0.0), model="other")]) == []


def test_the_word_has_its_numbers_and_the_others_stay_as_they_are() -> None:
    given = engines((6.0, 3.0), (1.0, 0.0), (2.0, 0.0))
    crowded, *free = flag_imbalance(given)
    (word,) = crowded.evidence
    assert word.text == (
        "uneven load: 9 of 12 requests are on 1 of 3 engines and queue there, 2 without a queue: "
        "look at the routing first"
    )
    assert word.value == 0.75
    assert free == given[1:]
