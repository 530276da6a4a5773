"""How often compare is right: twins of one server, and servers that are really better.

`python -m bench.experiments [PAIRS]` simulates pairs of runs of three loads: an open one that never queues, an open one
near what the server can do, and clients who wait for their answers while the cache runs full. Twins at equal traffic
and at 8 % more or less must hardly ever end in keep or roll back; of servers whose steps take 1/1.2 of the time four
in five must be kept, each run as long as compare asks for (from 10 minutes on, 2 h at most).
"""

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from time import process_time

from vllm_vitals.core.distribution import fit, is_sure
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.experiment.baseline import VITALS, Baseline, Measure
from vllm_vitals.planner.experiment.compare import Comparison, compare
from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Lengths, Load, Traffic
from vllm_vitals.vllm.buckets import FIRST_TOKEN, INTER_TOKEN, REQUEST_LATENCY

PARTS, MINUTES, LOOKS = 10, 10.0, 4
SLOW = StepTime(base=0.03, prefill=1e-4, decode=4e-4, context=1e-7)
SERVER = ServerSettings(
    num_gpu_blocks=1000, max_num_seqs=32, max_model_len=8000, enable_prefix_caching=False, max_num_batched_tokens=2048
)
LENGTHS = {"prompt": Lengths(500, 0.6), "output": Lengths(250, 0.5), "max_tokens": None}
LOADS = {
    "open, no queue": Load(rate=1.0, **LENGTHS),  # type: ignore[arg-type]
    "open, nearly full": Load(rate=1.75, **LENGTHS),  # type: ignore[arg-type]
    "clients who wait": Load(clients=48, think_s=0.5, **LENGTHS),  # type: ignore[arg-type]
}
ALLOWED, REQUIRED = 0.05, 0.80


@dataclass(frozen=True)
class Server:
    """What is run: settings, step time, load."""

    settings: ServerSettings
    time: StepTime
    load: Load


@dataclass
class _Part:
    """What one part of a run saw."""

    generated: int
    preemptions: int
    done: list[Request]
    begun: list[Request]
    present: float
    waiting: float


def run(server: Server, seconds: float, seed: int, name: str, setting: str) -> Baseline:
    """Return the snapshot of one run, after a warm-up of a fifth of it (at most two minutes)."""
    engine, traffic = Engine(server.settings, server.time), Traffic(server.settings, seed)
    traffic.switch(server.load, 0.0)
    began = min(120.0, seconds / 5)
    length = seconds / PARTS
    parts = list[_Part]()
    _until(engine, traffic, began)
    for index in range(PARTS):
        parts.append(_until(engine, traffic, began + (index + 1) * length))
    whole = _Part(
        sum(p.generated for p in parts), sum(p.preemptions for p in parts), [r for p in parts for r in p.done],
        [r for p in parts for r in p.begun], sum(p.present for p in parts) / PARTS,
        sum(p.waiting for p in parts) / PARTS,
    )  # fmt: skip
    every, each = _vitals(whole, seconds), [_vitals(part, length) for part in parts]
    arrived = sum(began < r.arrival for r in whole.begun)
    return Baseline(
        name=name, taken_at=0.0, start=0.0, end=seconds, source="simulated", model_name="m", engines=1, version="",
        settings={"knob": setting},
        workload={
            "prompt tokens, mean": _mean([r.prompt for r in whole.done]),
            "output tokens, mean": _mean([r.output for r in whole.done]), "requests/s": arrived / seconds,
            "requests in flight, mean": whole.present, "time with a queue": whole.waiting,
            "clients who wait": server.load.clients or None,
        },
        vitals={
            name: Measure(
                repeats=[part[name][0].value for part in each], weights=[part[name][1] for part in each],
                value=reading.value, sure=is_sure(reading),
            ) for name, (reading, _) in every.items()
        },
        by_length=[], parts=[index * length for index in range(PARTS)], seconds=seconds,
    )  # fmt: skip


