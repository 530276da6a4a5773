"""Pods as the cluster's API lists them, with names and nodes; what a wrong answer or a missing right says."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from structlog.testing import CapturingLogger

from tests.edges.servers import http, serving
from vllm_vitals.clock import Clock
from vllm_vitals.config import loader
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.scrape.discovery import KubernetesSource
from vllm_vitals.scrape.endpoint_slices import address, parse_slices
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.shards import WHOLE
from vllm_vitals.scrape.target_groups import SourceError
from vllm_vitals.scrape.target_manager import TargetManager


def pod(host: str, name: str, node: str | None = "node-1", **state: bool) -> dict[str, Any]:
    reference = {"kind": "Pod", "name": name, "namespace": "models", "uid": "6f1c"}
    return {"addresses": [host], "conditions": state, "targetRef": reference, **({"nodeName": node} if node else {})}


def piece(number: int, *endpoints: dict[str, Any], kind: str = "IPv4") -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": "chat", "app": "vllm"}
    metadata = {"name": f"chat-{number}", "namespace": "models", "labels": labels}
    head = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind, "metadata": metadata}
    return {**head, "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}], "endpoints": list(endpoints)}


SLICES = [
    piece(1, pod("10.0.0.2", "chat-1", ready=True), pod("10.0.0.1", "chat-0", "node-2", ready=False)),
    # the same pods again, and one that an address alone tells of
    piece(2, pod("fd00::1", "chat-0", "node-2", ready=False), kind="IPv6"),
    piece(3, {"addresses": ["10.0.0.9"]}),
    piece(4, pod("10.0.0.3", "drains", terminating=True, serving=True), pod("10.0.0.4", "gone", terminating=True)),
]
LIST = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {}, "items": SLICES}


def test_a_pod_is_one_target_by_its_name_whatever_its_addresses_and_slices() -> None:
    for each in SLICES:
        kubernetes_validate.validate(each, "1.37", strict=True)
    found = parse_slices("api", json.dumps(LIST).encode(), 8200)
    assert [(each.address, each.labels.get("name"), each.labels.get("node")) for each in found] == [
        ("10.0.0.9:8200", "10.0.0.9:8200", None),
        ("10.0.0.1:8200", "models/chat-0:8200", "node-2"),
        ("10.0.0.2:8200", "models/chat-1:8200", "node-1"),
        ("10.0.0.3:8200", "models/drains:8200", "node-1"),
    ]
    assert {each.labels["namespace"] for each in found} == {"models"}
    turned = {**LIST, "items": SLICES[::-1]}
    assert [each.labels["name"] for each in parse_slices("api", json.dumps(turned).encode(), 8200)] == [
        each.labels["name"] for each in found
    ]


def test_ipv6_is_written_as_an_address() -> None:
    content = json.dumps({**LIST, "items": [SLICES[1]]}).encode()
    assert parse_slices("api", content, 8000)[0].address == "[fd00::1]:8000"


def spoilt(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(json.dumps(LIST))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"<html>", "api: not JSON: "),
        (b"[]", "api: expected an EndpointSliceList"),
        (b'{"kind": "Status", "items": []}', "api: expected an EndpointSliceList"),
        (b'{"kind": "EndpointSliceList"}', "api: expected an EndpointSliceList"),
        (spoilt(lambda d: d["items"].insert(0, 1)), "api: items[0]: this is no EndpointSlice"),
        (spoilt(lambda d: d["items"][2].pop("endpoints")), "items[2]: "),
        (spoilt(lambda d: d["items"][2].update(metadata={})), "items[2]: "),
        (spoilt(lambda d: d["items"][0]["endpoints"][0].update(addresses=[])), "items[0]: "),
        (spoilt(lambda d: d["items"][0]["endpoints"][0].update(addresses=["evil.example"])), "items[0]: "),
        (spoilt(lambda d: d["items"][0]["endpoints"][0]["targetRef"].update(name='a"\n')), "items[0]: "),
        (spoilt(lambda d: d["items"][0]["endpoints"][0].update(nodeName=7)), "items[0]: "),
        (spoilt(lambda d: d["items"][0]["endpoints"][0].update(targetRef=[1])), "items[0]: "),
        (spoilt(lambda d: d["items"][0].update(
            endpoints=[pod("10.0.0.1", f"p{n}") for n in range(10_001)])), "api: more than 10000 targets"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_one_line_that_names_the_place(content: bytes, why: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_slices("api", content, 8000)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_api_is_asked_for_the_slices_of_a_service_with_the_account_s_token(tmp_path: Path) -> None:
    """A Service by its name, or many by a label; a right that is missing is said, and costs no target that is known."""
    token = tmp_path / "token"
    token.write_text("first\n")
    heard: list[str] = []
    refused = False

    async def api(request: bytes, writer: asyncio.StreamWriter) -> None:
        heard.append(request.decode())
        status = '{"kind": "Status", "code": 403, "message": "endpointslices is forbidden"}'
        answer = http(status.encode(), "403 Forbidden") if refused else http(json.dumps(LIST).encode())
        writer.write(answer)
        await writer.drain()

    async def story() -> tuple[list[Any], CapturingLogger]:
        nonlocal refused
        log = CapturingLogger()
        async with serving(api) as url, Fetcher(Clock().now) as fetcher:
            asked = {"namespace": "models", "api_server": url, "bearer_token_file": str(token)}
            entries = [{**asked, "service": "chat"}, {**asked, "selector": {"app": "vllm", "a.b/c": "d"}}]
            config = loader.build("test", {"discovery": [{"kubernetes_sd": each} for each in entries]})
            manager = TargetManager(fetcher.fetch, log, WHOLE)
            await manager.follow(config, _nothing)
            refused = True
            token.write_text("second\n")
            followed = [each[0] for each in manager._following.values()]
            assert [await each.refresh() for each in followed] == [False, False]
            targets = list(manager.targets(config))
            await manager.follow(loader.build("test", {}), _nothing)
        return targets, log

    targets, log = asyncio.run(story())
    assert [target.name for target in targets][1:3] == ["models/chat-0:8000", "models/chat-1:8000"]
    assert len(targets) == 4  # by both entries, once
    assert targets[1].labels == {"namespace": "models", "pod": "chat-0", "node": "node-2"}
    assert targets[1].url == "http://10.0.0.1:8000/metrics"
    assert not targets[1].credentials.bearer_token_file  # the cluster's token is for the cluster alone
    firsts = sorted(request.split("\r\n")[0] for request in heard[:2])
    path = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices?labelSelector="
    assert all(line.startswith(f"GET {path}") and "resourceVersion=0" in line for line in firsts)
    assert any("kubernetes.io" in line and "service-name" in line for line in firsts)
    assert all("Bearer first" in request and "application/json" in request for request in heard[:2])
    assert all("Bearer second" in request for request in heard[2:])
    why = str(log.calls[0].kwargs["why"])
    assert "HTTP 403: the token needs a Role in models: list on endpointslices of discovery.k8s.io" in why


async def _nothing() -> None:
    pass


def test_in_a_pod_the_account_s_own_token_and_authority_are_the_default() -> None:
    entry = {"kubernetes_sd": {"namespace": "models", "service": "chat"}}
    source = loader.build("test", {"discovery": [entry]}).discovery[0].source
    assert isinstance(source, KubernetesSource)
    assert source.api_server == "https://kubernetes.default.svc"
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert (source.credentials.bearer_token_file, source.tls.ca_file) == (f"{account}/token", f"{account}/ca.crt")
    assert (source.port, source.refresh) == (8000, 15.0)
    assert address("https://k/", "models", dict(source.selector)) == (
        "https://k/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
        "?labelSelector=kubernetes.io%2Fservice-name%3Dchat&resourceVersion=0"
    )


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"service": "a"}, "kubernetes_sd.namespace: is needed"),
        ({"namespace": "a"}, "kubernetes_sd.selector: give either service, by its name, or selector"),
        ({"namespace": "a", "service": "b", "selector": {"c": "d"}}, "give either service"),
        ({"namespace": "a/../b", "service": "b"}, "kubernetes_sd.namespace: expected a name of Kubernetes"),
        ({"namespace": "a", "service": "B"}, "kubernetes_sd.service: expected a name of Kubernetes"),
        ({"namespace": "a", "selector": {"c,d": "e"}}, "expected a label of Kubernetes such as app"),
        ({"namespace": "a", "selector": {"c": "d&e"}}, "expected the value of a label such as vllm"),
        ({"namespace": "a", "service": "b", "port": 0}, "kubernetes_sd.port: expected"),
        ({"namespace": "a", "service": "b", "api_server": "https://u:S3CRET@x"}, "kubernetes_sd.api_server: expected"),
        ({"namespace": "a", "service": "b", "labels": {}}, "kubernetes_sd.labels: unknown key"),
    ],
)
def test_every_wrong_key_has_its_line(entry: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.build("test", {"discovery": [{"kubernetes_sd": entry}]})
    assert why in str(caught.value)
    assert "S3CRET" not in str(caught.value)
