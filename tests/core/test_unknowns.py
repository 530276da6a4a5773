"""What is said not to be known, and when that is worth saying: each line with what brings it and what takes it away."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.levels import CALM
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.unknowns import unknowns

SAMPLE = EngineSample(running=8.0, waiting=0.0, generation_tokens=1.0, prefix_caching=True)


def told(
    state: State = State.PREEMPTING,
    facts: dict[str, Any] | None = None,
    sample: dict[str, Any] | None = None,
    readings: dict[str, Reading] | None = None,
    *,
    answers: bool = False,
) -> tuple[str, ...]:
    known = replace(CALM, **(facts or {}))
    return unknowns(state, known, readings or {}, replace(SAMPLE, **(sample or {})), Thresholds(), answers)


def says(word: str, lines: tuple[str, ...]) -> bool:
    return any(word in line for line in lines)


def test_an_engine_of_which_all_is_known_has_nothing_to_say() -> None:
    assert told() == ()
    assert told(State.HEALTHY) == ()


@pytest.mark.parametrize(
    ("field", "family"),
    [
        ("running", "requests_running"),
        ("waiting", "requests_waiting"),
        ("generation_tokens", "generation_tokens_total"),
    ],
)
def test_what_a_state_cannot_be_told_without_is_named_as_missing_or_impossible(field: str, family: str) -> None:
    missing = f"the state: the server's {family} is missing"
    assert told(State.UNKNOWN, sample={field: None}) == (missing,)
    assert told(State.UNKNOWN, sample={field: None, "unusable": frozenset({family})}) == (
        f"the state: the server's {family} is not a possible number",
    )
    assert told(State.UNKNOWN) == ()
    assert missing not in told(State.HEALTHY, sample={field: None})


@pytest.mark.parametrize(
    ("state", "sample", "answers", "said"),
    [
        (State.IDLE, {"running": 0.0}, False, True),
        (State.HEALTHY, {"running": 0.0}, False, True),
        (State.HEALTHY, {"running": None, "waiting": None}, False, True),
        (State.PREEMPTING, {"running": 0.0}, False, False),
        (State.IDLE, {"running": 1.0}, False, False),
        (State.IDLE, {"running": 0.0, "waiting": 1.0}, False, False),
        (State.IDLE, {"running": 0.0}, True, False),
    ],
)
def test_an_engine_that_looks_idle_may_be_frozen_unless_a_canary_was_answered(
    state: State, sample: dict[str, Any], answers: bool, said: bool
) -> None:
    assert says("froze", told(state, sample=sample, answers=answers)) is said


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"prefill_factor": 5.0, "latency_factor": None}, True),
        ({"prefill_factor": 4.9, "latency_factor": None}, False),
        ({"prefill_factor": None, "latency_factor": None}, False),
        ({"prefill_factor": 5.0, "latency_factor": 1.0}, False),
        ({"prefill_factor": 5.0, "latency_factor": None, "decodes": False}, False),
    ],
)
def test_starvation_is_open_where_prefill_crowds_and_no_usual_gap_is_known(facts: dict[str, Any], said: bool) -> None:
    assert says("starves", told(facts=facts)) is said


@pytest.mark.parametrize(("preemptions", "said"), [(1.0, True), (0.0, False), (None, False)])
def test_evictions_raise_what_is_recomputed_and_whether_prefixes_are_cached(
    preemptions: float | None, said: bool
) -> None:
    facts = {"preemptions": preemptions}
    assert says("V0 engine counts both", told(facts=facts, sample={"recompute_counted": True})) is said
    assert says("whether prefix caching is on", told(facts=facts, sample={"prefix_caching": None})) is said
    assert told(facts=facts, sample={"prefix_caching": False}) == ()


def test_a_stall_may_be_stale_gauges() -> None:
    assert says("whether the gauges are fresh", told(State.STALLED))
    assert not says("whether the gauges are fresh", told(State.PAUSED))


NAMES = (
    "preemptions_per_completion", "repeat_preemption_ratio", "recompute_tax_ratio", "kv_cache_usage_max_ratio",
    "tpot_p99_p50_ratio", "truncated_ratio",
)  # fmt: skip


def test_each_number_that_is_absent_says_why_and_none_that_is_there() -> None:
    gone = {name: absent(f"no {name}") for name in (*NAMES, "kv_cache_demand_ratio")}
    lines = told(facts={"preemptions": 1.0}, readings=gone)
    assert [line.partition(": ")[2] for line in lines] == [f"no {name}" for name in NAMES]
    assert told(facts={"preemptions": 1.0}, readings=dict.fromkeys(NAMES, Reading(0.0))) == ()


@pytest.mark.parametrize(
    ("state", "facts", "left"),
    [
        (State.HEALTHY, {"preemptions": 0.0}, NAMES[3:]),
        (State.HEALTHY, {"preemptions": None}, NAMES),
        (State.HEALTHY, {"preemptions": 1.0, "decodes": False}, NAMES[:5]),
        (State.STALLED, {"preemptions": 1.0}, ()),
        (State.ASLEEP, {"preemptions": 1.0}, ()),
        (State.PAUSED, {"preemptions": 1.0}, ()),
    ],
)
def test_only_what_matters_now_is_asked_for(state: State, facts: dict[str, Any], left: tuple[str, ...]) -> None:
    lines = told(state, facts, readings={name: absent(f"no {name}") for name in NAMES})
    assert [line.partition(": ")[2] for line in lines if ": no " in line] == [f"no {name}" for name in left]


@pytest.mark.parametrize(
    ("responses", "said"), [({"stop": 1.0}, True), ({"stop": 1.0, "abort": 2.0}, False), (None, False)]
)
def test_who_left_is_counted_nowhere_until_an_abort_is_seen(responses: dict[str, float] | None, said: bool) -> None:
    assert says("client disconnects", told(sample={"responses": responses})) is said
