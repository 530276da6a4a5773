"""Whether the review buys the right number of engines: `python -m bench.capacity [FLEET ...]`, fleets of known truth.

Each fleet is 28 days of five-minute windows. A simulated engine runs whole days (weekdays and weekends, each level of
growth once, queues and evictions carried from hour to hour); the month is put together from them, so that it costs
minutes. The review's twin is fitted to that telemetry alone and never sees the step time behind it. Truth: the same
simulator with the true step time and lengths, its rate swept to the objective, four hours a step.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import ceil, nan, pi, sin
from random import Random
from time import process_time

from vllm_vitals.config.objectives import Slo
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.planner.review.report import ModelReview, build
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import EngineId, EngineSeries, Setting, Telemetry, WindowedHistogram
from vllm_vitals.planner.whatif import fitting
from vllm_vitals.planner.whatif.engine_capacity import carries
from vllm_vitals.planner.whatif.simulate_run import run
from vllm_vitals.planner.whatif.workload_slice import SituationError
from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Lengths, Load, Traffic
from vllm_vitals.vllm.buckets import FIRST_TOKEN, INTER_TOKEN, REQUEST_LATENCY, tokens

WINDOW, DAY, DAYS = 300, 86_400, 28
TRUE = StepTime(base=0.03, prefill=1.2e-4, decode=6e-4, context=1.5e-7)
SERVER = ServerSettings(
    num_gpu_blocks=1200, max_num_seqs=32, max_model_len=8000, enable_prefix_caching=False, max_num_batched_tokens=2048
)
LOAD = Load(prompt=Lengths(700, 0.6), output=Lengths(300, 0.5), max_tokens=None)
TOLD = ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len", "enable_prefix_caching",
        "scheduler_reserve_full_isl")  # fmt: skip
SLOS = (Slo("first token", "ttft", 2.5, 0.95), Slo("speed", "tpot", 0.075, 0.95))


@dataclass(frozen=True)
class Fleet:
    """Engines that share a demand; ``peak`` is the busiest hour's requests/s in all, ``growth`` a week."""

    name: str
    engines: int
    peak: float
    settings: ServerSettings = SERVER
    load: Load = LOAD
    growth: float = 0.0
    idle: int = 0
    later: ServerSettings | None = None
    slos: tuple[Slo, ...] = SLOS


@dataclass
class _Window:
    """What one engine did in five minutes."""

    running: float
    running_max: float
    waiting: float
    kv: float
    kv_max: float
    counters: dict[tuple[str, str], float] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)


def shape(at: float, weekend: bool) -> float:
    """Return the share of the peak at a second of the day: quiet at night, highest in the afternoon."""
    hour = at / 3600
    return (0.35 + 0.65 * max(0.0, sin(pi * (hour - 7) / 15)) ** 1.5) * (0.6 if weekend else 1.0)


def day(settings: ServerSettings, load: Load, peak: float, weekend: bool, seed: int) -> list[_Window]:
    """Run one engine through a day whose rate follows `shape`."""
    engine, traffic = Engine(settings, TRUE), Traffic(settings, seed)
    rng = Random(seed)
    return [
        _window(engine, traffic, load, peak * shape(at, weekend) * rng.lognormvariate(0.0, 0.08), at + WINDOW)
        for at in range(0, DAY, WINDOW)
    ]


