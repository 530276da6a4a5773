"""How fast logs are read, on one core, and whether memory stays flat.

python -m bench.logs                    lines a second, irrelevant and relevant
python -m bench.logs --memory 10000000  resident memory over so many lines
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.framer import LineFramer
from vllm_vitals.logs.schema import shipped

CHUNK = 64 * 1024
REQUIRED = {"irrelevant": 300_000, "relevant": 60_000}


def _record(logger: str, message: str) -> bytes:
    return orjson.dumps({
        "asctime": "2026-11-29 13:51:32,722", "levelname": "INFO", "name": logger, "processName": "MainProcess",
        "process": 8615, "message": message, "vllm_process_name": "APIServer",
    })  # fmt: skip


def irrelevant(count: int) -> Iterator[bytes]:
    """Access lines and engine chatter, as JSON, prefixed JSON and text."""
    kinds = (
        _record("uvicorn.access", '10.0.0.7:51514 - "GET /metrics HTTP/1.1" 200'),
        _record("vllm.v1.engine.async_llm", "Added request cmpl-80aecdae324e6672-0-9678f23d."),
        b"(APIServer pid=1) " + _record("uvicorn.access", '10.0.0.7:51514 - "POST /v1/chat/completions HTTP/1.1" 200'),
        b'INFO:     10.0.0.5:43002 - "GET /health HTTP/1.1" 200 OK',
    )
    return (kinds[index % len(kinds)] for index in range(count))


def relevant(count: int) -> Iterator[bytes]:
    """What a busy server and its gateways write: stats, responses of every shipped shape, half of them cut."""
    stats = _record(
        "vllm.v1.metrics.loggers",
        "Engine 000: Avg prompt throughput: 599.5 tokens/s, Avg generation throughput: 999.2 tokens/s, "
        "Running: 3 reqs, Waiting: 3 reqs, Deferred: 1 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 25.0%",
    )
    for index in range(count):
        match index % 6:
            case 0:
                yield stats
            case 1:
                yield _record(
                    "vllm.entrypoints.serve.utils.request_logger",
                    f"Received request chatcmpl-{index}: params: SamplingParams(n=1, presence_penalty=0.0, "
                    f"temperature=1.0, top_p=1.0, top_k=0, seed=None, max_tokens=256, min_tokens=0), "
                    "lora_request: None.",
                )
            case 2:
                yield _record(
                    "vllm.entrypoints.serve.utils.request_logger",
                    f"Generated response chatcmpl-{index - 1}: output: 'Hello there', finish_reason: length",
                )
            case 3:
                yield orjson.dumps({
                    "id": f"chatcmpl-{index}", "trace_id": "t", "call_type": "acompletion", "status": "success",
                    "prompt_tokens": 812, "completion_tokens": 400 + index % 97, "total_tokens": 1300,
                    "startTime": 1790000000.1, "endTime": 1790000009.9, "completionStartTime": 1790000001.35,
                    "model_group": f"model-{index % 5}", "stream": True, "model_parameters": {"max_tokens": 450},
                    "response": {"choices": [{"finish_reason": "stop"}]},
                })  # fmt: skip
            case 4:
                yield orjson.dumps({
                    "bytes_sent": 432, "duration": 1526, "gen_ai.provider.name": "p", "gen_ai.request.model": "m",
                    "gen_ai.request.model_override": None, "gen_ai.usage.input_tokens": 15,
                    "gen_ai.usage.output_tokens": 7 + index % 50, "method": "POST", "response_code": 200,
                    "response_flags": "-", "start_time": "2026-08-30T16:51:37.894Z",
                    "x-envoy-origin-path": "/v1/chat/completions", "x-request-id": str(index),
                })  # fmt: skip
            case _:
                yield orjson.dumps({
                    "ts": "2026-09-21T10:00:00Z", "id": f"chatcmpl-{index}", "model": "m", "max_tokens": 512,
                    "usage": {"prompt_tokens": 100, "completion_tokens": 500 + index % 20, "total_tokens": 700},
                    "choices": [{"index": 0, "finish_reason": "length", "message": {"content": "x"}}],
                })  # fmt: skip


class Reader:
    """The whole path of a byte: framer, decoder, judge."""

    def __init__(self) -> None:
        self.framer, self.decoder = LineFramer(), LineDecoder(shipped())
        self.judge = LogAggregator({"bench": SourceInfo("bench")})

    def read(self, data: bytes) -> None:
        """Take in bytes."""
        now = time.time()
        for line in self.framer.feed(data):
            self.judge.observe("bench", self.decoder.decode(line, now), now)


def rate(lines: list[bytes]) -> float:
    """Lines a second, the best of three: the machine may be shared."""
    data = b"\n".join(lines) + b"\n"
    best = 0.0
    for _ in range(3):
        reader, start = Reader(), time.process_time()
        for position in range(0, len(data), CHUNK):
            reader.read(data[position : position + CHUNK])
        best = max(best, len(lines) / (time.process_time() - start))
    return best


def memory(total: int) -> None:
    """Resident memory while ``total`` lines are read, with ever-new request ids and routes."""
    block = [line for pair in zip(relevant(10_000), irrelevant(10_000), strict=True) for line in pair]
    reader = Reader()
    for done in range(0, total, len(block)):
        tag = str(done).encode()
        reader.read(b"\n".join(line.replace(b"chatcmpl-", b"chatcmpl-" + tag) for line in block) + b"\n")
        if done % max(len(block), total // 10 // len(block) * len(block)) == 0:
            print(f"{done + len(block):>12,} lines  {_resident_mib():7.1f} MiB", flush=True)
    print(f"{total:>12,} lines  {_resident_mib():7.1f} MiB now, {_peak_mib():.1f} MiB at most")


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Print the figures; 1 where a required rate is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", type=int, default=0, metavar="LINES")
    wanted = parser.parse_args()
    if wanted.memory:
        memory(wanted.memory)
        return 0
    missed = 0
    for name, lines in (("irrelevant", list(irrelevant(400_000))), ("relevant", list(relevant(120_000)))):
        found = rate(lines)
        missed += found < REQUIRED[name]
        print(f"{name:<11} {found:>11,.0f} lines/s   {1e6 / found:5.2f} us a line   (required {REQUIRED[name]:,})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
