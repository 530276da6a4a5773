"""What else the same Prometheus holds of the same minutes: GPUs, pods, nodes, gateways. Facts beside, never causes.

Input: an API client, a server, a period. Output: `Fact`s in order of time, and what was looked for and is not there.
Invariant: at most `MAX_QUERIES` queries a server, each of a bounded period; a fact is only a change that the samples
show, with the label that ties it to the server. Nothing is concluded from them.

Names: dcgm-exporter's default-counters.csv; kube-state-metrics' docs/metrics; node_exporter; the gateways' own pages.
Throttle bits: NVML's nvmlClocksEventReasons; Xids: NVIDIA's "Xid errors", the ones that end or slow a server.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import median

from vllm_vitals.planner.incident.episodes import LEAD_S
from vllm_vitals.planner.incident.screen import AskRange
from vllm_vitals.prometheus.bodies import escape
from vllm_vitals.prometheus.promapi import PromError, Series
from vllm_vitals.prometheus.raw import Server

LONGEST_S = 3600.0  # of an incident
AFTER_S = 60.0
MAX_FACTS = 20
MAX_QUERIES = 16
STEP_S = 60  # of gateways
FELL = 0.8  # a clock at 80 % of its usual
LITTLE_MEMORY = 0.05
MOVED = 0.05  # GPU memory by so large a part

Points = list[tuple[float, float]]
Labels = Mapping[str, str]

_XIDS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    48: "double-bit ECC error",
    63: "row remapping",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
}
_POWER_CAP = "software power cap"  # usual under load: a fact only where it begins or ends
_THROTTLES = {
    0x4: _POWER_CAP, 0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}  # fmt: skip
_GPU = ("XID_ERRORS", "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS", "SM_CLOCK", "FB_USED", "ECC_DBE_VOL_TOTAL")
_POD = ("restarts_total", "last_terminated_reason", "waiting_reason")
_NODE = ("memory_MemAvailable_bytes", "memory_MemTotal_bytes", "vmstat_oom_kill", "boot_time_seconds")
_GATEWAYS = {
    "Envoy": 'envoy_cluster_upstream_rq_xx{envoy_response_code_class="5"}',
    "Istio": 'istio_requests_total{response_code=~"5.."}',
    "ingress-nginx": 'nginx_ingress_controller_requests{status=~"5.."}',
    "Traefik": 'traefik_service_requests_total{code=~"5.."}',
    "HAProxy": 'haproxy_server_http_responses_total{code="5xx"}',
    "the inference gateway": "inference_objective_request_error_total",
}


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """Something that changed at a time (epoch s): whose series say so, what, and what ties it to the server."""

    at: float
    source: str
    text: str
    tie: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a server runs, as far as labels tell; empty where they do not."""

    namespace: str = ""
    pod: str = ""
    node: str = ""
    host: str = ""


