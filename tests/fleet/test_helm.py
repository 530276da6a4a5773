"""The Helm chart, rendered and linted by Helm itself, for sets of values that people have."""

import gzip
import json
import re
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.fleet.test_kubernetes import test_every_object_is_one_that_the_cluster_takes as assert_taken
from tests.programs import missing
from vllm_vitals import __version__
from vllm_vitals.config import loader
from vllm_vitals.config.alerts import Config
from vllm_vitals.kubernetes import presets
from vllm_vitals.kubernetes.build import in_cluster
from vllm_vitals.rules import routing

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/kubernetes/chart"
CHART = ROOT / "deploy" / "helm" / "vllm-vitals"
Object = dict[str, Any]

try:
    import helm_python as helm
except ImportError:
    helm = None

VALUES: dict[str, Object] = {
    "as it is": {},
    "kube-prometheus-stack, shards and twins": {
        "operatorLabels": {"release": "kube-prometheus-stack"},
        "shards": 3,
        "replicas": 2,
        "networkPolicy": {
            "enabled": True,
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        },
        "image": {"repository": "registry.example/vllm-vitals", "digest": "sha256:" + "0" * 64},
        "alertmanagerConfig": {
            "enabled": True,
            "receivers": [
                {
                    "name": "pager",
                    "pagerdutyConfigs": [{"routingKey": {"name": "pagerduty", "key": "routing-key"}}],
                }
            ],
        },
    },
    "service monitor, Grafana operator": {
        "monitor": {"kind": "ServiceMonitor", "interval": "30s"},
        "dashboards": {"kind": "GrafanaDashboard", "folder": "LLM"},
        "rules": {"mode": "both"},
        "networkPolicy": {"enabled": True},
    },
    "no daemon": {"daemon": False, "rules": {"mode": "native"}, "dashboards": {"annotations": {"folder": "LLM"}}},
    "secrets, a config of one's own, placement": {
        "secretMounts": ["vllm-token", "other-token"],
        "webConfigSecret": "vllm-vitals-web",
        "existingConfigMap": "my-config",
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"create": False, "name": "observers"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "monitoring", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "podLabels": {"team": "serving"},
        "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        "priorityClassName": "system-cluster-critical",
        "extraArgs": ["--log.level=debug"],
        "replicas": 2,
        "monitor": {"kind": "none"},
        "dashboards": {"kind": "none"},
        "rules": {"mode": "none"},
    },
    "pods by label, asked of the API": {
        "presets": [{"name": "app=vllm", "namespace": "monitoring"}],
        "discoverBy": "api",
        "networkPolicy": {"enabled": True},
    },
}  # fmt: skip


def rendered(values: Object) -> list[Object]:
    """Return every object, by real Helm."""
    return json.loads(_rendered(json.dumps(values)))  # type: ignore[no-any-return]


@lru_cache
def _rendered(values: str) -> str:
    with library().Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(json.loads(values)))
        texts = chart.render(json.loads(values), name="vitals", namespace="monitoring")
    manifests = [text for path, text in texts.items() if not path.endswith(".txt")]
    documents = [document for text in manifests for document in yaml.load_all(text, yaml.CSafeLoader)]
    return json.dumps([document for document in documents if document])


def library() -> Any:
    if helm is None:
        missing("Helm as a library is not here: pip install helm-python-sdk (x86-64 Linux)")
    return helm


def of(kind: str, values: Object) -> list[Object]:
    return [document for document in rendered(values) if document["kind"] == kind]


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_object_is_one_that_the_cluster_takes(values: Object) -> None:
    objects = rendered(values)
    assert objects
    for document in objects:
        assert_taken(document)
        assert document["metadata"]["namespace"] == "monitoring"
    names = [(document["kind"], document["metadata"]["name"]) for document in objects]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_lint_has_nothing_but_the_missing_icon(values: Object) -> None:
    report = library().lint(CHART, values, strict=True, kube_version="v1.37.0")
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_presets_are_those_of_kubernetes_build() -> None:
    chosen = [("llm-d", 8000), ("llm-d", 8200), ("aibrix", 8080), ("dynamo", 9090)]
    listed = [{"name": name, "namespace": "serving", "port": port} for name, port in chosen]
    del listed[0]["port"]
    values = {"presets": listed, "networkPolicy": {"enabled": True}}
    ours = [presets.Chosen(name, port, "serving") for name, port in chosen]
    services = [each for each in rendered(values) if each["metadata"]["namespace"] == "serving"]
    for each in services:
        assert_taken(each)
    # Helm sorts by name
    by_port = sorted(services, key=lambda each: [port for _, port in chosen].index(each["spec"]["ports"][0]["port"]))
    assert [each["spec"] for each in by_port] == [presets.service(one)["spec"] for one in ours]
    [config] = [each for each in of("ConfigMap", values) if "config.yml" in each["data"]]
    found = yaml.safe_load(config["data"]["config.yml"])["discovery"]
    hosts = {f"{each['metadata']['name']}.serving.svc.cluster.local" for each in services}
    assert {entry["dns_sd"]["names"][0] for entry in found} == hosts
    assert [entry["dns_sd"]["port"] for entry in found] == [port for _, port in chosen]
    loader.build("", {"discovery": found})
    [policy] = of("NetworkPolicy", values)
    assert {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]} == {53, 8000, 8080, 8200, 9090}
    pods = [of("Deployment", each)[0]["spec"]["template"] for each in ({}, values)]
    assert pods[0]["metadata"]["annotations"] != pods[1]["metadata"]["annotations"]


