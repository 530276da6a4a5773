"""A simulated day under autoscalers: which signal holds the objective, and what it costs beside an oracle.

``python -m bench.scaling [--hours 24] [--seed 0]`` prints a table. The servers are a fluid model of continuous
batching: all running requests of an engine advance at the same pace, which falls with their number; prefill takes its
time from decoding; a request waits for a slot. What one engine carries is found first, on a steady load, as the weekly
review's simulated server does. Every autoscaler asks for a number of engines every 15 s; an engine serves two minutes
after it was asked for, and drains before it goes.
"""

import argparse
import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vllm_vitals.rules.scale import CALM_S, DRAIN_S, GROWTH, HEADROOM, MORE, RATE_S

SLOTS = 24  # max_num_seqs
KV_REQUESTS = 26.0  # requests of mean length that the cache holds
PREFILL_S, STEP_S, STEP_PER_REQUEST_S = 0.06, 0.012, 0.0008
OUTPUT_MEAN, OUTPUT_SIGMA = 350.0, 0.8  # tokens, log-normal
OBJECTIVE_S, SHARE = 2.0, 0.99  # time to first token
TICK_S, START_S, MOST, LEAST = 15, 120, 24, 1
DAY_S = 86_400


@dataclass(slots=True)
class Engine:
    """One server. ``made`` is the tokens that a request which ran all the time would have."""

    ready_at: float
    made: float = 0.0
    running: list[float] = field(default_factory=list)  # a heap: at which ``made`` each ends
    waiting: deque[tuple[float, float]] = field(default_factory=deque)  # arrival, tokens
    leaves: bool = False

    @property
    def present(self) -> int:
        """Return the requests inside."""
        return len(self.running) + len(self.waiting)

    def second(self, now: float, first_tokens: list[float]) -> int:
        """Advance by a second; add the wait of each first token, return how many ended."""
        admitted = 0
        while self.waiting and len(self.running) < SLOTS and admitted * PREFILL_S < 0.9:
            arrived, tokens = self.waiting.popleft()
            admitted += 1
            heapq.heappush(self.running, self.made + tokens)
            first_tokens.append(max(0.0, now - arrived) + admitted * PREFILL_S + STEP_S)
        if self.running:
            pace = 1.0 / (STEP_S + STEP_PER_REQUEST_S * len(self.running))
            self.made += pace * (1.0 - admitted * PREFILL_S)
        done = 0
        while self.running and self.running[0] <= self.made:
            heapq.heappop(self.running)
            done += 1
        return done


@dataclass(frozen=True, slots=True)
class Sight:
    """What an autoscaler sees at a tick: the last minutes, second by second, newest last, and engines now."""

    now: int
    engines: int
    finished: Sequence[int]
    present: Sequence[int]
    waiting: int
    kv_usage: float
    busy: float


