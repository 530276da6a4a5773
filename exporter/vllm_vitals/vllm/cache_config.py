"""What vLLM says in labels: ``cache_config_info`` has a label for each attribute of its CacheConfig.

Source: vllm/config/cache.py of the releases 0.3 to 0.33; the set changes with nearly every one. Values are Python's
``str()``: "True", "None". Invariant: a label's name stands here and nowhere else.
"""

CACHE_CONFIG = "cache_config_info"

BLOCK_SIZE = "block_size"
NUM_GPU_BLOCKS = "num_gpu_blocks"  # summed over the server's data-parallel ranks
CAPACITY_TOKENS = "kv_cache_size_tokens"  # each rank's own; 0.24 on
CAPACITY_WINDOWS = "kv_cache_max_concurrency"
PREFIX_CACHING = "enable_prefix_caching"
OFFLOADING_SIZE = "kv_offloading_size"

# Labels worth showing.
SETTINGS = (
    BLOCK_SIZE, NUM_GPU_BLOCKS, "num_gpu_blocks_override", "num_cpu_blocks", "gpu_memory_utilization", "cache_dtype",
    "sliding_window", PREFIX_CACHING, "prefix_caching_hash_algo", "kv_cache_memory_bytes", CAPACITY_TOKENS,
    CAPACITY_WINDOWS, OFFLOADING_SIZE, "kv_offloading_backend", "swap_space", "cpu_offload_gb",
)  # fmt: skip