def _until(engine: Engine, traffic: Traffic, until: float) -> _Part:
    """Run on, looking at the gauges every second."""
    generated, preempted = engine.stats.generation_tokens, engine.stats.preemptions
    done, begun, present, waiting, looks = list[Request](), list[Request](), 0.0, 0.0, 0
    since = engine.now
    look = since + 1.0
    while True:
        target = min(traffic.next_at, look, until)
        if finished := engine.advance(target):
            for request in finished:
                done.append(request)
                traffic.answered(request, request.finished_at)
            continue
        if target == look:
            present, waiting = present + len(engine.requests), waiting + (engine.stats.waiting >= 1)
            looks, look = looks + 1, look + 1.0
        if target >= until:
            break
        if target == traffic.next_at:
            request = traffic.take()
            begun.append(request)
            engine.add(request)
    return _Part(
        engine.stats.generation_tokens - generated, engine.stats.preemptions - preempted, done, begun,
        present / max(1, looks), waiting / max(1, looks),
    )  # fmt: skip


def _vitals(part: _Part, seconds: float) -> dict[str, tuple[Reading, float]]:
    first = [r.first_token_at - r.arrival for r in part.done]
    speed = [(r.finished_at - r.first_token_at) / (r.output - 1) for r in part.done if r.output > 1]
    whole = [r.finished_at - r.arrival for r in part.done]
    count = float(len(part.done))
    found = {
        "generated tokens": (Reading(part.generated / seconds), seconds),
        "completed requests": (Reading(count / seconds), seconds),
        "preemptions a request": (Reading(part.preemptions / count if count else None), count),
    }
    for words, values, bounds in (
        ("time to first token", first, FIRST_TOKEN),
        ("time per output token", speed, INTER_TOKEN),
        ("whole request", whole, REQUEST_LATENCY),
    ):
        shown = fit(_histogram(values, bounds))
        found[f"{words}, mean"] = shown.mean(), count
        for q in (50, 95, 99):
            found[f"{words}, p{q}"] = shown.quantile(q / 100), count
    return {name: found[name] for name in VITALS}


def _histogram(values: Sequence[float], bounds: Sequence[float]) -> Histogram:
    own = [0.0] * (len(bounds) + 1)
    for value in values:
        own[bisect_left(bounds, value)] += 1
    return Histogram(tuple(bounds), array("d", accumulate(own)), sum(values))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def experiment(before: Server, after: Server, seed: int) -> tuple[Comparison, float]:
    """Return what compare says of a pair, each run as long as it asks, and for how many minutes that was."""
    minutes = MINUTES
    for _ in range(LOOKS):
        seconds = 60 * minutes
        found = compare(run(before, seconds, seed, "a", "a"), run(after, seconds, seed + 1, "b", "b"))
        if found.decision != "not enough" or found.more is None:
            break
        minutes = min(120.0, minutes + found.more / 60)
    return found, minutes


def busier(load: Load, by: float) -> Load:
    """Return so much more of a load."""
    return replace(load, rate=load.rate * by, clients=round(load.clients * by))


def main(pairs: int) -> int:
    """Print a table; 0 where both aims are met."""
    print("| load | | pairs | keep | roll back | no difference | not enough | not comparable | minutes a run |")
    print("|---" * 9 + "|")
    wrong, right, twins, better = 0, 0, 0, 0
    start = process_time()
    for words, load in LOADS.items():
        a = Server(SERVER, SLOW, load)
        for what, b in (
            ("twin", a),
            ("twin, 8 % more traffic", replace(a, load=busier(load, 1.08))),
            ("twin, 8 % less traffic", replace(a, load=busier(load, 1 / 1.08))),
            ("steps 1.2 times as fast", replace(a, time=SLOW.scaled(1 / 1.2))),
        ):
            found = [experiment(a, b, 1000 * seed + len(what)) for seed in range(pairs)]
            said = Counter(comparison.decision for comparison, _ in found)
            print(
                f"| {words} | {what} | {pairs} | "
                + " | ".join(
                    str(said[d]) for d in ("keep", "roll back", "no difference", "not enough", "not comparable")
                )
                + f" | {_mean([m for _, m in found]):.0f} |",
                flush=True,
            )
            if what.startswith("twin"):
                wrong, twins = wrong + said["keep"] + said["roll back"], twins + pairs
            else:
                right, better = right + said["keep"], better + pairs
    print(
        f"\ntwins told apart: {wrong} of {twins}; real gains kept: {right} of {better}; {process_time() - start:.0f} s"
    )
    return 0 if wrong <= ALLOWED * twins and right >= REQUIRED * better else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