def _window(engine: Engine, traffic: Traffic, load: Load, rate: float, until: float) -> _Window:
    traffic.switch(replace(load, rate=max(rate, 1e-6)), engine.now)
    stats, looks = engine.stats, list[tuple[int, int, float]]()
    before = (stats.generation_tokens, stats.prompt_tokens, stats.preemptions, stats.cached_tokens)
    gaps = stats.histograms["inter_token_latency_seconds"]
    gap_sum, gap_count = gaps.sum, sum(gaps.counts)
    done, look = list[Request](), engine.now + 5.0
    while True:
        target = min(traffic.next_at, look, until)
        if finished := engine.advance(target):
            done += finished
            continue
        if target == look:
            looks.append((stats.running, stats.waiting, stats.kv_usage))
            look += 5.0
        if target >= until:
            break
        if target == traffic.next_at:
            engine.add(traffic.take())
    made, prompts, evicted, cached = (
        now - old for now, old in zip(
            (stats.generation_tokens, stats.prompt_tokens, stats.preemptions, stats.cached_tokens), before, strict=True
        )
    )  # fmt: skip
    running, waiting, kv = ([each[i] for each in looks] for i in range(3))
    found = _Window(_mean(running), max(running, default=0), _mean(waiting), _mean(kv), max(kv, default=0.0))
    found.counters = {
        ("generation_tokens_total", ""): made, ("prompt_tokens_total", ""): prompts,
        ("prompt_tokens_computed_total", ""): prompts - cached, ("preemptions_total", ""): evicted,
        ("responses_total", "stop"): sum(r.reason == "stop" for r in done),
        ("responses_total", "length"): sum(r.reason == "length" for r in done),
        ("inter_token_latency_seconds_sum", ""): gaps.sum - gap_sum,
        ("inter_token_latency_seconds_count", ""): sum(gaps.counts) - gap_count,
        ("request_prompt_tokens_sum", ""): sum(r.prompt for r in done),
        ("request_prompt_tokens_count", ""): len(done),
    }  # fmt: skip
    found.values = {
        "ttft_seconds": [r.first_token_at - r.arrival for r in done],
        "tpot_seconds": [(r.finished_at - r.first_token_at) / (r.output - 1) for r in done if r.output > 1],
        "e2e_latency_seconds": [r.finished_at - r.arrival for r in done],
        "request_prompt_tokens": [r.prompt for r in done], "request_output_tokens": [r.output for r in done],
        "request_max_tokens": [r.max_tokens for r in done],
    }  # fmt: skip
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def month(fleet: Fleet, length: int = DAYS) -> tuple[Telemetry, list[float]]:
    """Return ``length`` days of a fleet, and its demand by window (requests/s in all)."""
    days: dict[tuple[int, bool, bool], list[_Window]] = {}
    each = fleet.peak / max(1, fleet.engines - fleet.idle)

    def of(date: int) -> list[_Window]:
        week, weekend = date // 7, date % 7 >= 5
        changed = fleet.later is not None and date >= length // 2
        key = (week if fleet.growth else 0, weekend, changed)
        if key not in days:
            settings = fleet.later if changed and fleet.later is not None else fleet.settings
            days[key] = day(settings, fleet.load, each * (1 + fleet.growth) ** key[0], weekend, 10 * week + weekend + 1)
        return days[key]

    windows = [window for date in range(length) for window in of(date)]
    grid = Grid(0.0, WINDOW, len(windows))
    telemetry = Telemetry(grid, grid, grid)
    same = {busy: _series(windows, grid, fleet.settings, busy) for busy in (True, False)[: 2 if fleet.idle else 1]}
    for number in range(fleet.engines):
        telemetry.engines[EngineId("m", f"engine-{number}", "0")] = same[number < fleet.engines - fleet.idle]
        telemetry.settings += [
            Setting(f"engine-{number}", name, str(getattr(settings, name)), at)
            for settings, at in ((fleet.settings, 0.0), *(((fleet.later, length / 2 * DAY),) if fleet.later else ()))
            for name in TOLD
        ]  # fmt: skip
    busy_engines = fleet.engines - fleet.idle
    demand = [
        busy_engines * (w.counters["responses_total", "stop"] + w.counters["responses_total", "length"]) / WINDOW
        for w in windows
    ]
    return telemetry, demand


def _series(windows: Sequence[_Window], grid: Grid, settings: ServerSettings, busy: bool) -> EngineSeries:
    def line(of: Callable[[_Window], float]) -> "array[float]":
        return array("d", [of(w) if busy else 0.0 for w in windows])

    series = EngineSeries(
        gauges={
            "requests_running": line(lambda w: w.running), "requests_running_max": line(lambda w: w.running_max),
            "requests_waiting": line(lambda w: w.waiting), "kv_cache_usage_ratio": line(lambda w: w.kv),
            "kv_cache_usage_max_ratio": line(lambda w: w.kv_max),
        },
        slow={"kv_cache_capacity_tokens": array("d", [float(settings.capacity_tokens)])},
        states=bytearray([255]) * len(windows),
    )  # fmt: skip
    for key in windows[0].counters:
        series.counters[key] = line(lambda w, key=key: w.counters[key])  # type: ignore[misc]
    lengths = tokens(settings.max_model_len)
    bounds = {"ttft_seconds": FIRST_TOKEN, "tpot_seconds": INTER_TOKEN, "e2e_latency_seconds": REQUEST_LATENCY}
    for name in windows[0].values:
        edges = tuple(float(edge) for edge in bounds.get(name, lengths))
        rows = [_counted(w.values[name] if busy else (), edges) for w in windows]
        columns = [array("d", column) for column in zip(*(counts for counts, _ in rows), strict=True)]
        series.histograms[name] = WindowedHistogram(grid, edges, columns, array("d", [total for _, total in rows]))
    return series