class Beside:
    """Looks beside incidents, through one API client. ``lacking``: what was looked for and not found, in words."""

    def __init__(self, ask: AskRange) -> None:
        self._ask = ask
        self._left = 0
        self.lacking: list[str] = []

    def look(self, server: Server, start: float, end: float) -> list[Fact]:
        """Return what changed from ten minutes before an incident to its end, at most `MAX_FACTS`, in order of time."""
        self._left = MAX_QUERIES
        first, last = start - LEAD_S, min(end, start + LONGEST_S) + AFTER_S
        facts: list[Fact] = []
        try:
            place = self._place(server, first, last)
            facts += self._gpus(place, first, start, last)
            facts += self._pod(place, first, last)
            facts += self._node(place, first, last)
            facts += self._gateways(first, start, last)
        except PromError as error:
            self._lack(f"what stands beside could not be read to its end: {error}")
        return sorted(set(facts))[:MAX_FACTS]

    def _lack(self, text: str) -> None:
        if text not in self.lacking:
            self.lacking.append(text)

    def _samples(self, names: Sequence[str], matchers: Mapping[str, str], first: float, last: float) -> list[Series]:
        """Return raw samples of these names where labels are as given; a value that begins with ~ is a pattern."""
        if not matchers or not all(matchers.values()) or self._left <= 0:
            return []
        self._left -= 1
        inside = [f'__name__=~"{"|".join(names)}"']
        for label, value in matchers.items():
            pattern = value.startswith("~")
            inside.append(f'{label}{"=~" if pattern else "="}"{escape(value.removeprefix("~"))}"')
        return self._ask.samples("{" + ",".join(inside) + "}", last, round(last - first))

    def _first(
        self, names: Sequence[str], ways: Mapping[str, Mapping[str, str]], first: float, last: float
    ) -> tuple[str, list[Series]]:
        """Return the first way of tying that finds series, and these."""
        for tie, matchers in ways.items():
            if found := self._samples(names, matchers, first, last):
                return tie.partition(" by ")[0], found
        return "", []

    def _place(self, server: Server, first: float, last: float) -> _Place:
        own = dict(server.labels)
        address = own.get("instance", "").rpartition(":")[0] or own.get("instance", "")
        named = own.get("node") or own.get("nodename") or own.get("Hostname") or own.get("hostname", "")
        place = _Place(own.get("namespace", ""), own.get("pod", ""), named, address.strip("[]"))
        ways = {
            "pod": {"namespace": place.namespace, "pod": place.pod},
            "address": {"pod_ip": place.host if re.fullmatch(r"[\d.]+|[\da-fA-F:]+", place.host) else ""},
        }
        _, found = self._first(["kube_pod_info"], ways, first, last)
        if not found:
            return place
        known = found[-1].labels
        return _Place(
            known.get("namespace", place.namespace), known.get("pod", place.pod), place.node or known.get("node", ""),
            place.host,
        )  # fmt: skip

    def _gpus(self, place: _Place, first: float, start: float, last: float) -> Iterator[Fact]:
        host = f"~{re.escape(place.host)}(:[0-9]+)?" if place.host else ""
        ways = {
            "the same pod": {"namespace": place.namespace, "pod": place.pod},
            "the same pod by exporter": {"exported_namespace": place.namespace, "exported_pod": place.pod},
            "the same node": {"Hostname": place.node},
            "the same host by name": {"Hostname": place.host},
            "the same host by address": {"instance": host},
        }
        tie, found = self._first([f"DCGM_FI_DEV_{name}" for name in _GPU], ways, first, last)
        if not found:
            self._lack("GPUs: no DCGM series that a label (pod, node, host) ties to the server")
        for series in found:
            for at, text in _of_gpu(series, start):
                yield Fact(at, "GPU", text, tie)

    def _pod(self, place: _Place, first: float, last: float) -> Iterator[Fact]:
        mine = {"namespace": place.namespace, "pod": place.pod}
        found = self._samples([f"kube_pod_container_status_{name}" for name in _POD], mine, first, last)
        if not found:
            self._lack("Kubernetes: no series of kube-state-metrics for the server's pod")
        for series in found:
            for at, text in _of_pod(series):
                yield Fact(at, "Kubernetes", text, "the same pod")
        parts = place.pod.split("-")
        owners = ["-".join(parts[:count]) for count in range(1, len(parts))]
        for kind in ("deployment", "statefulset") if owners else ():
            name = f"kube_{kind}_status_observed_generation"
            mine = {"namespace": place.namespace, kind: "~" + "|".join(map(re.escape, owners))}
            for series in self._samples([name], mine, first, last):
                for at, old, new in _steps(_points(series)):
                    text = (
                        f"{kind} {series.labels.get(kind, '')}: a change was rolled out (generation {old:g} to {new:g})"
                    )
                    yield Fact(at, "Kubernetes", text, f"its {kind}")

    def _node(self, place: _Place, first: float, last: float) -> Iterator[Fact]:
        conditions = self._samples(
            ["kube_node_status_condition", "kube_node_spec_unschedulable"], {"node": place.node}, first, last
        )
        for series in conditions:
            for at, text in _of_condition(series):
                yield Fact(at, "Kubernetes", text, "the same node")
        ways = {
            "the same node": {"node": place.node},
            "the same node by name": {"nodename": place.node},
            "the same node by address": {"instance": f"~{re.escape(place.node)}(:[0-9]+)?" if place.node else ""},
            "the same host": {"instance": f"~{re.escape(place.host)}(:[0-9]+)?" if place.host else ""},
        }
        tie, found = self._first([f"node_{name}" for name in _NODE], ways, first, last)
        if not found:
            self._lack("node: no series of node_exporter that a label ties to the server")
        for at, text in _of_node(found):
            yield Fact(at, "node", text, tie)

    def _gateways(self, first: float, start: float, last: float) -> Iterator[Fact]:
        """Yield errors of gateways: one query, added up there. No label ties them to one server."""
        if self._left <= 0:
            return
        self._left -= 1
        query = " or ".join(
            f'label_replace(sum(rate({what}[2m])), "gateway", "{name}", "", "")' for name, what in _GATEWAYS.items()
        )
        found = self._ask.range(query, first, last, STEP_S)
        if not found:
            self._lack("gateways: no series of Envoy, Istio, ingress-nginx, Traefik, HAProxy or the inference gateway")
        for series in found:
            before = [value for at, value in _points(series) if at < start]
            within = [(value, at) for at, value in _points(series) if at >= start]
            usual, (most, at) = (median(before) if before else 0.0), max(within, default=(0.0, 0.0))
            if most > max(2 * usual, usual + 0.1):
                text = (
                    f"errors of {series.labels.get('gateway', 'a gateway')}: {usual:.2g} /s before, up to {most:.2g} /s"
                )
                yield Fact(at, "gateway", text, "all that it serves")


