"""Every line of every real log in tests/data: its result, and the settings of the start command."""
# ruff: noqa: E501 - tables

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.framer import LineFramer
from vllm_vitals.logs.schema import shipped
from vllm_vitals.logs.snapshot import LogSnapshot

DATA = Path(__file__).parents[1] / "data"
NOW = 1_796_000_000.0
TINY = {"model": "/models/tiny", "served_model_name": ["tiny"], "max_model_len": 2048, "enforce_eager": True,
        "host": "127.0.0.1", "tensor_parallel_size": 1}  # fmt: skip
VERSION = TINY | {"port": 8011, "num_gpu_blocks_override": 64, "max_num_seqs": 32, "kv_cache_size_tokens": 8192}

# What the server was started with, and its capacity: blocks x 128 tokens (CPU build).
STARTED = {
    "recordings/dp2_pressure": TINY | {"data_parallel_size": 2, "api_server_count": 2, "num_gpu_blocks_override": 32,
                                       "max_num_seqs": 16, "kv_cache_size_tokens": 4096},
    "recordings/engine_hang": TINY | {"num_gpu_blocks_override": 128, "max_num_seqs": 16, "kv_cache_size_tokens": 16384},
    "recordings/overcommit_thrash": TINY | {"num_gpu_blocks_override": 64, "max_num_seqs": 64, "enable_prefix_caching": False},
    "recordings/preempting_productive": TINY | {"num_gpu_blocks_override": 64, "max_num_seqs": 24, "enable_prefix_caching": True},
    "recordings/restart_under_load": TINY | {"num_gpu_blocks_override": 128, "max_num_seqs": 16},
    "recordings/runaway_slot": TINY | {"num_gpu_blocks_override": 64, "max_num_seqs": 4, "enable_prefix_caching": False},
    "recordings/same_load_reserved": TINY | {"max_num_batched_tokens": 128, "max_num_seqs": 48, "enable_prefix_caching": False},
    "recordings/saturated_no_preemption": TINY | {"max_num_seqs": 4, "enable_prefix_caching": False},
    "recordings/spiral_chunked": TINY | {"max_num_batched_tokens": 128, "max_num_seqs": 48, "scheduler_reserve_full_isl": False},
    "recordings/truncation_mix": TINY | {"override_generation_config": {"max_new_tokens": 256}, "default_max_tokens": 256},
    "versions/0.14.1": VERSION | {"version": "0.14.1"},
    "versions/0.20.2": VERSION | {"version": "0.20.2"},
    "versions/0.26.0": VERSION | {"version": "0.26.0"},
    "versions/0.31.0": VERSION | {"version": "0.31.0"},
}  # fmt: skip
RESULTS = {
    "recordings/dp2_pressure": {"text": 22, "ignored": 153, "setting": 15, "blank": 6},
    "recordings/engine_hang": {"text": 10, "setting": 7, "ignored": 426, "blank": 3, "request": 355, "stats": 26},
    "recordings/overcommit_thrash": {"text": 10, "setting": 7, "ignored": 883, "blank": 3, "request": 604, "stats": 54, "aborted": 208},
    "recordings/preempting_productive": {"text": 10, "setting": 7, "ignored": 1564, "blank": 3, "request": 1493, "stats": 41},
    "recordings/restart_under_load": {"text": 10, "setting": 7, "ignored": 206, "blank": 3, "request": 135, "stats": 8},
    "recordings/runaway_slot": {"text": 10, "setting": 7, "ignored": 1047, "blank": 3, "request": 769, "stats": 85, "aborted": 207},
    "recordings/same_load_reserved": {"text": 10, "setting": 8, "ignored": 70, "blank": 3, "stats": 41},
    "recordings/saturated_no_preemption": {"text": 10, "setting": 7, "ignored": 810, "blank": 3, "request": 532, "stats": 54, "aborted": 207},
    "recordings/spiral_chunked": {"text": 10, "setting": 8, "ignored": 539, "blank": 3, "request": 468, "stats": 41},
    "recordings/truncation_mix": {"text": 10, "setting": 8, "ignored": 1055, "blank": 3, "request": 984, "stats": 26},
    "versions/0.14.1": {"ignored": 29, "text": 17, "setting": 11, "stats": 2},
    "versions/0.20.2": {"text": 64, "setting": 10, "ignored": 49, "stats": 8},
    "versions/0.26.0": {"ignored": 87, "text": 13, "setting": 10, "stats": 8},
    "versions/0.31.0": {"text": 44, "setting": 7, "ignored": 80, "blank": 3, "stats": 8},
}  # fmt: skip


def content(name: str) -> bytes:
    with gzip.open(DATA / name / "vllm.log.gz", "rb") as stream:
        return stream.read()


def understood(data: bytes) -> LogSnapshot:
    framer, decoder, judge = LineFramer(), LineDecoder(shipped()), LogAggregator({"log": SourceInfo("server")})
    for line in framer.feed(data) + framer.flush():
        judge.observe("log", decoder.decode(line, NOW), NOW)
    return judge.snapshot(NOW)


def test_no_real_log_is_left_out() -> None:
    assert {str(path.parent.relative_to(DATA)) for path in DATA.glob("*/*/vllm.log.gz")} == STARTED.keys()


@pytest.mark.parametrize("name", STARTED)
def test_every_line_of_a_real_log_ends_in_the_right_result(name: str) -> None:
    data = content(name)
    snapshot = understood(data)
    assert snapshot.records["log"] == RESULTS[name]
    assert sum(snapshot.records["log"].values()) == data.count(b"\n") + (not data.endswith(b"\n"))
    assert snapshot.errors == {}
    assert snapshot.stats_lines.get("log", 0) == data.count(b"Avg prompt throughput")


@pytest.mark.parametrize("name", STARTED)
def test_settings_equal_the_start_command(name: str) -> None:
    settings = understood(content(name)).servers["server"].settings
    expected: dict[str, Any] = STARTED[name]
    assert {key: settings.get(key) for key in expected} == expected


def test_the_configured_default_of_the_truncation_recording_is_confirmed() -> None:
    overrides = understood(content("recordings/truncation_mix")).servers["server"].overrides
    assert {name: (one.configured, one.confirmed) for name, one in overrides.items()} == {"max_new_tokens": (256, True)}


def test_the_caps_of_its_two_phases_are_told_apart() -> None:
    data = content("recordings/truncation_mix")
    caps = Counter(
        line.split(b"max_tokens=")[1].split(b",")[0] for line in data.splitlines() if b"Received request" in line
    )
    answers = b"".join(
        line.replace(b"Received request", b"Generated response").split(b": params")[0]
        + b": output: '', finish_reason: length\"}\n"
        for line in data.splitlines()
        if b"Received request" in line
    )
    (series,) = understood(data + answers).series
    assert series.counts.truncated == {
        "request": caps[b"64"],
        "server_default": caps[b"256"],
        "context_window": 0,
        "unknown": 0,
    }
    assert caps.keys() == {b"64", b"256"}
