"""vLLM servers in a Kubernetes namespace: its pods, as the cluster's API lists them.

Input: a `Cluster`, a way to fetch. Output: targets, and a line for each pod that should serve and cannot. Invariant:
one list and one request a candidate port; nothing is changed in the cluster, and no pod elsewhere is asked. From
outside, pods are reached through the API server (``pods/proxy``): their own addresses exist inside the cluster alone.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.scrape.endpoint_slices import pod_name
from vllm_vitals.scrape.kubeconfig import Cluster, ClusterError
from vllm_vitals.scrape.local_servers import is_vllm
from vllm_vitals.scrape.target import DEFAULT_VLLM_PORT, Target, joined, shown

DEADLINE_S = 10.0
PAGE, MAX_PODS = 250, 2_000
MAX_PORTS = 8  # of one pod that are tried
ASKED_AT_ONCE = 16
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # an RFC 1123 label, as Kubernetes has it
_PORT = re.compile(r"--port[= ](\d{1,5})\b")
# Images and commands that hold the word and serve no model.
_NOT_A_SERVER = re.compile(r"vllm-vitals|vllm[-_]?router|production-stack/router|lmstack-router")
# Ports of other pods that may be asked over HTTP: a database would log an attack.
_HTTP = re.compile(r"http|metrics|api")

Fetch = Callable[[Target], Awaitable[Scrape]]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, and the ports to try; ``meant``: it is to run vLLM; ``trouble``: why it does not run, "" if it does."""

    name: str
    address: str
    ports: tuple[int, ...]
    meant: bool
    trouble: str


async def vllm_servers(cluster: Cluster, namespace: str, fetch: Fetch) -> tuple[list[Target], list[str]]:
    """Return the namespace's servers, and why others are none. Raises `ClusterError` in one line."""
    if not _NAME.fullmatch(namespace):
        raise ClusterError(f"{namespace[:80]!r} is no namespace: expected letters, digits and dashes, such as serving")
    pods = [_pod(item) for item in await _listed(cluster, namespace, fetch)]
    if not pods:
        raise ClusterError(f"namespace {namespace}: no pod in it, by {cluster.who}")
    running, turns = [pod for pod in pods if not pod.trouble], asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(pod: Pod, port: int) -> tuple[Target, Scrape]:
        target = _target(cluster, namespace, pod, port)
        async with turns:
            return target, await fetch(target)

    async def ask_all(pod: Pod) -> list[tuple[Target, Scrape]]:
        return await asyncio.gather(*(ask(pod, port) for port in pod.ports))

    answers = dict(zip((pod.name for pod in running), await asyncio.gather(*map(ask_all, running)), strict=True))
    scrapes = [scrape for own in answers.values() for _, scrape in own]
    if scrapes and not cluster.inside and all(map(_refuses, scrapes)):
        raise ClusterError(
            f"namespace {namespace}: no right to reach its pods through the API (get pods/proxy), by {cluster.who}: "
            f"ask for it, or run this inside the cluster"
        )
    found = [target for pod in running for target in _servers(pod, answers[pod.name])]
    problems = [f"pod {pod.name}: {pod.trouble}" for pod in pods if pod.meant and pod.trouble]
    if not found:
        why = f"; {'; '.join(problems[:3])}" if problems else ""
        raise ClusterError(f"namespace {namespace}: of {len(pods)} pods none answers with vLLM's metrics{why}")
    return found, problems


def _servers(pod: Pod, answers: Sequence[tuple[Target, Scrape]]) -> list[Target]:
    """Return what serves in a pod; one that is meant to and does not answer is one, too: that is what is to be said."""
    serving = [target for target, scrape in answers if scrape.body is not None and is_vllm(scrape.body)]
    return serving or [target for target, _ in answers[:1] if pod.meant]


def _refuses(scrape: Scrape) -> bool:
    return scrape.body is None and scrape.reason == "unauthorized"


def _target(cluster: Cluster, namespace: str, pod: Pod, port: int) -> Target:
    name = pod_name(namespace, pod.name, port)
    if cluster.inside:
        return Target(name, f"http://{joined(pod.address, port)}/metrics", timeout=DEADLINE_S)
    path = f"api/v1/namespaces/{namespace}/pods/{quote(pod.name)}:{port}/proxy/metrics"
    return Target(name, f"{cluster.url}/{path}", timeout=DEADLINE_S, credentials=cluster.credentials, tls=cluster.tls)


