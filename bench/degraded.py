"""How often an engine is called slower than its usual: `python -m bench.degraded [--days 30] [--runs 100]`.

A month of benign engines (tests/core/engine_days.py: daily and weekly traffic, drifting hit rates and prompt mix, LoRA,
drafts, a job at night, restarts) must never enter ``degraded``; steps that take 1.6 times as long from any hour of the
second day on must be found in at least 95 % of runs. Prints two tables in Markdown.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from statistics import median
from time import process_time

from tests.core.engine_days import DAY, ENGINES, HOUR, Engine, Slowdown, samples
from vllm_vitals.core.engine_evaluator import EngineEvaluator
from vllm_vitals.core.snapshot import EngineKey
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

INTERVALS = (60.0, 60.0, 30.0, 60.0)
FACTOR, SOON, LASTS, FOUND = 1.6, 2 * HOUR, 12 * HOUR, 0.95


def judged(
    engine: Engine, seed: int, days: float, interval: float, slowdown: Slowdown | None = None
) -> Iterator[tuple[float, State]]:
    """Time (s) and state after every sample."""
    judge = EngineEvaluator(EngineKey("simulated", engine.name, "0"), Thresholds().at_interval(interval))
    for at, sample in samples(engine, seed, days, interval, slowdown):
        yield at, judge.observe(at, sample, {}).state


def month(engine: Engine, seed: int, days: float, interval: float) -> int:
    """Entries into degraded; prints a row."""
    start, states = process_time(), [state for _, state in judged(engine, seed, days, interval)]
    entries = sum(now is State.DEGRADED is not before for before, now in pairwise(states))
    shares = ", ".join(f"{state} {n / len(states):.1%}" for state, n in Counter(states).most_common(5))
    cpu = (process_time() - start) / days
    print(f"| {engine.name} | {interval:g} s | {len(states)} | {entries} | {shares} | {cpu:.1f} |", flush=True)
    return entries


def found(engine: Engine, run: int) -> float | None:
    """Seconds until a slowdown is found, None where it is not."""
    draw = Random(run)
    at, interval = draw.uniform(1.0, 2.0) * DAY, draw.choice(INTERVALS)
    slow = Slowdown(at, LASTS, FACTOR)
    told = judged(engine, 1000 + run, (at + LASTS) / DAY, interval, slow)
    return next((now - at for now, state in told if now > at and state is State.DEGRADED), None)


def slowdowns(runs: int) -> float:
    """Return the share of slowdowns that was found; prints a row an engine."""
    times = {
        engine.name: [found(engine, run) for run in range(n, runs, len(ENGINES))] for n, engine in enumerate(ENGINES)
    }
    times["**all**"] = [seconds for each in times.values() for seconds in each]
    for name, each in times.items():
        known = sorted(seconds for seconds in each if seconds is not None)
        soon = sum(seconds <= SOON for seconds in known) / max(1, len(each))
        middle = f"{median(known) / 60:.0f}" if known else "-"
        print(f"| {name} | {len(each)} | {soon:.0%} | {len(known) / max(1, len(each)):.0%} | {middle} |")
    return len(known) / max(1, len(each))


def main(argv: list[str]) -> int:
    """0 where no benign engine was called slower, and enough slow ones were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=3.0, help="of each benign engine (%(default)s; 30 is a month)")
    parser.add_argument("--runs", type=int, default=24, help="slowdowns (%(default)s)")
    asked = parser.parse_args(argv)
    print(f"\n| engine, {asked.days:g} days | every | scrapes | entered degraded | states, share | CPU s a day |")
    print("|---" * 6 + "|")
    entries = sum(month(engine, n, asked.days, INTERVALS[n % len(INTERVALS)]) for n, engine in enumerate(ENGINES))
    print(f"\n| engine, steps {FACTOR:g} x as long | runs | found in 2 h | in 12 h | minutes until then, median |")
    print("|---" * 5 + "|")
    share = slowdowns(asked.runs)
    print(f"\n{entries} entries into degraded in {asked.days * len(ENGINES):g} benign engine days; {share:.1%} found")
    return 0 if not entries and share >= FOUND else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
