"""The committed rules on a real VictoriaMetrics, Debian's and a current one: they tell what they tell in Prometheus.

VictoriaMetrics counts from the last sample before a window, so what depends on a rate may come one evaluation later.
A replay keeps no alert firing beyond its expression; vmalert itself does, from 1.92 on.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.programs import current, find, missing
from tests.rules import rulesets, test_native
from tests.rules.cases import CASES, SLOS
from tests.rules.recordings import FOLDER, NAMES, Timeline, expect
from tests.rules.scenario import STEP, Case, elsewhere, seven
from tests.rules.test_incidents import JUDGED, LATE, MODES
from tests.rules.tools import run
from tests.rules.victoria import Victoria, layers, victoria

RELEASES: dict[str, Callable[[str], str]] = {
    "installed": find,
    "current": lambda name: current(name) or missing(f"no current {name}: make tools unpacks it below .tools"),
}
release = pytest.mark.parametrize("release", [pytest.param("installed", marks=pytest.mark.thorough), "current"])


@pytest.fixture
def server(release: str, tmp_path: Path) -> Iterator[Victoria]:
    with victoria(RELEASES[release]("victoria-metrics"), tmp_path) as running:
        yield running


def test_vmalert_loads_every_rule_file(tmp_path: Path) -> None:
    loads = ["-dryRun", *(f"-rule={path}" for path in (*rulesets.NATIVE, *rulesets.build(rulesets.WITH_SLO, tmp_path)))]
    done = run(RELEASES["current"]("vmalert"), *loads)
    assert done.returncode == 0, done.stderr[-2000:]
    # vmalert before 1.92 knows no keep_firing_for; the records need none
    done = run(find("vmalert"), "-dryRun", *(f"-rule={path}" for path in rulesets.NATIVE[:2]))
    assert done.returncode == 0, done.stderr[-2000:]


@release
@pytest.mark.parametrize("mode", MODES)
def test_every_recording_is_told_and_pages_for_what_it_should(
    mode: str, release: str, server: Victoria, tmp_path: Path
) -> None:
    reader: Any
    reader, rules = MODES[mode]
    timelines: dict[str, Timeline] = {name: reader(FOLDER / name / "metrics.jsonl.gz", STEP) for name in NAMES}
    for timeline in timelines.values():
        server.load(timeline.inputs(), STEP)
    longest = max(timeline.seconds for timeline in timelines.values())
    assert not server.replay(RELEASES[release]("vmalert"), rules, longest, tmp_path)
    states = server.over_time("max by (model_name, engine, state) (vllm_vitals_state) == 1", longest, STEP)
    pages = server.over_time('ALERTS{alertstate="firing",severity="page"}', longest, STEP)
    for name, timeline in timelines.items():
        mine = [(labels["state"], at) for labels, at in states if _of(labels, name)]
        told = {at: state for state, times in mine for at in times}
        assert set(range(STEP, timeline.seconds + 1, STEP)) <= set(told), name
        assert sum(len(times) for _, times in mine) == len(told), f"{name}: two states at once"
        assert not set(told.values()) & set(expect(name)["never"]), name
        for rule in expect(name)["rules"]:
            spoken = {
                at: s for at, s in told.items() if rule["from"] + LATE + STEP <= at <= min(rule["to"], timeline.seconds)
            }
            assert set(spoken.values()) <= set(rule["states"]), (name, rule, spoken)
        if name in JUDGED:
            came = {labels["alertname"]: min(at) for labels, at in pages if labels["model_name"] == name}
            wanted = {page["alert"]: page for page in expect(name)["pages"]}
            assert came.keys() == wanted.keys(), name
            assert all(wanted[alert]["from"] <= at <= wanted[alert]["to"] for alert, at in came.items()), (name, came)


def _of(labels: Mapping[str, str], name: str) -> bool:
    return labels["model_name"] == name and labels["engine"] == expect(name)["engine"]


@release
@pytest.mark.parametrize(
    "scenario",
    [
        test_native.test_thrashing_is_entered_after_its_hold_and_left_after_its_release,
        test_native.test_generation_that_collapses_under_preemptions_is_a_death_spiral,
        test_native.test_preemption_after_preemption_without_a_token_is_a_death_spiral,
        test_native.test_down_after_three_failed_scrapes_and_remembered_for_an_hour,
        test_native.test_before_the_first_completion_a_stall_needs_three_minutes,
        test_native.test_a_state_once_left_is_entered_again_only_at_its_entry_level,
        test_native.test_half_the_entry_level_keeps_a_state_for_hours,
        test_native.test_an_outage_forgets_what_was_held,
        test_native.test_a_collapse_is_measured_by_the_calm_before_it_however_long_it_lasts,
        test_native.test_since_says_when_the_state_began,
        test_native.test_one_missed_scrape_changes_no_state,
        test_native.test_prefill_that_starves_decode,
    ],
    ids=lambda scenario: scenario.__name__.removeprefix("test_"),
)
def test_what_native_rules_remember(
    scenario: Callable[[Path], None], release: str, server: Victoria, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(folder: Path, inputs: Any, *checks: Mapping[str, Any]) -> None:
        server.load(inputs, STEP)
        last = max(_moment(check) for check in checks)
        assert not server.replay(RELEASES[release]("vmalert"), rulesets.NATIVE, last, folder)
        assert [c for c in checks if not server.holds(c, _moment(c))] == []

    monkeypatch.setattr(test_native, "judge", judge)
    scenario(tmp_path)


def _moment(check: Mapping[str, Any]) -> int:
    return int(check["eval_time"].removesuffix("s"))


@release
@pytest.mark.parametrize("slo", [False, True])
def test_every_alert_of_a_victim_fires_in_time_and_is_quiet_where_it_must_be(
    slo: bool, release: str, server: Victoria, tmp_path: Path
) -> None:
    rules = rulesets.build(rulesets.WITH_SLO, tmp_path) if slo else rulesets.DAEMON
    cases = SLOS if slo else [case for case in CASES if case.ruleset == "default"]
    checks: list[Mapping[str, Any]] = []
    for case in _apart(cases):
        for variant in seven(case):
            if not variant.name.endswith(": ends"):
                server.load([{"series": s.text(), "values": values} for s, values in variant.rows], STEP)
                checks += variant.checks
    last = max(_moment(check) for check in checks) + STEP
    assert not server.replay(RELEASES[release]("vmalert"), rules, last, tmp_path)
    holds = partial(_holds_by_the_next_evaluation, server)
    assert any(check["exp_samples"] for check in checks)
    assert [check for check in checks if not holds(check)] == []


def _apart(cases: list[Case] | tuple[Case, ...]) -> Iterator[Case]:
    """Each case with victims of its own: not those of the whole fleet, which cannot share a store, and not the one
    whose series hold times, which count from promtool's beginning."""
    for number, case in enumerate(cases):
        if {"model_name", "target"} & case.labels.keys() and case.alert != "VLLMExporterStale":
            yield elsewhere(case, f"c{number}")


def _holds_by_the_next_evaluation(server: Victoria, check: Mapping[str, Any]) -> bool:
    at = _moment(check)
    return server.holds(check, at) or (bool(check["exp_samples"]) and server.holds(check, at + STEP))


def test_a_rule_file_whose_records_read_each_other_has_no_layers(tmp_path: Path) -> None:
    path = tmp_path / "circle.yml"
    path.write_text(
        "groups: [{name: g, interval: 15s, rules: [{record: 'a:b', expr: 'c or last_over_time(a:b[1m])'}]}]"
    )
    with pytest.raises(ValueError, match="a:b"):
        list(layers([str(path)]))
