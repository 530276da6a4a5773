"""A real Prometheus with a written week, and one with every recording, each built once a session."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.planner import prometheus, week
from tests.programs import find
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.core.render import TargetRenderer
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.planner.review.change import measures
from vllm_vitals.planner.review.report import Review, build
from vllm_vitals.planner.telemetry import history
from vllm_vitals.planner.telemetry.collect import collect
from vllm_vitals.planner.telemetry.queries import BEFORE
from vllm_vitals.planner.telemetry.telemetry import Telemetry
from vllm_vitals.prometheus.promapi import PromApi, access
from vllm_vitals.recordings import recording

RECORDINGS = Path(__file__).parent.parent / "data/recordings"
SETTINGS = ReviewSettings.model_validate({
    "gpu_hour_price": 2.5,
    "slos": [
        {"name": "first token", "indicator": "ttft", "threshold": "2500ms", "share": 0.99, "models": "chat",
         "output_tokens": {"mean": 300, "p99": 900}},
        {"name": "speed", "indicator": "tpot", "threshold": "50ms", "share": 0.95, "models": "chat"},
        {"name": "code speed", "indicator": "tpot", "threshold": "60ms", "share": 0.99, "models": "code",
         "output_tokens": {"mean": 100, "p99": 200}},
    ],
    "models": {"code": {"gpus": 2}},
})  # fmt: skip


@dataclass
class Week:
    """The raw numbers, what was read from Prometheus, and the review of it."""

    engines: list[week.Engine]
    telemetry: Telemetry
    before: Telemetry
    past: history.History
    review: Review
    url: str


@pytest.fixture(scope="session")
def week_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[week.Engine], str]]:
    find("prometheus"), find("promtool")
    data = tmp_path_factory.mktemp("week")
    engines = week.written()
    prometheus.blocks(week.lines(engines), data, span="720h")
    with prometheus.serving(data) as url:
        yield engines, url


@pytest.fixture(scope="session")
def the_week(week_url: tuple[list[week.Engine], str]) -> Week:
    engines, url = week_url
    askers = [PromApi(access(url)) for _ in range(2)]
    span = week.SPAN
    telemetry = collect(askers, week.END - span, week.END)
    before = collect(askers, week.END - 2 * span, week.END - span, signals=BEFORE)
    past, missing = history.history(askers[0], week.END, week.TREND_DAYS)
    assert not missing
    measured = {name: measures(before.of(name), before.grid) for name in before.models()}
    review = build(telemetry, SETTINGS, "test", week.END, measured, past)
    return Week(engines, telemetry, before, past, review, url)


def recorded_lines() -> Iterator[str]:
    """Every recording, judged and rendered as the daemon would serve it, with its own times."""
    for folder in sorted(RECORDINGS.iterdir()):
        judge, renderer = TargetEvaluator(f"{folder.name}:8000"), TargetRenderer()
        for scrape in recording.read(folder / "metrics.jsonl.gz"):
            for family in renderer.render(judge.observe(scrape)).values():
                for line in family.decode().splitlines():
                    yield f"{line} {scrape.at:.3f}"


@pytest.fixture(scope="session")
def recordings_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    find("prometheus"), find("promtool")
    data = tmp_path_factory.mktemp("recordings")
    prometheus.blocks(recorded_lines(), data)
    with prometheus.serving(data) as url:
        yield url
