"""What is generated for Kubernetes, against the schemas of Kubernetes 1.37 and of the Prometheus operator."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.typed import typed
from vllm_vitals.config import loader
from vllm_vitals.config.alerts import Config
from vllm_vitals.config.section import parse_alerts
from vllm_vitals.kubernetes.build import in_cluster, outputs, watched
from vllm_vitals.kubernetes.objects import Site
from vllm_vitals.rules import routing

ROOT = Path(__file__).parent.parent.parent
SCHEMAS = ROOT / "tests" / "data" / "kubernetes"
SITE = Site(watched(None), shards=3, replicas=2, labels={"release": "kps"})


def objects(site: Site = SITE, modes: frozenset[str] = frozenset({"daemon", "native"})) -> list[dict[str, Any]]:
    texts = outputs(site, modes)
    named = yaml.safe_load(texts["Kustomization"])["resources"]
    others = {name for name in set(texts) - set(named) if not name.startswith("chart/")}
    assert others == {"Kustomization", "routes/routes.yml"}
    read = [*named, "routes/routes.yml"]
    return [document for name in read for document in yaml.load_all(texts[name], yaml.CSafeLoader)]


EVERY = objects()


def of(kind: str) -> list[dict[str, Any]]:
    return [document for document in EVERY if document["kind"] == kind]


@pytest.mark.parametrize("document", EVERY, ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_every_object_is_one_that_the_cluster_takes(document: dict[str, Any]) -> None:
    schema = SCHEMAS / f"{document['kind']}.json"
    if schema.exists():
        jsonschema.validate(document, json.loads(schema.read_text()))
    else:
        kubernetes_validate.validate(document, "1.37", strict=True)
    # kubectl keeps what it applied in an annotation, which may have 256 KiB
    assert len(json.dumps(document)) < 250_000


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("Deployment", lambda d: d["spec"]["template"]["spec"].update(containers="one")),
        ("PodMonitor", lambda d: d["spec"]["podMetricsEndpoints"][0].update(honourLabels=True)),
        ("PrometheusRule", lambda d: d["spec"]["groups"][0]["rules"][0].pop("expr")),
    ],
)
def test_the_schemas_find_mistakes(kind: str, spoil: Any) -> None:
    document = json.loads(json.dumps(of(kind)[0]))
    spoil(document)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        test_every_object_is_one_that_the_cluster_takes(document)


def test_all_kinds_are_there_and_names_are_given_once() -> None:
    kinds = {document["kind"] for document in EVERY}
    mine = {"PodMonitor", "PrometheusRule", "AlertmanagerConfig"}
    assert kinds == {"ServiceAccount", "ConfigMap", "Deployment", "Service", *mine}
    names = [(document["kind"], document["metadata"]["name"]) for document in EVERY]
    assert len(set(names)) == len(names)
    assert {document["metadata"]["namespace"] for document in EVERY} == {"vllm-vitals"}


def test_another_operator_gets_its_own_kinds_of_the_same_content() -> None:
    """VictoriaMetrics: what is scraped, judged and routed is what Prometheus' operator is given."""
    victoria = objects(dataclasses.replace(SITE, operator="victoria-metrics"))
    for document in victoria:
        test_every_object_is_one_that_the_cluster_takes(document)
    kinds = {"PodMonitor": "VMPodScrape", "PrometheusRule": "VMRule"}
    for ours, theirs in zip(EVERY, victoria, strict=True):
        if ours["kind"] in kinds:
            assert theirs["apiVersion"] == "operator.victoriametrics.com/v1beta1"
            assert theirs["kind"] == kinds[ours["kind"]]
            assert (theirs["spec"], theirs["metadata"]) == (ours["spec"], ours["metadata"])
        elif ours["kind"] != "AlertmanagerConfig":
            assert theirs == ours
    routes = routing.document(in_cluster(Config()))
    assert victoria[-1]["kind"] == "VMAlertmanagerConfig"
    assert {**routes, "receivers": victoria[-1]["spec"]["receivers"]} == victoria[-1]["spec"]
    names = [receiver["name"] for receiver in victoria[-1]["spec"]["receivers"]]
    assert names == [receiver["name"] for receiver in routes["receivers"]]


def test_what_selects_finds_what_it_means() -> None:
    for deployment in of("Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        pod = deployment["spec"]["template"]["spec"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for selector in (of("Service")[0]["spec"]["selector"], of("PodMonitor")[0]["spec"]["selector"]["matchLabels"]):
            assert selector.items() <= labels.items()
        (container,) = pod["containers"]
        ports = {port["name"] for port in container["ports"]}
        assert of("PodMonitor")[0]["spec"]["podMetricsEndpoints"][0]["port"] in ports
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert pod["serviceAccountName"] == of("ServiceAccount")[0]["metadata"]["name"]


def test_shards_are_numbered_and_never_select_each_others_pods() -> None:
    containers = [d["spec"]["template"]["spec"]["containers"][0] for d in of("Deployment")]
    assert [c["args"][-1] for c in containers] == ["--shard=1/3", "--shard=2/3", "--shard=3/3"]
    selectors = [json.dumps(d["spec"]["selector"]) for d in of("Deployment")]
    assert len(set(selectors)) == 3


def test_nothing_runs_as_root_or_may_write_or_holds_a_token() -> None:
    for deployment in of("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


def test_labels_for_the_operator_stand_on_what_it_selects_and_nowhere_else() -> None:
    for document in EVERY:
        selected = document["kind"] in ("PodMonitor", "PrometheusRule")
        assert ("release" in document["metadata"]["labels"]) is selected


def test_a_config_that_changes_restarts_the_pods() -> None:
    other = objects(Site("interval: '10s'\n"), frozenset({"daemon"}))
    sums = {
        d["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for d in [*EVERY, *other]
        if d["kind"] == "Deployment"
    }
    assert len(sums) == 2


def test_the_config_inside_is_one_that_the_daemon_takes(tmp_path: Path) -> None:
    (inside,) = [d for d in of("ConfigMap") if d["metadata"]["name"] == "vllm-vitals"]
    file = tmp_path / "config.yml"
    file.write_text(inside["data"]["config.yml"])
    assert loader.load(file).discovery


def test_the_committed_file_is_up_to_date_and_a_bad_config_is_one_line(tmp_path: Path) -> None:
    assert typed("kubernetes", "check", "-o", ROOT / "deploy/kubernetes").exit_code == 0
    bad = tmp_path / "bad.yml"
    bad.write_text("discovery: [{}]\n")
    assert typed("kubernetes", "build", "--for", "zabbix", "--out", tmp_path).exit_code == 2
    done = typed("kubernetes", "build", "--config", bad, "--out", tmp_path)
    assert done.exit_code == 2
    one_of = "give exactly one of file_sd, http_sd, kubernetes_sd and dns_sd"
    assert done.stderr == f"vllm-vitals: {bad}: discovery[0].dns_sd: {one_of}\n"


def test_rules_and_dashboards_obey_the_alert_config() -> None:
    own = parse_alerts({"alerts": {"limits": {"truncated_ratio": 0.77}, "identity_labels": ["cluster"]}})
    texts = outputs(SITE, limits=own)
    assert ">= 0.77" in texts["rules.yml"]
    assert "cluster" in texts["dashboards.yml"]
    assert texts["vllm-vitals.yml"] == outputs(SITE)["vllm-vitals.yml"]
    assert ">= 0.77" not in outputs(SITE)["rules.yml"]
