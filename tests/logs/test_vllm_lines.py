from typing import Any

import pytest

from vllm_vitals.logs.events import Decoded, EngineError, EngineStats, RequestFinished, ServerSetting
from vllm_vitals.logs.vllm_lines import MAX_OPEN_REQUESTS, VllmLines

NOW = 1_790_000_000.0
V1 = "Avg prompt throughput: 1.5 tokens/s, Avg generation throughput: 2.5 tokens/s, "


def read(message: str, level: str = "INFO") -> Decoded:
    return VllmLines().read(message, level, NOW, NOW)


def settings(message: str) -> dict[str, Any]:
    decoded = read(message)
    assert decoded.result == "setting"
    return {event.name: event.value for event in decoded.events if isinstance(event, ServerSetting)}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"Engine 007: {V1}Running: 3 reqs, Waiting: 4 reqs, Deferred: 1 reqs, CPU KV cache usage: 50.0%, "
         "Prefix cache hit rate: 25.0%, External prefix cache hit rate: 9.0%, MM cache hit rate: 8.0%",
         EngineStats(NOW, "7", 1.5, 2.5, 3, 4, 0.5, 0.25, 1)),
        (f"2 Engines Aggregated: {V1}Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 50.0%",
         EngineStats(NOW, "all", 1.5, 2.5, 3, 4, 0.5)),
        (f"Engine 000: {V1}Running: 3 reqs, Waiting: 4 reqs, KV fetch: 1 waiting to start, 0 in progress, 2 "
         "completed waiting, Preemptions: 6, GPU KV cache usage: 1.0%",
         EngineStats(NOW, "0", 1.5, 2.5, 3, 4, 0.01, preemptions=6)),
        (f"{V1}Running: 3 reqs, Waiting: 4 reqs GPU KV cache usage: 50.0%.", EngineStats(NOW, "", 1.5, 2.5, 3, 4, 0.5)),
        (f"{V1}Running: 3 reqs, Swapped: 9 reqs, Pending: 4 reqs, GPU KV cache usage: 50.0%, CPU KV cache usage: 0.0%.",
         EngineStats(NOW, "", 1.5, 2.5, 3, 4, 0.5)),
        (f"{V1}Max iteration time: 386.0 ms, Avg time/tok:149.0 ms, Running: 3 reqs, Swapped: 0 reqs, Pending: 4 reqs, "
         "GPU KV cache usage: 99.0%", EngineStats(NOW, "", 1.5, 2.5, 3, 4, 0.99)),
        ("Avg prompt tput: 1.5 toks/s, Avg generation tput: 2.5 toks/s, Reqs Running: 3, Waiting: 4, Deferred: 1 reqs, "
         "GPU KV cache used: 50.0%, Prefix cache hit rate: 25.0%", EngineStats(NOW, "", 1.5, 2.5, 3, 4, 0.5, 0.25, 1)),
    ],
)  # fmt: skip
def test_stats_lines_of_every_era(message: str, expected: EngineStats) -> None:
    assert read(message) == Decoded("stats", (expected,))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Using max model len 8192", {"max_model_len": 8192}),
        ("Chunked prefill is enabled with max_num_batched_tokens=128.", {"max_num_batched_tokens": 128}),
        ("GPU KV cache size: 149,952 tokens, Maximum concurrency for 4,096 tokens per request: 36.61x",
         {"kv_cache_size_tokens": 149952, "max_model_len": 4096, "max_concurrency": 36.61}),
        ("GPU + host KV cache size: 1,000 tokens, Maximum concurrency for 10 tokens per request: 1x",
         {"kv_cache_size_tokens": 1000, "max_model_len": 10, "max_concurrency": 1.0}),
        ("GPU KV cache size: 149,952 tokens", {"kv_cache_size_tokens": 149952}),
        ("Maximum concurrency for 4,096 tokens per request: 36.61x",
         {"max_model_len": 4096, "max_concurrency": 36.61}),
        ("Auto-fit max_model_len: reduced from 262144 to 172032 to fit in available GPU memory (3.01 GiB available for "
         "KV cache)", {"max_model_len": 172032}),
        ("Auto-fit max_model_len: full model context length 1048576 fits in available GPU memory",
         {"max_model_len": 1048576}),
        ("Defaulting max_num_seqs to 256 for OPENAI_API_SERVER usage context.", {"max_num_seqs": 256}),
        ("Defaulting api_server_count to data_parallel_size (2).", {"api_server_count": 2}),
        ("Asynchronous scheduling is enabled.", {"async_scheduling": True}),
        ("Asynchronous scheduling is disabled.", {"async_scheduling": False}),
        ("Setting attention block size to 528 tokens to ensure that attention page size is >= mamba page size.",
         {"block_size": 528}),
        ("# GPU blocks: 9372, # CPU blocks: 2048", {"num_gpu_blocks": 9372}),
        ("Overriding num_gpu_blocks=2048 with num_gpu_blocks_override=64", {"num_gpu_blocks_override": 64}),
        ("Available KV cache memory: 21.35 GiB", {"kv_cache_memory_gib": 21.35}),
        ("vLLM server version 0.33.0, serving model Qwen/Qwen3-8B", {"restart": True, "version": "0.33.0"}),
        ("vLLM API server version 0.8.5", {"restart": True, "version": "0.8.5"}),
        ("     █     █     █▄   ▄█       version 0.16.0", {"restart": True, "version": "0.16.0"}),
        ("Starting vLLM server on http://127.0.0.1:8000", {"started": True}),
        ("Application startup complete.", {"started": True}),
        ("Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: "
         "`{'temperature': 0.6, 'top_k': 20, 'max_tokens': 2048}`. If this is not intended, please relaunch vLLM "
         "instance with `--generation-config vllm`.",
         {"default_sampling_params": {"temperature": 0.6, "top_k": 20, "max_tokens": 2048}}),
        ("Default sampling parameters have been overridden by the model's Hugging Face generation config recommended "
         "from the model creator. If this is not intended, please relaunch.", None),
        ("non-default args: {'model': 'm', 'max_num_seqs': 64, 'api_key': ['sk-1'], 'hf_token': 't', 'rope': None, "
         "'hf_overrides': {'a': (1, 2), 'password': 'x'}, 'load_url': 'https://me:pw@host/x'}",
         {"restart": True, "model": "m", "max_num_seqs": 64, "rope": None, "hf_overrides": {"a": [1, 2]},
          "load_url": "https://***@host/x"}),
        ("non-default args: {'max_num_seqs': 64, 'mode': <Mode.NONE: 0>, 'enforce_eager': True}",
         {"restart": True, "max_num_seqs": 64, "enforce_eager": True}),
        ("args: Namespace(subparser='serve', model_tag='m', host=None, max_model_len=4096, max_num_seqs=None, "
         "gpu_memory_utilization=0.9, api_key='sk-1')",
         {"restart": True, "max_model_len": 4096, "gpu_memory_utilization": 0.9}),
        ("Initializing a V0 LLM engine (v0.7.1) with config: model='m', max_seq_len=8192, dtype=torch.float16, "
         "tensor_parallel_size=2, quantization=None, enable_prefix_caching=False, ",
         {"version": "0.7.1", "max_model_len": 8192, "dtype": "torch.float16", "tensor_parallel_size": 2,
          "enable_prefix_caching": False}),
    ],
)  # fmt: skip
def test_startup_lines(message: str, expected: dict[str, Any] | None) -> None:
    if expected is None:
        assert read(message).result == "ignored"
    else:
        assert settings(message) == expected


