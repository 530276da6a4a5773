"""What is committed is what the code builds; the linter finds what it should; mistakes in a config are named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.programs import versions
from tests.rules.rulesets import WITH_BATCH, WITH_SLO
from tests.rules.tools import ROOT, RULES, run
from tests.typed import typed
from vllm_vitals.catalog import METRICS
from vllm_vitals.config import section
from vllm_vitals.config.alerts import Config, Limits, move_when
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.objectives import OutputLength
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.dashboards import links
from vllm_vitals.generated import drift
from vllm_vitals.logs.events import ERROR_KINDS
from vllm_vitals.rules import ticket_presence
from vllm_vitals.rules.build import findings, outputs, rules
from vllm_vitals.rules.lint import lint
from vllm_vitals.rules.model import Alert, Group, Recording, Scope, Severity, dump, groups_dict
from vllm_vitals.rules.runbook import GUIDANCE
from vllm_vitals.rules.transforms import only_native


def test_the_committed_files_are_what_the_code_builds() -> None:
    differences = drift(RULES, outputs(Config()), ["runbooks/*.md"])
    assert not differences, "run `vllm-vitals rules build`:\n" + "\n".join(differences)[:4000]


@pytest.mark.parametrize(
    "config", [Config(), WITH_SLO, WITH_BATCH, parse_alerts({"alerts": {"identity_labels": ["cluster", "namespace"]}})]
)
def test_the_linter_finds_nothing(config: Config) -> None:
    assert findings(config, rules(config)) == []


def test_check_fails_on_drift_and_names_the_command(tmp_path: Path) -> None:
    assert typed("rules", "build", "-o", tmp_path).exit_code == 0
    assert typed("rules", "check", "-o", tmp_path).exit_code == 0
    (tmp_path / "alerts.yml").write_text("groups: []\n")
    (tmp_path / "runbooks" / "Gone.md").write_text("# Gone\n")
    done = typed("rules", "check", "-o", tmp_path)
    assert done.exit_code == 1
    assert f"run: vllm-vitals rules build -o {tmp_path}" in done.output
    assert "Gone.md: no generator writes this file" in done.output


@pytest.mark.parametrize(
    ("given", "reminded"),
    [
        ("alerts: {team: serving}\n", True),
        ("alerts: {runbook_base: runbooks}\n", True),
        ("alerts: {runbook_base: https://wiki.example.com/vllm}\n", False),
        (None, False),
    ],
)
def test_a_build_for_a_site_says_where_its_runbook_links_open_nowhere(
    given: str | None, reminded: bool, tmp_path: Path
) -> None:
    (tmp_path / "alerts.yaml").write_text(given or "")
    config = ["--config", str(tmp_path / "alerts.yaml")] if given else []
    done = typed("rules", "build", *config, "-o", tmp_path)
    assert done.exit_code == 0
    assert len(done.stderr.splitlines()) == reminded
    assert ("runbook_base" in done.stderr and "docs/alerts.md, Links" in done.stderr) is reminded
    assert "\n### Links\n" in (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")


def test_operator_format_is_a_prometheus_rule(tmp_path: Path) -> None:
    done = typed("rules", "build", "-o", tmp_path, "--format", "operator")
    assert done.exit_code == 0, done.output
    written = yaml.safe_load((tmp_path / "alerts.yml").read_text())
    assert (written["apiVersion"], written["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert written["spec"] == yaml.safe_load(dump(groups_dict(rules(Config())["alerts"])))


def test_what_is_written_reads_back_as_the_same_rules() -> None:
    for groups in rules(WITH_SLO).values():
        document = groups_dict(groups)
        assert yaml.safe_load(dump(document)) == document


def test_native_mode_alone_leaves_out_what_it_cannot_know() -> None:
    names = {r.name for g in rules(Config(), frozenset({"native"}))["alerts"] for r in g.rules if isinstance(r, Alert)}
    assert {"VLLMDeathSpiral", "VLLMStalled", "VLLMModelUnavailable", "VLLMThrashing"} <= names
    assert not {"VLLMTailDivergence", "VLLMReasoningTruncated", "VLLMRunawayRequest", "VLLMExporterDown"} & names


@pytest.mark.parametrize("modes", [("daemon",), ("native",), ("daemon", "native")], ids="+".join)
def test_the_linter_finds_nothing_in_any_mode(modes: tuple[str, ...]) -> None:
    assert findings(Config(), rules(Config(), frozenset(modes))) == []


EVERY_KEY = {
    "identity_labels": ["namespace"], "description_labels": ["pod", "node"], "routing_labels": ["team", "tier"],
    "description_query": 'max by (target, pod) (label_replace(kube_pod_info, "target", "$1:8000", "pod_ip", "(.+)"))',
    "external_labels": ["cluster", "region"], "min_engines": {"llama": 3}, "team": "serving",
    "desired_replicas": "kube_deployment_spec_replicas", "severity_labels": {"page": "critical", "ticket": "warning"},
    "batch": {"models": ["nightly-.+"], "targets": ["batch[0-9]+:8000"]}, "evaluation_interval": "30s",
    "slos": [
        {"name": f"{indicator} {threshold}", "indicator": indicator, "threshold": threshold, "share": 0.99}
        for indicator, threshold in (("ttft", "5s"), ("ttft", "10s"), ("tpot", "100ms"))
    ],
    "availability": [{"name": "answered", "share": 0.999}], "working_hours": {"location": "Asia/Seoul"},
    "receivers": {"pager": {"opsgenie_key_file": "/run/a", "teams_url_file": "/run/b", "pagerduty_key_file": "/run/c"}},
    "runbook_base": "https://wiki.example.com/vllm",
}  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "form", "more"),
    [
        ("daemon", "operator", {}),
        ("native", "prometheus", {"limits": {"overload_wait": "0s"}}),
        ("both", "grafana", {"description_query": "", "batch": {}}),
    ],
)
def test_every_key_builds_in_every_mode_and_format(mode: str, form: str, more: object, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(yaml.safe_dump({"alerts": {**EVERY_KEY, **dict(more)}}))  # type: ignore[call-overload]
    done = typed("rules", "build", "--config", tmp_path / "a.yml", "--mode", mode, "--format", form, "-o", tmp_path)
    assert (done.exit_code, done.output) == (0, "")


def test_daemon_mode_alone_writes_no_native_rules() -> None:
    assert "native" not in rules(Config(), frozenset({"daemon"}))


def test_native_rules_make_every_series_that_the_catalogue_calls_native() -> None:
    made = {r.record for g in rules(Config())["native"] for r in g.rules if isinstance(r, Recording)}
    promised = {m.full_name for m in METRICS if m.native}
    assert promised - made == set()
    assert {name for name in made if name.startswith("vllm_vitals_")} - promised == set()


def test_every_alert_has_a_runbook_with_all_its_sections_and_no_other() -> None:
    every = replace(WITH_SLO, min_engines={"llama": 2})
    built = {r.name for g in rules(every)["alerts"] for r in g.rules if isinstance(r, Alert)}
    assert set(GUIDANCE) == built
    for name in built - {"VLLMSLOBurn", "VLLMTooFewEngines"}:
        text = (RULES / "runbooks" / f"{name}.md").read_text()
        assert [line for line in text.splitlines() if line.startswith("## ")][:4] == [
            "## Meaning", "## Impact", "## Mitigation", "## Diagnosis",
        ]  # fmt: skip


def test_a_runbook_says_how_to_silence_its_alert_and_where_the_gateways_stand() -> None:
    text = (RULES / "runbooks" / "VLLMStalled.md").read_text()
    assert "amtool silence add" in text
    assert "alertname=VLLMStalled model_name=MODEL target=TARGET" in text
    assert "[HANDLING.md](HANDLING.md)" in text
    shared = (RULES / "runbooks" / "HANDLING.md").read_text()
    for gateway in ("LiteLLM", "nginx", "Envoy", "Gateway API inference extension, llm-d", "vLLM production stack"):
        assert shared.count(f"| {gateway}") == 3, gateway  # to cap, to drain, to shed
    assert "py-spy dump" in shared


def test_no_runbook_advises_a_smaller_cache() -> None:
    for name, book in GUIDANCE.items():
        for step in book.mitigation:
            if "gpu_memory_utilization" in step:
                assert step.startswith("Do not lower"), name


def test_every_query_of_the_runbooks_reads_what_exists() -> None:
    rule = [
        Recording(f"check:{name}{i}", query)
        for name, book in GUIDANCE.items()
        for i, (_, query) in enumerate(book.queries)
        if "ALERTS" not in query
    ]
    groups = tuple(g for groups in rules(WITH_SLO).values() for g in groups)
    found = lint(WITH_SLO, (*groups, Group("runbooks", tuple(rule))), frozenset(GUIDANCE))
    assert [f for f in found if f.check not in ("unused", "size")] == []


def test_every_alert_links_to_a_panel_that_exists() -> None:
    import json

    for alert in (r for g in rules(WITH_SLO)["alerts"] for r in g.rules if isinstance(r, Alert)):
        uid, _, title = alert.dashboard.partition(":")
        board = json.loads((ROOT / "dashboards" / f"{uid}.json").read_text())
        panels = {p["id"]: p["title"] for p in board["panels"]}
        assert panels.get(links.panel_id(title)) == title, (alert.name, title)
        assert f"viewPanel={links.panel_id(title)}" in alert.annotations["dashboard_url"]


def test_every_kind_of_engine_error_is_fatal_or_noisy_or_told_by_another_alert() -> None:
    kinds = (*ticket_presence.FATAL, *ticket_presence.NOISY, "kv_preemption")
    assert sorted(kinds) == sorted(ERROR_KINDS)
    meaning = GUIDANCE["VLLMEngineErrors"].meaning
    assert all(kind in meaning for kind in kinds if kind != "kv_preemption")


def test_every_limit_says_when_to_move_it() -> None:
    for name in Limits.__dataclass_fields__:
        assert move_when(name).endswith("."), name


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"alerts": {"limits": {"tail_ratio": -1}}}, "alerts.limits.tail_ratio: expected more than 0"),
        ({"alerts": {"limits": {"tail_ration": 5}}}, "alerts.limits.tail_ration: unknown key"),
        ({"thresholds": {"holdd": 5}}, "thresholds.holdd: unknown key; did you mean hold?"),
        ({"alerts": {"evaluation_interval": "10m"}}, "alerts.evaluation_interval: expected at most 300s"),
        ({"alerts": {"evaluation_interval": "15500ms"}}, "alerts.evaluation_interval: expected whole seconds"),
        ({"alerts": {"slos": [{"name": "x", "indicator": "tftt"}]}}, "alerts.slos[0].indicator: expected 'ttft'"),
        ({"alerts": {"identity_labels": ["no-dash"]}}, "alerts.identity_labels[0]: expected a label name"),
        ({"alerts": {"batch": {"models": ["("]}}}, "alerts.batch.models[0]: not a regular expression"),
        ([], "expected keys and values at the top, got a list"),
        ({"alerts": {"limits": {"qeue_for": 5}}}, "alerts.limits.qeue_for: unknown key; did you mean queue_for?"),
        ({"alerts": {"limits": {"truncated_ratio": 3}}}, "truncated_ratio: expected a share from 0 to 1"),
        ({"alerts": {"limits": {"truncated_ratio": 1}}}, "truncated_ratio: expected less than 1, got 1"),
        ({"alerts": {"limits": {"queue_for": 900}}}, "alerts.limits.queue_for: 900 is no duration: write 900s"),
        ({"alerts": {"limits": {"tail_ratio": "4"}}}, 'tail_ratio: expected a number, got "4": write 4 without quotes'),
        ({"alerts": {"thresholds": {}}}, "alerts.thresholds: write thresholds at the top of the file"),
        ({"alerts": {"limits": {"stale_seconds": 9}}}, 'stale_seconds: is called stale_for now: write stale_for: "2m"'),
        (
            {"team": "a", "slos": [], "limits": {"queue_for": 900}, "thresholds": {}},
            "slos, team, limits.queue_for: the alert config is the section alerts now",
        ),
        ({"thresholds": {"kv_pressure_ratio": 90}}, "kv_pressure_ratio: expected a share from 0 to 1"),
        ({"thresholds": {"hold": "45"}}, 'thresholds.hold: "45" is no duration: write 45s'),
        ({"alerts": {"slos": [{"name": "x"}]}}, "alerts.slos[0].indicator: is needed"),
    ],
)
def test_a_mistake_in_the_config_is_named_by_its_key(raw: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError) as error:
        section.alerts(path)
    assert said in str(error.value)
    done = typed("rules", "build", "--config", path, "-o", tmp_path)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_a_file_that_cannot_be_read_or_written_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1\nb: 2")
    (tmp_path / "file").write_text("")
    for arguments, said in (
        (["--config", str(broken)], "broken.yaml:2:2: expected ',' or ']'"),
        (["--config", str(tmp_path / "none.yaml")], "none.yaml: No such file"),
        (["--out", str(tmp_path / "file")], "cannot be written: File exists"),
    ):
        done = typed("rules", "build", *arguments)
        assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
        assert said in done.output


def test_rules_judge_by_the_thresholds_of_the_daemon_in_the_same_file() -> None:
    assert parse_alerts({"targets": ["a"], "thresholds": {"hold": "45s"}}).thresholds.hold == 45


def test_an_slo_between_buckets_is_built_and_said(tmp_path: Path) -> None:
    path, slo = tmp_path / "a.yaml", {"name": "ft", "indicator": "ttft", "share": 0.99, "output_tokens": LENGTHS}
    for threshold, notes in (("5s", 0), ("3s", 1)):
        slos = [{**slo, "threshold": threshold}]
        path.write_text(yaml.safe_dump({"alerts": {"runbook_base": "https://x", "slos": slos}}))
        done = typed("rules", "build", "--config", path, "--mode", "both", "-o", tmp_path)
        assert done.exit_code == 0
        assert done.output.count("take 2s500ms or 5s") == notes


def test_an_override_reaches_rule_text_and_runbook() -> None:
    texts = outputs(parse_alerts({"alerts": {"limits": {"truncated_ratio": 0.5}, "team": "serving"}}))
    assert ">= 0.5 and" in texts["alerts.yml"]
    assert "limit 50%" in texts["alerts.yml"]
    assert "team: serving" in texts["alerts.yml"]
    assert "`truncated_ratio: 0.5`" in texts["runbooks/VLLMResponsesTruncated.md"]


def test_runbooks_print_the_thresholds_of_the_config_and_nothing_unfilled() -> None:
    texts = outputs(parse_alerts({"thresholds": {"stall_after": "1m30s", "thrash_repeat_ratio": 0.2}}))
    assert "for 90 seconds nothing moved" in texts["runbooks/VLLMStalled.md"]
    assert "or 20% of the finished requests" in texts["runbooks/VLLMThrashing.md"]
    books = "\n".join(text for name, text in texts.items() if name.startswith("runbooks/VLLM"))
    prose = re.sub(r"```promql.*?```", "", books, flags=re.DOTALL)
    assert not [line for line in prose.splitlines() if "{" in line or ".. |" in line]


def test_the_example_in_the_documents_is_a_valid_config() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    example = next(block for block in text.split("```yaml\n")[1:] if block.startswith("# vllm-vitals.yaml"))
    config = parse_alerts(yaml.safe_load(example.partition("```")[0]))
    assert [slo.output_tokens for slo in config.slos] == [OutputLength(mean=300, p99=1200)]
    assert findings(config, rules(config)) == []


LENGTHS = {"mean": 300, "p99": 1200}


def _alert(expr: str, **changes: object) -> Alert:
    base = Alert("VLLMStalled", Severity.PAGE, "x", Scope.ENGINE, expr, "Done.", "d", "u:p", hold=60, keep=600)
    ready = replace(base, labels={"severity": "page"}, annotations={"runbook_url": "r", "dashboard_url": "d"})
    return replace(ready, **changes)  # type: ignore[arg-type]


STATE = 'max by (target, model_name, engine) (vllm_vitals_state{state="stalled"})'


@pytest.mark.parametrize(
    ("alert", "check"),
    [
        (_alert(STATE), "comparison"),
        (_alert(STATE + " == 1", hold=0), "for"),
        (_alert(STATE + " == 1", keep=0), "keep"),
        (_alert(STATE + " == 1", summary="Done"), "summary"),
        (_alert(STATE + " == 1", labels={"severity": "pgae"}), "severity"),
        (_alert(STATE + " == 1", labels={"severity": "page", "v": "{{ $value }}"}), "labels"),
        (_alert(STATE + " == 1", annotations={"runbook_url": "r"}), "annotations"),
        (_alert(STATE + " == 1", description="{{ $labels.pod }}"), "template"),
        (_alert(STATE + " == 1", description="{{ with printf `max(vllm_vitals_nope{%[1]s})` $e | query }}"), "query"),
        (_alert(STATE + " == 1", description="{{ with printf `max(` $e | query }}"), "query"),
        (_alert(STATE + " == 1", name="VLLMNew"), "runbook"),
        (_alert("max(vllm_vitals_nope) == 1"), "unknown"),
        (_alert('max(vllm:num_requests_runing{engine="0"}) == 1'), "unknown"),
        (_alert("max(vllm_vitals_preemptions_total) > 5"), "counter"),
        (_alert("max(rate(vllm_vitals_requests_running[61s])) > 5"), "gauge"),
        (_alert("max(rate(vllm_vitals_preemptions_total[16s])) > 5"), "range"),
        (_alert('max(vllm_vitals_state{status="x"}) == 1'), "label"),
        (_alert('max(vllm_vitals_state{state=~"stalled"}) == 1'), "regexp"),
        (_alert('max(vllm_vitals_state{job="vitals"}) == 1'), "job"),
        (_alert("topk(1, vllm_vitals_requests_running) > 1"), "topk"),
        (_alert("max(rate(vllm_vitals_preemptions_total)) > 1"), "syntax"),
    ],
)
def test_the_linter_finds(alert: Alert, check: str) -> None:
    found = lint(Config(), (Group("g", (alert,)),), frozenset({"VLLMStalled"}))
    assert check in {f.check for f in found}, [str(f) for f in found]


def test_the_linter_finds_nothing_in_a_clean_alert() -> None:
    assert lint(Config(), (Group("g", (_alert(STATE + " == 1"),)),), frozenset({"VLLMStalled"})) == []


def test_the_linter_finds_duplicates_unused_recordings_long_intervals_and_long_groups() -> None:
    one = _alert(STATE + " == 1")
    group = Group("g", (*[one] * 20, Recording("engine:nobody:reads", STATE)), interval=600)
    checks = {f.check for f in lint(Config(), (group,), frozenset({"VLLMStalled"}))}
    assert {"duplicate", "unused", "interval", "size"} <= checks


@pytest.mark.parametrize(
    ("exprs", "check"),
    [
        (("max(vllm_vitals_requests_running or last_over_time(a:b:c[5m]))",), "circle"),
        (("a:b:d", "a:b:c"), "circle"),
        (("vllm_vitals_requests_running or max_over_time(vllm_vitals_requests_waiting[5m])",), "names"),
        (("(vllm_vitals_requests_running > 1 or vllm_vitals_requests_waiting) * 2",), "names"),
        (("max(vllm_vitals_requests_running or vllm_vitals_requests_waiting) * 2", "a:b:c"), ""),
        (("vllm_vitals_requests_running or vllm_vitals_requests_running offset 1m", "a:b:c"), ""),
    ],
)
def test_the_linter_finds_records_that_a_replay_cannot_follow(exprs: tuple[str, ...], check: str) -> None:
    rules_ = tuple(Recording(f"a:b:{name}", expr) for name, expr in zip("cd", exprs, strict=False))
    found = {f.check for f in lint(Config(), (Group("g", rules_),), frozenset())} & {"circle", "names"}
    assert found == ({check} if check else set())


def test_only_native_keeps_recordings() -> None:
    group = Group("g", (Recording("a:b:c", STATE), _alert("max(vllm_vitals_advice) == 1")))
    assert only_native(Config(), (group,))[0].rules == (group.rules[0],)


def test_promtool_accepts_what_an_operator_would_load(tmp_path: Path) -> None:
    written = outputs(WITH_BATCH)
    for name in ("alerts", "recording", "native"):
        path = tmp_path / f"{name}.yml"
        path.write_text(written[f"{name}.yml"])
        for tool in versions("promtool"):
            done = run(tool, "check", "rules", str(path))
            assert done.returncode == 0, done.stdout + done.stderr
