"""How far to turn a knob: each limit of the arithmetic from both sides, and each number as it is said."""

from dataclasses import replace

import pytest

from tests.core.levels import CALM
from tests.core.sequences import empty, observe
from vllm_vitals.core import sizing
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.sizing import Case
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.core.states import State


def case(
    settings: dict[str, str] | None = None,
    sample: EngineSample | None = None,
    readings: dict[str, Reading] | None = None,
    **facts: float | None,
) -> Case:
    """``facts`` none: not known."""
    known = replace(CALM, **facts) if facts else None  # type: ignore[arg-type]
    return Case(State.THRASHING, known, readings or {}, sample, settings or {})


def told(**values: float) -> dict[str, Reading]:
    return {name: Reading(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("seqs", "running_full", "said"),
    [
        ("20", 19.0, "to 15 (25 % below max_num_seqs 20, which running reaches)"),
        ("20", 18.9, "to 17 (0.9 x 18.9 running on average while the KV cache is full)"),
        ("1", 1.0, "to 1 (25 % below max_num_seqs 1, which running reaches)"),
        (None, 1.0, "to 1 (0.9 x 1.0 running on average while the KV cache is full)"),
        (None, 30.0, "to 27 (0.9 x 30.0 running on average while the KV cache is full)"),
        ("20", None, "by a quarter, then again until preemptions end (how many fit was not seen in this window)"),
    ],
)
def test_what_fits_is_a_tenth_below_what_ran_or_a_quarter_below_a_cap_that_is_reached(
    seqs: str | None, running_full: float | None, said: str
) -> None:
    settings = {} if seqs is None else {"max_num_seqs": seqs}
    assert sizing.concurrency_that_fits(case(settings, running_full=running_full)) == said


@pytest.mark.parametrize(
    ("running_full", "generated", "by_before"),
    [(None, 1000.0, True), (0.9, 1000.0, True), (1.0, 1000.0, False), (12.0, 1000.0, False), (12.0, 0.0, True),
     (12.0, None, True)],
)  # fmt: skip
def test_where_nothing_fitted_what_was_present_before_says_how_many(
    running_full: float | None, generated: float | None, by_before: bool
) -> None:
    said = sizing.concurrency_that_fits(case(running_full=running_full, generated=generated, work_before=20.0))
    before = "to 18 (0.9 x 20.0 requests present before the first preemption)"
    assert (said == before) is by_before
    assert by_before or said.endswith("running on average while the KV cache is full)")


def test_one_request_before_stays_one_and_without_facts_nothing_is_claimed() -> None:
    assert sizing.concurrency_that_fits(case(work_before=1.0, generated=0.0)).startswith("to 1 (0.9 x 1.0 requests")
    assert sizing.concurrency_that_fits(case()).startswith("by a quarter")
    assert sizing.concurrency_that_fits(case({"max_num_seqs": "8"})).startswith("by a quarter")


def test_more_slots_are_a_quarter_more() -> None:
    assert sizing.more_slots(case({"max_num_seqs": "64"})) == "from 64 to 80"
    assert sizing.more_slots(case({"max_num_seqs": "10"})) == "from 10 to 12"
    assert sizing.more_slots(case()) == "by 25 %"


def test_slots_are_no_limit_below_seventy_percent_of_them() -> None:
    settings = {"max_num_seqs": "100"}
    below = sizing.why_slots_do_not_help(case(settings, EngineSample(running=69.9)))
    assert below == "max_num_seqs 100 is not the limit: 70 run"
    assert sizing.why_slots_do_not_help(case(settings, EngineSample(running=70.0))) == ""
    assert sizing.why_slots_do_not_help(case(settings, EngineSample())) == ""
    assert sizing.why_slots_do_not_help(case(settings)) == ""
    assert sizing.why_slots_do_not_help(case({}, EngineSample(running=1.0))) == ""


def test_slots_win_nothing_where_prefill_fills_the_gpu() -> None:
    assert sizing.why_slots_do_not_help(case(prefill_factor=50.0)).startswith("50 prompt tokens are computed per gen")
    assert sizing.why_slots_do_not_help(case(prefill_factor=49.9)) == ""
    assert sizing.why_slots_do_not_help(case(prefill_factor=None)) == ""


def test_a_token_budget_is_halved_or_raised_by_half() -> None:
    settings = {"max_num_batched_tokens": "8192"}
    assert sizing.token_budget(case(settings), 0.5) == "from 8192 to 4096"
    assert sizing.token_budget(case(settings), 1.5) == "from 8192 to 12288"
    assert sizing.token_budget(case(), 0.5) == "by half"


@pytest.mark.parametrize(
    ("cv", "said"),
    [
        (0.3, "150-200 (1.5-2 x the mean 100, CV 0.30)"),
        (0.31, "300-400: 1.5-2 x the p90 output length, or a cap for each kind of request (CV 0.31)"),
        (1.0, "300-400: 1.5-2 x the p90 output length, or a cap for each kind of request (CV 1.00)"),
        (1.01, "300-400: 1.5-2 x the p90 output length, with fewer max_num_seqs (CV 1.01)"),
    ],
)
def test_a_cap_follows_the_spread_of_output_lengths(cv: float, said: str) -> None:
    readings = told(output_tokens_cv=cv, output_tokens_mean=100.0, output_tokens_p90=200.0)
    assert sizing.output_cap(case(readings=readings)) == said


def test_a_cap_uses_the_least_spread_where_no_value_is_known_and_does_without_a_p90() -> None:
    readings = {**told(output_tokens_mean=100.0), "output_tokens_cv": Reading(None, 0.2, 2.0)}
    assert sizing.output_cap(case(readings=readings)) == "150-200 (1.5-2 x the mean 100, CV 0.20)"
    readings["output_tokens_cv"] = Reading(0.8, 0.2, 2.0)
    assert sizing.output_cap(case(readings=readings)) == (
        "1.5-2 x the p90 output length, or a cap for each kind of request (CV 0.80)"
    )


@pytest.mark.parametrize("readings", [{}, told(output_tokens_mean=100.0), told(output_tokens_cv=0.5),
                                      told(output_tokens_cv=0.5, output_tokens_mean=0.0)])  # fmt: skip
def test_there_is_no_cap_without_spread_or_mean(readings: dict[str, Reading]) -> None:
    assert sizing.output_cap(case(readings=readings)) is None


def test_input_is_long_from_twice_the_output_on() -> None:
    assert case(readings=told(prompt_tokens_mean=200.0, output_tokens_mean=100.0)).long_input
    assert not case(readings=told(prompt_tokens_mean=199.9, output_tokens_mean=100.0)).long_input
    assert not case(readings=told(prompt_tokens_mean=200.0)).long_input
    assert not case(readings=told(output_tokens_mean=0.0)).long_input


def test_the_usual_output_is_of_what_finished_lately_else_of_all_that_did() -> None:
    ever = EngineSample(histograms={"request_output_tokens": observe(empty("request_output_tokens"), 80.0, 5.0)})
    assert case(readings=told(output_tokens_mean=30.0), sample=ever).usual_output == 30.0
    assert case(sample=ever).usual_output == 80.0
    assert case().usual_output is None


@pytest.mark.parametrize(("value", "on"), [("True", True), ("true", True), ("1", True), ("false", False), ("", False)])
def test_a_switch_is_on_where_it_is_known_to_be(value: str, on: bool) -> None:
    assert case({"scheduler_reserve_full_isl": value}).is_on("scheduler_reserve_full_isl") is on
    assert not case().is_on("scheduler_reserve_full_isl")


@pytest.mark.parametrize(
    ("share", "cap", "said"),
    [
        (0.5, 200.0, "from 200 to 400, then look again: the p90 answer is itself cut"),
        (0.5, None, "twice the cap, then look again"),
        (0.06, 200.0, "225-300: 1.5-2 x the p90 output length"),
        (0.06, 230.0, "230-300: 1.5-2 x the p90 output length"),  # never below the cap that is
        (0.06, 300.0, None),  # as high already
    ],
)
def test_no_cap_is_sized_by_answers_that_were_cut_nor_below_the_cap_that_is(
    share: float, cap: float | None, said: str | None
) -> None:
    readings = told(output_tokens_cv=0.5, output_tokens_mean=100.0, output_tokens_p90=150.0, truncated_ratio=share)
    found = sizing.output_cap(case(readings=readings, asked_cap=cap))
    assert (found is None) if said is None else (found is not None and found.startswith(said))


def test_no_rule_is_chosen_by_a_spread_that_the_buckets_leave_open() -> None:
    readings = told(output_tokens_mean=100.0, output_tokens_p90=150.0)
    readings["output_tokens_cv"] = Reading(0.2, 0.0, 0.6, why="the buckets leave it open: likely 0.1 to 0.4")
    assert sizing.output_cap(case(readings=readings)) == (
        "225-300: 1.5-2 x the p90 output length (their spread is not known well)"
    )