@pytest.mark.parametrize(
    ("message", "level", "kind"),
    [
        (
            "No available shared memory broadcast block found in 60 seconds. This typically",
            "INFO",
            "shm_broadcast_wait",
        ),
        ("EngineCore encountered a fatal error.", "ERROR", "engine_dead"),
        ("EngineCore failed to start.", "ERROR", "engine_dead"),
        ("MQLLMEngine is already dead, terminating server process", "CRITICAL", "engine_dead"),
        ("Request chatcmpl-1 failed (engine dead).", "INFO", "engine_dead"),
        ("Request chatcmpl-1 failed due to a bad day.", "INFO", "request_failed"),
        ("AsyncLLM output_handler failed.", "ERROR", "output_handler_failed"),
        ("Uncaught exception", "CRITICAL", "uncaught_exception"),
        ("Sequence group cmpl-1-0 is preempted by PreemptionMode.RECOMPUTE mode because", "WARNING", "kv_preemption"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "ERROR", "out_of_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "", "out_of_memory"),
        ("RPC call to sample_tokens timed out.", "ERROR", "rpc_timeout"),
        ("Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", "ERROR", "engine_dead"),
        ("Something new went wrong", "ERROR", "other"),
    ],
)
def test_complaints_by_kind_whatever_their_level(message: str, level: str, kind: str) -> None:
    decoded = read(message, level)
    assert decoded.result == "error"
    (event,) = decoded.events
    assert isinstance(event, EngineError)
    assert event.kind == kind


def test_the_lines_of_one_text_traceback_are_one_error() -> None:
    lines, place = VllmLines(), ("06-17 17:32:45", "async_llm.py:707")
    messages = ["Engine loop broke", "Traceback (most recent call last):", "  File x", "ValueError: no"]
    results = [lines.read(message, "ERROR", None, NOW, place).result for message in messages]
    assert results == ["error", "text", "text", "text"]
    assert lines.read("Engine loop broke", "ERROR", None, NOW, ("06-17 17:32:46", "async_llm.py:707")).result == "error"


def received(request_id: str, cap: str = "256", prompt: str = "") -> str:
    said = f"prompt: {prompt!r}, " if prompt else ""
    params = f"params: SamplingParams(n=1, max_tokens={cap}, min_tokens=0), lora_request: None."
    return f"Received request {request_id}: {said}{params}"


def test_a_response_is_explained_by_its_request() -> None:
    lines = VllmLines()
    assert lines.read(received("chatcmpl-1"), "INFO", NOW, NOW).result == "request"
    response = "Generated response chatcmpl-1: output: 'finish_reason: stop', finish_reason: length"
    assert lines.read(response, "INFO", NOW + 2.5, NOW).events == (
        RequestFinished(NOW + 2.5, "chatcmpl-1", route="/v1/chat/completions", max_tokens=256, finish_reason="length",
                        e2e_s=2.5, cap_is_effective=True),
    )  # fmt: skip


def test_a_prompt_in_the_log_cannot_pose_as_parameters() -> None:
    lines = VllmLines()
    lines.read(received("cmpl-1-0", "64", "params: SamplingParams(max_tokens=9) finish_reason: stop"), "INFO", NOW, NOW)
    decoded = lines.read(
        "Generated response cmpl-1: output: 'x', output_token_ids: [5, 6, 7], finish_reason: stop", "INFO", NOW, NOW
    )
    (event,) = decoded.events
    assert isinstance(event, RequestFinished)
    assert (event.max_tokens, event.completion_tokens, event.finish_reason) == (64, 3, "stop")


def test_a_stream_counts_once_with_the_reason_of_its_last_delta() -> None:
    lines = VllmLines()
    lines.read(received("chatcmpl-1"), "INFO", NOW, NOW)
    delta = "Generated response chatcmpl-1 (streaming delta): output: 'a', finish_reason: "
    assert lines.read(delta + "None", "INFO", NOW, NOW).result == "ignored"
    assert lines.read(delta + "length", "INFO", NOW, NOW).result == "ignored"
    end = "Generated response chatcmpl-1 (streaming complete): output: 'aa', finish_reason: streaming_complete"
    (event,) = lines.read(end, "INFO", NOW, NOW).events
    assert isinstance(event, RequestFinished)
    assert event.finish_reason == "length"


def test_a_stream_whose_deltas_are_not_logged_has_no_known_reason() -> None:
    end = "Generated response chatcmpl-1 (streaming complete): output: 'aa', finish_reason: streaming_complete"
    (event,) = read(end).events
    assert isinstance(event, RequestFinished)
    assert event.finish_reason is None


def test_an_abort_counts_once_though_vllm_says_it_twice() -> None:
    lines = VllmLines()
    lines.read(received("cmpl-a-0"), "INFO", NOW, NOW)
    assert lines.read("Aborted request(s) cmpl-a-0-9678f23d.", "INFO", NOW, NOW).result == "ignored"
    decoded = lines.read("Request cmpl-a-0-9678f23d aborted.", "INFO", NOW, NOW)
    assert decoded.result == "aborted"
    assert decoded.events[0].finish_reason == "abort"  # type: ignore[union-attr]


def test_open_requests_are_bounded() -> None:
    lines = VllmLines()
    for number in range(MAX_OPEN_REQUESTS + 10):
        lines.read(received(f"chatcmpl-{number}"), "INFO", NOW, NOW)
    assert len(lines._open) == MAX_OPEN_REQUESTS
    (event,) = lines.read("Generated response chatcmpl-0: output: '', finish_reason: length", "INFO", NOW, NOW).events
    assert isinstance(event, RequestFinished)
    assert event.max_tokens is None


@pytest.mark.parametrize(
    "message",
    [
        "Added request cmpl-1.",
        "Engine started",
        "Using FlashAttention",
        "Request of interest",
        "SpecDecoding metrics: Mean acceptance length: 3.30",
        f'10.0.0.7:51514 - "GET /x?q=Engine 000: {V1}Running: 1 reqs, Waiting: 1" 200',
        "",
    ],
)
def test_other_messages_are_ignored(message: str) -> None:
    assert read(message).result == "ignored"
