"""Snapshots and their comparison: one knob, one workload, and more than noise."""

from pathlib import Path

import pytest

from tests.planner.conftest import RECORDINGS
from vllm_vitals.planner.experiment import baseline
from vllm_vitals.planner.experiment.baseline import VITALS, Baseline, BaselineError, Measure
from vllm_vitals.planner.experiment.comparable import knobs
from vllm_vitals.planner.experiment.compare import Comparison, compare
from vllm_vitals.planner.experiment.noise import holm
from vllm_vitals.planner.review import render_text
from vllm_vitals.planner.student_t import threshold, two_sided
from vllm_vitals.planner.telemetry import recorded

WAVE = [0.99, 1.01, 1.0, 0.98, 1.02, 1.0, 1.01, 0.99, 1.0, 1.0]


def made(
    settings: dict[str, str] | None = None, wave: list[float] = WAVE, workload: dict[str, float] | None = None,
    sure: bool = True, **vitals: float,
) -> Baseline:  # fmt: skip
    """A baseline of ten minutes beside a queue whose vitals are all 100, but those given (``_`` for a space)."""
    values = dict.fromkeys(VITALS, 100.0)
    for start, value in vitals.items():
        values.update({key: value for key in VITALS if key.startswith(start.replace("_", " "))})
    return Baseline(
        name="a", taken_at=0.0, start=0.0, end=600.0, source="test", model_name="m", engines=1, version="0.32.0",
        settings=settings or {"max_num_seqs": "64"},
        workload={"prompt tokens, mean": 500.0, "output tokens, mean": 200.0, "requests in flight, mean": 20.0,
                  "requests/s": 3.0, "prefix-cache hits": 0.0, "time with a queue": 1.0, **(workload or {})},
        vitals={
            key: Measure(
                repeats=[value * each for each in wave], weights=[60.0] * len(wave), value=value, lower=value / 2,
                upper=value * 2, sure=sure,
            ) for key, value in values.items()
        },
        by_length=[], parts=[60.0 * i for i in range(len(wave))], seconds=600.0,
    )  # fmt: skip


LESS = {"max_num_seqs": "48"}
UNEVEN = [0.8, 1.1, 0.9, 1.2, 1.0, 1.15, 0.85, 1.1, 1.05, 0.85]
WILD = [0.4, 1.9, 0.7, 1.3, 0.5, 1.6, 0.9, 1.1, 0.3, 1.3]


def effects(found: Comparison) -> dict[str, str]:
    return {line.what: line.effect for line in found.lines}


def test_better_beyond_noise_is_kept() -> None:
    found = compare(made(), made(LESS, time_to_first_token=70.0))
    assert found.decision == "keep"
    assert found.changed == {"max_num_seqs": ("64", "48")}
    assert [what for what, effect in effects(found).items() if effect == "better"] == [
        "time to first token, mean",
        "time to first token, p95",
    ]


def test_preemptions_alone_never_win() -> None:
    found = compare(made(), made(LESS, preemptions=1.0))
    assert found.decision == "no difference"
    assert effects(found)["preemptions a request"] == "no result"


def test_twins_are_no_difference_and_say_what_they_could_have_shown() -> None:
    found = compare(made(), made(LESS))
    assert found.decision == "no difference"
    assert found.sees is not None
    assert found.sees < 0.15
    assert "cannot see less than" in found.why


def test_too_short_a_run_says_how_much_longer() -> None:
    found = compare(made(wave=UNEVEN), made(LESS, wave=UNEVEN[::-1], generated=110.0))
    assert found.decision == "not enough"
    assert found.more is not None
    assert "minutes more of each to see 15" in found.why.replace("\N{NO-BREAK SPACE}", " ")
    line = next(line for line in found.lines if line.what == "generated tokens")
    assert (line.relative, line.effect) == (pytest.approx(0.1), "noise")
    assert line.noise > 0.15


def test_noise_that_no_day_would_beat_asks_for_turns() -> None:
    found = compare(made(wave=WILD), made(LESS, wave=WILD[::-1]))
    assert (found.decision, found.more) == ("not enough", None)
    assert "record both again, in turn (A, B, A, B)" in found.why


def test_parts_of_one_replayed_trace_are_paired() -> None:
    """What the trace did at a minute it did to both."""
    together = compare(made(wave=WILD), made(LESS, wave=WILD, generated=120.0))
    assert (together.decision, effects(together)["generated tokens"]) == ("keep", "better")


