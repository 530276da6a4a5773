"""The monitor's own requests come off what an engine counts: when, from which, and never more than it counted."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from tests.core.sequences import EDGES, empty, observe
from vllm_vitals.core.own_requests import OwnRequests
from vllm_vitals.core.sample import EngineSample, Histogram, TargetSample
from vllm_vitals.core.snapshot import Canary

BEFORE = EngineSample(
    responses={"length": 5.0, "stop": 5.0}, generation_tokens=100.0, prompt_tokens=1000.0, prompt_tokens_computed=900.0
)
NOW = replace(
    BEFORE, responses={"length": 6.0, "stop": 5.0}, generation_tokens=101.0, prompt_tokens=1016.0,
    prompt_tokens_computed=916.0,
)  # fmt: skip
SENT = Canary(10.0, 2.0, "ok")


def page(*engines: EngineSample) -> TargetSample:
    return TargetSample({("m", str(number)): one for number, one in enumerate(engines)}, "v")


def less(now: EngineSample = NOW, canary: Canary = SENT, began: float = 20.0) -> EngineSample:
    """What is left of a sample that shows a canary's end, after one before it."""
    own = OwnRequests()
    own.without(0.0, page(BEFORE))
    own.tell(canary)
    return own.without(began, page(now))["m", "0"]


def test_a_canary_leaves_no_trace_in_answers_and_tokens() -> None:
    assert less() == BEFORE


@pytest.mark.parametrize("outcome", ["timeout", "error"])
def test_one_that_was_not_answered_left_nothing_to_take_off(outcome: Any) -> None:
    assert less(canary=replace(SENT, outcome=outcome)) is NOW


@pytest.mark.parametrize(("began", "taken"), [(11.9, False), (12.0, True)])
def test_it_is_taken_off_the_first_scrape_that_began_after_its_answer(began: float, taken: bool) -> None:
    assert (less(began=began) == BEFORE) is taken


def test_it_waits_for_a_scrape_that_shows_one_more_finish() -> None:
    own = OwnRequests()
    own.without(0.0, page(BEFORE))
    own.tell(SENT)
    assert own.without(20.0, page(BEFORE))["m", "0"] == BEFORE
    nearly = replace(BEFORE, responses={"length": 5.9, "stop": 5.0})
    assert own.without(25.0, page(nearly))["m", "0"] == nearly
    assert own.without(30.0, page(BEFORE))["m", "0"] == BEFORE
    assert own.without(35.0, page(NOW))["m", "0"] == BEFORE
    assert own.without(40.0, page(NOW))["m", "0"] == BEFORE  # and stays off


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"length": 6.0, "stop": 9.0}, {"length": 5.0, "stop": 9.0}),
        ({"length": 5.0, "stop": 6.0}, {"length": 5.0, "stop": 5.0}),
        ({"length": 5.0, "stop": 5.0, "tool_calls": 1.0}, {"length": 4.0, "stop": 5.0, "tool_calls": 1.0}),
    ],
)
def test_it_ended_by_length_or_where_none_did_by_stop(said: dict[str, float], left: dict[str, float]) -> None:
    assert less(replace(NOW, responses=said)).responses == left


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_each_canary_is_taken_off_the_reason_that_it_ended_by(reason: str) -> None:
    own, responses = OwnRequests(), dict(BEFORE.responses or {})
    own.without(0.0, page(BEFORE))
    for number in range(1, 4):
        own.tell(replace(SENT, sent_at=10.0 * number))
        responses[reason] += 1
        now = replace(BEFORE, responses=dict(responses), generation_tokens=100.0 + number)
        assert own.without(10.0 * number + 5, page(now))["m", "0"].responses == BEFORE.responses


def test_two_in_one_interval_are_taken_off_the_reasons_that_both_ended_by() -> None:
    own = OwnRequests()
    own.without(0.0, page(BEFORE))
    own.tell(SENT)
    own.tell(SENT)
    now = replace(NOW, responses={"length": 6.0, "stop": 6.0}, generation_tokens=102.0)
    assert own.without(20.0, page(now))["m", "0"].responses == BEFORE.responses
    again = OwnRequests()
    again.without(0.0, page(BEFORE))
    again.tell(SENT)
    again.tell(SENT)
    more = replace(now, responses={"length": 7.0, "stop": 6.0})
    assert again.without(20.0, page(more))["m", "0"].responses == {"length": 5.0, "stop": 6.0}


def test_a_reason_that_was_not_there_before_counts_from_nothing() -> None:
    for first, then, left in (
        ({}, {"stop": 1.0}, {"stop": 0.0}),
        ({"stop": 5.0}, {"stop": 6.0}, {"stop": 5.0}),
        (None, {"length": 1.0}, {"length": 0.0}),
    ):
        own = OwnRequests()
        own.without(0.0, page(replace(BEFORE, responses=first)))
        own.tell(SENT)
        assert own.without(20.0, page(replace(NOW, responses=then)))["m", "0"].responses == left


