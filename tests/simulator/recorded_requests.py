"""Feeds the requests of a real recording to a simulated engine, at the times they really came.

Input: the rows of a ``requests.jsonl.gz`` and the server's settings. Output: the simulated counters at chosen times.
Invariant: only arrival times and lengths are taken from the recording, never a latency or a counter.
"""

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request


@dataclass(frozen=True, slots=True)
class Counts:
    """Cumulative counters at a time: events, responses, tokens."""

    preemptions: int
    completions: int
    generation_tokens: int

    def values(self) -> tuple[int, int, int]:
        """Preemptions, completions, generation tokens."""
        return self.preemptions, self.completions, self.generation_tokens

    def since(self, earlier: "Counts") -> "Counts":
        """What happened after `earlier`."""
        return Counts(
            self.preemptions - earlier.preemptions,
            self.completions - earlier.completions,
            self.generation_tokens - earlier.generation_tokens,
        )


def requests_of(path: Path) -> list[Request]:
    """The requests that the server really received, in order of arrival; those that never reached it are left out."""
    with gzip.open(path) as lines:
        rows = [orjson.loads(line) for line in lines]
    rows = sorted((row for row in rows if row["usage"]), key=lambda row: row["start"])
    return [
        Request(
            id=number,
            arrival=row["start"],
            prompt=row["usage"]["prompt_tokens"],
            output=row["usage"]["completion_tokens"],
            max_tokens=row["max_tokens"] or row["usage"]["completion_tokens"],
            reason=row["finish"],
        )
        for number, row in enumerate(rows)
    ]


def replay(engines: Sequence[Engine], requests: Iterable[Request], times: Sequence[float]) -> list[Counts]:
    """Run `requests` (ascending arrivals) and return the counters, summed over the engines, at each of `times`."""
    answers: list[Counts] = []
    pending = list(times)
    for request in requests:
        while pending and pending[0] < request.arrival:
            answers.append(_counts_at(engines, pending.pop(0)))
        _advance(engines, request.arrival)
        min(engines, key=lambda engine: engine.load).add(request)
    answers += [_counts_at(engines, time) for time in pending]
    return answers


def _advance(engines: Sequence[Engine], until: float) -> None:
    for engine in engines:
        while engine.advance(until):
            pass


def _counts_at(engines: Sequence[Engine], time: float) -> Counts:
    _advance(engines, time)
    stats = [engine.stats for engine in engines]
    return Counts(
        sum(each.preemptions for each in stats),
        sum(sum(each.responses.values()) for each in stats),
        sum(each.generation_tokens for each in stats),
    )
