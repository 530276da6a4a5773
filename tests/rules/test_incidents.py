"""Every public recording, at three scrape intervals, through the committed rules in simulated time.

Native (raw series) and exporter must both page for exactly what `expect.json` lists, once, within its time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import versions
from tests.rules import rulesets
from tests.rules.recordings import FOLDER, NAMES, Timeline, expect, raw, served
from tests.rules.scenario import STEP, document
from tests.rules.tools import promtool_test

STEPS = (5, 15, 30)
JUDGED = tuple(name for name in NAMES if expect(name)["pages"] is not None)
MODES = {"native": (raw, rulesets.NATIVE), "exporter": (served, rulesets.DAEMON)}
# A state that a rule speaks of may come this much later: Prometheus looks at its own moments.
LATE = 2 * STEP


def pages(name: str, seconds: int) -> Iterator[dict[str, Any]]:
    """At each evaluation: only expected pages; from its time on, each of them."""
    expected = expect(name)["pages"]
    for at in range(0, seconds + 1, STEP):
        due = [p["alert"] for p in expected if at >= p["to"]]
        allowed = "|".join(p["alert"] for p in expected if at >= p["from"])
        firing = 'ALERTS{alertstate="firing",severity="page"'
        yield {
            "expr": f'count by (alertname) ({firing},alertname!~"{allowed}"}})',
            "eval_time": f"{at}s",
            "exp_samples": [],
        }
        for alert in due:
            sample = {"labels": f'{{alertname="{alert}"}}', "value": 1}
            yield {
                "expr": f'count by (alertname) ({firing},alertname="{alert}"}})',
                "eval_time": f"{at}s",
                "exp_samples": [sample],
            }


def states(name: str, timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Where `expect.json` speaks: one of its states, and never a forbidden one."""
    said = expect(name)
    state = 'max by (state) (vllm_vitals_state{engine="' + said["engine"] + '"}) == 1'
    for at in range(0, timeline.seconds + 1, STEP):
        never = "|".join(said["never"])
        yield {
            "expr": f'count(({state}) and on (state) vllm_vitals_state{{state=~"{never}"}})',
            "eval_time": f"{at}s",
            "exp_samples": [],
        }
        for rule in said["rules"]:
            late = LATE + timeline.step
            if rule["from"] + late <= at <= rule["to"]:
                allowed = "|".join(rule["states"])
                query = (
                    f'count(max by (state) (vllm_vitals_state{{engine="{said["engine"]}",state!~"{allowed}"}}) == 1)'
                )
                yield {"expr": query, "eval_time": f"{at}s", "exp_samples": []}


def signals(name: str, seconds: int) -> Iterator[dict[str, Any]]:
    """The measured values that `expect.json` bounds, where this producer has them."""
    for signal in expect(name)["signals"]:
        at = signal["t"] // STEP * STEP
        series = f'max(vllm_vitals_{signal["name"]}{{engine="{expect(name)["engine"]}"}})'
        outside = f"({series} < {signal['min']}) or ({series} > {signal['max']})"
        yield {"expr": outside, "eval_time": f"{min(at, seconds)}s", "exp_samples": []}


def case(name: str, mode: str, step: int) -> dict[str, Any]:
    reader, _ = MODES[mode]
    timeline = reader(FOLDER / name / "metrics.jsonl.gz", step)
    checks = [*states(name, timeline)]
    if step < max(STEPS):  # the bounds are for windows of 60 s; at 30 s the exporter's holds 120
        checks += signals(name, timeline.seconds)
    if name in JUDGED:
        checks += pages(name, timeline.seconds)
    return {
        "name": f"{name}, {mode}, every {step} s",
        "interval": f"{step}s",
        "input_series": timeline.inputs(),
        "promql_expr_test": checks,
    }


@pytest.mark.parametrize("which", ["newest", pytest.param("older", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", STEPS)
def test_every_recording_pages_for_exactly_what_it_should(mode: str, step: int, which: str, tmp_path: Path) -> None:
    tests = [case(name, mode, step) for name in NAMES]
    *older, newest = versions("promtool")
    for tool in [newest] if which == "newest" else older:
        said = promtool_test(document(tests, MODES[mode][1]), tmp_path, "incidents", tool)
        assert not said, said[:4000]


def test_a_page_that_nobody_expected_is_noticed(tmp_path: Path) -> None:
    one = case("spiral_chunked", "native", STEP)
    quiet = [c for c in one["promql_expr_test"] if "ALERTS" not in c["expr"]]
    none = {"expr": 'ALERTS{alertstate="firing",severity="page"}', "eval_time": "165s", "exp_samples": []}
    assert not promtool_test(document([{**one, "promql_expr_test": quiet}], rulesets.NATIVE), tmp_path, "quiet")
    assert promtool_test(document([{**one, "promql_expr_test": [*quiet, none]}], rulesets.NATIVE), tmp_path, "page")


def test_a_recording_that_pages_is_among_them() -> None:
    assert [name for name in JUDGED if expect(name)["pages"]] == ["spiral_chunked"]
