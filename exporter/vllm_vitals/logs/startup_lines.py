"""What vLLM says about its configuration at start-up. Input: one message and its time. Output: settings, or nothing.

Formats: vLLM 0.2 to 0.33, ``entrypoints/common/startup.py``, ``config/*.py``, ``v1/core/kv_cache_utils.py``,
``v1/engine/core.py``, ``engine/arg_utils.py`` and their ancestors. Invariant: a message is matched at its start.
"""

import re
from collections.abc import Callable

from vllm_vitals.logs import server_args
from vllm_vitals.logs.events import Decoded, ServerSetting

Rule = Callable[[str, float | None], Decoded | None]

_KV_SIZE = re.compile(r"[^:]{1,20}KV cache size: ([\d,]{1,19}) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]{1,19}) tokens per request: ([\d.]+)x")
_BLOCKS = re.compile(r"# \w+ blocks: (\d{1,15})")
_BLOCKS_OVERRIDE = re.compile(r"Overriding num_gpu_blocks=\d+ with num_gpu_blocks_override=(\d{1,15})")
_KV_MEMORY = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_MAX_LEN = re.compile(r"Using max model len (\d{1,15})")
_AUTO_LEN = re.compile(r"Auto-fit max_model_len: (?:reduced from \d+ to |full model context length )(\d{1,15})")
_DEFAULTING = re.compile(
    r"Defaulting (max_num_seqs|max_num_batched_tokens|api_server_count) to (?:data_parallel_size \()?(\d{1,15})"
)
_ATTENTION_BLOCK = re.compile(r"Setting attention block size to (\d{1,15}) tokens")
_ASYNCHRONOUS = re.compile(r"Asynchronous scheduling is (enabled|disabled)")
_BATCHED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,15})")
_VERSION = re.compile(r"vLLM (?:API )?server version (\S{1,100}?),?(?: |$)")
_LOGO_VERSION = re.compile(r"\bversion (\d+\.\d+\S*)")
_ENGINE_CONFIG = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v([^)]{1,100})\) with config: ")
_DEFAULTS = re.compile(r"Default (?:vLLM )?sampling parameters have been overridden by [^:]*: ?`?(\{.*?\})`?\.")


def _arguments(message: str, at: float | None) -> Decoded | None:
    if message.startswith("non-default args: {"):
        found = server_args.from_repr(message[18:])
    elif message.startswith("args: Namespace("):
        found = server_args.from_pairs(message)
    else:
        return None
    given = tuple(ServerSetting(at, name, value, given=True) for name, value in found.items())
    return Decoded("setting", (ServerSetting(at, "restart", True), *given))


def _engine_config(message: str, at: float | None) -> Decoded | None:
    match = _ENGINE_CONFIG.match(message)
    if match is None:
        return None
    return _settings(at, [("version", match[1]), *server_args.from_pairs(message[match.end() :]).items()])


def _defaults(message: str, at: float | None) -> Decoded | None:
    match = _DEFAULTS.match(message)
    return _settings(at, [("default_sampling_params", server_args.from_repr(match[1]))]) if match else None


def _kv_size(message: str, at: float | None) -> Decoded | None:
    match = _KV_SIZE.match(message)
    if match is None:
        return None
    found: list[tuple[str, server_args.Value]] = [("kv_cache_size_tokens", _whole(match[1]))]
    if concurrency := _CONCURRENCY.search(message, match.end()):
        found += _concurrency_of(concurrency)
    return _settings(at, found)


def _concurrency(message: str, at: float | None) -> Decoded | None:
    match = _CONCURRENCY.match(message)
    return _settings(at, _concurrency_of(match)) if match else None


def _concurrency_of(match: re.Match[str]) -> list[tuple[str, server_args.Value]]:
    return [("max_model_len", _whole(match[1])), ("max_concurrency", float(match[2]))]


def _defaulting(message: str, at: float | None) -> Decoded | None:
    match = _DEFAULTING.match(message)
    return _settings(at, [(match[1], int(match[2]))]) if match else None


def _attention_block(message: str, at: float | None) -> Decoded | None:
    """Read the block size of a hybrid model: what the command gave is raised to the size of a mamba page."""
    match = _ATTENTION_BLOCK.match(message)
    return Decoded("setting", (ServerSetting(at, "block_size", int(match[1]), given=True),)) if match else None


def _asynchronous(message: str, at: float | None) -> Decoded | None:
    match = _ASYNCHRONOUS.match(message)
    return _settings(at, [("async_scheduling", match[1] == "enabled")]) if match else None


def _version(message: str, at: float | None) -> Decoded | None:
    match = _VERSION.match(message)
    return _settings(at, [("restart", True), ("version", match[1])]) if match else None


def _started(message: str, at: float | None) -> Decoded | None:
    over = message.startswith(("Starting vLLM server on", "Starting vLLM API server", "Application startup complete"))
    return _settings(at, [("started", True)]) if over else None


def _whole_number(pattern: re.Pattern[str], name: str) -> Rule:
    def rule(message: str, at: float | None) -> Decoded | None:
        match = pattern.match(message)
        return _settings(at, [(name, int(match[1]))]) if match else None

    return rule


def _kv_memory(message: str, at: float | None) -> Decoded | None:
    match = _KV_MEMORY.match(message)
    return _settings(at, [("kv_cache_memory_gib", float(match[1]))]) if match else None


def logo(message: str) -> Decoded | None:
    """Read the start-up banner, the version's only place where the stock text formatter is used (0.15 on)."""
    match = _LOGO_VERSION.search(message, 0, 120) if "█" in message or message.lstrip().startswith("version ") else None
    return _settings(None, [("restart", True), ("version", match[1])]) if match else None


def _settings(at: float | None, found: list[tuple[str, server_args.Value]]) -> Decoded:
    return Decoded("setting", tuple(ServerSetting(at, name, value) for name, value in found))


def _whole(number: str) -> int:
    return int(number.replace(",", ""))


# By the message's first word.
RULES: dict[str, Rule] = {
    "non-default": _arguments,
    "args:": _arguments,
    "vLLM": _version,
    "Initializing": _engine_config,
    "Default": _defaults,
    "Using": _whole_number(_MAX_LEN, "max_model_len"),
    "Auto-fit": _whole_number(_AUTO_LEN, "max_model_len"),
    "Defaulting": _defaulting,
    "Setting": _attention_block,
    "Asynchronous": _asynchronous,
    "Chunked": _whole_number(_BATCHED, "max_num_batched_tokens"),
    "Overriding": _whole_number(_BLOCKS_OVERRIDE, "num_gpu_blocks_override"),
    "#": _whole_number(_BLOCKS, "num_gpu_blocks"),
    "Available": _kv_memory,
    "Maximum": _concurrency,
    **dict.fromkeys(("GPU", "CPU", "XPU", "TPU", "NPU", "HPU"), _kv_size),
    "Starting": _started,
    "Application": _started,
}
