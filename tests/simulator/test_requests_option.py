"""``vllm-vitals simulate --requests``, as typed: a recording, a live server, and options that make no sense."""

import asyncio
import re
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.typed import typed
from vllm_vitals.core.dialect import normalise
from vllm_vitals.recordings import recording

DATA = Path(__file__).parents[1] / "data" / "requests"
ROOMY = ("--set", "max_model_len=32768", "--set", "num_gpu_blocks=4096")


def last_engine(path):
    scrapes = [scrape for scrape in recording.read(path) if scrape.body is not None]
    (engine,) = normalise(scrapes[-1].body).engines.values()
    return engine


def record(folder, *arguments):
    path = folder / "recorded.jsonl.gz"
    done = typed("simulate", "--record", path, *arguments)
    return path, done


@pytest.mark.parametrize("name", ["azure.csv.gz", "mooncake.jsonl", "own.csv"])
def test_every_request_of_a_file_is_sent_and_answered_in_a_recording(tmp_path, name):
    path, done = record(tmp_path, "--requests", DATA / name, *ROOMY)
    assert done.exit_code == 0, done.output
    sent = int(re.search(r"(\d+) requests", done.stderr)[1])
    engine = last_engine(path)
    assert (engine.running, engine.waiting) == (0, 0)
    assert sum(engine.responses.values()) == sent > 200


def test_shared_blocks_hit_the_prefix_cache_unless_it_is_off(tmp_path):
    hits = {}
    for caching in ("true", "false"):
        path, _ = record(
            tmp_path, "--requests", DATA / "mooncake.jsonl", *ROOMY, "--set", f"enable_prefix_caching={caching}"
        )
        engine = last_engine(path)
        hits[caching] = (engine.prefix_cache_hits or 0) / (engine.prefix_cache_queries or 1)
    assert hits["true"] > 0.2
    assert hits["false"] == 0


def test_speed_up_sample_and_window_make_the_recording_smaller(tmp_path):
    azure = ("--requests", DATA / "azure.csv.gz", *ROOMY)
    whole, _ = record(tmp_path, *azure)
    scrapes = len(list(recording.read(whole)))
    fast, done = record(tmp_path, *azure, "--speed-up", 2, "--sample", 0.5, "--from", "1m", "--until", "5m")
    assert len(list(recording.read(fast))) < scrapes / 3
    assert 100 < int(re.search(r"(\d+) requests", done.stderr)[1]) < 400


def test_a_loop_is_recorded_for_as_long_as_is_asked(tmp_path):
    path, _ = record(
        tmp_path, "--requests", DATA / "own.csv", "--loop", "--until", "1m", "--for", "5m", "--interval", "10s"
    )
    assert len(list(recording.read(path))) == 30
    assert sum(last_engine(path).responses.values()) > 100


def test_the_same_seed_records_the_same_bytes(tmp_path):
    texts = [
        record(tmp_path, "--requests", DATA / "own.csv", "--sample", "0.3", "--seed", seed)[0].read_bytes()
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_scenario_lends_its_server_and_what_happens_to_it(tmp_path):
    path, _ = record(tmp_path, "--requests", DATA / "own.csv", "--scenario", "restart")
    assert [scrape.reason for scrape in recording.read(path)].count("refused") == 8


def test_prompts_that_fit_no_context_are_refused_as_vllm_does(tmp_path):
    path, done = record(tmp_path, "--requests", DATA / "mooncake.jsonl")
    sent = int(re.search(r"(\d+) requests", done.stderr)[1])
    assert 0 < sum(last_engine(path).responses.values()) < sent


def test_bad_rows_are_said_and_the_rest_is_sent(tmp_path):
    trace = tmp_path / "mine.csv"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,10,10\n1,ten,10\n2,10,10\n")
    _, done = record(tmp_path, "--requests", trace)
    assert done.exit_code == 0
    assert f"{trace}:3: prompt_tokens is 'ten': write a whole number from 1 to 10000000" in done.stderr.splitlines()
    assert "2 requests" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--speed-up", "2"), "--speed-up is about a file of requests: give it with --requests FILE"),
        (("--from", "5m"), "--from is about a file of requests: give it with --requests FILE"),
        (("--loop",), "--loop is about a file of requests: give it with --requests FILE"),
        (("--requests", DATA / "own.csv", "--loop"), "a recording of --loop has no end: give its length with --for"),
        (("--requests", DATA / "own.csv", "--from", "5m", "--until", "5m"), "--from must lie before --until"),
        (("--requests", DATA / "own.csv", "--from", "5h"), "no request in that window"),
        (("--requests", DATA / "own.csv", "--from", "300"), "Invalid value for '--from'"),
        (("--requests", DATA / "own.csv", "--sample", "0"), "Invalid value for '--sample'"),
        (("--requests", DATA / "none.csv"), "none.csv: No such file or directory"),
        (("--requests", DATA), "Invalid value for '--requests'"),
        (("--set", "max_num_seqs"), "--set max_num_seqs: write NAME=VALUE with one of model_name, block_size"),
        (("--set", "beauty=1"), "--set beauty=1: write NAME=VALUE with one of model_name, block_size"),
        (("--set", "max_num_seqs=many"), "--set max_num_seqs: 'many' is no whole number"),
        (("--set", "enable_prefix_caching=maybe"), "--set enable_prefix_caching: 'maybe' is no true or false"),
        (("--set", "step_time.base=nan"), "--set step_time.base: 'nan' is no number from 0 on"),
        (("--set", "max_model_len=99999"), "--set: num_gpu_blocks 2048 cannot hold one request of max_model_len 99999"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line_and_no_file_is_touched(tmp_path, arguments, why):
    path, done = record(tmp_path, *arguments)
    assert done.exit_code == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert not path.exists()


def test_for_without_a_recording_is_refused():
    done = typed("simulate", "--for", "5m")
    assert (done.exit_code, "give it with --record" in done.stderr) == (2, True)


def test_step_times_can_be_set(tmp_path):
    slow, _ = record(tmp_path, "--requests", DATA / "own.csv", "--until", "1m", "--set", "step_time.base=0.1")
    gaps = last_engine(slow).histograms["inter_token_latency_seconds"]
    assert gaps.sum / gaps.count > 0.09


def test_a_live_server_answers_metrics_while_the_files_requests_arrive():
    async def go():
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "vllm_vitals", "simulate", "--requests", str(DATA / "own.csv"), "--speed", "200",
            "--port", "0", "--quiet", stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            line = (await asyncio.wait_for(running.stderr.readline(), 60)).decode()
            url = re.search(r"http://\S+", line)[0]
            assert "own.csv" in line
            async with aiohttp.ClientSession() as session, asyncio.timeout(60):
                while True:
                    async with session.get(f"{url}/metrics") as answer:
                        (engine,) = normalise(await answer.read()).engines.values()
                    if sum(engine.responses.values()) > 50:
                        return
                    await asyncio.sleep(0.05)
        finally:
            running.terminate()
            await running.wait()

    asyncio.run(go())


def test_a_scenario_is_recorded_for_as_long_as_is_asked(tmp_path):
    path, _ = record(tmp_path, "--scenario", "day", "--for", "1m")
    assert len(list(recording.read(path))) == 12
