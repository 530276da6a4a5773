"""A p99 that buckets cannot tell is shown as what it is at most or at least, never as if nobody had come."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from dashboards import links
from dashboards.build import build
from dashboards.site import Site
from exporter.core import render
from tests.cases.edit import Server as Engine
from tests.dashboards import history, lint
from tests.dashboards.history import END, STEP, Server
from tests.dashboards.test_queries import run
from tests.programs import find

# Seconds a token: in vLLM's first bucket, between two, above the last.
SPEEDS = {"fast": 0.005, "usual": 0.03, "slow": 500.0}


@pytest.fixture(scope="module")
def speeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A daemon that watches a fast, a usual and a slow server, each busy to the end."""
    find("prometheus"), find("promtool")
    yield from history.serve(tmp_path_factory.mktemp("speeds"), chain(*(of(*one) for one in SPEEDS.items())))


def of(name: str, tpot: float) -> Iterator[str]:
    """What the daemon serves of a server that takes so long for each token."""
    engine, renderer = Engine(), render.TargetRenderer()
    engine.run(300, generated=2400, prompts=2500, started=5, finished=5, tpot=tpot, steps=300, running=12, waiting=0)
    for ago, snapshot in reversed(list(enumerate(reversed(engine.told)))):
        text = render.join([renderer.render(snapshot)]).replace(b"vllm:8000", f"{name}:8000".encode())
        yield from history.stamped(text, END - STEP * ago, 'job="vllm-vitals",instance="vitals:9840"')


def shown(server: Server, uid: str, title: str, target: str) -> dict[str, float]:
    """A panel's numbers by the words before them."""
    board = json.loads(build(Site())[f"{uid}.json"])
    panel: dict[str, Any] = next(panel for panel in lint.panels(board) if panel["title"] == title)
    return {
        query["legendFormat"].replace("{{bound}}", row["metric"].get("bound", "")): float(row["value"][1])
        for query in panel["targets"]
        for row in run(server, query, {"target": target})
    }


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("fast:8000", {"at most": 0.01}),
        ("usual:8000", {"about": pytest.approx(0.05, abs=0.001)}),
        ("slow:8000", {"at least": 80.0}),
        (".+", {"at least": 80.0}),
        ("(fast|usual):8000", {"about": pytest.approx(0.05, abs=0.001)}),
    ],
)
def test_the_tile_shows_the_slowest_and_how_well_it_is_known(
    speeds: Server, target: str, said: dict[str, object]
) -> None:
    assert shown(speeds, links.OVERVIEW, "Time per token, p99", target) == said


@pytest.mark.parametrize(
    ("target", "words", "seconds"), [("fast:8000", "at most", 0.01), ("slow:8000", "at least", 80)]
)
def test_a_band_of_concurrency_has_a_bar_though_buckets_only_bound_it(
    speeds: Server, target: str, words: str, seconds: float
) -> None:
    [(name, value)] = shown(speeds, links.CAPACITY, "Time per token p99, by concurrency", target).items()
    assert name.strip("\u200a") == f"9-16 {words}"
    assert value == seconds
