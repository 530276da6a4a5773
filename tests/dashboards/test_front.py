"""The row of a model: how old it is, where it comes from, and what to do first, in words."""

import json

import pytest

from tests.dashboards import lint
from tests.dashboards.history import Server
from tests.dashboards.test_queries import fill
from vllm_vitals.dashboards import links, panels
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site

BOARD = json.loads(build(Site())[f"{links.OVERVIEW}.json"])
TABLE = next(panel for panel in lint.panels(BOARD) if panel["title"] == "Models, worst first")
[TREND] = [target for target in TABLE["targets"] if not target["instant"]]


def rows(server: Server, word: str, after: float = 0) -> dict[str, dict[str, object]]:
    """What the query that holds this word says of each model, some seconds after the newest sample."""
    [target] = [one for one in TABLE["targets"] if word in one["expr"]]
    found = server.ask("query", query=fill(target["expr"], {}, server), time=server.end + after)
    return {str(row["metric"]["model_name"]): row for row in found if "model_name" in row["metric"]}  # type: ignore[index,operator]


@pytest.mark.parametrize("after", [0, 30, 60])
def test_what_is_old_says_how_old_it_is(daemon: Server, after: int) -> None:
    found = rows(daemon, "timestamp(", after)
    assert float(found["spiral_chunked"]["value"][1]) == pytest.approx(after, abs=15)  # type: ignore[index]


def test_the_first_knob_is_said_as_a_person_says_it(daemon: Server) -> None:
    labels = {name: row["metric"]["turn"] for name, row in rows(daemon, "label_join").items()}  # type: ignore[index]
    assert labels["spiral_chunked"] == "lower gateway_concurrency"


def test_the_trend_of_a_model_is_a_small_line_in_its_row(daemon: Server) -> None:
    expr = fill(TREND["expr"], {}, daemon)
    [line] = [
        one
        for one in daemon.ask("query_range", query=expr, start=daemon.start, end=daemon.end, step=15)
        if one["metric"] == {"model_name": "spiral_chunked"}
    ]
    assert len(line["values"]) > 2  # type: ignore[arg-type]
    first, *_ = TABLE["transformations"]
    # Only this query: a table of one row would be taken for a line, too.
    assert (first["id"], first["filter"]) == ("timeSeriesTable", {"id": "byRefId", "options": TREND["refId"]})
    organised = TABLE["transformations"][-1]["options"]["renameByName"]
    assert organised[f"{panels.TREND} #{TREND['refId']}"] == "First token, p99"


def test_the_worst_model_is_named_so_that_its_tile_holds_it(daemon: Server) -> None:
    [tile] = [panel for panel in lint.panels(BOARD) if panel["title"] == "Worst model"]
    [row] = daemon.ask("query", query=fill(tile["targets"][0]["expr"], {}, daemon), time=daemon.end)
    ranks = daemon.ask("query", query=fill(TABLE["targets"][0]["expr"], {}, daemon), time=daemon.end)
    assert row["value"][1] == min((one["value"][1] for one in ranks), key=float)  # type: ignore[index]
    assert len(row["metric"].get("model", "")) <= 24  # type: ignore[attr-defined]
