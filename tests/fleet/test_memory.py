"""A day and a half of one target at speed: once its windows and the memory of a day are full, nothing grows."""

import gc
import re
import tracemalloc
from collections.abc import Iterator

from tests.edges.servers import bodies
from vllm_vitals.core.render import TargetRenderer
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings.ring_buffer import ScrapeRingBuffer

HOUR = 3_600.0
EVERY = 120.0


PLAYED = [*bodies("spiral_chunked"), *bodies("restart_under_load"), *bodies("truncation_mix")]


def life(hours: float) -> Iterator[Scrape]:
    """Recorded scrapes over and over: loads, restarts, another model now and then, failures, odd bodies."""
    failures = ("timeout", "refused", "http_error", "truncated")
    for number in range(int(hours * HOUR / EVERY)):
        at, body = number * EVERY, PLAYED[number % len(PLAYED)]
        if number % 29 == 28:
            yield Scrape(at, 0.1, None, failures[number % 4], "as it happens")
        elif number % 61 == 60:
            yield Scrape(at, 0.1, body[: len(body) // 2])
        elif number // 500 % 7 == 6:
            yield Scrape(at, 0.1, re.sub(rb'model_name="tiny"', b'model_name="model-%d"' % (number // 500), body))
        else:
            yield Scrape(at, 0.1, body)


def test_thirty_six_hours_at_speed_keep_memory_flat() -> None:
    judge, renderer, tape = TargetEvaluator("a:8000"), TargetRenderer(), ScrapeRingBuffer(300.0, 10**6)
    held: dict[int, int] = {}
    tracemalloc.start()
    try:
        for scrape in life(36.0):
            tape.push(scrape)
            families = renderer.render(judge.observe(scrape))
            hour, within = divmod(scrape.at, HOUR)
            if within == 0.0 and hour >= 24:
                gc.collect()
                held[int(hour)] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert families
    first, last = [held[h] for h in range(24, 30)], [held[h] for h in range(30, 36)]
    assert sorted(last)[2] <= sorted(first)[2] * 1.05 + 20_000
    assert max(held.values()) < 2_000_000
