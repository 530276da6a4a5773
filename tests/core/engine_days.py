"""An engine's usual days, in compressed time: traffic by hour and weekday, and what changes in a month without harm.

Input: an `Engine` (hardware and habits), a seed, an interval. Output: its samples, as an `EngineEvaluator` takes them.
A step reads weights (`base`), KV (`context` a token) and computes what is new (`prompt` a token, `request` each); all
that run get one token a step, so that the mean gap follows from how many run, what they hold and what is prefilled.
Benign: the share of long prompts and the hit rate drift, caches go cold with releases, LoRA adapters come, a batch job
runs at night, bursts, a machine that is a few percent slower in the afternoon, a restart a week. Harm is a `Slowdown`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate
from math import exp, pi, sin
from random import Random

from tests.core.sequences import EDGES
from vllm_vitals.core.sample import EngineSample, Histogram

HOUR, DAY = 3600.0, 86_400.0
TICK = 2.0  # s
_SHOWN = ("inter_token_latency_seconds", "tpot_seconds", "request_prompt_tokens", "request_output_tokens")
DRAFTS = 3.0  # tokens a step


@dataclass(frozen=True)
class Engine:
    """Seconds a step and a token; requests a second at the peak; mean tokens of a chat, ``long`` prompts beside it.

    ``night`` and ``weekend`` are shares of the peak. ``hits``: share of a prompt that the cache holds. ``lora``: by how
    much steps are longer once adapters run. ``drafts``: share of drafted tokens that is accepted, 0 without drafts.
    """

    name: str
    base: float = 0.010
    request: float = 0.00002
    context: float = 4e-8
    prompt: float = 4e-5
    rate: float = 2.0
    night: float = 0.1
    weekend: float = 0.5
    tokens: tuple[float, float] = (600.0, 250.0)
    long: float = 6000.0
    hits: float = 0.3
    lora: float = 0.0
    drafts: float = 0.0
    slots: int = 128
    capacity: float = 400_000.0


@dataclass(frozen=True)
class Slowdown:
    """From when (s since the first day), for how long, and how many times longer every step takes."""

    at: float
    lasts: float
    factor: float


@dataclass
class _Weather:
    """What drifts: looked up once a minute."""

    random: Random
    engine: Engine
    burst_until: float = 0.0
    wave: float = 0.0  # log of the rate's slow wander
    machine: float = 0.0  # log of the steps' slow wander
    taste: float = 0.0  # log of the hit rate's wander

    def minute(self, at: float) -> tuple[float, float, float, float]:
        """(requests a second, share of long prompts, hit rate, factor on steps)."""
        draw, engine = self.random, self.engine
        day, hour = divmod(at, DAY)
        hour /= HOUR
        self.wave = 0.98 * self.wave + draw.gauss(0, 0.04)
        self.machine = 0.995 * self.machine + draw.gauss(0, 0.003)
        self.taste = 0.9995 * self.taste + draw.gauss(0, 0.006)
        if draw.random() < 1 / 600:
            self.burst_until = at + draw.uniform(60, 600)
        swing = (1 - engine.night) * max(0.0, sin(pi * (hour - 6) / 16)) ** 0.8 if 6 < hour < 22 else 0.0
        rate = engine.rate * (engine.night + swing) * exp(self.wave)
        rate *= engine.weekend if day % 7 >= 5 else 1.0
        rate *= 2.5 if at < self.burst_until else 1.0
        longs = 0.03 + 0.25 * min(1.0, at / (30 * DAY))  # the mix drifts over the month
        longs = 0.8 if 2 <= hour < 4 else longs  # a job at night
        since_release = at % (9 * DAY)  # a new prompt template: what was cached is of no use for an hour
        cold = min(1.0, since_release / HOUR) if at > DAY else 1.0
        hits = min(0.95, engine.hits * exp(self.taste) * (1 + min(1.0, at / (20 * DAY)))) * cold
        steps = exp(self.machine) * (1.03 if 12 <= hour < 18 else 1.0)
        adapters = engine.lora and at > 12 * DAY and 8 <= hour < 20
        return rate, longs, hits, steps * (1 + engine.lora if adapters else 1.0)


def samples(
    engine: Engine, seed: int, days: float, interval: float, slowdown: Slowdown | None = None, start: float = 0.0
) -> Iterator[tuple[float, EngineSample]]:
    """One sample every ``interval`` s for so many days, from ``start`` (s; 0 is a Monday, 00:00) on."""
    life, weather = _Life(engine, Random(seed)), _Weather(Random(seed + 1), engine)
    at, next_minute, next_sample = start, start, start + interval
    rate = longs = hits = factor = 0.0
    while at < start + days * DAY:
        if at >= next_minute:
            next_minute += 60.0
            rate, longs, hits, factor = weather.minute(at)
            if slowdown is not None and slowdown.at <= at < slowdown.at + slowdown.lasts:
                factor *= slowdown.factor
            if at % (7 * DAY) < 60.0 and at > start + HOUR:
                life = _Life(engine, Random(seed + int(at)))  # restarted
        life.tick(rate, longs, hits, factor)
        at += TICK
        if at >= next_sample:
            next_sample += interval
            yield at, life.sample()


class _Life:
    """From a start to a restart: who runs, and the counters."""

    def __init__(self, engine: Engine, random: Random) -> None:
        self._engine, self._random = engine, random
        self._given = 0.0  # tokens that every running request has been given since the start
        self._running: list[tuple[float, float, float]] = []  # (given when it ends, given when it began, prompt)
        self._queue: list[tuple[float, float, float]] = []  # (prompt, output, hit rate), the oldest last
        self._next = 1.0  # arrivals' clock: one is due below 0
        self._held = 0.0  # KV tokens
        self._due = 0.0  # prompt tokens still to be computed
        self._counts = {name: [0.0] * (len(EDGES[name]) + 1) for name in _SHOWN}
        self._sums = dict.fromkeys(_SHOWN, 0.0)
        self._prompts = self._computed = self._hits = self._generated = self._finished = self._steps = 0.0
        self._drafted = self._accepted = 0.0

    def tick(self, rate: float, longs: float, hits: float, factor: float) -> None:
        """``TICK`` seconds."""
        engine, draw = self._engine, self._random
        self._next -= rate * TICK
        while self._next < 0:
            self._next += draw.expovariate(1.0)
            long = draw.random() < longs
            prompt = (engine.long if long else engine.tokens[0]) * exp(draw.gauss(-0.32, 0.8))
            output = max(2.0, engine.tokens[1] * (0.5 if long else 1.0) * exp(draw.gauss(-0.25, 0.7)))
            self._queue.insert(0, (prompt, output, hits * (0.3 if long else 1.0)))
        while self._queue and len(self._running) < engine.slots and self._held < 0.95 * engine.capacity:
            self._admit(*self._queue.pop())
        count = len(self._running)
        if not count:
            return
        plain = (engine.base + engine.request * count + engine.context * self._held) * factor
        plain *= exp(draw.gauss(0.0, 0.03))
        prefill = min(self._due, 0.9 * TICK / (engine.prompt * factor))
        self._due -= prefill
        steps = max(0.0, TICK - prefill * engine.prompt * factor) / plain
        self._give(steps, count)

    def _admit(self, prompt: float, output: float, hits: float) -> None:
        heappush(self._running, (self._given + output, self._given, prompt))
        computed = prompt * (1 - hits)
        self._held += prompt
        self._due += computed
        self._prompts += prompt
        self._computed += computed
        self._hits += prompt - computed

    def _give(self, steps: float, count: int) -> None:
        """All that run advance by so many steps; who ends in between leaves then."""
        engine = self._engine
        chance = min(0.95, engine.drafts * (1 + 0.1 * sin(self._given / 1e5))) if engine.drafts else 0.0
        each = steps * (1 + DRAFTS * chance)
        until, passed = self._given + each, count * each
        gap = TICK / steps if steps else TICK
        while self._running and self._running[0][0] <= until:
            ends, began, prompt = heappop(self._running)
            passed -= until - ends
            self._held -= prompt + (self._given - began)
            self._finished += 1
            output = ends - began
            self._observe("request_prompt_tokens", prompt)
            self._observe("request_output_tokens", output)
            self._observe("tpot_seconds", gap * steps / each if each else gap)
        self._held += len(self._running) * each
        self._given = until
        tokens = max(0.0, passed)
        self._generated += tokens
        gaps = tokens * steps / each if each else 0.0
        self._drafted += DRAFTS * gaps if engine.drafts else 0.0
        self._accepted += DRAFTS * chance * gaps
        self._observe("inter_token_latency_seconds", gap, gaps)

    def _observe(self, name: str, value: float, times: float = 1.0) -> None:
        self._counts[name][bisect_left(EDGES[name], value)] += times
        self._sums[name] += value * times

    def sample(self) -> EngineSample:
        """What its page says now."""
        engine = self._engine
        details = {}
        if engine.drafts:
            details = {
                "spec_decode_draft_tokens_total": {(): self._drafted},
                "spec_decode_accepted_tokens_total": {(): self._accepted},
            }
        return EngineSample(
            running=float(len(self._running)),
            waiting=float(len(self._queue)),
            kv_usage=min(1.0, max(0.0, self._held / engine.capacity)) if self._running else 0.0,
            kv_capacity_tokens=engine.capacity,
            asleep=False,
            preemptions=0.0,
            prompt_tokens=self._prompts,
            prompt_tokens_computed=self._computed,
            generation_tokens=self._generated,
            prefix_cache_queries=self._prompts,
            prefix_cache_hits=self._hits,
            responses={"stop": self._finished},
            histograms={
                name: Histogram(EDGES[name], array("d", accumulate(self._counts[name])), self._sums[name])
                for name in _SHOWN
            },
            prefix_caching=True,
            details=details,
        )


_A10 = Engine("", 0.030, 0.0001, 2.2e-7, 2.5e-4, long=3000.0, capacity=60_000.0, slots=48)
_LARGE = Engine("", 0.022, 0.00005, 8e-8, 9e-5, capacity=600_000.0)
ENGINES = (
    Engine("8B, H100, chat", rate=0.8, tokens=(600.0, 500.0)),
    Engine("8B, H100, busy", rate=3.0, night=0.3, tokens=(900.0, 800.0), slots=256, capacity=800_000.0),
    replace(_A10, name="8B, A10, chat", rate=0.4),
    replace(_A10, name="8B, A10, hardly used", rate=0.05, night=0.02),
    replace(_LARGE, name="70B, 4 x H100, LoRA", rate=1.0, tokens=(600.0, 500.0), lora=0.2),
    replace(_LARGE, name="70B, 4 x H100, agents", rate=0.8, tokens=(4000.0, 400.0), hits=0.5),
    Engine("8B, H100, drafts", rate=1.0, tokens=(600.0, 500.0), drafts=0.6),
    replace(_A10, name="8B, A10, full slots", rate=0.8, slots=12),
)
