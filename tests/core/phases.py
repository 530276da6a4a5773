"""Histograms beside the values that they were made of: phases of real recordings, and synthetic shapes.

A recording's histogram is the difference of two scrapes; its values are what the client measured of the requests that
fell between them. Where both disagree about the mean by more than 5 % they did not measure the same thing (a client on
a busy machine sees more than the server's first token), and the phase is left out.
"""

import gzip
import json
import math
import random
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from vllm_vitals.core.dialect import normalise
from vllm_vitals.core.distribution import Cut, one_cap
from vllm_vitals.core.quantile import delta
from vllm_vitals.core.sample import Histogram

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
FAMILIES = ("request_output_tokens", "request_prompt_tokens", "ttft_seconds", "tpot_seconds")
ONE_TWO_FIVE = tuple(float(m * 10**e) for e in range(4) for m in (1, 2, 5))
TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip


class Case(NamedTuple):
    """One histogram, its values ascending, and the cut where one is known."""

    name: str
    family: str
    histogram: Histogram
    values: list[float]
    cut: Cut | None = None


def histogram(values: Sequence[float], bounds: Sequence[float]) -> Histogram:
    """What vLLM would expose of these values."""
    own = [0.0] * (len(bounds) + 1)
    for value in values:
        own[bisect_left(bounds, value)] += 1
    return Histogram(tuple(bounds), array("d", accumulate(own)), float(sum(values)))


def recorded(folder: Path) -> Iterator[Case]:
    """Every phase of one recording, per family."""
    truth = json.loads((folder / "truth.json").read_text())
    began = truth["first_scrape"]
    load = truth.get("load") or [{}]
    start = load[0].get("t", began)
    requests = _lines(folder / "requests.jsonl.gz")
    wanted = {at for p in truth["phases"] for at in (began + p["counters_from"], began + p["counters_to"])}
    scrapes = [line for line in _lines(folder / "metrics.jsonl.gz") if line["status"] == 200]
    near = {at: min(scrapes, key=lambda s: abs(s["t"] - at)) for at in wanted}
    for phase in truth["phases"]:
        if phase.get("counter_reset_inside"):
            continue
        first, last = near[began + phase["counters_from"]], near[began + phase["counters_to"]]
        old, new = _families(first["text"]), _families(last["text"])
        for family in FAMILIES:
            spans = [delta(b, a) for b, a in zip(new.get(family, ()), old.get(family, ()), strict=False)]
            known = [span for span in spans if span is not None]
            values = sorted(_values(requests, family, first["t"] - start, last["t"] - start))
            if not known or len(known) < len(spans) or len(values) < 8:
                continue
            whole = _together(known)
            if abs(whole.count - len(values)) > 0.05 * whole.count:
                continue
            if abs(whole.sum / whole.count / (sum(values) / len(values)) - 1) > 0.05:
                continue
            asked = [delta(b, a) for b, a in zip(new.get(_ASKED, ()), old.get(_ASKED, ()), strict=False)]
            cap = one_cap(asked[0]) if family == "request_output_tokens" and len(asked) == 1 else None
            cut = None if cap is None else Cut(cap, phase["finished"]["length"])
            yield Case(f"{folder.name}, {phase['label']}", family, whole, values, cut)


_ASKED = "request_max_tokens"


def synthetic(seed: int = 7) -> Iterator[Case]:
    """Log-normal, bimodal, capped and uniform lengths; log-normal, exponential and bimodal waits."""
    rng = random.Random(seed)

    def lengths(mean: float, spread: float, n: int) -> list[float]:
        sigma = math.sqrt(math.log(1 + spread**2))
        return [max(1.0, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))) for _ in range(n)]

    def case(name: str, values: list[float], bounds: Sequence[float], cut: Cut | None = None) -> Case:
        return Case(f"{name}, {len(values)}", name.split(maxsplit=1)[0], histogram(values, bounds), sorted(values), cut)

    for n in (50, 200, 2000):
        for mean in (35, 150, 320, 700, 1500):
            for spread in (0.15, 0.3, 0.6, 1.0, 1.6):
                yield case(f"log-normal {mean} CV {spread}", lengths(mean, spread, n), ONE_TWO_FIVE)
        for low, high, share in ((60, 600, 0.5), (60, 600, 0.15), (150, 900, 0.7), (30, 250, 0.3), (250, 400, 0.5)):
            many = round(share * n)
            both = lengths(low, 0.25, n - many) + lengths(high, 0.25, many)
            yield case(f"bimodal {low}/{high}", both, ONE_TWO_FIVE)
        for mean, cap in ((150, 256), (300, 256), (300, 1024), (600, 512)):
            values = [min(float(cap), value) for value in lengths(mean, 0.8, n)]
            yield case(f"capped {mean} at {cap}", values, ONE_TWO_FIVE, Cut(cap, values.count(cap)))
        for low, high in ((100, 300), (150, 450), (20, 600), (400, 560)):
            yield case(f"uniform {low}-{high}", [float(rng.randint(low, high)) for _ in range(n)], ONE_TWO_FIVE)
        for mean in (0.03, 0.15, 0.7, 4.0, 30.0):
            for sigma in (0.3, 0.7, 1.1):
                waits = [rng.lognormvariate(math.log(mean), sigma) for _ in range(n)]
                yield case(f"wait-log-normal {mean} s", waits, TTFT)
            yield case(f"wait-exponential {mean} s", [rng.expovariate(1 / mean) for _ in range(n)], TTFT)
            waits = [rng.lognormvariate(math.log(mean * (20 if i < 0.15 * n else 1)), 0.3) for i in range(n)]
            yield case(f"wait-bimodal {mean} s", waits, TTFT)


def answers(values: Sequence[float]) -> dict[str, float]:
    """The truth of ascending values: p50, p90, p99 by rank, and the coefficient of variation."""
    n, mean = len(values), sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / n) / mean
    return {**{f"p{q}": values[max(0, math.ceil(q / 100 * n - 1e-9) - 1)] for q in (50, 90, 99)}, "CV": spread}


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def _families(text: str) -> dict[str, list[Histogram]]:
    """Each family's histograms, one an engine."""
    found: dict[str, list[Histogram]] = {}
    for engine in normalise(text.encode()).engines.values():
        for family, shown in engine.histograms.items():
            found.setdefault(family, []).append(shown)
    return found


def _together(parts: Sequence[Histogram]) -> Histogram:
    counts = array("d", map(sum, zip(*(part.counts for part in parts), strict=True)))
    return Histogram(parts[0].bounds, counts, sum(part.sum for part in parts))


def _values(requests: Sequence[dict[str, Any]], family: str, since: float, until: float) -> Iterator[float]:
    for request in requests:
        if request.get("err") or not request.get("usage") or request["ttft"] is None or request["e2e"] is None:
            continue
        tokens = request["usage"]["completion_tokens"] / (request.get("n") or 1)
        at = request["start"] + request["ttft" if family == "ttft_seconds" else "e2e"]
        if not since < at <= until:
            continue
        if family == "request_output_tokens":
            yield tokens
        elif family == "request_prompt_tokens":
            yield request["usage"]["prompt_tokens"]
        elif family == "ttft_seconds":
            yield request["ttft"]
        elif tokens > 1:
            yield (request["e2e"] - request["ttft"]) / (tokens - 1)
