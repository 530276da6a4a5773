"""Settings given with ``--set NAME=VALUE``: which names there are, and what their values may be.

Input: texts of a command line. Output: settings by name, as text. Invariant: nothing is swallowed: an unknown
name, a value of the wrong kind and a name given twice are errors that say what would be right.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import click

_FLAGS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 10**12


def _share(text: str) -> bool:
    try:
        return isfinite(float(text)) and 0 <= float(text) < 1
    except ValueError:
        return False


def _flag(text: str) -> bool:
    return text.lower() in _FLAGS


_WHOLE = ("a whole number above 0", _whole)
_SHARE = ("a share from 0 to below 1", _share)
_FLAG = ("true or false", _flag)
_TEXT = ("text", bool)
Kind = tuple[str, Callable[[str], bool]]

# What a simulated server is made from (`fitting.server`).
SIMULATED: Mapping[str, Kind] = {
    "max_num_seqs": _WHOLE, "max_num_batched_tokens": _WHOLE, "max_model_len": _WHOLE, "block_size": _WHOLE,
    "kv_cache_capacity_tokens": _WHOLE, "enable_prefix_caching": _FLAG, "scheduler_reserve_full_isl": _FLAG,
    "watermark": _SHARE, "version": _TEXT,
}  # fmt: skip


# What a what-if can be asked to change (`variants.asked`).
CHANGED: Mapping[str, Kind] = {
    **{name: kind for name, kind in SIMULATED.items() if name != "version"}, "max_num_scheduled_tokens": _WHOLE,
    "kv_offload": _FLAG, "max_tokens": _WHOLE, "gateway_concurrency": _WHOLE,
}  # fmt: skip


def _all(names: str, kind: Kind) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


_COUNTS = """
    api_server_count cuda_graph_sizes data_parallel_size data_parallel_size_local dbo_decode_token_threshold
    dbo_prefill_token_threshold decode_context_parallel_size default_max_tokens kv_cache_memory_bytes
    long_prefill_token_threshold max_cpu_loras max_cudagraph_capture_size max_logprobs max_long_partial_prefills
    max_lora_rank max_loras max_num_partial_prefills max_parallel_loading_workers max_seq_len_to_capture
    num_gpu_blocks num_gpu_blocks_override num_lookahead_slots num_scheduler_steps num_speculative_tokens
    pipeline_parallel_size prefill_context_parallel_size stream_interval tensor_parallel_size
"""
_SWITCHES = """
    async_scheduling calculate_kv_scales disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce
    disable_hybrid_kv_cache_manager disable_log_stats disable_sliding_window enable_chunked_prefill enable_dbo
    enable_eplb enable_expert_parallel enable_lora enable_reasoning enable_sleep_mode enforce_eager
    fully_sharded_loras trust_remote_code use_v2_block_manager
"""
_OTHERS = """
    additional_config all2all_backend attention_backend attention_config cache_dtype compilation_config
    cpu_offload_gb cudagraph_capture_sizes data_parallel_backend distributed_executor_backend dtype eplb_config
    generation_config gpu_memory_utilization guided_decoding_backend hf_overrides kernel_config kv_cache_dtype
    kv_offloading_backend kv_offloading_size kv_transfer_config limit_mm_per_prompt load_format logits_processors
    lora_dtype mamba_cache_dtype mamba_ssm_cache_dtype mm_encoder_tp_mode mm_processor_cache_gb mm_processor_kwargs
    model model_impl moe_backend optimization_level override_generation_config performance_mode pooler_config
    preemption_mode prefix_caching_hash_algo quantization reasoning_parser revision scheduler_cls
    scheduler_delay_factor scheduling_policy seed speculative_config structured_outputs_config swap_space task
    tokenizer tokenizer_mode worker_cls
"""
# What a tuning experiment may turn besides: vLLM's engine arguments (engine/arg_utils.py, 0.8 to 0.33).
KNOBS: Mapping[str, Kind] = {**SIMULATED, **_all(_COUNTS, _WHOLE), **_all(_SWITCHES, _FLAG), **_all(_OTHERS, _TEXT)}


def parse_changes(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return what ``--set-to`` asks to try; one name may be given several values."""
    return [item for text in given for item in parse((text,), CHANGED, "--set-to").items()]


def parse_growth(text: str) -> float:
    """Return the factor of ``+30%``, ``-20%`` or ``1.3``."""
    try:
        value = 1 + float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not isfinite(value) or not 0.01 <= value <= 100:
        raise click.UsageError(f"--traffic: expected a change such as +30%, got {text[:80]!r}")
    return value


def parse(given: Sequence[str], known: Mapping[str, Kind], option: str = "--set") -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping; what vLLM reads from its environment (``VLLM_...``) is always accepted."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise click.UsageError(f"{option}: expected NAME=VALUE such as max_num_seqs=64, got {text[:80]!r}")
        if name in found:
            raise click.UsageError(f"{option} {name} is given twice")
        if name not in known and not (known is KNOBS and name.startswith("VLLM_")):
            raise click.UsageError(f"{option} {name}: {_unknown(name, known)}")
        expected, fits = known.get(name, _TEXT)
        if not fits(value):
            raise click.UsageError(f"{option} {name}: expected {expected}, got {value[:80]!r}")
        found[name] = value
    return found


def _unknown(name: str, known: Mapping[str, Kind]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"no such setting; did you mean {close[0]}?"
    if known is not KNOBS:
        return f"not simulated; known are {', '.join(known)}"
    return "not a setting of vLLM that this release knows; a newer one can stand in --name"
