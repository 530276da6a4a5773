"""A partly failing or interrupted API gives what there is, and says what is missing."""

from collections.abc import Callable, Mapping

import pytest

from tests.planner import prometheus, week
from tests.planner.conftest import Week
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.planner.review import render_text
from vllm_vitals.planner.review.report import build
from vllm_vitals.planner.telemetry.collect import Budget, collect
from vllm_vitals.planner.telemetry.queries import WEEK
from vllm_vitals.prometheus.promapi import PromApi, PromError, Series, access

START = week.END - week.SPAN


class Flaky:
    """A real API behind a rule that makes some questions fail."""

    def __init__(self, url: str, rule: Callable[[str, float, float], Exception | None]) -> None:
        self._api, self._rule = PromApi(access(url)), rule
        self.asked: list[tuple[str, float, float]] = []

    def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
        self.asked.append((query, start, end))
        error = self._rule(query, start, end)
        if error is not None:
            raise error
        return self._api.range(query, start, end, step)

    def series(self, match: str, start: float, end: float) -> list[Mapping[str, str]]:
        return self._api.series(match, start, end)


def failing(part: str) -> Callable[[str, float, float], Exception | None]:
    return lambda query, *_: PromError("api: HTTP 503: store is down") if part in query else None


def test_one_signal_that_cannot_be_read_is_named_and_the_rest_is_there(
    week_url: tuple[list[week.Engine], str], the_week: Week
) -> None:
    flaky = Flaky(week_url[1], failing("tpot_seconds"))
    review = build(collect([flaky], START, week.END), ReviewSettings(), "test", 0.0)
    assert {gap.what for gap in review.missing} == {"tpot_seconds (bucket)", "tpot_seconds (sum)"}
    chat, whole = review.models[0], the_week.review.models[0]
    assert chat.tails["tpot_seconds"].count == 0
    assert chat.tails["ttft_seconds"].p99 == whole.tails["ttft_seconds"].p99
    assert chat.traffic.requests == whole.traffic.requests
    text = render_text.markdown(review)
    assert "## What is missing" in text
    assert "HTTP 503: store is down" in text
    assert "not known" in text


def test_a_missing_stretch_is_a_gap_and_no_zero(week_url: tuple[list[week.Engine], str], the_week: Week) -> None:
    lost = (START + week.DAY / 2, START + week.DAY)

    def rule(query: str, start: float, end: float) -> Exception | None:
        return PromError("api: no") if start < lost[1] and end > lost[0] and "requests_running" in query else None

    few = Budget(answer=600)  # questions of about half a day each
    asked = [signal for signal in WEEK if signal.name == "requests_running"]
    telemetry = collect([Flaky(week_url[1], rule)], START, week.END, signals=asked, budget=few)
    gaps = [gap for gap in telemetry.missing if gap.what == "requests_running"]
    assert gaps
    assert min(g.start for g in gaps) <= lost[0]
    assert max(g.end for g in gaps) >= lost[1]
    running = next(iter(telemetry.engines.values())).gauges["requests_running"]
    inside = [running[w] for w in range(telemetry.grid.windows) if lost[0] <= telemetry.grid.at(w) < lost[1]]
    assert all(value != value for value in inside)  # noqa: PLR0124 - nan
    whole = next(iter(the_week.telemetry.engines.values())).gauges["requests_running"]
    outside = [(a, b) for a, b in zip(running, whole, strict=True) if a == a]  # noqa: PLR0124 - nan
    assert len(outside) > 150
    assert all(a == b for a, b in outside)


def test_too_large_a_question_is_halved_until_it_is_answered(
    week_url: tuple[list[week.Engine], str], the_week: Week
) -> None:
    def rule(_: str, start: float, end: float) -> Exception | None:
        return PromError("api: too many samples", too_much=True) if end - start > week.DAY / 2 else None

    telemetry = collect([Flaky(week_url[1], rule)], START, week.END)
    assert telemetry.missing == []
    for engine, series in telemetry.engines.items():
        assert series.counters == the_week.telemetry.engines[engine].counters
        assert series.states == the_week.telemetry.engines[engine].states


