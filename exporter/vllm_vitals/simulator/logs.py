"""The log lines of a simulated server, as vLLM 0.32 writes them with ``--logging-config.formatter json``.

Input: what happens in a `World`, and its statistics. Output: one JSON object per line. Shapes are those of
vllm/logger.py and vllm/v1/metrics/loggers.py; times are UTC. Invariant: with several API servers there is no
statistics line, as in vLLM.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.stats import EngineStats
from vllm_vitals.simulator.world import Happening, World

VERSION = "0.32.0"
STATS_INTERVAL_S = 10.0
_PID = 4242
_REQUESTS = "vllm.entrypoints.serve.utils.request_logger"
_ASYNC_LLM = "vllm.v1.engine.async_llm"


@dataclass(slots=True)
class _Last:
    """One engine's totals at the previous statistics line, and its rates there."""

    computed: int = 0
    generated: int = 0
    rates: tuple[float, float] = (0.0, 0.0)


class LogWriter:
    """Writes to `write` what vLLM would log. ``requests`` is ``--enable-log-requests --enable-log-outputs``."""

    def __init__(self, write: Callable[[bytes], object], epoch: float, url: str, requests: bool = False) -> None:
        self._write = write
        self._epoch = epoch
        self._url = url
        self._requests = requests
        self._last: dict[int, _Last] = {}

    def started(self, world: World, at: float) -> None:
        """Write the lines of a start-up that say what the server was started with."""
        self._last = {}
        for name, text, level in startup(world.settings, world.scenario.engines, world.scenario.api_servers, self._url):
            self._line(at, name, text, level, "EngineCore" if name.startswith("vllm.v1") else "APIServer")

    def happened(self, happening: Happening) -> None:
        """Write a request's lines, when request logging is on."""
        request = happening.request
        if request is None or not self._requests:
            return
        name, at = f"chatcmpl-{request.id & 0xFFFFFFFFFFFFFFFF:016x}", happening.at
        if happening.what == "received":
            params = f"SamplingParams(n=1, temperature=1.0, top_p=1.0, max_tokens={request.max_tokens}, min_tokens=0)"
            self._line(at, _REQUESTS, f"Received request {name}: params: {params}, lora_request: None.")
            self._line(at, _ASYNC_LLM, f"Added request {name}.")
        elif happening.what == "finished":
            text = f"Generated response {name}: output: {_words(request)!r}, finish_reason: {request.reason}"
            self._line(at, _REQUESTS, text)
        elif happening.what == "dropped":
            self._line(at, _ASYNC_LLM, f"Request {name} aborted.")

    def stats(self, world: World, at: float) -> None:
        """Write the periodic line of every engine; none once an engine has been idle for two intervals (L:258-276)."""
        if world.scenario.api_servers > 1:
            return
        for rank, engine in enumerate(world.engines):
            line = self._stats_line(rank, engine)
            if line:
                self._line(at, "vllm.v1.metrics.loggers", line)

    def _stats_line(self, rank: int, engine: Engine) -> str:
        stats = engine.stats
        last = self._last.setdefault(rank, _Last())
        computed = stats.prompt_tokens - stats.cached_tokens
        rates = (
            (computed - last.computed) / STATS_INTERVAL_S,
            (stats.generation_tokens - last.generated) / STATS_INTERVAL_S,
        )
        idle = not any(rates) and not any(last.rates)
        self._last[rank] = _Last(computed, stats.generation_tokens, rates)
        return "" if idle else _stats_text(rank, rates, stats)

    def _line(self, at: float, name: str, text: str, level: str = "INFO", process: str = "APIServer") -> None:
        stamp = datetime.fromtimestamp(self._epoch + at, UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        record = {
            "asctime": stamp,
            "levelname": level,
            "name": name,
            "processName": "MainProcess" if process == "APIServer" else process,
            "process": _PID if process == "APIServer" else _PID + 1,
            "message": text,
            "vllm_process_name": process,
        }
        self._write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def startup(settings: ServerSettings, engines: int, api_servers: int, url: str) -> list[tuple[str, str, str]]:
    """(logger, message, level) of the start-up lines that reveal configuration, in vLLM's order."""
    args: dict[str, Any] = {
        "model_tag": settings.model_name,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "served_model_name": [settings.model_name],
        "enable_prefix_caching": settings.enable_prefix_caching,
    }
    if not settings.scheduler_reserve_full_isl:
        args["scheduler_reserve_full_isl"] = False
    if settings.watermark:
        args["watermark"] = settings.watermark
    if settings.num_speculative_tokens:
        args["speculative_config"] = {"method": "ngram", "num_speculative_tokens": settings.num_speculative_tokens}
    if engines > 1:
        args["data_parallel_size"] = engines
    if api_servers > 1:
        args["api_server_count"] = api_servers
    override = {"max_new_tokens": settings.default_max_tokens} if settings.default_max_tokens else {}
    if override:
        args["override_generation_config"] = override
    windows = settings.capacity_tokens / settings.max_model_len
    lines = [
        ("vllm.entrypoints.launchers.launcher",
         f"vLLM server version {VERSION}, serving model {settings.model_name}", "INFO"),
        ("vllm.entrypoints.serve.utils.api_utils", f"non-default args: {args}", "INFO"),
        ("vllm.config.model", f"Using max model len {settings.max_model_len}", "INFO"),
        ("vllm.config.scheduler",
         f"Chunked prefill is enabled with max_num_batched_tokens={settings.max_num_batched_tokens}.", "INFO"),
        ("vllm.v1.engine.core",
         f"Initializing a V1 LLM engine (v{VERSION}) with config: model={settings.model_name!r}, "
         f"speculative_config=None, tokenizer={settings.model_name!r}, dtype=torch.bfloat16, "
         f"max_seq_len={settings.max_model_len}, tensor_parallel_size=1, pipeline_parallel_size=1, "
         f"data_parallel_size={engines}, quantization=None, kv_cache_dtype=auto, device_config=cuda, seed=0, "
         f"served_model_name={settings.model_name}, enable_prefix_caching={settings.enable_prefix_caching}, "
         "enable_chunked_prefill=True", "INFO"),
        ("vllm.v1.core.kv_cache_utils",
         f"GPU KV cache size: {settings.capacity_tokens:,} tokens, Maximum concurrency for "
         f"{settings.max_model_len:,} tokens per request: {windows:.2f}x", "INFO"),
        ("vllm.v1.engine.core", "init engine (profile, create kv cache, warmup model) took 21.30 s", "INFO"),
        ("vllm.entrypoints.launchers.api_server.entry", "Supported tasks: ['generate']", "INFO"),
        ("vllm.entrypoints.launchers.api_server.entry", f"Starting vLLM server on {url}", "INFO"),
    ]  # fmt: skip
    if override:
        text = (
            "Default vLLM sampling parameters have been overridden by `--override-generation-config`: "
            f"`{ {'max_tokens': settings.default_max_tokens} }`. If this is not intended, please relaunch vLLM "
            "instance with `--generation-config vllm`."
        )
        lines.insert(-2, ("vllm.config.model", text, "WARNING"))
    return lines


def _stats_text(rank: int, rates: tuple[float, float], stats: EngineStats) -> str:
    text = (
        f"Engine {rank:03d}: Avg prompt throughput: {rates[0]:.1f} tokens/s, "
        f"Avg generation throughput: {rates[1]:.1f} tokens/s, Running: {stats.running} reqs, "
        f"Waiting: {stats.waiting} reqs, GPU KV cache usage: {stats.kv_usage * 100:.1f}%"
    )
    if stats.prefix_queries:
        text += f", Prefix cache hit rate: {stats.device_hits / stats.prefix_queries * 100:.1f}%"
    return text


def _words(request: Request) -> str:
    """Return a simulated answer: its length is right, its content filler."""
    return ("token " * min(request.output, 8)).strip()
