"""What `config init` learns of servers and of their logs, by asking once.

Input: targets, paths of logs. Output: a `Seen` a server, a `Log` a path. Invariant: nothing raises; each question lasts
no longer than the target's timeout, and a log is read no further than `MAX_LOG_BYTES`.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from glob import iglob
from itertools import islice
from pathlib import Path

from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import Scrape, TargetSnapshot
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import NOT_UNDERSTOOD
from vllm_vitals.logs.framer import LineFramer
from vllm_vitals.logs.schema import shipped
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.poller import make_evaluator
from vllm_vitals.scrape.target import Target

MAX_LOG_BYTES = 1 << 20
AT_ONCE = 32  # servers asked at the same time
# How a server of TLS answers a plain request: with an error page, with bytes that are no HTTP, or not at all.
_MAY_SPEAK_TLS = frozenset({"protocol", "http_error", "truncated"})


@dataclass(frozen=True, slots=True)
class Seen:
    """One server: how it is reached, and what it answered.

    ``reason`` is one of `SCRAPE_ERRORS`, empty where its metrics were read; ``engines`` counts those found.
    """

    target: Target
    reason: str = ""
    detail: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    engines: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    found_tls: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """What the first lines of the files of a path hold: how many files there are, and how many lines are understood."""

    path: str
    files: int = 0
    lines: int = 0
    understood: int = 0
    problem: str = ""


async def look(targets: Sequence[Target]) -> list[Seen]:
    """Ask every server once; where a plain address speaks TLS, ask it so."""
    clock, turns = Clock(), asyncio.Semaphore(AT_ONCE)
    async with Fetcher(clock.now) as fetcher:

        async def one(target: Target) -> Seen:
            async with turns:
                scrape = await fetcher.fetch(target)
                if scrape.reason in _MAY_SPEAK_TLS and target.url.startswith("http:"):
                    over_tls = replace(target, url=target.url.replace("http:", "https:", 1))
                    again = await fetcher.fetch(over_tls)
                    if again.body is not None or again.reason in ("tls", "unauthorized"):
                        return replace(await _judged(fetcher, over_tls, again), found_tls=True)
                return await _judged(fetcher, target, scrape)

        return list(await asyncio.gather(*(one(target) for target in targets)))


async def _judged(fetcher: Fetcher, target: Target, scrape: Scrape) -> Seen:
    evaluator = make_evaluator(target)
    if scrape.body is not None:
        evaluator.learn(*await fetcher.ask(target), source="probe")
    snapshot: TargetSnapshot = evaluator.observe(scrape)
    if not snapshot.up:
        return Seen(target, snapshot.reason, snapshot.detail)
    keys = {engine.key for engine in snapshot.engines}
    models = tuple(sorted({key.model_name for key in keys if key.model_name}))
    return Seen(target, "", "", snapshot.version, models, len(keys), dict(snapshot.settings))


def read_log(pattern: str) -> Log:
    """Read the beginning of the newest file that a path of the config, with ``*``, names."""
    try:
        files = sorted(map(Path, islice(iglob(pattern), 1000)), key=lambda file: file.stat().st_mtime)
        if not files:
            return Log(pattern, problem="there is no such file yet")
        framer, decoder, lines, understood = LineFramer(), LineDecoder(shipped()), 0, 0
        with files[-1].open("rb") as stream:
            for line in framer.feed(stream.read(MAX_LOG_BYTES)):
                lines += 1
                understood += decoder.decode(line, time.time()).result not in (*NOT_UNDERSTOOD, None)
    except OSError as error:
        return Log(pattern, problem=f"{error.filename or pattern} cannot be read: {error.strerror}")
    problem = "" if understood or not lines else "none of its first lines is understood: see `vllm-vitals logs FILE`"
    return Log(pattern, len(files), lines, understood, problem)
