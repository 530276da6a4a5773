"""The objects that run vllm-vitals in a cluster, as plain data.

Input: a `Site`. Output: Kubernetes objects. Invariant: nothing runs as root, writes to its own file system, or holds a
token of the cluster, but where it shall ask the API for pods; a config that changes restarts the pods that read it.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import yaml

from vllm_vitals import __version__
from vllm_vitals.kubernetes import presets
from vllm_vitals.kubernetes.presets import Chosen
from vllm_vitals.rules.formats import OPERATOR_API, VICTORIA_API

Object = dict[str, Any]
NAME = "vllm-vitals"
PORT = 9840
USER = 65532
IMAGE = f"{NAME}:{__version__}"
# By operator what scrapes pods; the fields that are used here have the same names in both.
MONITORS = {"prometheus-operator": (OPERATOR_API, "PodMonitor"), "victoria-metrics": (VICTORIA_API, "VMPodScrape")}


@dataclass(frozen=True, slots=True)
class Site:
    """Whom to build for. ``labels`` go on what the Prometheus operator selects (kube-prometheus: release=...)."""

    config: str
    namespace: str = "vllm-vitals"
    image: str = IMAGE
    shards: int = 1
    replicas: int = 1
    interval: str = "15s"
    labels: dict[str, str] = field(default_factory=dict)
    operator: str = "prometheus-operator"
    presets: tuple[Chosen, ...] = ()

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the namespaces whose pods its config asks the cluster's API for, with the account of the pod."""
        entries = (yaml.safe_load(self.config) or {}).get("discovery") or ()
        found = [entry["kubernetes_sd"] for entry in entries if "kubernetes_sd" in entry]
        return tuple(each["namespace"] for each in found if "bearer_token_file" not in each)


def everything(site: Site) -> list[Object]:
    """Return what runs it: account, config, a Deployment a shard, and how people and Prometheus reach it."""
    return [
        _object(site, "v1", "ServiceAccount", NAME, automountServiceAccountToken=False),
        _object(site, "v1", "ConfigMap", NAME, data={"config.yml": site.config}),
        *(deployment(site, index) for index in range(1, site.shards + 1)),
        _object(site, "v1", "Service", NAME, spec={
            "selector": {"app.kubernetes.io/name": NAME},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        }),
        pod_monitor(site),
        *map(presets.service, site.presets),
        *presets.rights(site.asked, NAME, site.namespace),
    ]  # fmt: skip


def deployment(site: Site, index: int) -> Object:
    """Return one shard. Two replicas of it are twins: every rule and dashboard folds them into one."""
    name = NAME if site.shards == 1 else f"{NAME}-{index}"
    labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": name}
    digest = hashlib.sha256(site.config.encode()).hexdigest()
    template = {
        "metadata": {"labels": labels, "annotations": {"checksum/config": digest}},
        "spec": {
            "serviceAccountName": NAME,
            "automountServiceAccountToken": bool(site.asked),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(site, index)],
            "volumes": [
                {"name": "config", "configMap": {"name": NAME}},
                {"name": "flight", "emptyDir": {"sizeLimit": "2Gi"}},
            ],
        },
    }
    spec = {"replicas": site.replicas, "selector": {"matchLabels": labels}, "template": template}
    return _object(site, "apps/v1", "Deployment", name, spec=spec)


def _container(site: Site, index: int) -> Object:
    arguments = ["run", "--config=/etc/vllm-vitals/config.yml", f"--listen=0.0.0.0:{PORT}"]
    if site.shards > 1:
        arguments.append(f"--shard={index}/{site.shards}")
    return {
        "name": NAME,
        "image": site.image,
        "args": arguments,
        "ports": [{"name": "http", "containerPort": PORT}],
        "livenessProbe": _probe("/-/healthy", every=10, failures=6),
        "readinessProbe": _probe("/-/ready", every=5, failures=3),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/vllm-vitals", "readOnly": True},
            {"name": "flight", "mountPath": "/var/lib/vllm-vitals"},
        ],
    }


def _probe(path: str, every: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": every,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def pod_monitor(site: Site) -> Object:
    """Return how the operator's Prometheus scrapes every shard. A target's labels win over those of our pod."""
    endpoint = {"port": "http", "path": "/metrics", "interval": site.interval, "honorLabels": True}
    spec = {
        # The job is then this label's value, which VLLMExporterDown asks for; else it would be namespace/name.
        "jobLabel": "app.kubernetes.io/name",
        "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
        "podMetricsEndpoints": [endpoint],
    }
    api, kind = MONITORS[site.operator]
    return _object(site, api, kind, NAME, site.labels, spec=spec)


def placed(document: Object, site: Site) -> Object:
    """Return an object that was built elsewhere, put into the site's namespace, with its labels."""
    metadata = document["metadata"]
    operator = document["apiVersion"] in (OPERATOR_API, VICTORIA_API)
    labels = {**metadata.get("labels", {}), **(site.labels if operator else {})}
    return {**document, "metadata": {**metadata, "namespace": site.namespace, "labels": labels}}


def _object(
    site: Site, version: str, kind: str, name: str, labels: dict[str, str] | None = None, **body: Any
) -> Object:
    metadata = {"name": name, "namespace": site.namespace, "labels": {"app.kubernetes.io/name": NAME, **(labels or {})}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}