Policy = Callable[[Sight], int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run: engine-hours, the share of first tokens within the objective, of the day and of its worst hour."""

    engine_hours: float
    within: float
    worst_hour: float
    changes: int


def demand(now: float) -> float:
    """Return requests/s: a night, two peaks, and three bursts of half again that come within five minutes."""
    hour = now / 3600.0 % 24
    shape = 0.5 - 0.5 * math.cos(2 * math.pi * (hour - 4) / 24)
    rate = 5.0 + 17.0 * shape**1.5 + 3.0 * math.exp(-(((hour - 20) / 1.5) ** 2))
    for start in (9.5, 14.0, 22.0):
        into = (hour - start) * 60
        if 0 <= into < 40:
            rate *= 1.0 + 0.5 * min(1.0, into / 5, (40 - into) / 5)
    return rate


def day(policy: Policy, rate: Callable[[float], float], seconds: int, first: int, seed: int) -> Outcome:
    """Play ``seconds`` with ``first`` engines at the beginning."""
    chance = random.Random(seed)
    mean = math.log(OUTPUT_MEAN) - OUTPUT_SIGMA**2 / 2
    engines = [Engine(0.0) for _ in range(first)]
    finished, present = deque[int](maxlen=CALM_S), deque[int](maxlen=CALM_S)
    waits: list[float] = []
    hours: list[tuple[int, int]] = []
    seen = paid = changes = 0
    for now in range(seconds):
        serving = [engine for engine in engines if engine.ready_at <= now and not engine.leaves] or engines[:1]
        for _ in range(_poisson(chance, rate(now))):
            least = min(serving, key=lambda engine: engine.present)
            least.waiting.append((now + chance.random(), chance.lognormvariate(mean, OUTPUT_SIGMA)))
        finished.append(sum(engine.second(now + 1.0, waits) for engine in engines if engine.ready_at <= now))
        present.append(sum(engine.present for engine in engines))
        engines = [engine for engine in engines if not (engine.leaves and not engine.present)]
        paid += len(engines)
        if now % TICK_S == TICK_S - 1:
            changes += _scale(engines, policy(_sight(now, engines, finished, present)), now)
        if now % 3600 == 3599 or now == seconds - 1:
            fresh = waits[seen:]
            hours.append((sum(wait <= OBJECTIVE_S for wait in fresh), len(fresh)))
            seen = len(waits)
    good, every = (sum(column) for column in zip(*hours, strict=True))
    return Outcome(paid / 3600, good / max(1, every), min(g / n for g, n in hours if n), changes)


def _sight(now: int, engines: Sequence[Engine], finished: Sequence[int], present: Sequence[int]) -> Sight:
    serving = [engine for engine in engines if engine.ready_at <= now and not engine.leaves]
    count = max(1, len(serving))
    usage = sum(min(1.0, len(engine.running) / KV_REQUESTS) for engine in serving) / count
    # the engine's process polls: its core is busy whenever a request runs
    busy = sum(0.95 if engine.running else 0.05 for engine in serving) / count
    there = sum(not engine.leaves for engine in engines)
    waiting = sum(len(engine.waiting) for engine in engines)
    return Sight(now, there, finished, present, waiting, usage, busy)


def _scale(engines: list[Engine], wanted: int, now: int) -> int:
    wanted = min(MOST, max(LEAST, wanted))
    staying = [engine for engine in engines if not engine.leaves]
    for _ in range(wanted - len(staying)):
        engines.append(Engine(now + 1 + START_S))
    newest = sorted(staying, key=lambda engine: (-engine.ready_at, engine.present))
    for engine in newest[: max(0, len(staying) - wanted)]:
        engine.leaves = True
    return wanted != len(staying)


def _poisson(chance: random.Random, mean: float) -> int:
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


def carries(seed: int) -> float:
    """Return the requests/s that one of four engines carries within the objective on a steady load, to 2 %."""
    low, high = 0.2, 10.0
    while high - low > 0.02 * low:
        middle = (low + high) / 2
        steady = day(lambda _: 4, lambda _now, each=middle: 4 * each, 2400, 4, seed)  # type: ignore[misc]
        low, high = (middle, high) if steady.worst_hour >= SHARE else (low, middle)
    return low


# ---------------------------------------------------------------- autoscalers


def oracle(capacity: float) -> Policy:
    """Know the demand of the next minutes, and ask in time."""

    def ask(sight: Sight) -> int:
        ahead = max(demand(sight.now + late) for late in range(0, START_S + 2 * TICK_S + 1, TICK_S))
        return math.ceil(ahead / capacity)

    return ask


def engines_needed(capacity: float) -> Policy:
    """Follow `model:vllm_vitals_engines_needed`, by the arithmetic of `vllm_vitals.rules.scale`."""
    asked = deque[float](maxlen=CALM_S // TICK_S)

    def ask(sight: Sight) -> int:
        window = min(RATE_S, len(sight.finished))
        done = sum(list(sight.finished)[-window:]) / window
        growth = max(0.0, (sight.present[-1] - sight.present[-window]) / window)
        asked.append((done + growth + sight.waiting / DRAIN_S) / capacity)
        return min(math.ceil(HEADROOM * max(asked)), GROWTH * sight.engines + MORE)

    return ask


def target_value(value: Callable[[Sight], float], target: float) -> Policy:
    """Scale in proportion to a value, as a HorizontalPodAutoscaler: 10 % tolerance, down after five minutes' peak."""
    recent = deque[int](maxlen=300 // TICK_S)

    def ask(sight: Sight) -> int:
        ratio = value(sight) / target
        recent.append(sight.engines if abs(ratio - 1) <= 0.1 else math.ceil(sight.engines * ratio))
        return min(sight.engines, max(recent)) if recent[-1] < sight.engines else recent[-1]

    return ask


def autoscalers(capacity: float) -> dict[str, Policy]:
    """Return those of the table, the oracle first."""
    return {
        "oracle": oracle(capacity),
        "engines_needed": engines_needed(capacity),
        "KV usage, target 0.8": target_value(lambda sight: sight.kv_usage, 0.8),
        "waiting requests, target 5 an engine": target_value(lambda sight: sight.waiting / sight.engines, 5.0),
        "CPU, target 80 %": target_value(lambda sight: sight.busy, 0.8),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    capacity = carries(options.seed)
    print(f"one engine carries {capacity:.2f} requests/s with {SHARE:.0%} of first tokens within {OBJECTIVE_S:g} s")
    print("| scaled by | engine-hours | beside the oracle | within 2 s | worst hour | changes |")
    print("|---|---|---|---|---|---|")
    seconds, base = int(options.hours * 3600), 0.0
    first = math.ceil(demand(0) / capacity)
    for name, policy in autoscalers(capacity).items():
        got = day(policy, demand, seconds, first, options.seed)
        base = base or got.engine_hours
        more = got.engine_hours / base - 1
        kept = f"{got.within:.1%} | {got.worst_hour:.1%}"
        print(f"| {name} | {got.engine_hours:.0f} | {more:+.0%} | {kept} | {got.changes} |", flush=True)


if __name__ == "__main__":
    main()
