"""What a panel says where a number is known only within bounds, or not at all: never that nobody came."""

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, get_args

import pytest

from tests.cases.edit import Server as Engine
from tests.dashboards import history, lint
from tests.dashboards.history import END, STEP, Server
from tests.dashboards.test_queries import run
from tests.programs import find
from vllm_vitals.catalog import BY_NAME, Kind
from vllm_vitals.core import render
from vllm_vitals.dashboards import levels, links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.promql import drawn
from vllm_vitals.dashboards.site import Site

# Seconds a token: in vLLM's first bucket, between two, above the last.
SPEEDS = {"fast": 0.005, "usual": 0.03, "slow": 500.0}
STILL = {"generated": 0, "prompts": 0, "started": 0, "steps": 0, "running": 12, "finished": 0, "waiting": 0}
BUSY = {"generated": 2400, "prompts": 2500, "started": 5, "steps": 300, "running": 12}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A daemon that watches servers of several speeds, and one where requests wait and none finishes."""
    find("prometheus"), find("promtool")
    quick = chain(*(of(name, tpot=tpot, finished=5, waiting=0) for name, tpot in SPEEDS.items()))
    stuck = chain(of("jammed", finished=0, waiting=7), of("frozen", **STILL))
    yield from history.serve(tmp_path_factory.mktemp("words"), chain(quick, stuck), ruled=True)


def of(name: str, **each: float) -> Iterator[str]:
    """What the daemon serves of a server that does so at each step."""
    engine, renderer = Engine(), render.TargetRenderer()
    engine.run(300, **BUSY | each)
    for ago, snapshot in reversed(list(enumerate(reversed(engine.told)))):
        text = render.join([renderer.render(snapshot)]).replace(b"vllm:8000", f"{name}:8000".encode())
        text = re.sub(rb'model_name="[^"]*"', f'model_name="{name}"'.encode(), text)
        yield from history.stamped(text, END - STEP * ago, 'job="vllm-vitals",instance="vitals:9840"')


def panel(uid: str, title: str) -> dict[str, Any]:
    board = json.loads(build(Site())[f"{uid}.json"])
    return next(panel for panel in lint.panels(board) if panel["title"] == title)


def shown(server: Server, uid: str, title: str, target: str = ".+", model: str = ".+") -> dict[str, float]:
    """A panel's numbers by the words before them."""
    return {
        query["legendFormat"].replace("{{bound}}", row["metric"].get("bound", "")): float(row["value"][1])
        for query in panel(uid, title)["targets"]
        for row in run(server, query, {"target": target, "model_name": model})
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
    words: Server, target: str, said: dict[str, object]
) -> None:
    assert shown(words, links.OVERVIEW, "Time per token, p99", target) == said


@pytest.mark.parametrize(("model", "seconds"), [("fast", 0.01), ("slow", 80)])
def test_a_band_of_concurrency_has_a_bar_though_buckets_only_bound_it(
    words: Server, model: str, seconds: float
) -> None:
    [(name, value)] = shown(words, links.CAPACITY, "Time per token p99, by concurrency", model=model).items()
    assert name.startswith("9-16 ")
    assert value == seconds


def test_a_wait_is_0_without_a_queue_and_endless_where_nothing_finishes(words: Server) -> None:
    wait = links.OVERVIEW, "Expected wait"
    assert shown(words, *wait, "fast:8000") == {"fine": 0}
    [(word, seconds)] = shown(words, *wait, "jammed:8000").items()
    [mapping] = panel(*wait)["fieldConfig"]["defaults"]["mappings"]
    assert word == "too high"
    assert seconds >= mapping["options"]["from"]
    assert mapping["options"]["result"] == {"text": "nothing finishes", "color": levels.RED, "index": 0}


def test_an_engine_that_does_not_move_is_never_a_wait_of_0(words: Server) -> None:
    # Nothing waits there, and a request that came would wait for ever.
    [(_, seconds)] = shown(words, links.OVERVIEW, "Expected wait", "frozen:8000").items()
    assert seconds == 1e9


def test_a_ratio_that_buckets_only_bound_is_called_fine_where_that_is_proven(words: Server) -> None:
    said = {
        target: list(shown(words, links.ENGINE, "3 · Tail ratio p99 / p50", f"{target}:8000"))
        for target in ("fast", "usual")
    }
    assert said == {"fast": ["at least · not proven"], "usual": ["at most · fine"]}


@pytest.mark.parametrize("setting", get_args(render.Histograms))
def test_a_panel_says_which_setting_of_the_daemon_empties_it(setting: render.Histograms) -> None:
    engine = Engine()
    engine.healthy()
    served = render.TargetRenderer(histograms=setting).render(engine.told[-1])
    had = set(render.TargetRenderer(histograms="all").render(engine.told[-1]))
    for board in build(Site(native=False)).values():
        for one in lint.panels(json.loads(board)):
            read = {name for target in one["targets"] for name in lint.names_in(drawn(target["expr"]))}
            families = {re.sub(r"^vllm_vitals_|_(bucket|sum|count)$", "", name) for name in read} & set(BY_NAME)
            if families & had and all(BY_NAME[name].kind is Kind.HISTOGRAM for name in families):
                [said] = re.findall(r"histograms: (.+)\.\)", one["fieldConfig"]["defaults"]["noValue"])
                assert (setting in said) == (not families & set(served)), one["title"]