def test_an_engine_that_counts_no_finishes_shows_no_canary() -> None:
    own, now = OwnRequests(), replace(NOW, responses=None)
    own.without(0.0, page(replace(BEFORE, responses=None)))
    own.tell(SENT)
    assert own.without(20.0, page(now))["m", "0"] == now


def test_its_tokens_are_those_of_its_answer_or_else_sixteen_and_one() -> None:
    told = replace(SENT, prompt_tokens=7.0, output_tokens=3.0)
    now = replace(NOW, generation_tokens=110.0, prompt_tokens=1100.0, prompt_tokens_computed=1000.0)
    left = less(now, told)
    assert (left.generation_tokens, left.prompt_tokens, left.prompt_tokens_computed) == (107.0, 1093.0, 993.0)
    left = less(now)
    assert (left.generation_tokens, left.prompt_tokens, left.prompt_tokens_computed) == (109.0, 1084.0, 984.0)


def test_a_counter_that_was_not_there_before_counts_from_nothing() -> None:
    own = OwnRequests()
    own.without(0.0, page(replace(BEFORE, prompt_tokens=None, generation_tokens=None)))
    own.tell(SENT)
    for at in (20.0, 30.0):
        left = own.without(at, page(replace(NOW, prompt_tokens=16.0, generation_tokens=None)))["m", "0"]
        assert (left.prompt_tokens, left.generation_tokens, left.responses) == (0.0, None, BEFORE.responses)


def test_no_counter_falls_for_a_canary_that_was_counted_elsewhere_or_is_counted_later() -> None:
    left = less(replace(NOW, generation_tokens=100.0, prompt_tokens=1004.0, prompt_tokens_computed=900.0))
    assert (left.generation_tokens, left.prompt_tokens, left.prompt_tokens_computed) == (100.0, 1000.0, 900.0)
    left = less(replace(NOW, prompt_tokens=None, prompt_tokens_computed=None))
    assert (left.prompt_tokens, left.prompt_tokens_computed) == (None, None)
    own = OwnRequests()
    now = NOW
    own.without(0.0, page(BEFORE))
    for number in range(1, 4):  # what was taken off before stays off
        own.tell(SENT)
        left = own.without(20.0 * number, page(now))["m", "0"]
        assert (left.generation_tokens, left.prompt_tokens) == (100.0, 1000.0)
        assert left.responses is not None
        now = replace(
            now, responses={"length": 6.0 + number, "stop": 5.0}, generation_tokens=101.0 + number,
            prompt_tokens=1016.0 + 16 * number,
        )  # fmt: skip


def test_it_is_taken_off_the_engine_that_finished_the_most() -> None:
    def busy(finished: float) -> EngineSample:
        return replace(BEFORE, responses={"length": 5.0 + finished, "stop": 5.0}, generation_tokens=200.0)

    own = OwnRequests()
    own.without(0.0, page(BEFORE, BEFORE))
    for _ in range(4):
        own.tell(SENT)
    left = own.without(20.0, page(busy(1.0), busy(3.0)))
    assert [one.completions for one in left.values()] == [10.0, 10.0]
    three = OwnRequests()
    three.without(0.0, page(BEFORE, BEFORE))
    for _ in range(2):
        three.tell(SENT)
    assert [one.completions for one in three.without(20.0, page(busy(1.0), busy(3.0))).values()] == [11.0, 11.0]


def test_an_engine_that_was_not_there_before_shows_no_canary() -> None:
    own = OwnRequests()
    own.without(0.0, page(BEFORE))
    own.tell(SENT)
    assert own.without(20.0, page(BEFORE, NOW))["m", "1"] == NOW


def test_a_restart_forgets_what_was_taken_off() -> None:
    own = OwnRequests()
    own.without(0.0, page(BEFORE))
    own.tell(SENT)
    own.without(20.0, page(NOW))
    anew = replace(NOW, responses={"length": 1.0, "stop": 1.0}, generation_tokens=100.9)
    assert own.without(30.0, page(anew))["m", "0"] == anew
    assert own.without(40.0, page()) == {}
    assert own.without(50.0, page(NOW))["m", "0"] == NOW


def test_sixteen_canaries_wait_and_no_more() -> None:
    own = OwnRequests()
    own.without(0.0, page(BEFORE))
    for _ in range(20):
        own.tell(SENT)
    now = replace(BEFORE, responses={"length": 105.0, "stop": 5.0}, generation_tokens=1000.0)
    assert own.without(20.0, page(now))["m", "0"].completions == 94.0


# histograms


def seen(name: str, *values: float) -> Histogram:
    one = empty(name if name in EDGES else "request_output_tokens")
    for value in values:
        one = observe(one, value)
    return one


