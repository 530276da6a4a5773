"""Every alert against its own trouble: it fires in time and not before, and is quiet where it must be.

The cases are data (`cases`), compiled to promtool tests (`scenario`), and run against the committed rules by the
promtool that is installed. Each case is evaluated with the rules that it asks about alone (`slices`).
"""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.programs import versions
from tests.rules import rulesets
from tests.rules.cases import CASES, PAGES, SLOS, TARGET, gauge, states
from tests.rules.scenario import STEP, Series, compiled, document, firing, flat, seven, simulate, trouble, values
from tests.rules.texts import FILE, firing_test, key
from tests.rules.tools import RULES, promtool_test
from vllm_vitals.config.alerts import Batch, Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.build import rules
from vllm_vitals.rules.model import Alert

HEALTHY = states(State.HEALTHY)
# What users who can wait are not paged for.
LOAD = {"VLLMThrashing", "VLLMOverload", "VLLMSLOBurn"}
DEFAULT = [case for case in CASES if case.ruleset == "default"]


def alerts_of(config: Config) -> list[Alert]:
    return [r for g in rules(config)["alerts"] for r in g.rules if isinstance(r, Alert)]


def test_each_alert_fires_in_time_and_is_quiet_where_it_must_be(tmp_path: Path) -> None:
    *older, newest = versions("promtool")
    said = promtool_test(document([*compiled(DEFAULT)], rulesets.DAEMON), tmp_path, "alerts", newest)
    assert not said, said[:4000]
    # Ranges are left-open from Prometheus 3 on: both must agree to the second.
    times = [*compiled(DEFAULT, of=lambda variant: variant.times)]
    for tool in older:
        said = promtool_test(document(times, rulesets.DAEMON), tmp_path, "alerts", tool)
        assert not said, said[:4000]


def test_slo_burns_page_and_ticket(tmp_path: Path) -> None:
    built = rulesets.build(rulesets.WITH_SLO, tmp_path)
    said = promtool_test(document([*compiled(SLOS)], built), tmp_path, "slo")
    assert not said, said[:4000]


@pytest.mark.parametrize("ruleset", ["default", "slo"])
def test_each_alert_says_what_is_kept_in_texts(ruleset: str, tmp_path: Path) -> None:
    kept = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    built = rulesets.DAEMON if ruleset == "default" else rulesets.build(rulesets.WITH_SLO, tmp_path)
    tests = [firing_test(case, kept[key(case)]) for case in CASES if case.ruleset == ruleset]
    said = promtool_test(document(tests, built), tmp_path, "texts")
    assert not said, said[:6000]


def test_no_text_holds_a_template_that_failed() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert "error expanding" not in text
    assert "NaN" not in text
    assert "EXTRA" not in text


def test_every_alert_has_a_case_and_every_case_an_alert() -> None:
    built = {(a.name, str(a.severity)) for a in alerts_of(Config())}
    with_slo = {(a.name, str(a.severity)) for a in alerts_of(rulesets.WITH_SLO)}
    assert {(c.alert, c.severity) for c in DEFAULT} == built
    assert {(c.alert, c.severity) for c in SLOS} == with_slo - built


def test_every_alert_is_asked_to_fire_and_to_be_quiet() -> None:
    for case in CASES:
        checks = [c for one in seven(case) for c in one.checks]
        assert any(c["exp_samples"] for c in checks), case.alert
        assert case.always or any(not c["exp_samples"] for c in checks), case.alert


def test_the_rule_files_under_test_exist_and_are_the_committed_ones() -> None:
    assert all(Path(path).is_file() and Path(path).parent == RULES for path in rulesets.NATIVE)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('state="death_spiral"', 'state="thrashing"'),
        ("for: 3m", "for: 4m"),
        ("keep_firing_for: 10m", "keep_firing_for: 9m"),
    ],
)
def test_a_broken_rule_is_noticed(was: str, now: str, tmp_path: Path) -> None:
    text = (RULES / "alerts.yml").read_text(encoding="utf-8")
    assert was in text
    broken = tmp_path / "alerts.yml"
    broken.write_text(text.replace(was, now), encoding="utf-8")
    tests = [*compiled(PAGES, of=lambda variant: variant.times)]
    assert promtool_test(document(tests, [str(RULES / "recording.yml"), str(broken)]), tmp_path, "broken")


