"""Weeks of a calm fleet with incidents planted in it, as a Prometheus that scrapes vLLM keeps them: sample lines.

A calm engine goes on as a recording's last page did, its counters at a constant pace. Planted are a recording of a real
spiral (the server restarts into it and out of it), an engine that hangs with work present, and one that is not reached.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.recordings import recording
from vllm_vitals.vllm.lookup import WANTED

DATA = Path(__file__).parent.parent / "data" / "recordings"
CALM, SPIRAL = DATA / "truncation_mix" / "metrics.jsonl.gz", DATA / "spiral_chunked" / "metrics.jsonl.gz"
EVERY_S = 15
LASTS_S = 600.0  # a hang, an outage
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
# What a state may rest on, of a calm page: a month of everything takes an hour to write.
_KEPT = re.compile(
    r"process_start_time|num_requests_(running|waiting)|(kv|gpu)_cache_usage|num_preemptions|prompt_tokens_total"
    r"|generation_tokens_total|request_success|inter_token_latency|request_(prompt|generation)_tokens|cache_config"
)
_GAUGES = ("num_requests", "kv_cache_usage", "gpu_cache_usage", "_info", "process_start")


@dataclass(frozen=True)
class Planted:
    """One incident: in which engine, from when (epoch s), and the worst state that a correct monitor reports."""

    engine: int
    at: float
    state: str


def planted(engines: int, start: float, days: float) -> list[Planted]:
    """A spiral, a hang and an outage, evenly over the period and over engines."""
    states = ("death_spiral", "stalled", "down")
    return [
        Planted(number * max(1, engines // 3) % engines, start + (number + 0.5) / 3 * days * 86400, state)
        for number, state in enumerate(states)
    ]


def name(engine: int) -> str:
    return f"gpu-{engine}:8000"


def lines(engines: int, start: float, days: float, incidents: list[Planted], buckets: bool = False) -> Iterator[str]:
    """Every engine's samples. ``buckets``: those of histograms too; without them latencies cannot be judged."""
    calm = Calm(list(recording.read(CALM)), buckets)
    spiral = list(recording.read(SPIRAL))
    for engine in range(engines):
        yield from _engine(engine, start, days, [each for each in incidents if each.engine == engine], calm, spiral)


class Calm:
    """A page that goes on: each sample's last value, and how much it grows a second."""

    def __init__(self, scrapes: list[Scrape], buckets: bool) -> None:
        good = [scrape for scrape in scrapes if scrape.body]
        first, last = (dict(_samples(scrape, buckets)) for scrape in (good[len(good) // 2], good[-1]))
        seconds = good[-1].at - good[len(good) // 2].at
        self._rows = [
            (
                key,
                value,
                0.0 if any(part in key for part in _GAUGES) else max(0.0, value - first.get(key, value)) / seconds,
            )
            for key, value in last.items()
            if _KEPT.search(key)
        ]

    def page(self, place: str, at: float, passed: float, running: float = 2.0) -> Iterator[str]:
        for key, value, pace in self._rows:
            here = running if "num_requests_running" in key else value + pace * passed
            yield f"{key.replace('@', place, 1)} {here:.10g} {at:.3f}"


def _samples(scrape: Scrape, buckets: bool) -> Iterator[tuple[str, float]]:
    for line in (scrape.body or b"").decode().splitlines():
        found = _SAMPLE.fullmatch(line)
        if found and found[1] in WANTED and (buckets or not found[1].endswith("_bucket")):
            own = f",{found[2]}" if found[2] else ""
            yield f"{found[1]}{{@{own}}}", float(found[3])


def _engine(
    engine: int, start: float, days: float, incidents: list[Planted], calm: Calm, spiral: list[Scrape]
) -> Iterator[str]:
    place = f'instance="{name(engine)}",job="vllm"'
    lasts = {"death_spiral": spiral[-1].at - spiral[0].at, "stalled": LASTS_S, "down": LASTS_S}
    passed = 0.0
    for number in range(int(days * 86400 / EVERY_S)):
        at = start + number * EVERY_S + engine % EVERY_S
        now = next((each for each in incidents if each.at <= at < each.at + lasts[each.state]), None)
        yield f"up{{{place}}} {int(now is None or now.state != 'down')} {at:.3f}"
        if now is None:
            passed += EVERY_S
        if now is None or now.state == "stalled":
            yield from calm.page(place, at, passed)
        elif now.state == "death_spiral":
            scrape = max((s for s in spiral if s.at - spiral[0].at <= at - now.at), key=lambda s: s.at)
            yield from (f"{key.replace('@', place, 1)} {value:.10g} {at:.3f}" for key, value in _samples(scrape, True))
            passed = 0.0
