"""Every real recording says the same when it was scraped rarely, badly, or from a server of another era."""

import gzip
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.cases.edit import DATA, Edit, prefixed, without, without_zeros
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.scrape.reasons import of_text

Line = dict[str, Any]
LATE = 6.0  # with fewer scrapes a share of them is reached so much later (s)
NAMES = sorted(path.name for path in (DATA / "recordings").iterdir())


def old(text: str) -> str:
    """What vLLM 0.11 would have called it, without what came later."""
    text = text.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    text = text.replace("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    return without("request_num_preemptions", "num_requests_waiting_by_reason", "prompt_tokens_by_source")(text)


def every(scrapes: int) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: lines[::scrapes]


def busy(lines: list[Line]) -> list[Line]:
    """Of every three scrapes, up to two time out."""
    dice = random.Random(1)
    return [
        {**line, "status": "timeout"} if line["status"] == 200 and n % 3 and dice.random() < 0.7 else line
        for n, line in enumerate(lines)
    ]


EDITS: dict[str, tuple[Callable[[list[Line]], list[Line]], Edit]] = {
    "every 10 s through Ray": (every(5), prefixed("ray_vllm_")),
    "zeros absent": (every(1), lambda text: prefixed("ray_vllm_")(without_zeros(text))),
    "every 6 s in old names": (every(3), old),
    "timeouts, KServe, capacity unknown": (
        busy,
        lambda text: prefixed("kserve_vllm:")(without("cache_config_info")(text)),
    ),
}


def wrong(expect: dict[str, Any], start: float, lines: Iterable[Line], edit: Edit) -> list[tuple[int, str]]:
    """Scrapes whose state no rule allows, or that never may be."""
    judge, found = TargetEvaluator("vllm:8000"), []
    for line in lines:
        body = edit(line["text"]).encode() if line["status"] == 200 else None
        failure = ("", "") if body else of_text(str(line["status"]))
        since = line["t"] - start
        for engine in judge.observe(Scrape(line["t"], 0.1, body, *failure)).engines:
            allowed = [rule["states"] for rule in expect["rules"] if rule["from"] + LATE <= since <= rule["to"]]
            if engine.state in expect["never"] or not all(engine.state in states for states in allowed):
                found.append((round(since), engine.state.value))
    return found


@pytest.mark.parametrize("edited", EDITS)
@pytest.mark.parametrize("name", NAMES)
def test_the_states_are_those_of_the_recording_itself(name: str, edited: str) -> None:
    with gzip.open(DATA / "recordings" / name / "metrics.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    expect = json.loads((DATA / "recordings" / name / "expect.json").read_text())
    if expect["critical"] == "down":
        expect["never"].remove("blind")  # a refusal among timeouts is not yet proof that nothing is there
    choose, edit = EDITS[edited]
    assert wrong(expect, lines[0]["t"], choose(lines), edit) == []