def test_the_api_is_asked_with_the_right_to_list_slices_and_no_other() -> None:
    listed = [{"name": name, "namespace": "serving"} for name in ("llm-d", "app.kubernetes.io/name=Chat_70b")]
    values = {"presets": listed, "discoverBy": "api", "apiNamespaces": ["own"], "networkPolicy": {"enabled": True}}
    roles, bindings = of("Role", values), of("RoleBinding", values)
    for each in [*roles, *bindings]:
        assert_taken(each)
    assert {each["metadata"]["namespace"] for each in roles} == {"own", "serving"}
    assert [each["rules"] for each in roles] == [presets.rights(["x"], "", "")[0]["rules"]] * 2
    [account] = of("ServiceAccount", values)
    for role, binding in zip(roles, bindings, strict=True):
        assert role["metadata"] == binding["metadata"]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "monitoring"}
        ]
    [config] = [each for each in of("ConfigMap", values) if "config.yml" in each["data"]]
    found = yaml.safe_load(config["data"]["config.yml"])["discovery"]
    services = {
        each["metadata"]["name"]: each for each in rendered(values) if each["metadata"]["namespace"] == "serving"
        and each["kind"] == "Service"
    }  # fmt: skip
    assert [each["kubernetes_sd"]["service"] for each in found] == [
        "vitals-vllm-vitals-llm-d", "vitals-vllm-vitals-app-kubernetes-io-name-chat-70b",
    ]  # fmt: skip
    assert set(services) == {each["kubernetes_sd"]["service"] for each in found}
    assert services[found[1]["kubernetes_sd"]["service"]]["spec"]["selector"] == {"app.kubernetes.io/name": "Chat_70b"}
    loader.build("", {"discovery": found})
    [policy] = of("NetworkPolicy", values)
    assert 6443 in {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert not of("Role", {"presets": listed})
    [pod] = of("Deployment", {"apiNamespaces": ["own"]})
    assert pod["spec"]["template"]["spec"]["automountServiceAccountToken"] is True


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"shard": 2}, "shard"),
        ({"discoverBy": "api", "presets": [{"name": "app=", "namespace": "a"}]}, "name"),
        ({"discoverBy": "API"}, "discoverBy"),
        ({"replicas": 0}, "replicas"),
        ({"monitor": {"kind": "Podmonitor"}}, "kind"),
        ({"image": {"digest": "sha256:abc"}}, "digest"),
        ({"presets": [{"name": "llmd", "namespace": "a"}]}, "name"),
        ({"presets": [{"name": "llm-d"}]}, "namespace"),
        ({"alertmanagerConfig": {"receivers": [{"name": "oncall"}]}}, "name"),
    ],
)
def test_a_wrong_value_is_named(values: Object, named: str) -> None:
    with pytest.raises(library().HelmError, match=named):
        rendered(values)


def test_rules_of_a_daemon_that_is_not_there_are_refused() -> None:
    with pytest.raises(library().HelmError, match=r"set rules\.mode to native"):
        rendered({"daemon": False})


