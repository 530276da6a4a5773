"""Snapshots and their comparison: one knob, one workload, and more than noise."""

from pathlib import Path

import pytest

from tests.planner.conftest import RECORDINGS
from vllm_vitals.planner.experiment import baseline
from vllm_vitals.planner.experiment.baseline import VITALS, Baseline, BaselineError, Measure
from vllm_vitals.planner.experiment.compare import compare, knobs
from vllm_vitals.planner.review import render_text
from vllm_vitals.planner.telemetry import recorded


def made(name: str = "a", settings: dict[str, str] | None = None, **vitals: list[float]) -> Baseline:
    """A baseline whose vitals are all 100 +- 1, but those given (by the start of their name, _ for a space)."""
    values = {key: [99.0, 100.0, 101.0] for key in VITALS}
    for start, repeats in vitals.items():
        values.update({key: repeats for key in VITALS if key.startswith(start.replace("_", " "))})
    return Baseline(
        name=name, taken_at=0.0, start=0.0, end=600.0, source="test", model_name="m", engines=1, version="0.32.0",
        settings=settings or {"max_num_seqs": "64"},
        workload={"prompt tokens, mean": 500.0, "output tokens, mean": 200.0, "requests in flight, mean": 20.0,
                  "requests/s": 3.0, "prefix-cache hits": 0.0},
        vitals={key: Measure(repeats=repeats, value=sum(repeats) / len(repeats)) for key, repeats in values.items()},
        by_length=[],
    )  # fmt: skip


LESS = {"max_num_seqs": "48"}


def test_better_beyond_noise_is_kept() -> None:
    found = compare(made(), made(settings=LESS, preemptions=[20.0, 21.0, 19.0]))
    assert found.decision == "keep"
    assert found.changed == {"max_num_seqs": ("64", "48")}
    assert [line.what for line in found.lines if line.effect == "better"] == ["preemptions a request"]


def test_no_difference_rolls_back() -> None:
    found = compare(made(), made(settings=LESS))
    assert found.decision == "roll back"
    assert "no difference beyond the noise" in found.why


def test_a_difference_within_the_noise_of_repeats_is_none() -> None:
    found = compare(made(generated=[80.0, 100.0, 120.0]), made(settings=LESS, generated=[90.0, 110.0, 130.0]))
    line = next(line for line in found.lines if line.what == "generated tokens")
    assert line.relative == pytest.approx(0.1)
    assert line.effect == "noise"
    assert line.noise > 0.1


def test_more_throughput_at_a_worse_p95_is_a_trade_and_rolls_back() -> None:
    found = compare(
        made(), made(settings=LESS, generated=[130.0, 131.0, 132.0], time_to_first_token=[150.0, 151.0, 152.0])
    )
    assert found.decision == "roll back"
    assert "better: generated tokens" in found.why
    assert "worse: time to first token" in found.why


def test_two_knobs_at_once_are_refused() -> None:
    found = compare(made(), made(settings={"max_num_seqs": "48", "max_num_batched_tokens": "4096"}))
    assert found.decision == "not comparable"
    assert "2 knobs changed at once (max_num_batched_tokens, max_num_seqs)" in found.why


def test_what_follows_from_a_knob_is_no_second_knob() -> None:
    before = made(settings={"gpu_memory_utilization": "0.9", "num_gpu_blocks": "1000"})
    after = made(settings={"gpu_memory_utilization": "0.95", "num_gpu_blocks": "1100"}, preemptions=[1.0, 1.1, 1.2])
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
    after = made(settings=LESS)
    after = after.model_copy(update={"workload": {**after.workload, figure: value}})
    assert (compare(made(), after).decision == "not comparable") is refused


def test_another_concurrency_at_another_rate_is_refused() -> None:
    after = made(settings=LESS)
    after = after.model_copy(
        update={"workload": {**after.workload, "requests/s": 6.0, "requests in flight, mean": 50.0}}
    )
    assert "another workload" in compare(made(), after).why


@pytest.mark.parametrize("change", [{"version": "0.31.0"}, {"model_name": "other"}, {"engines": 2}])
def test_another_server_is_refused(change: dict[str, object]) -> None:
    found = compare(made(), made(settings=LESS).model_copy(update=change))
    assert found.decision == "not comparable"


def test_anyway_decides_and_keeps_the_reasons() -> None:
    after = made(settings={"max_num_seqs": "48", "max_model_len": "1"}, preemptions=[1.0, 1.0, 1.1])
    found = compare(made(), after, anyway=True)
    assert found.decision == "keep"
    assert found.refusals == ()
    assert "2 knobs changed" in found.warnings[0]


def test_without_repeats_nothing_is_concluded() -> None:
    found = compare(
        made(generated=[100.0]), made(settings=LESS, **{k.split(",")[0].replace(" ", "_"): [5.0] for k in VITALS})
    )
    assert found.decision == "not comparable"
    assert "noise is not known" in found.why


def test_quantiles_in_one_bucket_cannot_be_told_apart() -> None:
    same = {"lower": 0.1, "upper": 0.25}
    before, after = made(), made(settings=LESS)
    name = "time to first token, p99"
    for each, value in ((before, 0.11), (after, 0.24)):
        each.vitals[name] = Measure(repeats=[value] * 3, value=value, **same)
    line = next(line for line in compare(before, after).lines if line.what == name)
    assert line.effect == "noise"


