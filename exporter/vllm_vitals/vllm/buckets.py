"""The bucket bounds of vLLM's histograms, where nobody has set others (vllm/v1/metrics/buckets.py, 0.32).

Invariant: they are what a server has by default and what the simulator shows, never what a page is read by: a page
says its own, and `--custom-histogram-buckets` (0.30 on) may give any.
"""

REQUEST_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                   480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0, 160.0, 640.0, 2560.0)  # fmt: skip
INTER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
               80.0)  # fmt: skip
ITERATION = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
RESIDENCY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
             600.0, 1200.0, 1800.0)  # fmt: skip


def tokens(max_model_len: int) -> tuple[float, ...]:
    """Give the 1-2-5 series up to ``max_model_len`` (vllm/v1/metrics/loggers.py build_1_2_5_buckets)."""
    edges = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    return tuple(float(edge) for edge in edges if edge <= max_model_len)
