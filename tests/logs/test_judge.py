import random
import statistics
from typing import Any

import orjson
import pytest

from vllm_vitals.catalog import BY_NAME, Kind
from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.events import CAPS, RESULTS, Decoded, EngineError, RequestFinished, ServerSetting
from vllm_vitals.logs.join import truncation_views
from vllm_vitals.logs.metrics import log_families
from vllm_vitals.logs.snapshot import LogSnapshot, SeriesView
from vllm_vitals.logs.tally import OTHER, from_plain, to_plain
from vllm_vitals.logs.window import CAPACITY

NOW = 1_790_000_000.0


def judge(max_series: int = 200) -> LogAggregator:
    return LogAggregator({"gw": SourceInfo("server"), "own": SourceInfo("server")}, max_series)


def finish(judge: LogAggregator, at: float | None = NOW, source: str = "gw", **what: Any) -> None:
    defaults = {"model": "m", "route": "/chat", "finish_reason": "stop"}
    judge.observe(source, Decoded("response", (RequestFinished(at, **(defaults | what)),)), NOW)


def only(snapshot: LogSnapshot) -> SeriesView:
    (view,) = snapshot.series
    return view


def test_tpot_is_exact_over_the_window() -> None:
    one, draws = judge(), random.Random(1)
    tpots = [draws.lognormvariate(-4, 1) for _ in range(500)]
    for tpot in tpots:
        finish(one, ttft_s=0.5, e2e_s=0.5 + tpot * 100, completion_tokens=101)
    finish(one, at=NOW - 601, ttft_s=0.0, e2e_s=1e6, completion_tokens=2)
    view = only(one.snapshot(NOW))
    cuts = statistics.quantiles(tpots, n=100, method="inclusive")
    assert view.tpot_p50_s.value == pytest.approx(cuts[49])
    assert view.tpot_p99_s.value == pytest.approx(cuts[98])
    assert view.tpot_ratio.value == pytest.approx(cuts[98] / cuts[49])
    assert view.counts.responses == 501
    assert view.recent == 500


def test_too_few_responses_give_no_figure_and_say_why() -> None:
    one = judge()
    for _ in range(19):
        finish(one, completion_tokens=5)
    view = only(one.snapshot(NOW))
    assert view.output_cv == absent("19 responses with a value, 20 needed")
    assert view.tpot_ratio.value is None


def test_the_window_is_bounded_and_holds_the_newest() -> None:
    one = judge()
    for number in range(3 * CAPACITY):
        finish(one, completion_tokens=number + 1)
    view = only(one.snapshot(NOW))
    assert view.recent == CAPACITY
    assert view.output_mean.value == pytest.approx(3 * CAPACITY - (CAPACITY - 1) / 2)


def test_a_time_ahead_of_the_clock_does_not_stay_in_the_window() -> None:
    one = judge()
    finish(one, at=NOW + 9 * 3600)
    assert only(one.snapshot(NOW)).recent == 1
    assert only(one.snapshot(NOW + 601)).recent == 0


def test_responses_without_a_time_count_when_they_are_read() -> None:
    one = judge()
    finish(one, at=None)
    assert only(one.snapshot(NOW)).recent == 1


def test_caps_disagreements_reasoning_and_waste_are_counted_by_route() -> None:
    one = judge()
    one.observe("own", Decoded("setting", (ServerSetting(NOW, "default_sampling_params", {"max_tokens": 256}),)), NOW)
    finish(one, finish_reason="length", completion_tokens=256)
    finish(one, finish_reason="tool_calls", completion_tokens=64, max_tokens=64)
    finish(one, route="/b", finish_reason="length", completion_tokens=64, max_tokens=64, reasoning_tokens=64)
    finish(one, route="/b", completion_tokens=50, returned_tokens=20)
    chat, other = one.snapshot(NOW).series
    assert chat.counts.truncated == dict.fromkeys(CAPS, 0) | {"server_default": 1, "request": 1}
    assert (chat.counts.disagreements, chat.counts.reasoning_truncated) == (1, 0)
    assert (other.counts.reasoning_truncated, other.counts.unreturned_tokens, other.counts.generated_tokens) == (
        1,
        30,
        114,
    )


