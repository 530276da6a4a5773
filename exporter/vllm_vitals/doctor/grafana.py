"""Grafana's dashboards against those of this release.

Input: dashboards as they stand there, by uid, None where there is none. Output: findings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_vitals.doctor.finding import Finding


def check(name: str, found: Mapping[str, Any], built: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield dashboards that are not there or whose queries are not those of this release."""
    for uid, ours in built.items():
        theirs = found.get(uid)
        if theirs is None:
            yield Finding(name, f"has no dashboard {uid}, which alerts link to", f"import dashboards/{uid}.json")
        elif differing := queries(ours) ^ queries(theirs):
            yield Finding(
                name,
                f"dashboard {uid} is of another release, or was edited: {len(differing)} queries differ",
                f"import dashboards/{uid}.json again",
            )


def queries(node: Any) -> set[str]:
    """Return every query in a dashboard."""
    if isinstance(node, dict):
        own = {node["expr"]} if isinstance(node.get("expr"), str) else set()
        return own.union(*(queries(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(queries(value) for value in node))
    return set()