def test_throughput_is_no_result_where_nothing_queues() -> None:
    calm = {"time with a queue": 0.0}
    found = compare(made(workload=calm), made(LESS, workload=calm, generated=130.0))
    assert (found.decision, effects(found)["generated tokens"]) == ("no difference", "no result")


def test_a_queue_that_the_change_ended_shows_a_gain() -> None:
    found = compare(made(), made(LESS, workload={"time with a queue": 0.0}, generated=130.0))
    assert (found.decision, effects(found)["generated tokens"]) == ("keep", "better")


def test_what_more_or_less_traffic_explains_is_not_counted() -> None:
    less = {"requests/s": 2.76, "requests in flight, mean": 18.4}
    found = compare(made(), made(LESS, workload=less, time_to_first_token=60.0))
    assert (found.decision, effects(found)["time to first token, mean"]) == ("no difference", "load")
    assert "8% less came the second time" in found.warnings[0]
    found = compare(made(), made(LESS, workload=less, time_to_first_token=140.0))
    assert found.decision == "roll back"


def test_fewer_clients_who_wait_are_less_load() -> None:
    found = compare(
        made(workload={"clients who wait": 20.0}), made(LESS, workload={"clients who wait": 18.4}, time_to_first=80.0)
    )
    assert effects(found)["time to first token, mean"] == "load"


def test_longer_answers_are_no_slower_requests() -> None:
    found = compare(made(), made(LESS, workload={"output tokens, mean": 216.0}, whole=107.0))
    assert effects(found)["whole request, mean"] == "load"


def test_one_hour_s_queue_is_no_difference() -> None:
    """Nine parts alike and one ten times as long: the mean nearly doubled, the usual wait did not move."""
    once = [0.55] * 9 + [5.05]
    found = compare(made(), made(LESS, wave=once, time_to_first_token=190.0))
    assert effects(found)["time to first token, mean"] == "noise"


def test_more_throughput_at_a_later_first_token_is_a_trade_and_rolls_back() -> None:
    found = compare(made(), made(LESS, generated=130.0, time_to_first_token=150.0))
    assert found.decision == "roll back"
    assert "better: generated tokens" in found.why
    assert "but worse: time to first token" in found.why


def test_slower_tokens_in_a_faster_whole_are_kept_and_said() -> None:
    found = compare(made(), made(LESS, whole=75.0, time_per_output=110.0))
    assert found.decision == "keep"
    assert "for that time per output token, mean +10" in found.why


def test_a_quantile_that_buckets_leave_open_decides_nothing() -> None:
    found = compare(made(sure=False), made(LESS, sure=False, time_to_first_token=50.0))
    assert set(effects(found).values()) <= {"no result", "noise"}


def test_two_knobs_at_once_are_refused() -> None:
    found = compare(made(), made(settings={"max_num_seqs": "48", "max_num_batched_tokens": "4096"}))
    assert found.decision == "not comparable"
    assert "2 knobs changed at once (max_num_batched_tokens, max_num_seqs)" in found.why


def test_what_follows_from_a_knob_is_no_second_knob() -> None:
    before = made(settings={"gpu_memory_utilization": "0.9", "num_gpu_blocks": "1000"})
    after = made(settings={"gpu_memory_utilization": "0.95", "num_gpu_blocks": "1100"}, whole=50.0)
    assert knobs(before, after) == {"gpu_memory_utilization": ("0.9", "0.95")}
    assert compare(before, after).decision == "keep"


@pytest.mark.parametrize(
    ("figure", "value", "refused"),
    [
        ("prompt tokens, mean", 900.0, True),
        ("output tokens, mean", 100.0, True),
        ("prefix-cache hits", 0.5, True),
        ("requests/s", 6.0, False),  # a closed load that is served faster
        ("requests in flight, mean", 5.0, False),  # an open load that is served faster
        ("prompt tokens, mean", 520.0, False),
    ],
)
def test_another_workload_is_refused(figure: str, value: float, refused: bool) -> None:
    after = made(LESS)
    after = after.model_copy(update={"workload": {**after.workload, figure: value}})
    assert (compare(made(), after).decision == "not comparable") is refused


def test_another_concurrency_at_another_rate_is_refused() -> None:
    after = made(LESS)
    after = after.model_copy(
        update={"workload": {**after.workload, "requests/s": 6.0, "requests in flight, mean": 50.0}}
    )
    assert "another workload" in compare(made(), after).why


