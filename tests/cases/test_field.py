"""Situations that people who operate vLLM have reported, rebuilt: what a correct monitor says of each, as a user asks.

`tests/data/field`: one folder a situation, recordings of one page a line. Each test runs `check --replay` as typed.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cases.edit import Server
from tests.typed import Done, typed
from vllm_vitals.core.states import State

FIELD = Path(__file__).parent.parent / "data" / "field"


def file(situation: str, name: str) -> Path:
    (folder,) = FIELD.glob(f"{situation}-*")
    return folder / f"{name}.jsonl.gz"


@cache
def said(situation: str, name: str = "first") -> Done:
    return typed("check", "--replay", file(situation, name))


@cache
def story(situation: str, name: str = "first") -> list[dict[str, Any]]:
    """Each engine: its timeline and series."""
    answer = json.loads(typed("check", "--replay", file(situation, name), "--json").stdout)
    engines: list[dict[str, Any]] = answer["engines"]
    return engines


def states(situation: str, name: str = "first") -> set[str]:
    return {run["state"] for engine in story(situation, name) for run in engine["timeline"]}


def entered(situation: str, state: str, name: str = "first") -> float:
    """Seconds from the first scrape until a state is first said."""
    engine = story(situation, name)[0]
    start: float = engine["series"][0]["t"]
    return next(run["from"] - start for run in engine["timeline"] if run["state"] == state)


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_queue_that_is_deferred_is_named_and_never_answered_with_slots_or_replicas(name: str) -> None:
    done = said("01", name)
    assert done.exit_code == 1
    assert "deferred" in done.stdout
    assert "max_num_seqs up" not in done.stdout
    assert "replicas up" not in done.stdout
    assert "token budget is" not in done.stdout


def test_a_full_cache_with_no_request_present_is_held_and_drained() -> None:
    done = said("02")
    assert (done.exit_code, "kv_held" in states("02")) == (1, True)
    assert "KV cache held without a request present: 98%" in done.stdout
    assert "send one request first" in done.stdout
    assert "drain and restart" in done.stdout


def test_a_prefill_engine_that_nobody_fetches_from_names_the_decode_side() -> None:
    done = said("04")
    assert done.exit_code == 1
    assert "the decode side is not pulling" in done.stdout
    assert "cut at a cap" not in done.stdout


def test_a_prefill_that_falls_back_again_and_again_is_no_progress() -> None:
    assert story("07")[0]["timeline"][-1]["state"] == "stalled"
    assert entered("07", "stalled") <= 100 + 100 + 60


def test_one_step_that_does_not_end_is_a_stall_within_a_minute() -> None:
    assert entered("08", "stalled") <= 120 + 60
    assert "capture first" in said("08").stdout


def test_waiting_with_nothing_running_is_a_stall_and_says_what_holds_it() -> None:
    for name in ("first", "second"):
        assert entered("09", "stalled", name) <= 120 + 60
    assert "held by remote KV loads" in said("09", "second").stdout


def test_requests_that_end_in_error_are_critical_and_four_in_ten_a_warning() -> None:
    assert said("10").exit_code == 2
    assert "finished requests that end in error: 100%" in said("10").stdout
    assert (said("10", "second").exit_code, "degraded" in states("10", "second")) == (1, True)
    assert re.search(r"end in error: (3\d|4\d)%", said("10", "second").stdout)


@pytest.mark.parametrize("name", ["first", "second"])
def test_two_servers_behind_one_address_get_no_verdict_and_are_named(name: str) -> None:
    done = said("11", name)
    assert done.exit_code == 3
    assert states("11", name) == {"unknown"}
    assert "2 servers answer in turn at this address" in done.stdout
    assert "make each replica a target of its own" in done.stdout


def test_stages_without_an_engine_label_are_engines_of_their_own() -> None:
    stalled = [e["engine"] for e in story("13") if any(run["state"] == "stalled" for run in e["timeline"])]
    assert len(story("13")) > 1
    assert len(stalled) == 1


def test_one_line_that_cannot_be_read_costs_its_family() -> None:
    assert said("15").exit_code == 0
    assert "blind" not in states("15", "second")
    for name in ("first", "second"):
        assert re.search(r"! \S+ is left out: line \d+", said("15", name).stdout)


def test_clients_that_leave_are_counted_where_the_frontend_counts_them() -> None:
    done = said("17")
    assert done.exit_code in (0, 1)
    assert "requests given up by their clients (finished_reason abort): 60%" in done.stdout
    assert "counts them nowhere" not in done.stdout


def test_caching_that_is_not_labelled_is_proven_by_its_lookups() -> None:
    for name in ("with", "without"):
        assert "thrashing" in states("18", name)
        assert "death_spiral" not in states("18", name)


def test_a_queue_behind_prefill_is_answered_with_replicas() -> None:
    done = said("21")
    assert (done.exit_code, "SATURATED" in done.stdout) == (1, True)
    assert "replicas up" in done.stdout
    assert "max_num_seqs up" not in done.stdout
    assert "token budget is" not in done.stdout


def test_a_page_of_another_program_is_judged_by_what_it_has() -> None:
    assert said("23").exit_code == 0
    assert "no preemption counter" in said("23").stdout


def test_a_missing_gauge_is_unknown_by_name() -> None:
    assert said("24").exit_code == 3
    assert "requests_running is missing" in said("24").stdout


# The same kinds on servers made up here; amounts are those of five seconds

CHAT = {"prompts": 1_000.0, "started": 1.0, "finished": 1.0, "running": 1.0, "kv_usage": 0.2}


def slow_server(gap: float, **later: float) -> Server:
    """An hour at 30 ms a token, then a quarter of one at ``gap``."""
    server = Server()
    server.run(3_600, generated=160.0, gap=0.03, **CHAT)
    server.run(900, generated=160.0 * 0.03 / gap, gap=gap, **{**CHAT, **later})
    return server


def test_a_server_at_half_its_speed_is_degraded_and_one_beside_more_prefill_is_not() -> None:
    slow = slow_server(0.06)
    assert slow.engine.state is State.DEGRADED
    assert "slower than its usual at this load since" in slow.says
    assert slow_server(0.04).engine.state is State.HEALTHY
    assert slow_server(0.06, prompts=15_000.0).engine.state is not State.DEGRADED


@pytest.mark.parametrize("off", [2.5, 8, 32])
def test_a_block_size_that_is_wrong_hides_no_spiral_and_widens_what_rests_on_it(off: float) -> None:
    """The label is a hybrid model's own: the capacity by it is ``off`` times less, or more, than the truth."""

    def server(factor: float) -> Server:
        def label(text: str) -> str:
            said = r'(num_gpu_blocks|kv_cache_size_tokens)="(\d+)"'
            return re.sub(said, lambda m: f'{m[1]}="{max(1, round(int(m[2]) * factor))}"', text)

        one = Server("recordings/same_load_reserved", label)
        one.healthy()
        one.run(150, generated=1_650.0, prompts=4_500.0, started=5.0, finished=5.0, twice=3.5, preempted=55.0,
                running=6.0, waiting=34.0, kv_usage=0.98, lengths=(1_200.0, 300.0))  # fmt: skip
        return one

    honest, small, large = server(1.0), server(1 / off), server(off)
    assert honest.engine.state is State.DEATH_SPIRAL
    assert small.engine.state is State.DEATH_SPIRAL
    truth = honest.engine.readings["recompute_tax_ratio"].value
    for wrong in (small, large):
        tax = wrong.engine.readings["recompute_tax_ratio"]
        assert tax.lower <= truth <= tax.upper  # type: ignore[operator]
    # twice too large may be long requests that have not finished: nothing is said, and the bounds hold the truth
    for wrong in (small, *([large] if off > 3 else [])):
        assert wrong.engine.contradictions[0].check == "kv_capacity"
        assert "cannot be true" in wrong.engine.contradictions[0].text