def test_two_exporters_and_both_producers_at_once_are_one_alert(tmp_path: Path) -> None:
    spiral = PAGES[0]
    assert spiral.alert == "VLLMDeathSpiral"

    def copies(series: Series) -> list[Series]:
        twin = replace(series, labels={**series.labels, "instance": "vitals-b:9840"})
        native = replace(series, labels={k: v for k, v in series.labels.items() if k not in {"job", "instance"}})
        return [series, twin, native]

    seconds = spiral.lead + 600
    rows = [
        (copy, values(copy, trouble(spiral, 10**9), seconds, spiral.lead)) for s in spiral.series for copy in copies(s)
    ]
    everything = {
        "expr": 'count(ALERTS{alertstate="firing",severity="page"})',
        "eval_time": f"{seconds}s",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    tests = [simulate("two exporters and native", rows, [firing(spiral, seconds, [spiral.labels]), everything])]
    assert not promtool_test(document(tests, rulesets.DAEMON), tmp_path, "twice")


def test_a_restarting_exporter_does_not_page_twice(tmp_path: Path) -> None:
    """Its series are gone for two minutes and it knows nothing at first; the page keeps firing throughout."""
    spiral = PAGES[0]
    seconds, gone = spiral.lead + 1200, range(spiral.lead + 300, spiral.lead + 420, STEP)
    rows = []
    for series in spiral.series:
        cells = values(series, trouble(spiral, 10**9), seconds, spiral.lead).split()
        for at in gone:
            cells[at // STEP] = "stale" if at == gone[0] else "_"
        rows.append((series, " ".join(cells)))
    checks = [firing(spiral, at, [spiral.labels]) for at in range(spiral.lead, seconds, STEP)]
    assert not promtool_test(
        document([simulate("restart of the exporter", rows, checks)], rulesets.DAEMON), tmp_path, "gone"
    )


def test_batch_services_page_only_for_spirals_stalls_and_lost_models(tmp_path: Path) -> None:
    built = rulesets.build(rulesets.WITH_BATCH, tmp_path)
    quiet, loud = [], []
    for case in (c for c in (*PAGES, *SLOS) if c.severity == "page"):
        mine = replace(
            case,
            series=tuple(
                replace(s, labels={**s.labels, **({"model_name": "nightly-embed"} if "model_name" in s.labels else {})})
                for s in case.series
            ),
            labels={**case.labels, "model_name": "nightly-embed"},
        )
        fires = mine.lead + mine.after + 60
        rows = [(s, values(s, trouble(mine, 10**9), fires, mine.lead)) for s in mine.series]
        muted = case.alert in LOAD
        (quiet if muted else loud).append(case.alert)
        check = firing(mine, fires, [] if muted else [mine.labels])
        assert not promtool_test(document([simulate(case.alert, rows, [check])], built), tmp_path, case.alert)
    assert set(quiet) == LOAD
    assert set(loud) == {case.alert for case in PAGES} - LOAD


def muted_by_the_exporter(tmp_path: Path, service_class: str) -> dict[str, bool]:
    """Of the pages that users who can wait need not cause: whether each keeps quiet for a server of this class."""
    built = rulesets.build(rulesets.WITH_SLO, tmp_path)
    quiet = {}
    for case in (*PAGES, *SLOS):
        if case.severity != "page":
            continue
        fires = case.lead + case.after + 60
        told = gauge("target_service_class", 1, 1, 1, 1, TARGET, service_class=service_class)
        rows = [(s, values(s, trouble(case, 10**9), fires, case.lead)) for s in (*case.series, told)]
        fired = simulate(case.alert, rows, [firing(case, fires, [case.labels])])
        quiet[case.alert] = bool(promtool_test(document([fired], built), tmp_path, case.alert))
    return quiet


def test_a_server_that_the_exporter_calls_batch_pages_only_for_spirals_stalls_and_lost_models(tmp_path: Path) -> None:
    quiet = muted_by_the_exporter(tmp_path, "batch")
    assert {alert for alert, muted in quiet.items() if muted} == LOAD
    assert not any(muted_by_the_exporter(tmp_path, "interactive").values())


def test_a_target_that_the_alert_config_calls_batch_is_in_no_promise_and_pages_for_no_thrashing(tmp_path: Path) -> None:
    built = rulesets.build(replace(rulesets.WITH_SLO, batch=Batch(targets=("gpu[0-9]:8000",))), tmp_path)
    for case in (c for c in (*PAGES, *SLOS) if c.alert in {"VLLMThrashing", "VLLMSLOBurn"} and c.severity == "page"):
        fires = case.lead + case.after + 60
        engine = case.series if any(s.name.endswith("_state") for s in case.series) else (*case.series, *HEALTHY)
        rows = [(s, values(s, trouble(case, 10**9), fires, case.lead)) for s in engine]
        assert not promtool_test(
            document([simulate(case.alert, rows, [firing(case, fires, [])])], built), tmp_path, "t"
        )


def test_a_model_scaled_to_zero_is_not_unavailable(tmp_path: Path) -> None:
    """Discovery removed its targets: their series end, none is down."""
    case = next(c for c in PAGES if c.alert == "VLLMModelUnavailable")
    rows = []
    for series in case.series:
        cells = values(series, flat("calm"), 1200, case.lead).split()
        rows.append((series, " ".join([*cells[: case.lead // STEP], "stale"])))
    checks = [firing(case, at, []) for at in range(0, 1200, STEP)]
    assert not promtool_test(document([simulate("zero", rows, checks)], rulesets.DAEMON), tmp_path, "zero")


def test_promtool_of_every_release_accepts_the_rules() -> None:
    from tests.rules.tools import run

    for tool in versions("promtool"):
        done = run(tool, "check", "rules", *rulesets.NATIVE)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


def test_a_server_never_yet_seen_is_a_ticket_in_plain_words_and_no_page(tmp_path: Path) -> None:
    """It may still be loading: it has no model, so no model is unavailable."""
    unseen = {"target": "gpu9:8000", "model_name": "", "engine": ""}
    inside = ",".join(f'{k}="{v}"' for k, v in {**unseen, "job": "vllm-vitals"}.items())
    inputs = [{"series": f'vllm_vitals_state{{{inside},state="down"}}', "values": "1x80"}]
    checks = [{"expr": 'ALERTS{severity="page"}', "eval_time": "20m", "exp_samples": []}]
    text = {
        "exp_labels": {"severity": "ticket", "signal": "availability", "target": "gpu9:8000"},
        "exp_annotations": {
            "summary": "A model not yet seen on gpu9:8000 does not answer.",
            "runbook_url": "alerts/runbooks/VLLMEngineDown.md",
        },
    }
    alert = {"eval_time": "20m", "alertname": "VLLMEngineDown", "exp_alerts": [text]}
    one = {"interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": checks, "alert_rule_test": [alert]}
    # The long description is left out of what is expected, so promtool complains, and shows what came.
    said = promtool_test(document([one], rulesets.DAEMON), tmp_path, "unseen")
    assert "ALERTS" not in said, said
    assert 'summary="A model not yet seen on gpu9:8000 does not answer."' in said.partition("got:")[2]
