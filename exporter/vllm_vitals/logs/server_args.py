"""A server's arguments out of the text that it prints at start-up.

Inputs: the repr of a dict ("non-default args"), or ``name=value`` pairs (engine config, V0's Namespace).
Output: name -> plain value. Invariant: nothing is evaluated but literals, and no secret comes through.
"""

import ast
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

MAX_REPR = 64 * 1024
MAX_NAME, MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 100, 1000, 100, 8
Value = int | float | bool | str | list[Any] | Mapping[str, Any] | None

# Before vLLM 0.29 api_key and hf_token stand in the log unmasked.
_SECRET = re.compile(r"(?:^|_)(?:api_?keys?|keys?|keyfile|token|secrets?|passw(?:or)?d|credentials?|auth\w*|headers?)$")
_USERINFO = re.compile(r"//[^/@\s]+@")
_PAIR_NAMES = {
    "max_seq_len": "max_model_len", "max_model_len": "max_model_len", "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens", "gpu_memory_utilization": "gpu_memory_utilization",
    "tensor_parallel_size": "tensor_parallel_size", "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size", "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill", "kv_cache_dtype": "kv_cache_dtype", "dtype": "dtype",
    "quantization": "quantization", "enforce_eager": "enforce_eager", "block_size": "block_size",
    "num_gpu_blocks_override": "num_gpu_blocks_override", "swap_space": "swap_space",
}  # fmt: skip
_PAIR = re.compile(r"(?<![\w.])(" + "|".join(_PAIR_NAMES) + r")=('[^']{0,200}'|[^,\s()]{1,100})")
_QUOTED_PAIR = re.compile(r"'(\w{1,64})': ('[^']{0,200}'|True|False|None|-?\d+(?:\.\d+)?)[,}]")


def from_repr(text: str) -> dict[str, Value]:
    """Read the dict that ``text`` shows; where some value is no literal (an enum), the pairs that are."""
    try:
        found = ast.literal_eval(text.strip()) if len(text) <= MAX_REPR else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict):
        found = {name: _literal(value) for name, value in _QUOTED_PAIR.findall(text[:MAX_REPR])}
    return _without_secrets(found)


def from_pairs(text: str) -> dict[str, Value]:
    """Find the settings that we know among ``name=value`` pairs; the first of a name wins, None says nothing."""
    found: dict[str, Value] = {}
    for name, value in _PAIR.findall(text[:MAX_REPR]):
        literal = _literal(value)
        if literal is not None:
            found.setdefault(_PAIR_NAMES[name], literal)
    return found


def _literal(text: str) -> Value:
    try:
        return _plain(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _plain(value: Any, depth: int = 0) -> Value:
    """Keep what JSON can say; no secret hides inside a nested mapping, and nothing is too deep to be written down."""
    if isinstance(value, dict | list | tuple):
        if depth >= MAX_DEPTH:
            return "..."
        if isinstance(value, dict):
            return _without_secrets(value, depth + 1)
        return [_plain(inner, depth + 1) for inner in value[:MAX_ITEMS]]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return _USERINFO.sub("//***@", _clean(str(value)[:MAX_TEXT]))


def _without_secrets(found: Mapping[Any, Any], depth: int = 0) -> dict[str, Value]:
    named = ((str(name), value) for name, value in islice(found.items(), MAX_ITEMS))
    return {
        _clean(name): _plain(value, depth)
        for name, value in named
        if len(name) <= MAX_NAME and not _SECRET.search(name)
    }


def _clean(text: str) -> str:
    """Take out lone surrogates, which no encoder takes."""
    return text.encode("utf-8", "replace").decode()
