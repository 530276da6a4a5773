"""What trouble cost, against what the samples themselves say; most engines lived only part of the range."""

import json
from typing import Any

import pytest

from tests.dashboards import lint
from tests.dashboards.history import STEP, Server
from tests.dashboards.test_queries import run
from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site
from vllm_vitals.rules import boards

MINUTE = 60


def panel(title: str) -> dict[str, Any]:
    """A panel of the capacity dashboard."""
    board = json.loads(build(Site())[f"{links.CAPACITY}.json"])
    return next(panel for panel in lint.panels(board) if panel["title"] == title)


def tile(server: Server, title: str, values: dict[str, str]) -> float:
    """The number of a tile, whichever of its words it goes with."""
    [shown] = [row for query in panel(title)["targets"] for row in run(server, query, values)]
    return float(shown["value"][1])


def samples(server: Server, series: str) -> list[tuple[dict[str, str], dict[float, float]]]:
    """Labels, and values by time, of every series in the range, as they were scraped."""
    found: list[dict[str, Any]] = server.ask("query", query=f"{series}[10m]", time=server.end)
    return [(one["metric"], {float(at): float(value) for at, value in one["values"]}) for one in found]


@pytest.mark.parametrize("model", ["restart_under_load", "spiral_chunked", "sim-8b"])
def test_an_engine_counts_the_time_it_spent_in_a_state_and_no_more(daemon: Server, model: str) -> None:
    [query] = panel("Engine time in each troubled state")["targets"]
    shown = {row["metric"]["state"]: float(row["value"][1]) for row in run(daemon, query, {"model_name": model})}
    # A server that never answered has no model, and is seen whatever model is chosen.
    true: dict[str, float] = {}
    for labels, values in samples(daemon, f'vllm_vitals_state{{model_name=~"{model}|"}}'):
        true[labels["state"]] = true.get(labels["state"], 0) + STEP * sum(values.values())
    assert shown
    assert {state: shown.get(state, 0) for state in true if state in query["expr"]} == pytest.approx(
        {state: seconds for state, seconds in true.items() if state in query["expr"]}, abs=MINUTE
    )


@pytest.mark.parametrize("model", ["spiral_chunked", "overcommit_thrash", "sim-8b"])
def test_lost_work_is_a_share_of_the_work_not_of_the_time(daemon: Server, model: str) -> None:
    [query] = panel("Work lost to recomputation")["targets"]
    [shown] = run(daemon, query, {"model_name": model})
    chosen = f'{{model_name="{model}"}}'
    [(_, taxes)] = samples(daemon, f"vllm_vitals_recompute_tax_ratio{chosen}")
    [(_, useful)] = samples(daemon, f"vllm_vitals_useful_tokens_per_second{chosen}")
    lost = sum(useful[at] * tax / (1 - tax) for at, tax in taxes.items() if at in useful)
    done = sum(useful[at] for at in taxes if at in useful)
    # Looked at once a minute here, every five seconds there.
    assert float(shown["value"][1]) == pytest.approx(lost / (lost + done), rel=0.15)


@pytest.mark.parametrize("title", ["KV cache left", "KV demand, peak", "Peak useful tokens/s", "Peak requests/s"])
def test_a_peak_is_found_whatever_steps_grafana_takes(daemon: Server, title: str) -> None:
    chosen = {"model_name": "spiral_chunked|sim-8b"}
    fine, coarse = (tile(daemon, title, chosen | {"__interval": step}) for step in ("5s", "5m"))
    assert coarse == fine


def test_the_room_left_is_that_of_the_fullest_sample(daemon: Server) -> None:
    shown = tile(daemon, "KV cache left", {"model_name": "runaway_slot"})
    [(_, usage)] = samples(daemon, 'vllm_vitals_kv_cache_usage_max_ratio{model_name="runaway_slot"}')
    assert shown == pytest.approx(1 - max(usage.values()))


def test_a_band_of_concurrency_is_the_mean_of_the_minutes_in_it(daemon: Server) -> None:
    model = "spiral_chunked"
    at_minutes: dict[str, list[float]] = {}
    chosen = f'{{model_name="{model}"}}[10m:5s]'
    running, useful = (
        {
            (one["metric"]["engine"], at): float(value)  # type: ignore[index]
            for one in daemon.ask("query", query=f"vllm_vitals_{name}{chosen}", time=daemon.end)
            for at, value in one["values"]  # type: ignore[attr-defined]
        }
        for name in ("requests_running", "useful_tokens_per_second")
    )
    for key, requests in running.items():
        for name, low, high in boards.bands():
            if low <= requests and (high is None or requests < high) and key in useful:
                at_minutes.setdefault(name, []).append(useful[key])
    shown = {
        query["legendFormat"].split()[0]: float(row["value"][1])
        for query in panel("Useful tokens per second, by concurrency")["targets"]
        for row in run(daemon, query, {"model_name": model})
    }
    # Rules look once a minute, at a second of their own: their mean is of some of what was scraped.
    assert shown
    assert all(min(at_minutes[name]) <= value <= max(at_minutes[name]) for name, value in shown.items())


def test_engines_of_different_size_are_never_one_row(daemon: Server) -> None:
    [*targets] = panel("Room by model and hardware")["targets"]
    rows = run(daemon, targets[0], {})
    sizes = {str(row["metric"].get(boards.SIZE)) for row in rows}
    assert len(sizes) > 1
    assert len({(row["metric"]["model_name"], row["metric"].get(boards.SIZE)) for row in rows}) == len(rows)
