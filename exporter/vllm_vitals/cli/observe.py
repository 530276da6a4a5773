"""Observe servers for a limited time, without a daemon: `check` judges them, `record` writes their scrapes.

Inputs: targets, how long. Outputs: the last snapshots; a file of scrapes. Invariant: the verdict is the daemon's own
evaluator's, with shorter holds.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import DOWN_REASONS, TargetSnapshot
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.log import QUIET
from vllm_vitals.recordings import recording
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.poller import Poller, make_evaluator
from vllm_vitals.scrape.target import Target

SHORTEST_S = 5.0  # in less, an engine in one long step cannot be told from one that hangs
LEAST_SCRAPES = 4
FOR_EVER_S = 1e9

Progress = Callable[[float, Sequence[TargetSnapshot]], None]


def hurried(limits: Thresholds, seconds: float) -> Thresholds:
    """Return thresholds for a check of ``seconds``: the window is the check, and holds are a part of it.

    Holds keep a daemon from flapping; one check only needs to see the same thing twice.
    """
    return replace(
        limits,
        fast_window=min(limits.fast_window, 0.9 * seconds),
        min_span=min(limits.min_span, 0.9 * seconds),
        hold=min(limits.hold, seconds / 10),
        stall_after=min(limits.stall_after, 0.7 * seconds),
        spiral_silence=min(limits.spiral_silence, seconds / 2),
    )


async def watch(targets: Sequence[Target], seconds: float, tell: Progress) -> list[TargetSnapshot]:
    """Scrape every target at its interval for ``seconds``, from their beginning to their end.

    One where nothing ever answers is given up early.
    """
    clock = Clock()
    end = clock.now() + seconds
    async with Fetcher(clock.now) as fetcher:
        pollers = [_poller(target, fetcher, clock, seconds) for target in targets]

        async def look(poller: Poller) -> None:
            while True:
                begun = clock.now()
                await poller.poll()
                seen = [p.snapshot for p in pollers if p.snapshot is not None]
                tell(1 - max(0.0, end - clock.now()) / seconds, seen)
                interval, hopeless = poller.target.interval, poller.snapshot is not None and _hopeless(poller.snapshot)
                if (hopeless and seconds < FOR_EVER_S) or clock.now() >= end or end - begun < interval / 2:
                    return
                await asyncio.sleep(max(0.0, min(begun + interval, end) - clock.now()))

        await asyncio.gather(*(look(poller) for poller in pollers))
        return [poller.snapshot for poller in pollers if poller.snapshot is not None]


def _poller(target: Target, fetcher: Fetcher, clock: Clock, seconds: float) -> Poller:
    watched = replace(patient(target, seconds), thresholds=hurried(target.thresholds, seconds))
    return Poller(watched, fetcher.fetch, make_evaluator(watched), clock, QUIET, "none", fetcher.ask)


def at_pace(target: Target, interval: float, seconds: float) -> Target:
    """Return the target as a check of ``seconds`` scrapes it, whatever the daemon's interval for it is."""
    interval = min(interval, seconds / (LEAST_SCRAPES - 1))
    return replace(target, interval=interval, thresholds=target.thresholds.at_interval(interval))


def patient(target: Target, seconds: float) -> Target:
    """Return a longer timeout: a busy server may take seconds, and a person can wait longer than the next scrape."""
    return replace(target, timeout=max(target.timeout, min(10.0, seconds)))


@dataclass(slots=True)
class Tally:
    """Scrapes of a recording so far: how many were good, how many failed, and what the last failure said."""

    good: int = 0
    failed: int = 0
    last: str = ""


async def record(
    target: Target, file: BinaryIO, seconds: float, tally: Tally, tell: Callable[[float], None] = lambda done: None
) -> None:
    """Write scrapes to ``file``, and count them in ``tally``, which so outlives an interruption.

    ``tell`` is called after each with the share of the time that is over.
    """
    clock = Clock()
    target = patient(target, seconds)
    end = clock.now() + seconds
    async with Fetcher(clock.now) as fetcher:
        with recording.Writer(file) as writer:
            while True:
                scrape = await fetcher.fetch(target)
                writer.write(scrape)
                if scrape.body is None:
                    tally.failed, tally.last = tally.failed + 1, f"{scrape.reason}: {scrape.detail}"
                else:
                    tally.good += 1
                tell(min(1.0, 1 - (end - clock.now()) / seconds))
                wait = max(0.0, scrape.at + target.interval - clock.now())
                if clock.now() + wait > end:
                    return
                await asyncio.sleep(wait)


def _hopeless(snapshot: TargetSnapshot) -> bool:
    """Nothing has ever answered, often enough to call it down."""
    failures = sum(snapshot.errors.get(reason, 0) for reason in DOWN_REASONS)
    return snapshot.last_scrape_at is None and failures >= Thresholds().failures
