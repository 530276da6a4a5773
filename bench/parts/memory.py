"""Prints the resident bytes that one more engine takes: COUNT judged and rendered targets over SCRAPES scrapes each."""

import gc
import gzip
import json
import os
import sys
from pathlib import Path

from vllm_vitals.core.render import TargetRenderer
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator

RECORDING = Path(__file__).parents[2] / "tests" / "data" / "recordings" / "spiral_chunked" / "metrics.jsonl.gz"


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watch(name: str, bodies: list[bytes], scrapes: int) -> tuple[object, ...]:
    """Everything that stays of one target after its windows are full."""
    judge, renderer = TargetEvaluator(name), TargetRenderer()
    for number in range(scrapes):
        snapshot = judge.observe(Scrape(10.0 * number, 0.01, bodies[number % len(bodies)]))
        families = renderer.render(snapshot)
    return judge, renderer, snapshot, families


def main() -> None:
    count, scrapes = int(sys.argv[1]), int(sys.argv[2])
    with gzip.open(RECORDING, "rt") as lines:
        bodies = [scrape["text"].encode() for scrape in map(json.loads, lines)]
    kept = [watch("warm-up:8000", bodies, scrapes)]
    before = resident()
    kept += [watch(f"10.0.0.{n}:8000", bodies, scrapes) for n in range(count)]
    print((resident() - before) / count)


if __name__ == "__main__":
    main()