def test_failed_and_aborted_requests_are_no_responses_and_mint_no_series() -> None:
    one = judge()
    for reason in ("error", "abort"):
        one.observe("gw", Decoded("failed", (RequestFinished(NOW, model="typo", finish_reason=reason),)), NOW)  # type: ignore[arg-type]
    assert one.snapshot(NOW).series == ()


@pytest.mark.parametrize("what", ["model", "route", "both"])
def test_ten_thousand_names_give_at_most_the_configured_series_and_other(what: str) -> None:
    one = judge(max_series=50)
    for number in range(10_000):
        model = "m" if what == "route" else f"m{number}"
        finish(one, model=model, route="/chat" if what == "model" else f"/r{number}", completion_tokens=1)
    snapshot = one.snapshot(NOW)
    assert sum(view.counts.responses for view in snapshot.series) == 10_000
    assert any(OTHER in (view.model, view.route) for view in snapshot.series)
    by_family: dict[str, set[tuple[str, ...]]] = {}
    for name, labels, _ in log_families(snapshot):
        if "route" in labels:
            by_family.setdefault(name, set()).add((labels["model_name"], labels["route"]))
    assert by_family
    for series in by_family.values():
        assert len(series - {(OTHER, OTHER)}) <= 50


def test_a_model_keeps_its_name_when_its_routes_overflow() -> None:
    one = judge(max_series=10)
    for number in range(1000):
        finish(one, route=f"/{number}")
    assert {view.model for view in one.snapshot(NOW).series} == {"m"}


def test_splitting_routes_is_said_to_help_where_it_makes_lengths_even() -> None:
    one, draws = judge(), random.Random(2)
    for _ in range(200):
        finish(one, route="/classify", completion_tokens=round(draws.gauss(20, 2)))
        finish(one, route="/write", completion_tokens=round(draws.gauss(1000, 100)))
    (split,) = one.snapshot(NOW).splits
    assert split.helps
    assert split.mixed_cv > 0.9
    assert split.within_cv < 0.15
    assert "would help" in split.text


def test_splitting_is_not_advised_where_each_route_is_as_mixed_as_all() -> None:
    one, draws = judge(), random.Random(3)
    for number in range(400):
        finish(one, route=f"/{number % 2}", completion_tokens=round(draws.expovariate(1 / 300)) + 1)
    (split,) = one.snapshot(NOW).splits
    assert not split.helps


def test_prediction_error_keeps_its_sign() -> None:
    one = judge()
    for number in range(40):
        finish(one, completion_tokens=100, predicted_tokens=50 if number % 4 else 110)
    view = only(one.snapshot(NOW))
    assert view.prediction_error.value == pytest.approx((30 * -0.5 + 10 * 0.1) / 40)
    assert view.underpredicted.value == pytest.approx(0.75)


def test_thinking_and_answers_are_measured_apart_since_they_share_one_cap() -> None:
    one = judge()
    for number in range(100):
        finish(one, completion_tokens=2 * number + 50, reasoning_tokens=2 * number)
    finish(one, completion_tokens=512, reasoning_tokens=512, max_tokens=512, finish_reason="length")
    view = only(one.snapshot(NOW))
    assert view.thinking_p90.value == pytest.approx(180, abs=2)
    assert view.answer_p90.value == 50  # a cut answer says nothing about how long it wanted to be


