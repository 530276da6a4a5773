"""Reads servers' past and judges it with the daemon's own evaluator.

Input: an API client, servers, a period. Output: `Past` of each server. Invariant: one server after the other, one slice
of time after the other; a server that cannot be read costs no other its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.planner.incident.episodes import GAP_S, Episodes
from vllm_vitals.prometheus.promapi import PromError
from vllm_vitals.prometheus.raw import Ask, Kept, Reader, Server

ANEW_S = 900.0  # scrapes further apart are judged anew
WARM_UP_S = 3600.0  # read before the period: what is usual for this engine
COARSE_S = 60.0  # beyond this interval a window of a minute holds too little

Span = tuple[float, float]
Tell = Callable[[int, int, str], None]


@dataclass(slots=True)
class Past:
    """What one server's samples say. ``judged``: there was a span to judge; ``error``: why the rest was not read."""

    server: Server
    kept: Kept = field(default_factory=Kept)
    episodes: Episodes = field(default_factory=Episodes)
    judged: bool = True
    error: str = ""


def judge(
    ask: Ask, server: Server, spans: Sequence[Span], limits: Thresholds, tell: Callable[[float], None] = lambda at: None
) -> Past:
    """Judge what was scraped in the spans, which stand in order, and an hour before each."""
    reader = Reader(ask, server)
    past = Past(server, reader.kept, judged=bool(spans))
    try:
        interval = reader.probe(spans[0][0] - WARM_UP_S, spans[-1][1]) if spans else 0.0
        past.episodes = Episodes(max(GAP_S, 2 * interval))
        for start, end in spans:
            _span(past, reader.scrapes(start - WARM_UP_S, end, tell), limits.at_interval(interval))
            past.episodes.broken()
    except PromError as error:
        past.error = str(error)
    return past


def _span(past: Past, scrapes: Iterator[Scrape], limits: Thresholds) -> None:
    evaluator, last = None, 0.0
    for scrape in scrapes:
        if evaluator is None or scrape.at - last > ANEW_S:
            evaluator = TargetEvaluator(past.server.name, limits, may_start=True)
            past.episodes.broken()
        last = scrape.at
        past.episodes.add(evaluator.observe(scrape))


def judge_all(
    ask: Ask, spans: Sequence[tuple[Server, Sequence[Span]]], limits: Thresholds, tell: Tell
) -> Iterator[Past]:
    """Yield each server's past. Raises `PromError` where no query will ever succeed."""
    for number, (server, own) in enumerate(spans, 1):

        def at(when: float, number: int = number, server: Server = server, own: Sequence[Span] = own) -> None:
            first = own[0][0] - WARM_UP_S
            done = 100 * (when - first) / (own[-1][1] - first)
            tell(number, len(spans), f"{server.name}, {done:.0f} %")

        yield judge(ask, server, own, limits, at)
