"""A written period of three engines, kept as plain numbers so that tests can count for themselves.

It stands for a week and is shorter, for every test that reads it pays for its length. Model ``chat`` has two engines,
``code`` one. Demand follows the day and grows; once ``chat-0`` spirals, ``code`` restarts once, and midway
max_num_seqs of ``chat`` goes from 24 to 32. Everything comes from one seed.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import cos, log, pi
from random import Random

DAY = 86_400
HOUR = 3_600
SCRAPE = 150
END = 1_790_000_000 // DAY * DAY + 7 * 3600  # a Monday morning does not matter, a whole hour does
SPAN = 2 * DAY
PERIODS = 2  # the one reviewed, and the one before
TREND_DAYS = 28
SPIRAL, CHANGE, RESTART = END - 30 * HOUR + 600, END - DAY, END - 12 * HOUR

LATENCY = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0)
TOKENS = (1.0, 10.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)
STATES = ("down", "stalled", "death_spiral", "thrashing", "blind", "starved", "preempting", "saturated", "kv_pressure",
          "healthy", "idle", "asleep", "unknown")  # fmt: skip
HISTOGRAMS = {"tpot_seconds": LATENCY, "ttft_seconds": LATENCY, "request_prompt_tokens": TOKENS,
              "request_output_tokens": TOKENS}  # fmt: skip


@dataclass
class Engine:
    """One engine's raw samples: by series name (with its own labels) a list of (time, value)."""

    model: str
    target: str
    slots: int
    capacity: float
    base: float
    slope: float
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    hist: dict[str, list[float]] = field(default_factory=dict)
    square: dict[str, float] = field(default_factory=dict)
    squares: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # what no histogram tells

    def set(self, name: str, at: float, value: float) -> None:
        self.series.setdefault(name, []).append((at, value))

    def add(self, name: str, at: float, value: float) -> None:
        self.counts[name] = self.counts.get(name, 0.0) + value
        self.set(name, at, self.counts[name])

    def observe(self, name: str, value: float, times: float) -> None:
        bounds = HISTOGRAMS[name]
        row = self.hist.setdefault(name, [0.0] * (len(bounds) + 2))
        row[bisect_left(bounds, value)] += times
        row[-1] += value * times
        self.square[name] = self.square.get(name, 0.0) + value * value * times

    def write(self, at: float) -> None:
        for name, bounds in HISTOGRAMS.items():
            row = self.hist.setdefault(name, [0.0] * (len(bounds) + 2))
            running = 0.0
            for bound, count in zip((*(repr(b) for b in bounds), "+Inf"), row[:-1], strict=True):
                running += count
                self.set(f'{name}_bucket{{le="{bound}"}}', at, running)
            self.set(f"{name}_sum", at, round(row[-1], 6))
            self.set(f"{name}_count", at, running)
            self.squares.setdefault(name, []).append((at, self.square.get(name, 0.0)))


def engines() -> list[Engine]:
    return [
        Engine("chat", "chat-0:8000", 24, 60_000, 0.020, 0.0011),
        Engine("chat", "chat-1:8000", 24, 60_000, 0.020, 0.0011),
        Engine("code", "code-0:8000", 8, 200_000, 0.030, 0.0060),
    ]


