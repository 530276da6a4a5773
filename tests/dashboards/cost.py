"""What a panel costs a Prometheus, asked as Grafana asks.

Input: a running Prometheus, a range. Output: per panel, CPU seconds and samples in memory at once, as Prometheus
itself counts them. Steps and intervals follow Grafana's Prometheus data source.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import requests

from tests.dashboards import lint
from tests.dashboards.history import Server
from tests.programs import PATIENCE_S
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site

SCREEN = 1920
_SCRAPE = 15
# Grafana's roundInterval: up to the first (s), the second.
_NICE = (
    (15, 10), (25, 20), (45, 30), (90, 60), (210, 120), (450, 300), (750, 600), (1050, 900), (1500, 1200),
    (2700, 1800), (5400, 3600), (9000, 7200), (16200, 10800), (32400, 21600),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """``peak``: samples in memory at once by the hungriest query, of which Prometheus allows 50 million.

    ``found``: what each of the panel's queries answered, in their order; nothing where it failed.
    """

    title: str
    cpu_s: float
    peak: int
    error: str = ""
    found: tuple[list[dict[str, Any]], ...] = ()


def step_of(range_s: int, width: int) -> int:
    """Return the step (s) that Grafana takes for a panel so many grid columns wide."""
    raw = range_s / (SCREEN * width / 24)
    return max(next((nice for below, nice in _NICE if raw < below), 43200), _SCRAPE)


def fill(expr: str, step: int, range_s: int, values: dict[str, str]) -> str:
    """Replace the variables."""
    rate = max(step + _SCRAPE, 4 * _SCRAPE)
    known = {"__rate_interval": f"{rate}s", "__interval": f"{step}s", "__range": f"{range_s}s"}
    return re.sub(r"\$([a-z_]\w*)", lambda found: (known | values).get(found[1], ".+"), expr)


def of_every(server: Server, range_s: int, site: Site | None = None) -> Iterator[tuple[str, list[Cost]]]:
    """What each dashboard's open panels cost."""
    for name, text in build(site or Site()).items():
        board = json.loads(text)
        values = chosen(server, board, range_s)
        yield name.removesuffix(".json"), [of(server, panel, range_s, values) for panel in lint.opened(board)]


def chosen(server: Server, board: dict[str, Any], range_s: int) -> dict[str, str]:
    """What the variables are when somebody opens the dashboard: all, or the first that is offered."""
    values: dict[str, str] = {}
    for variable in board["templating"]["list"]:
        # What is hidden is read by closed rows and titles alone.
        if variable.get("includeAll") or variable["type"] != "query" or variable["hide"] == 2:
            continue
        query = fill(variable["query"]["query"], 60, range_s, values)
        inner = re.fullmatch(r"query_result\((.+)\)", query, re.DOTALL)
        assert inner, f"{variable['name']} offers neither all nor the result of a query"
        for first in server.ask("query", query=inner[1], time=server.end)[:1]:
            name = str(first["metric"][variable["name"]])  # type: ignore[index]
            values[variable["name"]] = re.escape(name).replace("\\", "\\\\")
    return values


def of(server: Server, panel: dict[str, Any], range_s: int, values: dict[str, str]) -> Cost:
    """What one panel costs."""
    step, peak, error, before = step_of(range_s, panel["gridPos"]["w"]), 0, "", _cpu(server)
    found: list[list[dict[str, Any]]] = []
    for target in panel["targets"]:
        asked: dict[str, Any] = {"query": fill(target["expr"], step, range_s, values), "stats": "all"}
        if target["instant"]:
            path, asked = "query", asked | {"time": server.end}
        else:
            path, asked = "query_range", asked | {"start": server.end - range_s, "end": server.end, "step": step}
        answer = requests.post(f"{server.url}/api/v1/{path}", data=asked, timeout=PATIENCE_S).json()
        if answer["status"] != "success":
            error = answer["error"]
            found.append([])
            continue
        peak = max(peak, answer["data"]["stats"]["samples"]["peakSamples"])
        found.append(answer["data"]["result"])
    return Cost(panel["title"], _cpu(server) - before, peak, error, tuple(found))


def _cpu(server: Server) -> float:
    """Prometheus' own CPU seconds."""
    text = requests.get(f"{server.url}/metrics", timeout=PATIENCE_S).text
    return float(re.findall(r"^process_cpu_seconds_total (\S+)", text, re.MULTILINE)[0])
