"""vllm-vitals: watches vLLM servers and says what is wrong now, why, and how much room is left."""

__version__ = "0.1.0"