def _points(series: Series) -> Points:
    points = [(float(at), float(value)) for at, value in series.points]
    return [point for point in points if isfinite(point[1])]


def _steps(points: Points) -> Iterator[tuple[float, float, float]]:
    """Yield when a value became another: time, old, new."""
    for (_, old), (at, new) in pairwise(points):
        if old != new:
            yield at, old, new


def _of_gpu(series: Series, start: float) -> Iterator[tuple[float, str]]:
    name = series.labels.get("__name__", "").removeprefix("DCGM_FI_DEV_")
    gpu, points = f"GPU {series.labels.get('gpu', '?')}", _points(series)
    if name == "XID_ERRORS":
        for at, _, new in _steps(points):
            if new:
                yield at, f"{gpu}: Xid {new:g}{f' ({_XIDS[int(new)]})' if int(new) in _XIDS else ''}"
    elif name == "ECC_DBE_VOL_TOTAL":
        yield from ((at, f"{gpu}: {new - old:g} double-bit ECC errors") for at, old, new in _steps(points) if new > old)
    elif name in ("CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"):
        yield from _throttles(gpu, points)
    elif name == "SM_CLOCK":
        yield from _fall(points, start, lambda old, new: f"{gpu}: its clock fell from {old:.0f} to {new:.0f} MHz")
    else:
        before, within = _parted(points, start)
        if before and within:
            at, most = max(within, key=lambda point: abs(point[1] - before[-1][1]))
            if abs(most - before[-1][1]) > MOVED * max(before[-1][1], 1.0):
                yield at, f"{gpu}: its used memory went from {before[-1][1]:.0f} to {most:.0f} MiB"


def _throttles(gpu: str, points: Points) -> Iterator[tuple[float, str]]:
    for bit, why in _THROTTLES.items():
        times = [at for at, value in points if int(value) & bit]
        if not times or (why == _POWER_CAP and len(times) == len(points)):
            continue
        long = "all the while" if len(times) == len(points) else f"in {len(times)} of {len(points)} samples"
        yield times[0], f"{gpu} was throttled: {why}, {long}"


def _fall(points: Points, start: float, say: Callable[[float, float], str]) -> Iterator[tuple[float, str]]:
    before, within = _parted(points, start)
    if before and within:
        usual = median(value for _, value in before)
        lowest, at = min((value, at) for at, value in within)
        if usual > 0 and lowest <= FELL * usual:
            yield at, say(usual, lowest)


def _parted(points: Points, start: float) -> tuple[Points, Points]:
    return [point for point in points if point[0] < start], [point for point in points if point[0] >= start]


def _of_pod(series: Series) -> Iterator[tuple[float, str]]:
    labels, points = series.labels, _points(series)
    name, container = labels.get("__name__", ""), f"container {labels.get('container', '?')}"
    if name.endswith("restarts_total"):
        for at, old, new in _steps(points):
            if new > old:
                yield at, f"{container} was restarted{f' {new - old:g} times' if new - old > 1 else ''}"
        return
    reason = labels.get("reason", "?")
    text = f"{container} ended by {reason}" if "terminated" in name else f"{container} waits: {reason}"
    yield from ((at, text) for at, _, new in _steps(points) if new == 1)


def _of_condition(series: Series) -> Iterator[tuple[float, str]]:
    labels, points = series.labels, _points(series)
    condition = labels.get("condition", "")
    if not condition:
        yield from ((at, "its node takes no more pods (cordoned)") for at, _, new in _steps(points) if new == 1)
    elif labels.get("status") == "true":
        bad = 0.0 if condition == "Ready" else 1.0
        text = "its node is not ready" if condition == "Ready" else f"its node reports {condition}"
        yield from ((at, text) for at, _, new in _steps(points) if new == bad)


def _of_node(found: Sequence[Series]) -> Iterator[tuple[float, str]]:
    by_name = {series.labels.get("__name__", "").removeprefix("node_"): _points(series) for series in found}
    for at, old, new in _steps(by_name.get("vmstat_oom_kill", [])):
        if new > old:
            yield at, f"the kernel killed {new - old:g} process{'es' if new - old > 1 else ''} for want of memory"
    booted = _steps(by_name.get("boot_time_seconds", []))
    yield from ((at, "the machine was booted") for at, _, _ in booted)
    total = dict(by_name.get("memory_MemTotal_bytes", []))
    shares = [(value / total[at], at) for at, value in by_name.get("memory_MemAvailable_bytes", []) if total.get(at)]
    if shares and min(shares)[0] < LITTLE_MEMORY:
        yield min(shares)[1], f"the machine had {100 * min(shares)[0]:.1f} % of its memory left"