def test_rules_and_dashboards_are_those_that_were_generated() -> None:
    for rule in of("PrometheusRule", {"rules": {"mode": "both"}}):
        name = rule["metadata"]["name"].removeprefix("vitals-vllm-vitals-")
        assert rule["spec"] == yaml.safe_load((RULES / f"{name}.yml").read_text())
    texts = {k: v for d in of("ConfigMap", {}) for k, v in d["data"].items() if k.endswith(".json")}
    assert set(texts) == {path.name for path in (ROOT / "dashboards").glob("*.json")}
    for name, text in texts.items():
        assert json.loads(text) == json.loads((ROOT / "dashboards" / name).read_text())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `helm package` writes."""
    with library().Chart.load(CHART) as chart:
        return Path(chart.save(tmp_path_factory.mktemp("chart")))


def test_the_package_holds_the_files_themselves(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        assert not [member.name for member in packed if member.issym()]
        held = packed.extractfile("vllm-vitals/files/rules/alerts.yml")
        assert held is not None
        assert held.read() == (RULES / "alerts.yml").read_bytes()


def test_without_the_daemon_no_alert_waits_for_it() -> None:
    values = VALUES["no daemon"]
    assert {document["kind"] for document in rendered(values)} == {"PrometheusRule", "ConfigMap"}
    names = {r.get("alert") for d in of("PrometheusRule", values) for g in d["spec"]["groups"] for r in g["rules"]}
    assert "VLLMDeathSpiral" in names
    assert "VLLMExporterDown" not in names


def test_routes_and_inhibitions_are_alertmanagers_own() -> None:
    [config] = of("AlertmanagerConfig", VALUES["kube-prometheus-stack, shards and twins"])
    ours = routing.document(in_cluster(Config()))

    def texts(matchers: list[Object]) -> list[str]:
        return [f'{m["name"]}{m["matchType"]}"{m["value"]}"' for m in matchers]

    rules = config["spec"]["inhibitRules"]
    assert [(texts(r["sourceMatch"]), texts(r["targetMatch"]), r["equal"]) for r in rules] == [
        (r["source_matchers"], r["target_matchers"], r["equal"]) for r in ours["inhibit_rules"]
    ]
    assert [(r["receiver"], texts(r["matchers"])) for r in config["spec"]["route"]["routes"]] == [
        (r["receiver"], r["matchers"]) for r in ours["route"]["routes"]
    ]
    receivers = {r["name"]: set(r) - {"name"} for r in config["spec"]["receivers"]}
    assert receivers == {"pager": {"pagerdutyConfigs"}, "tickets": set(), "watchdog": set()}


def test_shards_and_twins_select_their_own_pods_alone() -> None:
    values = VALUES["kube-prometheus-stack, shards and twins"]
    deployments, budgets = of("Deployment", values), of("PodDisruptionBudget", values)
    arguments = [d["spec"]["template"]["spec"]["containers"][0]["args"][-1] for d in deployments]
    assert arguments == ["--shard=1/3", "--shard=2/3", "--shard=3/3"]
    assert all(d["spec"]["selector"]["matchLabels"].items() <= d["spec"]["template"]["metadata"]["labels"].items()
               for d in deployments)  # fmt: skip
    selectors = [d["spec"]["selector"] for d in deployments]
    assert [b["spec"]["selector"] for b in budgets] == selectors
    assert len({json.dumps(selector) for selector in selectors}) == 3
    assert not of("PodDisruptionBudget", {})
    [service], [monitor] = of("Service", values), of("PodMonitor", values)
    pod = deployments[0]["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], monitor["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= pod.items()
    assert pod[monitor["spec"]["jobLabel"]] == "vllm-vitals"  # the job that VLLMExporterDown asks for


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_nothing_runs_as_root_or_may_write_or_holds_a_token(values: Object) -> None:
    for deployment in of("Deployment", values):
        pod = deployment["spec"]["template"]["spec"]
        asks = values.get("discoverBy") == "api"
        assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, asks)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        assert writable == ["data"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_config_inside_is_one_that_the_daemon_takes(tmp_path: Path) -> None:
    [config] = [d for d in of("ConfigMap", {}) if "config.yml" in d["data"]]
    file = tmp_path / "config.yml"
    file.write_text(config["data"]["config.yml"])
    assert loader.load(file).discovery
    sums = {
        of("Deployment", values)[0]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for values in ({}, {"config": {"interval": "10s"}})
    }
    assert len(sums) == 2


def test_a_release_fits_into_the_secret_that_helm_keeps_it_in(archive: Path) -> None:
    manifests = gzip.compress(json.dumps(rendered({"rules": {"mode": "both"}})).encode())
    assert (len(manifests) + archive.stat().st_size) * 4 / 3 < 1_000_000  # of 1 MiB


def test_every_value_is_in_the_readme_and_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text()))
    explained = set(re.findall(r"^\| `([\w.]+)`", (CHART / "README.md").read_text(), re.MULTILINE))
    assert {key.split(".")[0] for key in explained} == set(values)