def _counted(values: Sequence[float], edges: Sequence[float]) -> tuple[list[float], float]:
    own = [0.0] * (len(edges) + 1)
    for value in values:
        own[bisect_left(edges, value)] += 1
    return list(accumulate(own)), float(sum(values))


def truth(fleet: Fleet) -> float:
    """Return the greatest rate at which one engine really meets every objective, by four hours of it at each step."""
    settings = fleet.later or fleet.settings
    low, high = 0.0, run(settings, TRUE, replace(fleet.load, clients=64, think_s=0.0), 600.0, 99).completed * 1.1
    for _ in range(7):
        middle = (low + high) / 2
        seen = [run(settings, TRUE, replace(fleet.load, rate=middle), 3600.0, seed) for seed in (11, 12, 13, 14)]
        good = all(_mean([o.within(slo.indicator, slo.seconds) for o in seen]) >= slo.share for slo in fleet.slos)
        low, high = (middle, high) if good else (low, middle)
    return low


FLEETS = {
    fleet.name: fleet
    for fleet in (
        Fleet("over-provisioned by 60 %", 5, 2.6),
        Fleet("under-provisioned, a spiral each afternoon", 2, 3.4, replace(SERVER, scheduler_reserve_full_isl=False)),
        Fleet("one server, asked for half", 1, 0.55),
        Fleet("one server, asked for all", 1, 1.1),
        Fleet("an idle spare", 3, 2.0, idle=1),
        Fleet("growing 3 % a week", 3, 2.6, growth=0.03),
        Fleet("30 % truncated at a cap", 3, 3.0, load=replace(LOAD, max_tokens=370)),
        Fleet("a deploy that changes max_num_seqs", 3, 2.4, later=replace(SERVER, max_num_seqs=16)),
        Fleet("slots are the limit", 3, 2.4, settings=replace(SERVER, max_num_seqs=12)),
    )
}


def judged(fleet: Fleet, length: int = DAYS) -> tuple[ModelReview, list[float]]:
    """Return the review of a fleet's ``length`` days, with its twin, and the demand."""
    telemetry, demand = month(fleet, length)
    settings = ReviewSettings(slos=list(fleet.slos))
    try:
        twin = carries(fitting.case(telemetry, telemetry.of("m"), {}, "peak"), fleet.slos)
    except SituationError as error:
        twin = str(error)
    return build(telemetry, settings, "simulated", 0.0, carried={"m": twin}).models[0], demand


def main(names: Sequence[str]) -> int:
    """Print the table; 0 where all are right."""
    print("| fleet | capacity, requests/s | truth | off | engines needed | truth | there | verdict | capacity says |")
    print("|---" * 9 + "|")
    wrong = 0
    for name in names or FLEETS:
        fleet, start = FLEETS[name], process_time()
        model, demand = judged(fleet)
        carry = truth(fleet)
        p99 = sorted(demand)[ceil(0.99 * len(demand)) - 1]
        need = ceil(p99 / carry - 1e-9) + 1
        bill = model.money
        found = nan if bill.capacity is None else bill.capacity.requests_per_second
        interval = "" if bill.capacity is None or bill.capacity.lower is None else (
            f" ({bill.capacity.lower:.2f} – {bill.capacity.upper:.2f})")  # fmt: skip
        acts = [each.text for each in model.findings if each.level == "act" and each.topic in ("capacity", "settings")]
        spare = need <= fleet.engines
        right = abs(found / carry - 1) <= 0.15 and bill.engines_needed is not None
        right = right and abs((bill.engines_needed or 0) - need) <= 1 and not (spare and acts)
        wrong += not right
        cells = (
            name, f"{found:.2f}{interval}", f"{carry:.2f}", f"{found / carry - 1:+.0%}", bill.engines_needed, need,
            fleet.engines, f"{model.verdict}{'' if right else ' ✗'}", "; ".join(acts) or bill.no_capacity or "-",
        )  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        print(f"{name}: {process_time() - start:.0f} s CPU", file=sys.stderr, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