def written(seed: int = 7) -> list[Engine]:
    """Both periods, scrape by scrape."""
    random = Random(seed)
    found = engines()
    start = END - PERIODS * SPAN
    for step in range(PERIODS * SPAN // SCRAPE + 1):
        at = start + step * SCRAPE
        for engine in found:
            _scrape(engine, at, random)
    return found


def incident(at: float) -> bool:
    """The spiral of chat-0: 25 minutes, thirty hours before the end."""
    return SPIRAL <= at < SPIRAL + 1500


def slots_of(engine: Engine, at: float) -> int:
    return 32 if engine.model == "chat" and at >= CHANGE else engine.slots


def demand(engine: Engine, at: float, random: Random) -> float:
    """Requests/s: low at night, more at the end than at the start."""
    hour = (at % DAY) / 3600
    shape = 0.35 + 0.65 * (0.5 - 0.5 * cos(2 * pi * (hour - 3) / 24)) ** 1.5
    growth = 1 + 0.012 * (at - END) / DAY
    top = {"chat": 1.15, "code": 0.22}[engine.model]
    return max(0.0, top * shape * growth * (1 + 0.15 * random.gauss(0, 1)))


def _scrape(engine: Engine, at: float, random: Random) -> None:
    spiral = engine.target == "chat-0:8000" and incident(at)
    if engine.model == "code" and abs(at - RESTART) < SCRAPE:  # down: nothing but its state
        _state(engine, at, "down")
        engine.counts.clear()
        engine.hist.clear()
        engine.square.clear()
        return
    prompt = (
        random.lognormvariate(log(900), 0.35) if engine.model == "chat" else random.lognormvariate(log(14_000), 0.6)
    )
    output = random.lognormvariate(log(280), 0.25) if engine.model == "chat" else random.lognormvariate(log(420), 0.5)
    slots, wanted = slots_of(engine, at), demand(engine, at, random)
    running = _running(engine, wanted, output, slots)
    waiting = 0.0 if running < slots else 6 * random.random()
    kv = min(1.0, running * (prompt + output / 2) / engine.capacity)
    if spiral:
        running, waiting, kv = 9.0, 22.0 + random.random() * 4, 1.0
    step = engine.base + engine.slope * running
    generated = running / step * SCRAPE * (0.15 if spiral else 1.0) * (0.97 + 0.06 * random.random())
    finished = round(generated / output)
    preempted = round(1.5 * SCRAPE) if spiral else (round(random.random() * 3) if kv > 0.9 else 0)
    engine.add("generation_tokens_total", at, round(generated))
    engine.add("prompt_tokens_total", at, round(finished * prompt))
    engine.add("prompt_tokens_computed_total", at, round(finished * prompt * 0.8))
    engine.add("prefix_cache_queries_total", at, round(finished * prompt))
    engine.add("prefix_cache_hits_total", at, round(finished * prompt * 0.2))
    engine.add("preemptions_total", at, preempted)
    cut = round(finished * (0.02 if engine.model == "chat" else 0.2))
    engine.add('responses_total{finished_reason="stop"}', at, finished - cut)
    engine.add('responses_total{finished_reason="length"}', at, cut)
    engine.add("rejected_requests_total", at, 3 if spiral else 0)
    _observe(engine, random, finished, prompt, output, step, waiting, spiral)
    engine.write(at)
    engine.set("requests_running", at, round(running))
    engine.set('requests_waiting{reason="capacity"}', at, round(waiting))
    engine.set('requests_waiting{reason="deferred"}', at, 0)
    engine.set("kv_cache_usage_ratio", at, round(kv * (0.9 if spiral else 0.97), 4))
    engine.set("kv_cache_usage_max_ratio", at, round(kv, 4))
    engine.set("kv_cache_demand_ratio", at, round(kv * (running + waiting) / max(1.0, running), 4))
    engine.set("kv_cache_capacity_tokens", at, engine.capacity)
    engine.set("kv_cache_full_windows", at, round(engine.capacity / 32_768, 3))
    tax = 0.62 if spiral else 0.01 if preempted else 0.0
    for name, factor in (
        ("recompute_tax_ratio", 1),
        ("recompute_tax_lower_ratio", 0.7),
        ("recompute_tax_upper_ratio", 1.3),
    ):
        engine.set(name, at, round(tax * factor, 4))
    engine.set("abandoned_requests_per_second", at, 0.2 if spiral else 0.0)
    state = "death_spiral" if spiral else "saturated" if waiting >= 1 else "kv_pressure" if kv >= 0.9 else "healthy"
    _state(engine, at, state if running >= 0.5 else "idle")


def _running(engine: Engine, wanted: float, output: float, slots: int) -> float:
    """Little's law with a step time that grows with the batch: r = wanted x output x (a + b r), at most the slots."""
    load = wanted * output
    return min(
        float(slots),
        load * engine.base / max(0.05, 1 - load * engine.slope) if load * engine.slope < 1 else float(slots),
    )


def _observe(
    engine: Engine,
    random: Random,
    finished: int,
    prompt: float,
    output: float,
    step: float,
    waiting: float,
    spiral: bool,
) -> None:
    for _ in range(5):
        share = finished / 5
        if not share:
            return
        engine.observe(
            "tpot_seconds", step * (3 + 9 * random.random() if spiral else 0.85 + 0.35 * random.random()), share
        )
        engine.observe(
            "ttft_seconds", 0.05 + prompt / 11_400 + waiting * (1.5 if spiral else 0.4) * random.random(), share
        )
        engine.observe("request_prompt_tokens", max(1.0, prompt * (0.6 + 0.8 * random.random())), share)
        engine.observe("request_output_tokens", max(1.0, output * (0.75 + 0.5 * random.random())), share)


def _state(engine: Engine, at: float, state: str) -> None:
    for each in STATES:
        engine.set(f'state{{state="{each}"}}', at, float(each == state))


def server(at: float) -> list[tuple[str, float]]:
    """What the servers said of themselves at a time."""
    found = [(f'server_info{{target="{e.target}",version="0.32.0",dialect="v1"}}', 1.0) for e in engines()]
    slots = [(f'server_setting{{target="{e.target}",name="max_num_seqs"}}', float(slots_of(e, at))) for e in engines()]
    return found + slots


def earlier(seed: int = 11) -> Iterator[tuple[str, float, float]]:
    """Days before, of which only the daily peaks matter: (series of one engine, time, value)."""
    random = Random(seed)
    for engine in engines():
        answered = 0.0
        for step in range((TREND_DAYS * DAY - PERIODS * SPAN) // SCRAPE):
            at = END - TREND_DAYS * DAY + step * SCRAPE
            wanted = demand(engine, at, random)
            answered += round(wanted * SCRAPE)
            running = _running(engine, wanted, 300, engine.slots)
            own = f'target="{engine.target}",model_name="{engine.model}",engine="0"'
            yield f"vllm_vitals_requests_running{{{own}}}", at, round(running)
            yield (
                f"vllm_vitals_kv_cache_usage_max_ratio{{{own}}}",
                at,
                round(min(1.0, running * 1000 / engine.capacity), 4),
            )
            yield f'vllm_vitals_responses_total{{{own},finished_reason="stop"}}', at, answered


def lines(found: list[Engine], replicas: tuple[str, ...] = ("a",)) -> Iterator[str]:
    """OpenMetrics sample lines; each replica of the exporter writes the same."""
    for name, at, value in earlier():
        yield f"{name} {value!r} {at}"
    for replica in replicas:
        for engine in found:
            own = f'target="{engine.target}",model_name="{engine.model}",engine="0",instance="{replica}"'
            for name, samples in engine.series.items():
                base, _, rest = name.partition("{")
                labels = f"{own},{rest}" if rest else f"{own}}}"
                yield from (f"vllm_vitals_{base}{{{labels} {value!r} {at}" for at, value in samples)
    for step in range(PERIODS * SPAN // SCRAPE + 1):
        at = END - PERIODS * SPAN + step * SCRAPE
        yield from (f"vllm_vitals_{name} {value!r} {at}" for name, value in server(at))
