"""Plays a trace of requests through the simulator and the daemon's own judgement, and says what came of it.

Input: a `Case`. Output: an `Outcome`: minutes in each state, what users really waited, and what was said of the queue.
The server is an 8B model on one 80 GB GPU: 400,000 KV tokens, 25,000 prompt tokens/s. Public traces are other people's:
they are read where they are present (PUBLIC_TRACES, by default ../shared/public-traces) and never committed.
"""

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import mean, median

from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.simulator.file_traffic import FileTraffic, Selection, select
from vllm_vitals.simulator.request_file import PREFIX_BLOCK_TOKENS, RequestFile
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.write_recording import play

OWN = Path(__file__).parents[1] / "data" / "requests"
PUBLIC = Path(os.environ.get("PUBLIC_TRACES") or Path(__file__).parents[2] / ".." / "shared" / "public-traces")
SERVER = ServerSettings(
    num_gpu_blocks=25_000, max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=16_384,
    max_num_queued_reqs=100_000,
)  # fmt: skip
LONG = replace(SERVER, max_model_len=131_072)
INTERVAL_S = 15.0
# A wait that pages when it lasts: of an interactive model, for ten minutes (seconds).
WAIT_S = 30.0
HELD_S = 600.0


@dataclass(frozen=True)
class Case:
    """A trace at a speed, looped for `hours`. ``load``: what a person would call it: comfortable, tight, overloaded."""

    load: str
    path: Path
    speed_up: float
    hours: float
    settings: ServerSettings = SERVER

    @property
    def name(self) -> str:
        return f"{self.path.name.split('.')[0]} x{self.speed_up:g}"


@dataclass(frozen=True)
class Outcome:
    """What came of a case. Times in seconds; ``first_token`` are what users waited for their first token.

    ``longest_wait`` is the longest stretch in which the expected wait was above `WAIT_S`, ``undrained`` the share of it
    in which the queue was said not to drain, ``foretold`` the median of the expected over the true wait there.
    """

    minutes: dict[State, float]
    first_token: list[float]
    most_waiting: int
    longest_wait: float = 0.0
    undrained: float = 0.0
    foretold: float | None = None

    @property
    def trouble(self) -> float:
        """Minutes in a state that is an episode of trouble."""
        return sum(minutes for state, minutes in self.minutes.items() if state.spec.trouble)

    @property
    def critical(self) -> float:
        """Minutes in a critical state."""
        return sum(minutes for state, minutes in self.minutes.items() if state.severity == "critical")

    def wait(self, share: float) -> float:
        """This quantile of what users waited for their first token."""
        ordered = sorted(self.first_token)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Kept(FileTraffic):
    """Traffic that remembers what users waited, and those who arrived in each scrape interval."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.first_token = []
        self.by_arrival = defaultdict(list)

    def answered(self, request, now):
        if request.first_token_at >= 0:
            waited = request.first_token_at - request.arrival
            self.first_token.append(waited)
            self.by_arrival[int(request.arrival / INTERVAL_S)].append(waited)


def run(case: Case, seed: int = 0) -> Outcome:
    """Play and judge it, scrape by scrape: nothing but figures is kept."""

    def complain(line: str) -> None:
        raise AssertionError(line)

    rows = select(RequestFile(case.path, complain), Selection(case.speed_up, loop=True), seed)
    traffic = Kept(case.settings, seed, rows, PREFIX_BLOCK_TOKENS)
    scene = Scenario(case.name, "", "", inf, (), case.settings)
    judge = TargetEvaluator(case.name, Thresholds().at_interval(INTERVAL_S))
    minutes: Counter[State] = Counter()
    most, stretch, longest = 0, [], []
    for number, scrape in enumerate(play(scene, seed, INTERVAL_S, traffic=traffic, duration_s=case.hours * 3600), 1):
        (engine,) = judge.observe(scrape).engines
        minutes[engine.state] += INTERVAL_S / 60
        if engine.sample is not None:
            most = max(most, int(engine.sample.waiting or 0))
        reading = engine.readings.get("expected_wait_seconds")
        if reading is None or (reading.value or 0.0) <= WAIT_S:
            stretch = []
            continue
        undrained = any("does not drain" in item.text for item in engine.evidence)
        stretch.append((number, reading.value, undrained))
        longest = max(longest, stretch, key=len)
    if not longest:
        return Outcome(dict(minutes), traffic.first_token, most)
    # Those who arrive after a scrape are whom its number is about; the last of them had no answer yet.
    true = {number: traffic.by_arrival[number] for number, _, _ in longest if traffic.by_arrival.get(number)}
    foretold = [expected / mean(true[number]) for number, expected, _ in longest if number in true]
    return Outcome(
        dict(minutes),
        traffic.first_token,
        most,
        len(longest) * INTERVAL_S,
        mean(undrained for _, _, undrained in longest),
        median(foretold) if foretold else None,
    )


def row(case: Case, outcome: Outcome) -> str:
    """One line of the table in docs/simulator.md."""
    shown = sorted(outcome.minutes.items(), key=lambda pair: -pair[1])
    states = ", ".join(f"{state} {minutes:.0f}" for state, minutes in shown if minutes >= 0.5)
    return (
        f"| {case.name} | {case.load} | {case.hours * 60:.0f} | {states} | {outcome.wait(0.5):.1f} s, "
        f"{outcome.wait(0.99):.0f} s | {outcome.most_waiting} | {outcome.longest_wait / 60:.0f} min |"
    )


HEADER = """\
| trace | load | minutes | minutes in each state | first token p50, p99 | most waiting | expected wait > 30 s |
|---|---|---|---|---|---|---|"""
