"""A simulated vLLM server: the V1 scheduler's rules, vLLM's own metrics and logs, and no GPU."""