def bounded(*ranges: tuple[float, float | None]) -> Measure:
    """A vital whose buckets give no estimate: repeats inside the first or above the last one."""
    return Measure(
        repeats=[None] * len(ranges), value=None, lower=ranges[0][0], upper=ranges[0][1], ranges=list(ranges)
    )


FIRST, LAST = (0.0, 0.01), (80.0, None)


@pytest.mark.parametrize(
    ("old", "new", "effect", "shown"),
    [
        (bounded(FIRST, FIRST, FIRST), bounded(FIRST, FIRST, FIRST), "noise", "up to 10 ms | up to 10 ms"),
        (bounded(LAST, LAST, LAST), bounded(FIRST, FIRST, FIRST), "better", "above 80 s | up to 10 ms"),
        (bounded(FIRST, FIRST, FIRST), bounded(LAST, LAST, LAST), "worse", "up to 10 ms | above 80 s"),
        (bounded(FIRST, FIRST), bounded(LAST, LAST), "unknown", "up to 10 ms | above 80 s"),
        (bounded(FIRST, LAST, FIRST), bounded(LAST, LAST, LAST), "noise", "up to 10 ms | above 80 s"),
        (
            bounded(LAST, LAST, LAST),
            Measure(repeats=[2.0, 2.1, 2.2], value=2.1, lower=1.0, upper=2.5, ranges=[(1.0, 2.5)] * 3),
            "better",
            "above 80 s | 2.1 s",
        ),
        (bounded(FIRST), Measure(repeats=[], value=None), "unknown", "up to 10 ms | not known"),
    ],
)
def test_where_buckets_give_no_estimate_the_bounds_are_shown_and_decide(
    old: Measure, new: Measure, effect: str, shown: str
) -> None:
    before, after = made(), made(settings=LESS)
    name = "time per output token, p50"
    before.vitals[name], after.vitals[name] = old, new
    found = compare(before, after)
    line = next(line for line in found.lines if line.what == name)
    assert (line.effect, line.relative) == (effect, None)
    text = render_text.comparison(before, after, found).replace("\N{NO-BREAK SPACE}", " ")
    assert f"| {name} | {shown} | not known | not known | {effect} |" in text


def test_a_decision_by_bounds_names_them() -> None:
    before, after = made(), made(settings=LESS)
    before.vitals["time to first token, p50"] = bounded(LAST, LAST, LAST)
    after.vitals["time to first token, p50"] = bounded(FIRST, FIRST, FIRST)
    found = compare(before, after)
    assert found.decision == "keep"
    assert "time to first token, p50 above 80 s → up to 10 ms" in found.why.replace("\N{NO-BREAK SPACE}", " ")


def test_the_first_bucket_of_a_recording_is_told_by_its_sum() -> None:
    """Its TPOT p50 was once stored as 0.01, the bucket's edge; the client measured 6.6 ms."""
    found = snapshot("truncation_mix", (0, 130), {}).vitals["time per output token, p50"]
    assert found.value == pytest.approx(0.0066, rel=0.1)
    assert found.upper == 0.01


def snapshot(name: str, between: tuple[float, float], settings: dict[str, str], repeats: int = 3) -> Baseline:
    telemetry = recorded.telemetry(RECORDINGS / name / "metrics.jsonl.gz", settings, between)
    return baseline.baseline(telemetry, "tiny", name, "test", 0.0, repeats, settings)


def test_the_real_experiment_is_kept_for_the_right_reason() -> None:
    """The same 40 clients, without and with the reservation of the full input."""
    before = snapshot("spiral_chunked", (65, 145), {"scheduler_reserve_full_isl": "false"})
    after = snapshot("same_load_reserved", (65, 145), {"scheduler_reserve_full_isl": "true"})
    found = compare(before, after)
    assert found.changed == {"scheduler_reserve_full_isl": ("false", "true")}
    assert found.decision == "keep"
    assert found.why.startswith("better: whole request, p95")
    assert found.by_length[0].before[0] > 20 * found.by_length[0].after[0]


def test_the_same_server_against_itself_is_noise() -> None:
    first = snapshot("same_load_reserved", (55, 102), {"x": "1"}, 2)
    second = snapshot("same_load_reserved", (100, 147), {"x": "2"}, 2)
    assert all(line.effect in ("noise", "unknown") for line in compare(first, second).lines if "generated" in line.what)


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
    telemetry = recorded.telemetry(RECORDINGS / "spiral_chunked/metrics.jsonl.gz")
    with pytest.raises(BaselineError, match="too short for 30 repeats"):
        baseline.baseline(telemetry, "tiny", "a", "test", 0.0, 30, {})


def test_the_comparison_is_text() -> None:
    before, after = made("before"), made("after", LESS, preemptions=[1.0, 1.1, 1.2])
    text = render_text.comparison(before, after, compare(before, after))
    assert "changed: max_num_seqs: 64 → 48" in text
    assert "**keep**" in text
