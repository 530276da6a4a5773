"""GPUs and pods are those of the server that is looked at, and a row says how many there are before it is opened."""

import json
import re

import pytest

from tests.dashboards import lint
from tests.dashboards.history import Server
from tests.dashboards.test_queries import fill
from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site

BOARD = json.loads(build(Site())[f"{links.ENGINE}.json"])


def hidden(server: Server, target: str) -> dict[str, str]:
    """What Grafana makes of the hidden variables: all that their regular expressions find in an answer's text."""
    values = {"target": target}
    for variable in BOARD["templating"]["list"]:
        if variable.get("hide") == 2:
            query = fill(variable["query"]["query"].removeprefix("query_result(")[:-1], values, server)
            rows = server.ask("query", query=query, time=server.end)
            texts = [
                "{" + ",".join(f'{name}="{value}"' for name, value in row["metric"].items()) + "}"  # type: ignore[attr-defined]
                f" {row['value'][1]} {row['value'][0]}"  # type: ignore[index]
                for row in rows
            ]
            pattern = variable["regex"].strip("/")
            values[variable["name"]] = "|".join(sorted(one[1] for text in texts if (one := re.search(pattern, text))))
    return values


@pytest.mark.parametrize(
    ("target", "host", "pod", "gpus", "pods"),
    [
        ("spiral_chunked:8000", "spiral_chunked", "", "1", "0"),  # the exporter says the whole name
        ("truncation_mix:8000", "truncation_mix", "truncation_mix", "1", "1"),  # on another host, by the pod
        ("runaway_slot:8000", "runaway_slot", "", "0", "0"),
    ],
)
def test_a_server_has_its_own_gpus_and_pods(
    daemon: Server, target: str, host: str, pod: str, gpus: str, pods: str
) -> None:
    found = hidden(daemon, target)
    assert found == {"target": target, "host": host, "pod": pod, "gpus": gpus, "pods": pods}
    busy = next(panel for panel in lint.panels(BOARD) if panel["title"] == "GPU busy")
    assert len(daemon.ask("query", query=fill(busy["targets"][0]["expr"], found, daemon), time=daemon.end)) == int(gpus)


def test_the_rows_are_closed_and_name_their_numbers() -> None:
    rows = {row["title"]: row for row in BOARD["panels"] if "$" in row["title"]}
    assert [re.findall(r"\$(\w+)", title) for title in rows] == [["gpus"], ["pods"]]
    assert all(row["collapsed"] and row["panels"] for row in rows.values())