def test_an_api_that_stops_answering_is_not_asked_for_ever(week_url: tuple[list[week.Engine], str]) -> None:
    asked = 0

    def rule(*_: object) -> Exception | None:
        nonlocal asked
        asked += 1
        return PromError("api: connection refused") if asked > 4 else None

    flaky = Flaky(week_url[1], rule)
    telemetry = collect([flaky], START, week.END)
    assert len(flaky.asked) == 9
    assert any(gap.why == "not queried: api: connection refused" for gap in telemetry.missing)
    review = build(telemetry, ReviewSettings(), "test", 0.0)
    assert review.models
    assert review.missing


def test_ctrl_c_keeps_what_was_read(week_url: tuple[list[week.Engine], str]) -> None:
    def progress(done: int, total: int, what: str) -> None:
        assert done <= total
        if done == 12:
            raise KeyboardInterrupt

    telemetry = collect([PromApi(access(week_url[1]))], START, week.END, progress=progress)
    assert {gap.why for gap in telemetry.missing} == {"interrupted"}
    review = build(telemetry, ReviewSettings(), "test", 0.0)
    assert review.models[0].state_minutes["healthy"] > 0
    assert review.models[0].tails["ttft_seconds"].count == 0


def test_a_prometheus_without_us_is_an_error_with_its_mend(week_url: tuple[list[week.Engine], str]) -> None:
    with pytest.raises(PromError, match="does this Prometheus scrape vllm-vitals"):
        collect([PromApi(access(week_url[1]))], START - 90 * week.DAY, START - 80 * week.DAY)


def test_only_some_models_are_asked_for(week_url: tuple[list[week.Engine], str]) -> None:
    flaky = Flaky(week_url[1], lambda *_: None)
    telemetry = collect([flaky], START, week.END, matchers='model_name=~"co.*"')
    assert telemetry.models() == ["code"]


def test_replicas_change_nothing(the_week: Week, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two exporters, or two producers, say the same thing twice: it is folded, never added."""
    data = tmp_path_factory.mktemp("replicas")
    only = [engine for engine in the_week.engines if engine.model == "code"]
    prometheus.blocks(week.lines(only, replicas=("a", "b")), data, span="720h")
    with prometheus.serving(data) as url:
        telemetry = collect([PromApi(access(url))], START, week.END, matchers='model_name="code"')
    [series] = telemetry.engines.values()
    [alone] = the_week.telemetry.of("code").values()
    assert series.counters == alone.counters
    assert series.gauges.keys() == alone.gauges.keys()
    assert all(_same(values, alone.gauges[name]) for name, values in series.gauges.items())
    assert series.histograms["ttft_seconds"].total() == alone.histograms["ttft_seconds"].total()
    assert series.states == alone.states


def _same(one: "list[float]", other: "list[float]") -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=True))  # noqa: PLR0124 - nan


def test_questions_are_few_and_bounded(week_url: tuple[list[week.Engine], str]) -> None:
    flaky = Flaky(week_url[1], lambda *_: None)
    collect([flaky], START, week.END)
    assert len(flaky.asked) < 60
    assert len({query for query, _, _ in flaky.asked}) < 60


def test_vllms_own_histograms_serve_where_ours_are_not(
    tmp_path_factory: pytest.TempPathFactory, the_week: Week
) -> None:
    """Native mode records everything but histograms: those are read under vLLM's names, by instance."""
    data = tmp_path_factory.mktemp("native")
    only = [engine for engine in the_week.engines if engine.model == "code"]
    theirs = {
        "ttft_seconds": "time_to_first_token_seconds",
        "tpot_seconds": "request_time_per_output_token_seconds",
        "request_prompt_tokens": "request_prompt_tokens",
        "request_output_tokens": "request_generation_tokens",
    }

    def native(line: str) -> str:
        for ours, name in theirs.items():
            if line.startswith(f"vllm_vitals_{ours}_"):
                line = line.replace(f"vllm_vitals_{ours}", f"vllm:{name}", 1)
                return line.replace('target="code-0:8000",', "", 1).replace('instance="a"', 'instance="code-0:8000"', 1)
        return line

    prometheus.blocks(map(native, week.lines(only)), data, span="720h")
    with prometheus.serving(data) as url:
        telemetry = collect([PromApi(access(url))], START, week.END, matchers='model_name="code"')
    [series] = telemetry.engines.values()
    [alone] = the_week.telemetry.of("code").values()
    for name in theirs:
        assert series.histograms[name].total() == alone.histograms[name].total()
