"""CPU time to read one scrape: ours against prometheus_client's parser, on the same real bodies.

Consecutive scrapes of recorded servers under load, each read with the layout of the one before it (the daemon's case),
and without one (the first scrape of a target). The reference only parses; ours also folds into engine samples.
"""

import gc
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.core.dialect import Layout, normalise

RECORDINGS = Path(__file__).parents[1] / "tests" / "data" / "recordings"
NAMES = ("spiral_chunked", "preempting_productive", "dp2_pressure")
ROUNDS = 7
REQUIRED = 25


def bodies(name: str, count: int = 40) -> list[bytes]:
    """Scrapes from the middle of a recording, under load."""
    with gzip.open(RECORDINGS / name / "metrics.jsonl.gz", "rt") as lines:
        texts = [scrape["text"].encode() for scrape in map(json.loads, lines) if scrape["status"] == 200]
    start = (len(texts) - count) // 2
    return texts[start : start + count]


def cost(read: Callable[[bytes], object], texts: list[bytes], rounds: int = ROUNDS) -> float:
    """Median over rounds of the mean CPU time of one body, in seconds."""
    times = []
    for _ in range(rounds):
        gc.collect()
        start = process_time()
        for text in texts:
            read(text)
        times.append((process_time() - start) / len(texts))
    return median(times)


def reference(body: bytes) -> object:
    return list(text_string_to_metric_families(body.decode()))


def main() -> None:
    """Print one line a recording; exit 1 where the ratio is below what is promised."""
    print(f"{'recording':24}{'bytes':>8}{'reference':>12}{'first':>10}{'steady':>10}{'ratio':>8}")
    worst = float("inf")
    for name in NAMES:
        texts = bodies(name)
        layout = Layout()
        normalise(texts[-1], layout)
        steady = cost(lambda body, layout=layout: normalise(body, layout), texts)
        first, slow = cost(normalise, texts[:10], 3), cost(reference, texts[:10], 3)
        worst = min(worst, slow / steady)
        row = f"{name:24}{len(texts[-1]):>8}{slow * 1e6:>9.0f} us{first * 1e6:>7.0f} us{steady * 1e6:>7.0f} us"
        print(f"{row}{slow / steady:>7.0f}x")
    if worst < REQUIRED:
        raise SystemExit(f"the lowest ratio is {worst:.1f}, below {REQUIRED}")


if __name__ == "__main__":
    main()
