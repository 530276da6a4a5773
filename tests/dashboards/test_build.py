"""What is committed is what the code builds; the build says what is wrong in one line."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.programs import ROOT
from tests.typed import typed
from vllm_vitals.config.alerts import Config, Limits
from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.grafana_schema import modernise
from vllm_vitals.dashboards.site import Levels, Site, scale
from vllm_vitals.generated import drift
from vllm_vitals.rules import boards, meta, page, ticket


def test_the_committed_files_are_what_the_code_builds() -> None:
    result = typed("dashboards", "check", "-o", ROOT / "dashboards")
    assert result.exit_code == 0, result.output[-4000:]


def test_the_same_source_gives_the_same_bytes() -> None:
    assert build(Site()) == build(Site())


def test_a_changed_a_missing_and_a_stray_file_are_all_told(tmp_path: Path) -> None:
    files = build(Site())
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert drift(tmp_path, files, ["*.json"]) == []
    changed, missing, *_ = files
    (tmp_path / changed).write_text(files[changed].replace("Overview", "Over"), encoding="utf-8")
    (tmp_path / missing).unlink()
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    told = drift(tmp_path, files, ["*.json"])
    assert len(told) == 3
    result = typed("dashboards", "check", "-o", tmp_path)
    assert result.exit_code == 1
    assert "run: vllm-vitals dashboards build" in result.output


def test_an_unknown_mode_is_told_in_one_line() -> None:
    result = typed("dashboards", "build", "--mode", "magic")
    assert result.exit_code == 2
    assert 'expected daemon, native or both, got "magic"' in result.output


def test_a_config_with_a_mistake_names_its_key(tmp_path: Path) -> None:
    config = tmp_path / "alerts.yml"
    config.write_text("alerts: {limits: {tail_ratio: high}}\n", encoding="utf-8")
    result = typed("dashboards", "build", "--config", config, "--out", tmp_path)
    assert result.exit_code == 2
    assert "alerts.limits.tail_ratio" in result.output


def test_a_users_limit_moves_the_line_on_the_chart(tmp_path: Path) -> None:
    config = tmp_path / "alerts.yml"
    config.write_text("alerts: {limits: {truncated_ratio: 0.17}}\n", encoding="utf-8")
    assert typed("dashboards", "build", "--config", config, "--out", tmp_path).exit_code == 0
    overview = json.loads((tmp_path / f"{links.OVERVIEW}.json").read_text(encoding="utf-8"))
    panel = next(panel for panel in overview["panels"] if panel["title"] == "Truncated at the cap")
    assert [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 0.17]


def test_levels_are_those_that_states_and_alerts_use() -> None:
    shown = scale(Config(limits=Limits(tail_ratio=7)))
    assert shown.tail_ratio == Levels(7)
    assert shown.preemptions_per_completion == Levels(0.5, 1.0)
    assert shown.kv_left == Levels(0.1, low_is_bad=True)


def test_each_mode_asks_only_its_own_producer() -> None:
    daemon, native = "".join(build(Site(native=False)).values()), "".join(build(Site(daemon=False)).values())
    assert "__name__=~" not in daemon
    served = re.compile(r"(?<!:)vllm_vitals_ttft_seconds_bucket")  # what rules recorded is called model:...
    assert served.search(daemon)
    assert "__name__=~" in native
    assert not served.search(native)


@pytest.mark.parametrize("uid", links.TITLES)
def test_modernising_twice_changes_nothing(uid: str) -> None:
    once = json.loads((ROOT / "dashboards" / f"{uid}.json").read_text(encoding="utf-8"))
    kept = json.dumps(once, sort_keys=True)
    again = modernise(once)
    assert json.dumps(again, sort_keys=True) == kept
    assert json.dumps(once, sort_keys=True) == kept


def test_a_panels_address_survives_a_move_and_carries_the_engine() -> None:
    url = links.url("https://grafana.example", links.ENGINE, "State over time", {"target": "a:1", "engine": "0"})
    page, _, panel = url.rpartition("&viewPanel=")
    assert page == "https://grafana.example/d/vllm-vitals-engine?var-target=a%3A1&var-engine=0"
    assert int(panel) == links.panel_id("State over time")
    engine = json.loads((ROOT / "dashboards" / f"{links.ENGINE}.json").read_text(encoding="utf-8"))
    assert links.panel_id("State over time") in {panel["id"] for panel in engine["panels"]}


def test_every_alert_leads_to_a_panel_that_is_there() -> None:
    titles = {
        uid: {panel["title"] for panel in json.loads(build(Site())[f"{uid}.json"])["panels"]} for uid in links.TITLES
    }
    every = [alert for part in (page, ticket, meta) for alert in part.alerts(Config())]
    led = [(alert.name, *alert.dashboard.partition(":")) for alert in every]
    assert [(name, uid, title) for name, uid, _, title in led if title and title not in titles[uid]] == []
    assert sum(bool(title) for *_, title in led) > 10


def test_an_engine_whose_size_is_known_is_in_no_second_pool() -> None:
    [pool] = [rule for rule in boards.pools(Config()) if rule.record == boards.POOL]
    # A plain `or` would compare the size too, and add every engine a second time without one.
    assert " or on (target, model_name, engine) (" in pool.expr


def test_configmaps_hold_the_same_dashboards(tmp_path: Path) -> None:
    made = typed("dashboards", "build", "--format", "kubernetes", "--out", tmp_path)
    assert made.exit_code == 0, made.output
    for name, text in build(Site()).items():
        document = yaml.safe_load((tmp_path / name.replace(".json", ".yml")).read_text(encoding="utf-8"))
        assert document["kind"] == "ConfigMap"
        assert {key: json.loads(value) for key, value in document["data"].items()} == {name: json.loads(text)}
        assert len(text) < 1024 * 1024  # what a ConfigMap may hold
