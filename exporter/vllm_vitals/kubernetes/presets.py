"""How serving platforms label their vLLM pods and where those serve metrics: discovery without a word of YAML.

Input: names of presets, or labels of pods, with namespaces and ports. Output: a headless Service for each, and the
daemon's discovery of its pods: by DNS, which needs no right in the cluster's API, or by the API, which knows pods and
nodes by name and needs the right to list EndpointSlices in these namespaces and no other. Sources, read in each
project's public manifests and operator code of 2025 and 2026: KServe's predictor label, llm-d's model service, the
engine labels of production-stack's chart, KubeRay's pod labels, AIBrix's model labels, the Dynamo operator's component
labels.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm_vitals.scrape.target import DEFAULT_VLLM_PORT

_NAMESPACE = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PART = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"  # of a label
_LABEL = rf"([a-z0-9.-]{{1,253}}/)?{_PART}={_PART}"
_SPELLING = re.compile(rf"(?P<name>[a-z-]+|{_LABEL})(:(?P<port>[0-9]{{1,5}}))?(@(?P<namespace>{_NAMESPACE}))?")


@dataclass(frozen=True, slots=True)
class Preset:
    """The label that its vLLM pods have, and the port that serves /metrics. ``note`` is for a person."""

    label: tuple[str, str]
    port: int
    note: str


PRESETS = {
    "kserve": Preset(
        ("component", "predictor"), 8080,
        "InferenceService. LLMInferenceService: its pods serve https; use a config of your own with tls",
    ),
    "llm-d": Preset(
        ("llm-d.ai/inferenceServing", "true"), 8000,
        "behind the routing sidecar of disaggregated decode vLLM itself is at 8200: llm-d:8200",
    ),
    "production-stack": Preset(
        ("app.kubernetes.io/component", "serving-engine"), 8000,
        "charts before these labels: put them on the engines' pods",
    ),
    "ray-serve": Preset(
        ("ray.io/is-ray-node", "yes"), 8080,
        "Ray's own metrics port; names begin with ray_vllm; a pod without replicas of vLLM is blind: no vLLM metrics",
    ),
    "aibrix": Preset(
        ("model.aibrix.ai/port", "8000"), 8000, "the label's value is the port; others: aibrix:PORT, and its label"
    ),
    "dynamo": Preset(
        ("nvidia.com/dynamo-component-type", "worker"), 9090,
        "DYN_SYSTEM_PORT of the workers, where it is another: dynamo:PORT",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pods of a preset, or with a label (``name`` is then ``LABEL=VALUE``), in one namespace."""

    name: str
    port: int
    namespace: str

    def __str__(self) -> str:
        return f"{self.name}:{self.port}@{self.namespace}"

    @property
    def service(self) -> str:
        """The name of its headless Service, one for each port."""
        slug = re.sub("[^a-z0-9]+", "-", self.name.lower())[:40].strip("-")
        return f"vllm-vitals-{slug}" + (f"-{self.port}" if self.port != _port(self.name) else "")

    @property
    def label(self) -> tuple[str, str]:
        """The label that the pods have."""
        name, _, value = self.name.partition("=")
        if value:
            return name, value
        name, value = PRESETS[self.name].label
        return name, str(self.port) if name.endswith("/port") else value


def _port(name: str) -> int:
    return DEFAULT_VLLM_PORT if "=" in name else PRESETS[name].port


def parse(text: str) -> Chosen:
    """Read ``NAME[:PORT][@NAMESPACE]``. Raises ValueError with one line."""
    found = _SPELLING.fullmatch(text)
    if found is None or ("=" not in found["name"] and found["name"] not in PRESETS):
        known = f"LABEL=VALUE or one of {', '.join(PRESETS)}"
        raise ValueError(f"expected NAME[:PORT][@NAMESPACE], NAME {known}, got {text[:80]!r}")
    port = int(found["port"] or _port(found["name"]))
    if not 0 < port < 65536:
        raise ValueError(f"{text[:80]!r}: a port is a number from 1 to 65535")
    return Chosen(found["name"], port, found["namespace"] or "default")


def service(chosen: Chosen) -> dict[str, Any]:
    """Return the headless Service that gives each pod an A record, also one that is not ready: it may hang."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict([chosen.label]),
        "ports": [{"name": "http", "port": chosen.port}],
    }
    metadata = {
        "name": chosen.service,
        "namespace": chosen.namespace,
        "labels": {"app.kubernetes.io/part-of": "vllm-vitals"},
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def discovery(chosen: Chosen, through_api: bool = False) -> dict[str, Any]:
    """Return the entry of the daemon's config that watches those pods."""
    if through_api:
        asked = {"namespace": chosen.namespace, "service": chosen.service, "port": chosen.port}
        return {"kubernetes_sd": asked}
    name = f"{chosen.service}.{chosen.namespace}.svc.cluster.local"
    return {
        "dns_sd": {"names": [name], "type": "A", "port": chosen.port, "refresh_interval": "15s"},
        "labels": {"namespace": chosen.namespace},
    }


def rights(namespaces: Iterable[str], account: str, home: str) -> list[dict[str, Any]]:
    """Return what lets the service account ``account`` of the namespace ``home`` list EndpointSlices, and no more."""
    group, labels = "rbac.authorization.k8s.io", {"app.kubernetes.io/part-of": "vllm-vitals"}
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": home}
    made = []
    for namespace in dict.fromkeys(namespaces):
        metadata = {"name": "vllm-vitals-discovery", "namespace": namespace, "labels": labels}
        head = {"apiVersion": f"{group}/v1", "metadata": metadata}
        role = {"apiGroup": group, "kind": "Role", "name": metadata["name"]}
        made += [
            {**head, "kind": "Role", "rules": [rule]},
            {**head, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
        ]
    return made


def table() -> dict[str, Any]:
    """Return all presets as the Helm chart reads them."""
    return {
        name: {"label": preset.label[0], "value": preset.label[1], "port": preset.port}
        for name, preset in PRESETS.items()
    }
