"""Discovery presets: the pods of each platform, and that its pages, as the platform writes them, are understood."""

import dataclasses
import gzip
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.edges.servers import bodies
from tests.typed import typed
from vllm_vitals.config import loader, section
from vllm_vitals.core.dialect import normalise
from vllm_vitals.kubernetes.build import watched
from vllm_vitals.kubernetes.objects import Site, everything
from vllm_vitals.kubernetes.presets import PRESETS, discovery, parse, service
from vllm_vitals.scrape.discovery import DnsSource, KubernetesSource

PLAIN = bodies()[5].decode()
OLD = Path(__file__).parents[1] / "data" / "versions"
# KServe's own, Ray's own and Dynamo's own families, as they stand on the same page as vLLM's
KSERVE = """# HELP request_predict_seconds predict request latency
# TYPE request_predict_seconds histogram
request_predict_seconds_bucket{le="+Inf",model_name="tiny"} 3.0
request_predict_seconds_count{model_name="tiny"} 3.0
request_predict_seconds_sum{model_name="tiny"} 0.4
"""
RAY = """# HELP ray_serve_replica_processing_queries The current number of queries being processed.
# TYPE ray_serve_replica_processing_queries gauge
ray_serve_replica_processing_queries{Component="core_worker",application="llm",deployment="LLMServer",replica="r1"} 2.0
"""
DYNAMO = """# HELP dynamo_component_inflight_requests Number of requests currently being processed by work handler
# TYPE dynamo_component_inflight_requests gauge
dynamo_component_inflight_requests{dynamo_component="backend",dynamo_endpoint="generate",dynamo_namespace="default"} 2
"""


def ray(page: str) -> str:
    """Ray's agent writes each series with where it comes from, and a name that begins with ray_."""
    own = 'Component="core_worker",NodeAddress="10.0.0.4",SessionName="session_1",Version="2.49.0",WorkerId="6ad5",'
    kept = [line for line in page.splitlines() if "vllm:" in line]
    return "\n".join(re.sub(r"\{", "{" + own, line) for line in kept).replace("vllm:", "ray_vllm_") + "\n"


def v0() -> str:
    """AIBrix documents a page of the V0 engine: no label `engine`."""
    with gzip.open(OLD / "0.8.5" / "metrics.jsonl.gz", "rt") as lines:
        page: str = [json.loads(line) for line in lines][-1]["text"]
    return re.sub(r',?engine="0"', "", page)


PAGES = {
    "kserve": PLAIN + KSERVE,
    "llm-d": PLAIN,
    "production-stack": PLAIN,
    "ray-serve": ray(PLAIN) + RAY,
    "aibrix": v0(),
    "dynamo": PLAIN + DYNAMO,
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_of_each_platform_is_one_engine_with_its_model(name: str) -> None:
    (((model, _), engine),) = normalise(PAGES[name].encode()).engines.items()
    assert model
    assert engine.running is not None
    assert engine.kv_usage is not None


@pytest.mark.parametrize("name", PRESETS)
def test_the_daemon_asks_the_name_of_the_service_that_selects_the_pods(name: str) -> None:
    chosen = parse(f"{name}@serving")
    made = service(chosen)
    kubernetes_validate.validate(made, "1.37", strict=True)
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["selector"] == dict([PRESETS[name].label])
    config = loader.build("", {"discovery": [discovery(chosen)]})
    source = config.discovery[0].source
    assert isinstance(source, DnsSource)
    own = f"{made['metadata']['name']}.serving.svc.cluster.local"
    assert (source.names, source.port) == ((own,), PRESETS[name].port)
    assert config.discovery[0].like.labels == {"namespace": "serving"}


def test_a_port_of_ones_own_is_a_service_of_its_own() -> None:
    both = [service(parse("llm-d")), service(parse("llm-d:8200"))]
    assert [made["metadata"]["name"] for made in both] == ["vllm-vitals-llm-d", "vllm-vitals-llm-d-8200"]
    assert service(parse("aibrix:8008"))["spec"]["selector"] == {"model.aibrix.ai/port": "8008"}


def test_pods_are_found_by_a_label_of_their_own() -> None:
    chosen = [parse("app=vllm@models"), parse("app.kubernetes.io/name=Chat_70b:9000@models")]
    assert [service(each)["spec"]["selector"] for each in chosen] == [
        {"app": "vllm"}, {"app.kubernetes.io/name": "Chat_70b"},
    ]  # fmt: skip
    assert [each.service for each in chosen] == [
        "vllm-vitals-app-vllm", "vllm-vitals-app-kubernetes-io-name-chat-70b-9000",
    ]  # fmt: skip
    for each in chosen:
        kubernetes_validate.validate(service(each), "1.37", strict=True)


def test_typed_with_the_api_the_daemon_may_list_slices_where_its_pods_are_and_nothing_else(tmp_path: Path) -> None:
    words = ["--preset", "llm-d@x", "--preset", "llm-d:8200@x", "--preset", "app=vllm@y", "--namespace", "watch"]
    done = typed("kubernetes", "build", *words, "--discover-by", "api", "-o", tmp_path)
    assert done.exit_code == 0, done.output
    objects = list(yaml.safe_load_all((tmp_path / "vllm-vitals.yml").read_text()))
    assert section.document(tmp_path / "Kustomization")["resources"][0] == "vllm-vitals.yml"
    for each in objects:
        if not each["apiVersion"].startswith("monitoring."):
            kubernetes_validate.validate(each, "1.37", strict=True)
    roles, bindings = ([each for each in objects if each["kind"] == kind] for kind in ("Role", "RoleBinding"))
    assert [each["metadata"]["namespace"] for each in roles] == ["x", "y"]
    only = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    for role, binding in zip(roles, bindings, strict=True):
        assert role["rules"] == [only]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "vllm-vitals", "namespace": "watch"}]
        assert (binding["roleRef"]["name"], binding["metadata"]["namespace"]) == (
            role["metadata"]["name"], role["metadata"]["namespace"],
        )  # fmt: skip
    [pod] = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    assert pod["automountServiceAccountToken"] is True
    config = loader.build("", section_of(objects))
    sources = [each.source for each in config.discovery]
    asked = [(each.namespace, dict(each.selector), each.port) for each in sources if isinstance(each, KubernetesSource)]
    _, *services = [each for each in objects if each["kind"] == "Service"]
    made = [each["metadata"]["name"] for each in services]
    assert made == ["vllm-vitals-llm-d", "vllm-vitals-llm-d-8200", "vllm-vitals-app-vllm"]
    assert asked == [
        (each["metadata"]["namespace"], {"kubernetes.io/service-name": each["metadata"]["name"]},
         each["spec"]["ports"][0]["port"]) for each in services
    ]  # fmt: skip


