"""The simulated scheduler against recordings of a real one. Step times come from the other recordings."""

import pytest

from bench.simulator import RECORDINGS, SERVERS, compare, observed, step_time
from tests.simulator.recorded_requests import requests_of
from vllm_vitals.simulator.fit import FitError, Interval, fit, slowness
from vllm_vitals.simulator.steptime import StepTime


@pytest.fixture(scope="module")
def rows():
    seen = observed()
    return {(row.recording, row.phase): row for name in SERVERS for row in compare(name, step_time(name, seen))}


@pytest.mark.parametrize(
    "key",
    [
        ("spiral_chunked", "long prompts"),
        ("same_load_reserved", "long prompts"),
        ("overcommit_thrash", "heavy"),
        ("preempting_productive", "pressure"),
        ("dp2_pressure", "pressure"),
        ("saturated_no_preemption", "heavy"),
        ("runaway_slot", "heavy tailed"),
        ("truncation_mix", "cap 64"),
    ],
)
def test_preemptions_responses_and_tokens_are_within_a_quarter_of_the_real_ones(rows, key):
    row = rows[key]
    assert row.close, f"real {row.real}, simulated {row.simulated}"


def test_without_the_reservation_the_same_load_preempts_far_more_as_it_really_did(rows):
    spiral, reserved = rows["spiral_chunked", "long prompts"], rows["same_load_reserved", "long prompts"]
    assert spiral.simulated.preemptions > 20 * reserved.simulated.preemptions
    assert spiral.simulated.completions < reserved.simulated.completions
    assert spiral.simulated.generation_tokens < reserved.simulated.generation_tokens


def test_requests_that_never_reached_the_server_are_not_replayed():
    assert len(requests_of(RECORDINGS / "preempting_productive" / "requests.jsonl.gz")) == 1493


def intervals_of(model, loads):
    return [Interval(0.0, model.seconds(p, n, c), p, n, c, 100.0) for p, n, c in loads]


LOADS = [(p, n, c) for p in (0, 5, 40) for n in (1, 4, 16) for c in (200, 3000, 7000)]


def test_a_fit_finds_the_line_that_made_the_data():
    truth = StepTime(0.005, 6e-5, 3e-4, 6e-7)
    found = fit(intervals_of(truth, LOADS))
    for name in ("base", "prefill", "decode", "context"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-6)


def test_a_term_that_would_be_negative_is_left_out():
    found = fit(intervals_of(StepTime(0.005, 6e-5, -1e-4, 6e-7), LOADS))
    assert found.decode == 0
    assert found.base > 0


def test_a_short_recording_is_refused_with_what_to_do():
    with pytest.raises(FitError, match="record for longer"):
        fit(intervals_of(StepTime(), LOADS[:3]))


def test_a_load_that_never_varies_is_refused():
    with pytest.raises(FitError, match="never varies"):
        fit(intervals_of(StepTime(), [(5, 4, 800), (10, 8, 1600)] * 8))


def test_a_machine_half_as_fast_is_twice_as_slow():
    model = StepTime(0.005, 6e-5, 3e-4, 6e-7)
    assert slowness(model, intervals_of(model.scaled(2), LOADS)) == pytest.approx(2)
