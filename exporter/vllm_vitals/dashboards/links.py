"""Where a dashboard and a panel live: the stable names that alerts, runbooks and data links point at.

Input: a dashboard's uid, a panel's title, an engine's identity. Output: ids and URLs. Invariant: an id depends on the
panel's title alone, so adding or moving panels never breaks a link in an old page or chat.
"""

from collections.abc import Mapping
from urllib.parse import urlencode
from zlib import crc32

OVERVIEW = "vllm-vitals-overview"
ENGINE = "vllm-vitals-engine"
WORKLOAD = "vllm-vitals-workload"
CAPACITY = "vllm-vitals-capacity"
SELF = "vllm-vitals-self"

# What deploy/grafana, and kube-prometheus-stack, call the data source.
ALERTMANAGER = "Alertmanager"

TITLES: Mapping[str, str] = {
    OVERVIEW: "vLLM vitals · Overview",
    ENGINE: "vLLM vitals · Engine",
    WORKLOAD: "vLLM vitals · Workload",
    CAPACITY: "vLLM vitals · Capacity",
    SELF: "vLLM vitals · Self-monitoring",
}


def panel_id(title: str) -> int:
    """Return the id of the panel of this title: a positive 31-bit number."""
    return crc32(title.encode()) % 2_000_000_000 + 1


def url(base: str, uid: str, panel: str = "", variables: Mapping[str, str] | None = None) -> str:
    """Return the address of a dashboard, or of one of its panels alone, with variables set.

    ``base`` is Grafana's own address without a slash at its end. Values are quoted, so an alert template such as
    ``{{ $labels.target }}`` must be appended by the caller, not passed here.
    """
    query = [(f"var-{name}", value) for name, value in (variables or {}).items()]
    if panel:
        query.append(("viewPanel", str(panel_id(panel))))
    return f"{base}/d/{uid}" + (f"?{urlencode(query)}" if query else "")