def test_a_config_that_asks_the_api_brings_its_rights(tmp_path: Path) -> None:
    file = tmp_path / "own.yml"
    file.write_text(
        "discovery:\n- kubernetes_sd: {namespace: a, selector: {app: vllm}}\n"
        "- kubernetes_sd: {namespace: b, service: s, bearer_token_file: /token}\n"
    )
    made = everything(Site(watched(file)))
    assert [each["metadata"]["namespace"] for each in made if each["kind"] == "Role"] == ["a"]


def test_what_is_built_holds_services_and_a_config_that_the_daemon_takes() -> None:
    chosen = (parse("kserve@a"), parse("dynamo:9091@b"))
    site = Site(watched(None, chosen), presets=chosen)
    objects = everything(site)
    config = loader.build("", section_of(objects))
    assert [entry.like.labels["namespace"] for entry in config.discovery] == ["a", "b"]
    assert config.state_file is not None  # the rest of the example stays
    assert len([each for each in everything(dataclasses.replace(site, shards=2)) if each["kind"] == "Deployment"]) == 2


def section_of(objects: list[Any]) -> dict[str, Any]:
    (text,) = [each["data"]["config.yml"] for each in objects if each["kind"] == "ConfigMap"]
    document: dict[str, Any] = yaml.safe_load(text)
    return document


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--preset", "llmd"], "NAME LABEL=VALUE or one of kserve, llm-d"),
        (["--preset", "app=v llm"], "expected NAME[:PORT][@NAMESPACE]"),
        (["--discover-by", "api"], "is for a --preset"),
        (["--preset", "llm-d:0"], "a port is a number from 1 to 65535"),
        (["--preset", "llm-d:99999"], "a port is a number from 1 to 65535"),
        (["--preset", "llm-d@Serving"], "expected NAME[:PORT][@NAMESPACE]"),
        (["--preset", "llm-d", "--preset", "llm-d:8000@default"], "the same pods twice"),
        (["--preset", "llm-d", "--config", "config.example.yaml"], "give either --config"),
    ],
)
def test_a_wrong_preset_is_one_line(given: list[str], said: str, tmp_path: Path) -> None:
    done = typed("kubernetes", "build", *given, "-o", tmp_path)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_documented_table_is_the_presets() -> None:
    words = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    for name, preset in PRESETS.items():
        key, value = preset.label
        assert f"| `{name}` | `{key}: {value}` | {preset.port} | {preset.note} |" in words
