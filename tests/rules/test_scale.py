"""What to scale by: engines needed and the concurrency limit, as Prometheus itself records them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml

from bench import scaling as bench
from tests.rules.tools import promtool_test
from tests.typed import typed
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.kubernetes import scaling
from vllm_vitals.kubernetes.build import _scaling
from vllm_vitals.rules.build import rules
from vllm_vitals.rules.model import Recording, groups_dict
from vllm_vitals.rules.scale import LIMIT, NEEDED

MINUTES = 13
STEPS = 4 * MINUTES  # every 15 s
Courses = dict[str, str]  # what an engine shows, as promtool writes courses; unsaid: a calm engine
CALM = {
    "running": f"10x{STEPS}", "waiting": f"0x{STEPS}", "finished": f"0+15x{STEPS}", "usage": f"0.5x{STEPS}",
}  # fmt: skip

# A model each, whose engines carry 2 requests/s: its engines, and what is recorded.
CASES: dict[str, tuple[list[Courses], dict[str, float | None]]] = {
    # each finishes 1 request/s: 1.08 x 3 / 2 = 1.6, so 2. Each holds 0.9 x 10 / 0.5 = 18 requests
    "what is offered": ([{}, {}, {}], {NEEDED: 2, LIMIT: 54}),
    # 600 wait: to be worked off in five minutes, 2/s beside the 1/s that finish
    "a queue counts": ([{"waiting": f"600x{STEPS}"}], {NEEDED: 2}),
    "at most twice and one": ([{"waiting": f"60000x{STEPS}"}], {NEEDED: 3}),
    # one finished 3/s until five minutes ago: 1.08 x (3 + 1 + 1) / 2 = 2.7; now 1.6
    "down after the peak of ten minutes": ([{"finished": "0+45x32 1455+15x20"}, {}, {}], {NEEDED: 3}),
    "never none": ([{"finished": f"0x{STEPS}", "running": f"0x{STEPS}"}], {NEEDED: 1, LIMIT: None}),
    "max_num_seqs bounds": ([{"slots": f"16x{STEPS}"}, {}], {LIMIT: 34}),
    "an idle engine carries what others do": ([{}, {"running": f"0x{STEPS}", "usage": f"0x{STEPS}"}], {LIMIT: 36}),
    "an empty cache tells no context": ([{"usage": f"0.001x{STEPS}"}], {LIMIT: None}),
    'a name with "quotes"': ([{}], {NEEDED: 1, LIMIT: 18}),
}
CAPACITY = {"alerts": {"capacity": dict.fromkeys(CASES, 2.0)}}


def quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def engine(model: str, number: int, said: Mapping[str, str]) -> dict[str, str]:
    """The series of one engine."""
    course, target = {**CALM, **said}, f"target={quoted(f'{model}-{number}')}"
    who = f'{target},model_name={quoted(model)},engine="0"'
    return {
        f"vllm_vitals_requests_running{{{who}}}": course["running"],
        f'vllm_vitals_requests_waiting{{{who},reason="capacity"}}': course["waiting"],
        f'vllm_vitals_responses_total{{{who},finished_reason="stop"}}': course["finished"],
        f"vllm_vitals_kv_cache_usage_ratio{{{who}}}": course["usage"],
        f'vllm_vitals_state{{{who},state="healthy"}}': f"1x{STEPS}",
        **{f'vllm_vitals_state{{{who},state="{state}"}}': f"0x{STEPS}" for state in ("down", "stalled")},
        f"vllm_vitals_target_up{{{target}}}": f"1x{STEPS}",
        **(
            {f'vllm_vitals_server_setting{{{target},name="max_num_seqs"}}': course["slots"]}
            if "slots" in course
            else {}
        ),
    }


def evaluated(folder: Path, expected: Mapping[str, Mapping[str, float | None]]) -> str:
    """What promtool says of all models at once. Each is watched by two daemons, which change nothing."""
    groups = groups_dict(rules(parse_alerts(CAPACITY), frozenset({"daemon"}))["recording"])
    (folder / "recording.yml").write_text(yaml.dump(groups, Dumper=yaml.CSafeDumper))
    series = {
        name.replace("{", f'{{instance="{twin}",', 1): values
        for model, (engines, _) in CASES.items()
        for number, said in enumerate(engines)
        for name, values in engine(model, number, said).items()
        for twin in ("a", "b")
    }
    tests = []
    for model, values in expected.items():
        for name, value in values.items():
            one = f"{name}{{model_name={quoted(model)}}}"
            samples: list[dict[str, Any]] = [] if value is None else [{"labels": one, "value": value}]
            tests.append({"expr": one, "eval_time": f"{MINUTES}m", "exp_samples": samples})
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "15s", "input_series": inputs, "promql_expr_test": tests}
    document = {"rule_files": [str(folder / "recording.yml")], "evaluation_interval": "15s", "tests": [test]}
    return promtool_test(document, folder, "scale")


def test_prometheus_says_each_case(tmp_path: Path) -> None:
    assert evaluated(tmp_path, {model: expected for model, (_, expected) in CASES.items()}) == ""


def test_a_wrong_expectation_is_found(tmp_path: Path) -> None:
    said = evaluated(tmp_path, {"what is offered": {NEEDED: 3}})
    assert "model:vllm_vitals_engines_needed" in said


def test_without_a_capacity_there_is_the_limit_alone() -> None:
    groups = rules(parse_alerts({}))["recording"]
    named = {rule.record for group in groups for rule in group.rules if isinstance(rule, Recording)}
    assert LIMIT in named
    assert NEEDED not in named


@pytest.mark.parametrize(
    ("capacity", "said"), [("{a: 0}", "capacity.a"), ("{a: fast}", "capacity.a"), ("3", "capacity")]
)
def test_a_wrong_capacity_is_named(capacity: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "alerts.yml"
    file.write_text(f"alerts: {{capacity: {capacity}}}\n")
    done = typed("rules", "build", "--config", file, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert said in done.stderr


SCALED_OBJECT = json.loads((Path(__file__).parents[1] / "data" / "kubernetes" / "ScaledObject.json").read_text())
DOCUMENT = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
BLOCKS: list[Any] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)]


def test_the_examples_read_the_series_and_the_cluster_takes_them() -> None:
    by_kind = {block.get("kind", next(iter(block))): block for block in BLOCKS}
    kubernetes_validate.validate(by_kind["HorizontalPodAutoscaler"], "1.37", strict=True)
    assert parse_alerts(by_kind["alerts"]).capacity == {"chat-70b": 1.6}
    query = by_kind["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    assert NEEDED in query
    jsonschema.validate(by_kind["ScaledObject"], SCALED_OBJECT)
    counted = {**by_kind["ScaledObject"]["spec"]["triggers"][0], "metricType": "Value"}
    spoilt = {**by_kind["ScaledObject"], "spec": {**by_kind["ScaledObject"]["spec"], "triggers": [counted]}}
    with pytest.raises(jsonschema.ValidationError, match="AverageValue"):  # KEDA would pass over the fallback
        jsonschema.validate(spoilt, SCALED_OBJECT)
    promql_parser.parse(query)
    (adapter,) = by_kind["externalRules"]["externalRules"]
    assert adapter["seriesQuery"] == NEEDED
    metric = by_kind["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["external"]["metric"]["name"]
    assert adapter["name"]["as"] == metric
    assert LIMIT in DOCUMENT


def test_a_model_s_name_and_identity_go_into_what_is_generated() -> None:
    made = scaling.scaled_object('Org/Chat "70b"', "models")
    jsonschema.validate(made, SCALED_OBJECT)
    assert made["metadata"]["name"] == made["spec"]["scaleTargetRef"]["name"] == "org-chat-70b"
    promql_parser.parse(made["spec"]["triggers"][0]["metadata"]["query"])
    assert "by (namespace, model_name)" in scaling.adapter_rules(("namespace",))["externalRules"][0]["metricsQuery"]
    config = parse_alerts({"alerts": {"capacity": {"b": 2.0, "a": 1.0}}})
    assert _scaling(parse_alerts({})) == {}
    written = {name: list(yaml.safe_load_all(text)) for name, text in _scaling(config).items()}
    assert [each["metadata"]["name"] for each in written["scaling/keda.yml"]] == ["a", "b"]
    for each in written["scaling/autoscalers.yml"]:
        kubernetes_validate.validate(each, "1.37", strict=True)


def test_the_simulated_loop_follows_the_arithmetic_of_the_rules() -> None:
    def burst(now: float) -> float:
        return 4.0 + 2.0 * min(1.0, max(0.0, now - 600) / 300)

    hours = {}
    for name, policy in {"ours": bench.engines_needed(1.6), "cpu": bench.target_value(lambda s: s.busy, 0.8)}.items():
        got = bench.day(policy, burst, 1800, 4, 0)
        assert got.within > 0.98, name
        hours[name] = got.engine_hours
    assert 2.0 < hours["ours"] < 3.0  # 3 engines, then 4 or 5, for half an hour
    assert hours["cpu"] > 1.4 * hours["ours"]