def test_every_sample_is_in_the_catalogue_with_its_labels_and_comes_once() -> None:
    one, draws = judge(), random.Random(4)
    one.observe("own", Decoded("setting", (
        ServerSetting(NOW, "override_generation_config", {"max_new_tokens": 256, "seed": 1}),
        ServerSetting(NOW, "max_num_seqs", 64), ServerSetting(NOW, "enforce_eager", True),
        ServerSetting(NOW, "default_sampling_params", {"max_tokens": 256}))), NOW)  # fmt: skip
    one.observe("own", Decoded("error", (EngineError(NOW, "engine_dead", "x"),)), NOW)
    for number in range(60):
        finish(
            one,
            route=f"/{number % 2}",
            completion_tokens=draws.randint(2, 300),
            reasoning_tokens=1,
            predicted_tokens=100,
            ttft_s=0.1,
            e2e_s=3.0,
        )
    samples = list(log_families(one.snapshot(NOW)))
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples]
    assert len(set(keys)) == len(keys)
    for name, labels, value in samples:
        assert set(labels) == set(BY_NAME[name].all_labels), name
        assert isinstance(value, int | float)
    names = {name for name, _, _ in samples}
    logged = {metric.name for metric in BY_NAME.values() if metric.name.startswith("log_")}
    assert names == logged | {"server_setting", "server_setting_overridden"}
    found = {(name, labels.get("name")): value for name, labels, value in samples if "name" in labels}
    assert found["server_setting", "max_num_seqs"] == 64
    assert found["server_setting", "enforce_eager"] == 1
    assert found["server_setting_overridden", "max_new_tokens"] == 1
    assert found["server_setting_overridden", "seed"] == 0


def test_closed_sets_are_complete_before_the_first_line() -> None:
    samples = list(log_families(judge().snapshot(NOW)))
    assert {labels["result"] for name, labels, _ in samples if name == "log_records_total"} == set(RESULTS)
    assert all(value == 0 for _, _, value in samples)


def test_counters_never_fall() -> None:
    one, before = judge(), dict[tuple[Any, ...], float]()
    for number in range(200):
        finish(one, at=NOW - number * 60, finish_reason="length", completion_tokens=9)
        now = {
            (name, *sorted(labels.items())): value
            for name, labels, value in log_families(one.snapshot(NOW + number))
            if BY_NAME[name].kind is Kind.COUNTER
        }
        assert all(now[key] >= value for key, value in before.items())
        before = now


def test_a_tally_survives_being_written_down() -> None:
    one = judge()
    finish(one, finish_reason="length", completion_tokens=3, model="modèle", route="")
    one.observe("own", Decoded("setting", (ServerSetting(NOW, "max_num_seqs", 64, given=True),)), NOW)
    one.observe("own", Decoded("error", (EngineError(NOW, "other", "x"),), held=3), NOW)
    assert from_plain(orjson.loads(orjson.dumps(to_plain(one.tally)))) == one.tally


def truncated(cut: int, of: int) -> LogSnapshot:
    one = judge()
    for number in range(of):
        finish(one, finish_reason="length" if number < cut else "stop", completion_tokens=5)
    return one.snapshot(NOW)


def test_metrics_and_logs_that_agree_stand_side_by_side() -> None:
    (view,) = truncation_views(truncated(340, 500), "server", {"m": Reading(0.69)})
    assert view.disagree is False
    assert (view.metric.value, view.log.value) == (0.69, 0.68)


def test_a_disagreement_is_shown_not_averaged() -> None:
    (view,) = truncation_views(truncated(340, 500), "server", {"m": Reading(0.02)})
    assert view.disagree is True
    assert (view.metric.value, view.log.value) == (0.02, 0.68)
    assert "finish reason hides a cap" in view.text


def test_what_cannot_be_compared_says_why() -> None:
    (view,) = truncation_views(truncated(340, 500), "server", {"x": Reading(0.5), "y": Reading(0.5)})
    assert view.disagree is None
    assert "no metric for this model" in view.text
    (view,) = truncation_views(truncated(3, 5), "server", {"m": Reading(0.5)})
    assert view.disagree is None
    assert "fewer than 20" in view.text
    assert truncation_views(truncated(3, 5), "another", {"m": Reading(0.5)}) == ()
