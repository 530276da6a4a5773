"""What the Helm chart takes from the generators, beside the committed dashboards that it links to.

Input: the alert config of a cluster. Output: the rule files; `alerts-native.yml`, the alerts that need no daemon;
`alertmanagerconfig.yml`, routes and inhibitions as the spec of an AlertmanagerConfig; and `presets.yml`, the pods of
each platform. The chart adds receivers.
"""

import re
from typing import Any

from vllm_vitals.config.alerts import Config
from vllm_vitals.kubernetes import presets
from vllm_vitals.rules import build as rules_build
from vllm_vitals.rules import routing
from vllm_vitals.rules.model import dump

RULES = ("recording.yml", "alerts.yml", "native.yml")
_MATCHER = re.compile(r'(?P<name>\w+)(?P<how>=~|!~|!=|=)"(?P<value>[^"]*)"')


def outputs(limits: Config, header: str) -> dict[str, str]:
    """Return the texts by file name."""
    rules, native = rules_build.outputs(limits), rules_build.outputs(limits, frozenset({"native"}))
    return {
        **{name: rules[name] for name in RULES},
        "alerts-native.yml": native["alerts.yml"],
        "alertmanagerconfig.yml": dump(alertmanager_spec(routing.document(limits)), header),
        "presets.yml": dump(presets.table(), header),
    }


def alertmanager_spec(document: dict[str, Any]) -> dict[str, Any]:
    """Return alertmanager.yml's routes and inhibitions in the operator's spelling, without receivers."""
    return {
        "route": _route(document["route"]),
        "inhibitRules": [
            {
                "sourceMatch": _matchers(rule["source_matchers"]),
                "targetMatch": _matchers(rule["target_matchers"]),
                "equal": rule["equal"],
            }
            for rule in document["inhibit_rules"]
        ],
    }


def _route(route: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in route.items():
        if key == "matchers":
            out[key] = _matchers(value)
        elif key == "routes":
            out[key] = [_route(one) for one in value]
        else:
            out[_camel(key)] = value
    return out


def _matchers(texts: list[str]) -> list[dict[str, str]]:
    found = [_MATCHER.fullmatch(text) for text in texts]
    return [{"name": m["name"], "matchType": m["how"], "value": m["value"]} for m in found if m]


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)
