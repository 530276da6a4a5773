"""EndpointSlices: the pods behind Services, as the cluster's API lists them.

Input: the JSON of a discovery.k8s.io/v1 EndpointSliceList, and the port that serves metrics. Output: `Found` targets in
the order of their names. Invariant: a pod is one target, called ``namespace/pod:port``, with the labels ``namespace``,
``pod`` and ``node`` as far as the API knows them; what is not wholly understood raises `SourceError`.
Fields: https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/
"""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote

import orjson

from vllm_vitals.scrape.target import joined
from vllm_vitals.scrape.target_groups import MAX_FOUND, MAX_TEXT, Found, SourceError


def address(api_server: str, namespace: str, selector: Mapping[str, str]) -> str:
    """Return where the slices with these labels are listed; from the API server's cache, which costs it little."""
    labels = quote(",".join(f"{name}={value}" for name, value in sorted(selector.items())), safe="")
    path = f"apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
    return f"{api_server.rstrip('/')}/{path}?labelSelector={labels}&resourceVersion=0"


def parse_slices(where: str, content: bytes, port: int) -> list[Found]:
    """Return the pods of an EndpointSliceList, each once. Raises `SourceError`."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{where}: not JSON: {error}"[:300]) from None
    slices = document.get("items") if isinstance(document, dict) else None
    if not isinstance(slices, list) or document.get("kind") not in ("EndpointSliceList", "List"):
        raise SourceError(f"{where}: expected an EndpointSliceList of discovery.k8s.io/v1")
    found: dict[str, Found] = {}
    for index, each in enumerate(slices):
        try:
            for one in _pods(each, port):
                # IPv4 and IPv6 have slices of their own: the first one of a pod is enough
                found.setdefault(one.labels["name"], one)
        except (AttributeError, LookupError, TypeError, ValueError):
            what = "this is no EndpointSlice as discovery.k8s.io/v1 has it"
            raise SourceError(f"{where}: items[{index}]: {what}") from None
        if len(found) > MAX_FOUND:
            raise SourceError(f"{where}: more than {MAX_FOUND} targets")
    return [found[name] for name in sorted(found)]


def _pods(piece: dict[str, Any], port: int) -> Iterator[Found]:
    namespace = _text(piece["metadata"]["namespace"])
    for endpoint in piece["endpoints"] or ():
        state = endpoint.get("conditions") or {}
        if state.get("terminating") and not state.get("serving"):
            continue  # it is gone, whatever it still answers
        host = joined(str(ip_address(endpoint["addresses"][0])), port)
        reference, node = endpoint.get("targetRef") or {}, endpoint.get("nodeName")
        pod = _text(reference["name"]) if reference.get("kind") == "Pod" else ""
        labels = {"name": pod_name(namespace, pod, port) if pod else host, "namespace": namespace}
        yield Found(host, labels | ({"pod": pod} if pod else {}) | ({"node": _text(node)} if node else {}))


def pod_name(namespace: str, pod: str, port: int) -> str:
    """Return what a pod that is a target is called."""
    return f"{namespace}/{pod}:{port}"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT or not value.isprintable():
        raise ValueError("no name")
    return value
