"""Examples of what scales a model by `rules.scale`'s series, and of what caps it at a gateway.

Input: a model's name, where its Deployment (taken to be called like the model) runs, and the labels that identify a
model. Output: plain objects; `vllm-vitals kubernetes build` writes them for each model of `alerts.capacity`, and
docs/scaling.md shows them. KEDA's `fallback` is for triggers of `AverageValue` alone (its ScaledObject specification),
and so is ours: replicas = series / 1, whatever there is now.
"""

import json
import re
from typing import Any

from vllm_vitals.rules.promql import by
from vllm_vitals.rules.scale import NEEDED

METRIC = "vllm_vitals_engines_needed"  # as an adapter serves it
LEAST, MOST, BLIND = 1, 12, 6  # replicas; BLIND: while the series is absent
PROMETHEUS = "http://prometheus.monitoring:9090"
# The series is the peak of ten minutes already: a second wait would only cost.
_AT_ONCE = {"scaleDown": {"stabilizationWindowSeconds": 0}}
Object = dict[str, Any]


def named(model: str) -> str:
    """Return a name that Kubernetes takes."""
    return re.sub("[^a-z0-9]+", "-", model.lower()).strip("-")[:50].strip("-") or "model"


def scaled_object(model: str, namespace: str) -> Object:
    """Return KEDA's object."""
    metadata = {
        "serverAddress": PROMETHEUS,
        "query": f"max({NEEDED}{{model_name={json.dumps(model)}}})",
        "threshold": "1",
        "ignoreNullValues": "false",
    }
    spec = {
        "scaleTargetRef": {"name": named(model)},
        "minReplicaCount": LEAST,
        "maxReplicaCount": MOST,
        "pollingInterval": 15,
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}],
        "fallback": {"failureThreshold": 4, "replicas": BLIND},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _AT_ONCE}},
    }
    return {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", **_called(model, namespace), "spec": spec}


def autoscaler(model: str, namespace: str) -> Object:
    """Return a HorizontalPodAutoscaler on an external metric."""
    metric = {"name": METRIC, "selector": {"matchLabels": {"model_name": model}}}
    external = {"metric": metric, "target": {"type": "AverageValue", "averageValue": "1"}}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": named(model)},
        "minReplicas": LEAST,
        "maxReplicas": MOST,
        "metrics": [{"type": "External", "external": external}],
        "behavior": _AT_ONCE,
    }
    head = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    return {**head, **_called(model, namespace), "spec": spec}


def adapter_rules(identity: tuple[str, ...] = ()) -> Object:
    """Return prometheus-adapter's rule, which serves the series as that metric."""
    rule = {
        "seriesQuery": NEEDED,
        "resources": {"template": "<<.Resource>>"},
        "name": {"as": METRIC},
        "metricsQuery": f"max({NEEDED}{{<<.LabelMatchers>>}}) {by((*identity, 'model_name'))}",
    }
    return {"externalRules": [rule]}


def envoy_cap(limit: int) -> Object:
    """Return what a model's cluster in Envoy has, for so many requests at once."""
    return {
        "circuit_breakers": {
            "thresholds": [{"priority": "DEFAULT", "max_requests": limit, "max_pending_requests": 4 * limit}]
        }
    }


def litellm_cap(model: str, namespace: str, limit: int) -> Object:
    """Return a model's entry in LiteLLM, for so many requests at once."""
    base = f"http://{named(model)}.{namespace}:8000/v1"
    asked = {"model": f"openai/{model}", "api_base": base, "max_parallel_requests": limit}
    return {"model_list": [{"model_name": model, "litellm_params": asked}]}


def _called(model: str, namespace: str) -> Object:
    return {"metadata": {"name": named(model), "namespace": namespace}}
