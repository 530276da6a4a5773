"""Alertmanager's routes: a page must reach a receiver that notifies, and not the one of the tickets.

Input: its config as it runs. Output: findings.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_vitals.doctor.finding import Finding

_MATCHER = re.compile(r'\s*\{?\s*"?([\w.:]+)"?\s*(=~|!~|!=|=)\s*"?((?:[^"\\]|\\.)*)"?\s*\}?\s*')
_PAGE = {"alertname": "VLLMDeathSpiral", "severity": "page", "model_name": "m", "target": "t", "engine": "0"}


def check(name: str, config: Any) -> Iterator[Finding]:
    """Yield what happens to a page and to a ticket."""
    route = config.get("route") or {}
    receivers = {one.get("name"): one for one in config.get("receivers") or []}
    pages = _reached(route, _PAGE)
    tickets = _reached(route, _PAGE | {"severity": "ticket"})
    if pages == tickets:
        yield Finding(
            name,
            f'severity="page" and severity="ticket" both go to {", ".join(pages)}',
            "take the routes of alerts/alertmanager.yml, or name your own severities there",
        )
    for receiver in pages:
        if not any(key.endswith("_configs") and value for key, value in receivers.get(receiver, {}).items()):
            yield Finding(name, f"the receiver of pages, {receiver}, notifies no one", "give it a pager or webhook")


def _reached(route: Mapping[str, Any], labels: Mapping[str, str], inherited: str = "?") -> list[str]:
    """Return the receivers of an alert, as Alertmanager walks its tree: depth first, on to siblings with continue."""
    own = route.get("receiver") or inherited
    found: list[str] = []
    for child in route.get("routes") or []:
        if _matches(child, labels):
            found += _reached(child, labels, own)
            if not child.get("continue"):
                break
    return found or [own]


def _matches(route: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    texts = [found.groups() for text in route.get("matchers") or [] if (found := _MATCHER.fullmatch(str(text)))]
    wanted = [*texts, *((k, "=", v) for k, v in (route.get("match") or {}).items())]
    wanted += [(k, "=~", v) for k, v in (route.get("match_re") or {}).items()]
    return all(_holds(labels.get(label, ""), how, value) for label, how, value in wanted)


def _holds(given: str, how: str, value: str) -> bool:
    equal = given == value if how in ("=", "!=") else _fits(value, given)
    return equal is not how.startswith("!")


def _fits(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:  # a pattern of RE2 that Python does not know
        return False
