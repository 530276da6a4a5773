"""Grafana's own typed model reads each dashboard, and writes it back with nothing lost that Grafana would use."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site

plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason="grafana-foundation-sdk is not installed")
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402
from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: E402

# Of variables that are ad hoc filters, which the model has no type for.
OF_FILTERS = {".templating.list[].filters"}
# The Prometheus data source's own fields of an annotation; the general model does not list a data source's fields.
OF_THE_DATA_SOURCE = {
    f".annotations.list[].{key}" for key in ("step", "titleFormat", "textFormat", "tagKeys", "useValueForTime")
}


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths of keys and values that did not come back."""
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield f"{path}.{key}"
            else:
                yield from lost(value, after[key], f"{path}.{key}")
    elif isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            yield f"{path}[]"
        else:
            for one, other in zip(before, after, strict=True):
                yield from lost(one, other, f"{path}[]")
    elif before != after:
        yield f"{path} = {before!r}, came back {after!r}"


@pytest.mark.parametrize("uid", links.TITLES)
def test_grafanas_own_model_keeps_every_key(uid: str) -> None:
    plugins.register_default_plugins()
    dashboard = json.loads(build(Site())[f"{uid}.json"])
    back = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert set(lost(dashboard, back)) - OF_THE_DATA_SOURCE - OF_FILTERS == set()


def test_a_key_that_grafana_does_not_know_is_found() -> None:
    plugins.register_default_plugins()
    dashboard = json.loads(build(Site())[f"{links.SELF}.json"])
    dashboard["panels"][1]["fieldConfig"]["defaults"]["madeUp"] = 1
    back = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert set(lost(dashboard, back)) - OF_FILTERS == {".panels[].fieldConfig.defaults.madeUp"}
