"""Time that nobody scraped is absent from a snapshot, never time without work."""

import json
from array import array
from math import nan
from pathlib import Path

import pytest

from tests.planner.conftest import RECORDINGS
from tests.planner.test_command import ran
from vllm_vitals.planner.experiment.baseline import BaselineError, baseline
from vllm_vitals.planner.telemetry import coverage
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import EngineId, EngineSeries, Telemetry
from vllm_vitals.recordings import recording

SPIRAL = RECORDINGS / "spiral_chunked/metrics.jsonl.gz"


def engine(there: str) -> EngineSeries:
    """One window a sign: x for 10 tokens and two running, a blank for a window that nobody scraped."""
    return EngineSeries(
        gauges={"requests_running": array("d", [2.0 if sign == "x" else nan for sign in there])},
        counters={("generation_tokens_total", ""): array("d", [10.0 if sign == "x" else nan for sign in there])},
    )


def telemetry(*engines: str) -> Telemetry:
    grid = Grid(0.0, 10, len(engines[0]))
    named = {EngineId("m", "t", str(rank)): engine(there) for rank, there in enumerate(engines)}
    return Telemetry(grid, grid, grid, named)


@pytest.mark.parametrize(
    ("engines", "there"),
    [
        (["xxxxxxxxxxxx"], "xxxxxxxxxxxx"),
        (["         xxx"], "         xxx"),
        (["xxxx    xxxx"], "xxxx    xxxx"),
        (["xxxxxx xxxxx"], "xxxxxx xxxxx"),
        (["            "], "            "),
        (["xxxxxxxxxxxx", "      xxxxxx"], "      xxxxxx"),
        (["xxxxxx      ", "      xxxxxx"], "xxxxxxxxxxxx"),  # one engine after another: a replaced pod
    ],
)
def test_a_window_counts_where_every_engine_was_seen(engines: list[str], there: str) -> None:
    found = telemetry(*engines)
    assert "".join("x" if yes else " " for yes in coverage.scraped(found.engines, found.grid)) == there


def test_scrapes_further_apart_than_windows_are_no_holes() -> None:
    """Gauges come with every third window; counters are read at every edge."""
    found = telemetry("xxxxxxxxxxxx")
    series = next(iter(found.engines.values()))
    series.gauges["requests_running"] = array("d", [2.0, nan, nan] * 4)
    assert coverage.scraped(found.engines, found.grid) == [True] * 10 + [False] * 2


def test_repeats_that_were_not_scraped_are_left_out() -> None:
    found = telemetry("    xxxxxxxx")
    taken = baseline(found, "m", "a", "test", 0.0, 3, {})
    generated = taken.vitals["generated tokens"]
    assert (generated.repeats, generated.value) == ([1.0, 1.0], 1.0)
    assert (taken.start, taken.end) == (40.0, 120.0)
    assert taken.workload["requests in flight, mean"] == 2.0


def test_too_little_is_refused_with_what_there_is() -> None:
    with pytest.raises(BaselineError, match=r"of 120 s only 40 s .* leaves 1 of 3 parts: stay within .*00:01:20Z to"):
        baseline(telemetry("        xxxx"), "m", "a", "test", 0.0, 3, {})
    with pytest.raises(BaselineError, match="look elsewhere"):
        baseline(telemetry("            "), "m", "a", "test", 0.0, 1, {})


@pytest.mark.parametrize(("since", "kept"), [("30m", 0), ("5m", 6), ("3m", 9)])
def test_what_a_real_prometheus_does_not_hold_is_not_zero(
    recordings_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, since: str, kept: int
) -> None:
    """It holds 205 s of this server. Three parts of half an hour were once read as 0, 0 and the rest."""
    last = list(recording.read(SPIRAL))[-1].at
    code, out, err = ran(
        capsys, "snapshot", "--prometheus", recordings_url, "--target", "spiral_chunked:8000", "--since", since,
        "--until", last, "-o", tmp_path / "a.json",
    )  # fmt: skip
    if not kept:
        assert code == 2
        assert "hold samples of every engine, which leaves 1 of 10 parts" in err
        assert not (tmp_path / "a.json").exists()
        return
    assert code == 0
    assert (f", {kept} repeats of 10, the others were not scraped throughout" in out) is (kept < 10)
    repeats = json.loads((tmp_path / "a.json").read_bytes())["vitals"]["generated tokens"]["repeats"]
    assert len(repeats) == kept
    assert min(repeats) > 200