@pytest.mark.parametrize(
    ("name", "its", "others"),
    [
        ("request_prompt_tokens", 16.0, (500.0,)),
        ("request_output_tokens", 1.0, (50.0,)),
        ("request_max_tokens", 1.0, (5.0,)),
        ("ttft_seconds", 2.0, (0.2, 30.0)),
        ("request_preemptions", 0.0, (2.0,)),
        ("tpot_seconds", 0.0, (0.03,)),
    ],
)
def test_its_observations_leave_the_bucket_that_they_are_in(name: str, its: float, others: tuple[float, ...]) -> None:
    before = replace(BEFORE, histograms={name: seen(name, 3.0)})
    now = replace(NOW, histograms={name: seen(name, 3.0, its, *others)})
    own = OwnRequests()
    own.without(0.0, page(before))
    own.tell(SENT)
    left = own.without(20.0, page(now))["m", "0"].histograms[name]
    wanted = seen(name, 3.0, *others)
    assert list(left.counts) == list(wanted.counts)
    assert left.sum == pytest.approx(wanted.sum)


def test_the_highest_bucket_that_grew_is_taken_up_to_what_it_may_have_been() -> None:
    """A canary took 2 s in all: its first token came at some time within them."""
    name = "ttft_seconds"
    before = replace(BEFORE, histograms={name: seen(name, 0.0005, 1.5)})
    for values, left in (((0.2, 0.9), (0.2,)), ((9.0,), (9.0,)), ((1000.0,), (1000.0,)), ((), ()), ((2.4,), ())):
        own = OwnRequests()
        own.without(0.0, page(before))
        own.tell(SENT)
        found = own.without(20.0, page(replace(NOW, histograms={name: seen(name, 0.0005, 1.5, *values)})))
        assert list(found["m", "0"].histograms[name].counts) == list(seen(name, 0.0005, 1.5, *left).counts), values


def test_the_sum_falls_by_no_more_than_the_bucket_can_hold_and_not_below_nothing() -> None:
    name = "ttft_seconds"
    before = replace(BEFORE, histograms={name: empty(name)})
    for shown, left in ((seen(name, 0.9, 0.05), 0.0), (seen(name, 0.9), 0.0), (seen(name, 0.9, 40.0), 39.9)):
        own = OwnRequests()
        own.without(0.0, page(before))
        own.tell(SENT)
        found = own.without(20.0, page(replace(NOW, histograms={name: shown})))["m", "0"].histograms[name]
        assert found.count == shown.count - 1
        assert found.sum == pytest.approx(left, abs=1e-9)  # one of at most 1 s is gone


def test_a_gap_between_tokens_is_never_a_canarys_and_other_buckets_are_another_life() -> None:
    for name in ("inter_token_latency_seconds", "ttft_seconds"):
        odd = Histogram((0.5, 9.0), seen("request_preemptions", 1.0, 1.0).counts[:3], 2.0)
        before = seen(name, 1.5) if name.startswith("inter") else odd
        now = seen(name, 1.5, 0.2)
        own = OwnRequests()
        own.without(0.0, page(replace(BEFORE, histograms={name: before})))
        own.tell(SENT)
        assert own.without(20.0, page(replace(NOW, histograms={name: now})))["m", "0"].histograms[name] == now
        own.tell(SENT)
        assert own.without(20.0, page(replace(NOW, histograms={name: now})))["m", "0"].histograms[name] == now


def test_observations_stay_off_canary_after_canary_and_where_they_do_not_fit_the_page_is_left_as_it_is() -> None:
    name, own = "ttft_seconds", OwnRequests()
    shown = seen(name, 0.0005)
    own.without(0.0, page(replace(BEFORE, histograms={name: shown})))
    for number in range(1, 4):
        own.tell(SENT)
        shown = observe(shown, 0.2)
        now = replace(
            NOW, responses={"length": 5.0 + number, "stop": 5.0}, generation_tokens=100.0 + number,
            histograms={name: shown},
        )  # fmt: skip
        left = own.without(20.0 * number, page(now))["m", "0"]
        assert list(left.histograms[name].counts) == list(seen(name, 0.0005).counts)
    other = Histogram((0.5, 9.0), array("d", [9.0, 9.0, 9.0]), 2.0)
    for odd in ({}, {name: other}, {name: seen(name, 30.0)}):  # gone, other buckets, fewer than were taken off
        assert own.without(90.0, page(replace(now, histograms=odd)))["m", "0"].histograms == odd


def test_one_that_took_longer_than_the_last_bound_leaves_the_last_bucket() -> None:
    def page_of(*counts: float, total: float) -> EngineSample:
        return replace(NOW, histograms={"e2e_latency_seconds": Histogram((0.5, 1.0), array("d", counts), total)})

    own = OwnRequests()
    own.without(0.0, page(replace(page_of(3, 3, 3, total=1.0), responses=BEFORE.responses)))
    own.tell(SENT)
    left = own.without(20.0, page(page_of(3, 3, 4, total=3.5)))["m", "0"].histograms["e2e_latency_seconds"]
    assert (list(left.counts), left.sum) == ([3.0, 3.0, 3.0], 1.5)
