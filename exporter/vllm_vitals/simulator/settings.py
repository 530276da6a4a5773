"""What a simulated server is started with, in vLLM's own flag names.

Input: numbers a person would give to ``vllm serve``. Output: an immutable value that the scheduler reads. Invariant:
settings that vLLM itself would refuse at start are refused here with the flag's name.
"""

from dataclasses import dataclass


class SettingsError(ValueError):
    """vLLM would not start with these settings."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One engine's settings. Sizes are in tokens or blocks; ``watermark`` is a share of all blocks.

    ``async_scheduling`` decides when the preemption counter learns of a victim (vllm/v1/core/sched/scheduler.py:
    the event travels with the victim's next output). ``fenced_release`` models a KV connector that keeps a victim's
    blocks until the step in flight ends, so that preempting frees nothing at once (vllm#49674). ``kv_offload`` keeps
    a victim's KV in host memory (V1's OffloadingConnector, V0's swap), so that it is loaded and not computed again.
    ``default_max_tokens`` is what ``override_generation_config`` gives to a request without its own cap.
    ``kv_transfer`` is a KV connector that is asked for every prompt. ``max_num_queued_reqs`` requests may wait in an
    engine; more are refused with 503.
    """

    model_name: str = "sim-8b"
    block_size: int = 16
    num_gpu_blocks: int = 2048
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = True
    fenced_release: bool = False
    kv_offload: bool = False
    default_max_tokens: int | None = None
    kv_transfer: bool = False
    num_speculative_tokens: int = 0
    max_num_queued_reqs: int | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError("max_num_batched_tokens must not be below max_num_seqs")
        if self.num_speculative_tokens < 0:
            raise SettingsError("num_speculative_tokens must not be below 0")
        if self.max_num_queued_reqs is not None and self.max_num_queued_reqs < 1:
            raise SettingsError("max_num_queued_reqs must be at least 1")
        if not 0 <= self.watermark < 1:
            raise SettingsError("watermark must be in [0, 1)")
        if self.usable_blocks * self.block_size < self.max_model_len:
            raise SettingsError(
                f"num_gpu_blocks {self.num_gpu_blocks} cannot hold one request of max_model_len {self.max_model_len}: "
                "give more blocks or a smaller max_model_len"
            )

    @property
    def usable_blocks(self) -> int:
        """All blocks but the null block (vllm/v1/core/block_pool.py)."""
        return self.num_gpu_blocks - 1

    @property
    def capacity_tokens(self) -> int:
        """What ``kv_cache_size_tokens`` says."""
        return self.num_gpu_blocks * self.block_size