async def _listed(cluster: Cluster, namespace: str, fetch: Fetch) -> list[Mapping[str, Any]]:
    """Return the namespace's pods, page by page. Raises `ClusterError`."""
    found: list[Mapping[str, Any]] = []
    token = ""
    while len(found) < MAX_PODS:
        query = urlencode({"limit": PAGE, **({"continue": token} if token else {})})
        url = f"{cluster.url}/api/v1/namespaces/{namespace}/pods?{query}"
        asked = Target(
            "the cluster", url, timeout=DEADLINE_S, credentials=cluster.credentials, tls=cluster.tls,
            headers={"Accept": "application/json"},
        )  # fmt: skip
        scrape = await fetch(asked)
        if scrape.body is None:
            raise ClusterError(_why(cluster, namespace, scrape))
        try:
            answer = orjson.loads(scrape.body)
            items, token = answer["items"], str((answer.get("metadata") or {}).get("continue") or "")
            found += [item for item in items if isinstance(item, dict)]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ClusterError(f"{shown(cluster.url)}: not the answer of a Kubernetes API, by {cluster.who}") from None
        if not token:
            break
    return found[:MAX_PODS]


def _why(cluster: Cluster, namespace: str, scrape: Scrape) -> str:
    """Say why the list did not come, in the words of whoever has to mend it."""
    where = shown(cluster.url)
    if scrape.reason == "unauthorized" and "403" in scrape.detail:
        return (
            f"namespace {namespace}: no right to list its pods, by {cluster.who}: "
            f"see `kubectl auth can-i list pods -n {namespace}`"
        )
    if scrape.reason == "unauthorized" and "401" in scrape.detail:
        return f"{where}: the cluster does not know us (HTTP 401), by {cluster.who}: log in again"
    if scrape.reason == "refused":
        return f"{where}: the cluster's API refuses connections, by {cluster.who}"
    return f"{where}: the cluster's API does not answer ({scrape.reason}: {scrape.detail}), by {cluster.who}"


def _pod(item: Mapping[str, Any]) -> Pod:
    metadata, spec, status = (_dict(item.get(name)) for name in ("metadata", "spec", "status"))
    containers = [_dict(each) for each in _list(spec.get("containers"))]
    serving = [container for container in containers if _runs_vllm(container)]
    annotated = str(_dict(metadata.get("annotations")).get("prometheus.io/port") or "")
    ports = list(_ports(annotated, serving)) if serving else list(_http_ports(annotated, containers))
    name, address = str(metadata.get("name") or ""), str(status.get("podIP") or "")
    return Pod(name, address, tuple(dict.fromkeys(ports))[:MAX_PORTS], bool(serving), _trouble(status, address))


def _said(container: Mapping[str, Any]) -> str:
    """Return a container's image and command line."""
    words = [container.get("image"), *_list(container.get("command")), *_list(container.get("args"))]
    return " ".join(map(str, words))


def _runs_vllm(container: Mapping[str, Any]) -> bool:
    """Return whether a container is meant to run vLLM: its image, its command line or its environment says so."""
    said = _said(container)
    env = [str(_dict(each).get("name")) for each in _list(container.get("env"))]
    named = "vllm" in said.lower() or any(name.startswith("VLLM_") for name in env)
    return named and not _NOT_A_SERVER.search(said)


def _ports(annotated: str, serving: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the ports of containers that run vLLM: what the command says, else an annotation, else what is declared."""
    said = [int(match[1]) for container in serving if (match := _PORT.search(_said(container)))]
    if said or annotated.isdecimal():
        yield from said or [int(annotated)]
        return
    yield from [number for _, number in _declared(serving)] or [DEFAULT_VLLM_PORT]


def _http_ports(annotated: str, containers: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the ports of other containers that may be vLLM's all the same."""
    if annotated.isdecimal():
        yield int(annotated)
    for name, number in _declared(containers):
        if number == DEFAULT_VLLM_PORT or _HTTP.match(name):
            yield number


def _declared(containers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    for container in containers:
        for each in _list(container.get("ports")):
            port = _dict(each)
            if port.get("protocol", "TCP") == "TCP" and isinstance(number := port.get("containerPort"), int):
                yield str(port.get("name") or ""), number


def _trouble(status: Mapping[str, Any], address: str) -> str:
    """Return why a pod does not run, "" where it does: in Kubernetes' own words."""
    phase = str(status.get("phase") or "Unknown")
    for each in _list(status.get("containerStatuses")):
        container = _dict(each)
        waiting = _dict(_dict(container.get("state")).get("waiting"))
        if waiting.get("reason"):
            restarts = container.get("restartCount")
            ended = _dict(_dict(container.get("lastState")).get("terminated")).get("reason")
            last = f", last ended by {ended}" if ended else ""
            return f"{str(waiting['reason'])[:60]}{f', {restarts} restarts' if restarts else ''}{last}"
    if phase != "Running" or not address:
        conditions = [_dict(each) for each in _list(status.get("conditions"))]
        reasons = [str(each["reason"]) for each in conditions if each.get("status") == "False" and each.get("reason")]
        why = reasons[0] if reasons else ""
        return f"{phase}{f', {why[:60]}' if why else ''}"
    return ""


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