@pytest.mark.parametrize("change", [{"version": "0.31.0"}, {"model_name": "other"}, {"engines": 2}])
def test_another_server_is_refused(change: dict[str, object]) -> None:
    found = compare(made(), made(LESS).model_copy(update=change))
    assert found.decision == "not comparable"


def test_anyway_decides_and_keeps_the_reasons() -> None:
    after = made(settings={"max_num_seqs": "48", "max_model_len": "1"}, whole=50.0)
    found = compare(made(), after, anyway=True)
    assert found.decision == "keep"
    assert found.refusals == ()
    assert "2 knobs changed" in found.warnings[0]


def test_without_parts_nothing_is_concluded() -> None:
    found = compare(made(wave=[1.0]), made(LESS, wave=[1.0], time_to_first_token=5.0))
    assert found.decision == "not comparable"
    assert "noise is not known" in found.why


@pytest.mark.parametrize(
    ("t", "freedom", "chance"),
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (2.228, 10, 0.05), (3.169, 10, 0.01), (1.96, 1000, 0.05), (0.0, 7, 1.0)],
)
def test_students_t_is_that_of_the_tables(t: float, freedom: int, chance: float) -> None:
    assert two_sided(t, freedom) == pytest.approx(chance, rel=0.01)
    if t > 0 and freedom < 100:
        assert threshold(chance, freedom) == pytest.approx(t, rel=0.001)


def test_holm_lets_stand_what_the_number_of_looks_allows() -> None:
    assert holm([0.03, 0.001, 0.04], 0.05) == [False, True, False]
    assert holm([0.01, 0.001, 0.04], 0.05) == [True, True, True]
    assert holm([], 0.05) == []


def test_the_first_bucket_of_a_recording_is_told_by_its_sum() -> None:
    """Its TPOT p50 was once stored as 0.01, the bucket's edge; the client measured 6.6 ms."""
    found = snapshot("truncation_mix", (0, 130), {}).vitals["time per output token, p50"]
    assert found.value == pytest.approx(0.0066, rel=0.1)
    assert found.upper == 0.01


def snapshot(name: str, between: tuple[float, float], settings: dict[str, str], repeats: int = 3) -> Baseline:
    telemetry = recorded.telemetry(RECORDINGS / name / "metrics.jsonl.gz", settings, between)
    return baseline.baseline(telemetry, "tiny", name, "test", 0.0, repeats, settings)


def test_the_real_experiment_is_not_decided_by_preemptions() -> None:
    """The same 40 clients, without and with the reservation of the full input: 98 % fewer evictions, little besides.

    Eighty seconds of requests that take thirty each cannot show more; what they cannot see is said.
    """
    before = snapshot("spiral_chunked", (65, 145), {"scheduler_reserve_full_isl": "false"}, 8)
    after = snapshot("same_load_reserved", (65, 145), {"scheduler_reserve_full_isl": "true"}, 8)
    found = compare(before, after)
    assert found.changed == {"scheduler_reserve_full_isl": ("false", "true")}
    assert found.decision in ("keep", "not enough")
    assert effects(found)["preemptions a request"] == "no result"
    assert found.by_length[0].before[0] > 20 * found.by_length[0].after[0]


def test_the_same_server_against_itself_is_noise() -> None:
    first = snapshot("same_load_reserved", (55, 102), {"x": "1"}, 2)
    second = snapshot("same_load_reserved", (100, 147), {"x": "2"}, 2)
    assert compare(first, second, anyway=True).decision in ("no difference", "not enough", "not comparable")


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    each = snapshot("same_load_reserved", (65, 145), {"max_num_seqs": "48"})
    path = tmp_path / "a.json"
    path.write_bytes(baseline.to_bytes(each))
    assert baseline.read(path) == each


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 99}', "not json"])
def test_other_files_are_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(BaselineError, match=r"a\.json: "):
        baseline.read(path)


def test_too_short_a_stretch_is_refused() -> None:
    telemetry = recorded.telemetry(RECORDINGS / "spiral_chunked/metrics.jsonl.gz", None, (50, 58))
    with pytest.raises(BaselineError, match="too short for two parts"):
        baseline.baseline(telemetry, "tiny", "a", "test", 0.0, 30, {})


def test_the_comparison_is_text() -> None:
    before, after = made(), made(LESS, whole=50.0)
    text = render_text.comparison(before, after, compare(before, after))
    assert "changed: max_num_seqs: 64 → 48" in text
    assert "**keep**" in text
