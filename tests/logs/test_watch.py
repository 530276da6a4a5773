"""Metrics and logs side by side, where a person reads them."""

import asyncio
import json
from pathlib import Path

import pytest

from tests import fed_time
from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Reading, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.log import get_logger
from vllm_vitals.logs.config import LogsConfig, LogSource
from vllm_vitals.logs.server_complaints import KEPT
from vllm_vitals.logs.watch import LogWatch
from vllm_vitals.serve import page, views


def engine(rank: str, cut: float) -> EngineSnapshot:
    readings = {"truncated_ratio": Reading(cut)}
    return EngineSnapshot(EngineKey("gpu-0", "m", rank), State.HEALTHY, 1.0, 1.0, readings=readings)


def target(*engines: EngineSnapshot) -> TargetSnapshot:
    return TargetSnapshot("gpu-0", True, 1.0, 0.1, 1.0, engines=engines)


def answers(cut: int, whole: int, **more: str) -> str:
    reasons = ["length"] * cut + ["stop"] * whole
    return "".join(
        json.dumps({"id": "a", "usage": {"completion_tokens": 9}, "choices": [{"finish_reason": reason}], **more})
        + "\n"
        for reason in reasons
    )


@pytest.mark.parametrize("named", [{"model": "m"}, {}], ids=["a log that names the model", "one that does not"])
def test_the_page_shows_what_metrics_and_logs_say_of_truncation_and_that_they_disagree(
    tmp_path: Path, named: dict[str, str]
) -> None:
    (tmp_path / "gateway.log").write_text(answers(30, 30, **named))
    source = LogSource(name="gateway", target="gpu-0", paths=[str(tmp_path / "gateway.log")])
    one, two = target(engine("0", 0.1)), target(engine("0", 0.1), engine("1", 0.1))

    async def story() -> None:
        watch = LogWatch(Clock(), get_logger())
        assert watch.truncation(one) == {}
        await watch.apply(LogsConfig(sources=[source]))
        async with asyncio.timeout(60):
            while not watch.truncation(one):
                await asyncio.sleep(0.05)
        (card,) = page.build([one], 1.0, watch.truncation).cards
        (line,) = card.evidence
        assert line.startswith("truncated at cap: 10% by metrics, 50% of 60 by gateway: they disagree")
        assert watch.truncation(two) == {}
        await watch.apply(LogsConfig())
        assert watch.truncation(one) == {}

    fed_time.run(story())


STARTED = """\
(APIServer pid=1) INFO 04-28 22:50:00 [utils.py:1] non-default args: {'model': 'm', 'max_num_seqs': 64, \
'block_size': 16}
(EngineCore pid=2) INFO 04-28 22:50:01 [core.py:1] Initializing a V1 LLM engine (v0.33.0) with config: model='m', \
max_seq_len=8192, tensor_parallel_size=2, enable_prefix_caching=True, enable_chunked_prefill=True
(APIServer pid=1) INFO 04-28 22:50:01 [vllm.py:1] Asynchronous scheduling is enabled.
(APIServer pid=1) INFO 04-28 22:50:01 [scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore pid=2) INFO 04-28 22:50:02 [interface.py:1] Setting attention block size to 528 tokens to ensure that \
attention page size is >= mamba page size.
(EngineCore pid=2) INFO 04-28 22:50:03 [kv_cache_utils.py:1] GPU KV cache size: 149,952 tokens, Maximum concurrency \
for 4,096 tokens per request: 36.61x
"""


def test_what_the_start_up_log_says_reaches_the_judge_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(STARTED)
    source = LogSource(name="vllm", target="gpu-0", paths=[str(tmp_path / "vllm.log")])

    async def story() -> None:
        watch = LogWatch(Clock(), get_logger())
        assert watch.settings("gpu-0") == {}
        await watch.apply(LogsConfig(sources=[source]))
        async with asyncio.timeout(60):
            while "kv_cache_size_tokens" not in watch.settings("gpu-0"):
                await asyncio.sleep(0.05)
        assert watch.settings("gpu-0") == {
            "version": "0.33.0", "model": "m", "max_num_seqs": "64", "block_size": "528", "max_model_len": "4096",
            "tensor_parallel_size": "2", "enable_prefix_caching": "1", "enable_chunked_prefill": "1",
            "async_scheduling": "1", "max_num_batched_tokens": "8192", "kv_cache_size_tokens": "149952",
            "max_concurrency": "36.61",
        }  # fmt: skip
        assert watch.settings("gpu-1") == {}
        await watch.apply(LogsConfig())

    asyncio.run(story())


SAID = """\
(EngineCore pid=2) ERROR 04-28 22:50:09 [core.py:1] EngineCore encountered a fatal error.
(EngineCore pid=2) ERROR 04-28 22:50:10 [serving.py:1] Error in 'a prompt that a client sent to us': bad
(EngineCore pid=2) ERROR 04-28 22:50:11 [serving.py:1] 401 for Bearer abc.def at http://u:p@host/ with api_key=hunter2
"""


def test_a_server_s_newest_errors_are_told_without_quotes_and_secrets_and_no_more_than_so_many(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(SAID * KEPT)
    source = LogSource(name="vllm", target="gpu-0", paths=[str(tmp_path / "vllm.log")])

    async def story() -> None:
        watch = LogWatch(Clock(), get_logger())
        assert watch.complaints("gpu-0") is None
        await watch.apply(LogsConfig(sources=[source]))
        assert watch.complaints("gpu-1") is None
        async with asyncio.timeout(60):
            while len(watch.complaints("gpu-0") or ()) < KEPT:
                await asyncio.sleep(0.05)
        kept = watch.complaints("gpu-0")
        assert kept is not None
        assert len(kept) == KEPT
        last = kept[-3:]
        assert [each.kind for each in last] == ["engine_dead", "other", "other"]
        assert last[1].text == "Error in [...]: bad"
        assert not any(part in last[2].text for part in ("abc.def", "u:p", "hunter2"))
        assert views.complaints(last)["log_errors"][1]["text"] == last[1].text
        await watch.apply(LogsConfig())
        assert watch.complaints("gpu-0") is None

    fed_time.run(story())
