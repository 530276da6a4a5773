"""Pages about evictions: a wait that is only noisy, the proof that holds, what to set at the gateway, since when."""

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.cases.edit import Server
from tests.rules.cases import V
from tests.rules.courses import WORKS, firing, row, served, states, text_of, verdict
from tests.rules.scenario import STEP
from vllm_vitals.core.states import State

HOUR = range(0, 3600, STEP)


@pytest.mark.parametrize("falls", [0.0, 0.2])
def test_thrashing_with_a_wait_that_is_only_noisy_never_pages(falls: float, tmp_path: Path) -> None:
    noise = random.Random(1)
    wait = {at: 120 * (1 - falls * at / 3600) * (1 + noise.uniform(-0.05, 0.05)) for at in (*HOUR, 3600)}
    rows = [
        *states(lambda at: State.THRASHING if at >= 300 else State.PREEMPTING, 3600),
        row("expected_wait_seconds", wait.get, 3600),
        row("requests_waiting", lambda at: 40 + at % 7, 3600, reason="capacity"),
    ]
    assert not verdict(rows, [firing("VLLMThrashing", "page", at, 0) for at in HOUR], tmp_path)


@pytest.mark.parametrize(
    ("wait", "queue", "pages"),
    [
        (lambda minutes: 120.0, lambda minutes: 40.0, False),  # long, but no longer than before
        (lambda minutes: 30 + 5 * minutes, lambda minutes: 10 + minutes, True),  # both grow
        (lambda minutes: 30 + 5 * minutes, lambda minutes: 20.0, False),  # noise of the completions may do that
        (lambda minutes: 12 * 1.16**minutes, lambda minutes: 20.0, True),  # it doubles in five minutes
        (lambda minutes: 4 + 0.3 * minutes, lambda minutes: 10 + minutes, False),  # below the objective
    ],
)
def test_thrashing_pages_where_the_wait_truly_rises(
    wait: Callable[[float], float], queue: Callable[[float], float], pages: bool, tmp_path: Path
) -> None:
    rows = [
        *states(lambda at: State.THRASHING, 900),
        row("expected_wait_seconds", lambda at: wait(at / 60), 900),
        row("requests_waiting", lambda at: queue(at / 60), 900, reason="capacity"),
    ]
    assert not verdict(rows, [firing("VLLMThrashing", "page", 630, pages)], tmp_path)


BARREN = {"preempted": 20.0, "running": 0.0, "waiting": 42.0, "kv_usage": 0.98}
COLLAPSED = {**BARREN, "running": 8.0, "waiting": 40.0, "generated": 150.0, "steps": 50.0}
REDOING = {
    "preempted": 40.0, "running": 30.0, "waiting": 42.0, "kv_usage": 0.98, "generated": 900.0, "prompts": 200.0,
    "started": 2.0, "finished": 2.0, "steps": 50.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("trouble", "told", "untold"),
    [
        (BARREN, r"tokens/s on these engines \(none for 30 seconds is a spiral\): 0\.", r"R\)"),
        (
            COLLAPSED,
            r"is a spiral\): 30\.\n.*before the first preemption \(down to 30% is a spiral\): 23[0-9]\.",
            r"R\)",
        ),
        (
            REDOING,
            r"worst engine \(spiral from 1\): 20\.\nrecompute tax, worst engine \(spiral from 40%\): [0-9.]+%",
            "nothing",
        ),
    ],
)
def test_a_spiral_is_told_by_the_proof_that_holds_and_with_the_cap_of_the_status_page(
    trouble: Mapping[str, float], told: str, untold: str, tmp_path: Path
) -> None:
    server = Server()
    rows = served(server, [{**WORKS, "running": 42.0, "kv_usage": 0.85}] * 120 + [trouble] * 36)
    assert server.engine.state is State.DEATH_SPIRAL
    text = text_of(rows, "VLLMDeathSpiral", 765, tmp_path, severity="page")
    assert re.search(told, text), text
    assert untold not in text
    (advice,) = (a.size for a in server.engine.advice if a.knob == "gateway_concurrency")
    assert re.findall(r"at the gateway at (\d+);", text) == [advice.partition(" (")[0].removeprefix("to ")], (
        advice,
        text,
    )


def test_a_cap_below_max_num_seqs_is_told_where_running_reaches_it_on_average(tmp_path: Path) -> None:
    """On every third look an evicting engine runs fewer, as victims have just left."""
    rows = [
        *states(lambda at: State.PREEMPTING, 300),
        row("requests_running", lambda at: 40.0 if at % 45 else 39.0, 300),
        row("kv_cache_usage_ratio", lambda at: 0.97, 300),
        row("server_setting", lambda at: 40.0, 300, {"target": V["target"]}, name="max_num_seqs"),
        row("generation_tokens_total", lambda at: 100.0 * at, 300),
    ]
    cap = "max(engine:vllm_vitals_gateway_cap:requests)"
    check = {"expr": cap, "eval_time": "300s", "exp_samples": [{"labels": "{}", "value": 30}]}
    assert not verdict(rows, [check], tmp_path)


def test_an_exporter_that_restarted_does_not_make_a_stall_younger(tmp_path: Path) -> None:
    """Its twin saw the stall begin at 600 s; a third has been blind to the server for a day."""
    rows = []
    for name, began, state in (("a", 600, State.STALLED), ("b", 1500, State.STALLED), ("c", -86400, State.BLIND)):
        twin = {**V, "instance": name}
        rows += states(lambda at, state=state: state if at >= 600 else State.HEALTHY, 1800, twin)
        rows.append(row("state_since_timestamp_seconds", lambda at, began=began: began, 1800, twin))
    page = text_of(rows, "VLLMStalled", 1800, tmp_path, severity="page")
    assert "longest in this state (said after 45 seconds without progress): 20m 0s." in page
    link_of = text_of(rows, "VLLMStalled", 1800, tmp_path, "dashboard_url", "ticket")
    (link,) = re.findall(r"from=(-?\d+)&", link_of)
    assert link == "-1200000"  # half an hour before 600 s
