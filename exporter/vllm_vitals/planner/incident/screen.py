"""Where to look in a long period: cheap queries over the whole fleet that every incident answers.

Input: an API client, servers, a period. Output: the spans of each server that are worth judging scrape by scrape.
Invariant: a condition here is weaker than that of the state it stands for; what they may pass over is said in
`PASSES_OVER`. Nothing is concluded from them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm_vitals.planner.incident.past import WARM_UP_S, Span
from vllm_vitals.prometheus.bodies import escape
from vllm_vitals.prometheus.promapi import PromError, Series
from vllm_vitals.prometheus.raw import Ask, Server
from vllm_vitals.vllm.lookup import PREFIXES, wire
from vllm_vitals.vllm.routes import HTTP_REQUESTS

PASSES_OVER = (
    "only minutes near failed scrapes, stops, preemptions, errors, held KV or sudden slowness were judged: a server"
    " that slowly became slower is not found (--every-scrape judges every scrape)"
)
STEPS = 5_000  # of one answer; Prometheus refuses more than 11,000
AFTER_S = 300.0  # until a state is left
SHORTEST_W = 60.0


class AskRange(Ask, Protocol):
    """An API client that evaluates queries, too."""

    def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """Return values at start, start + step, ... end."""
        ...


@dataclass(frozen=True, slots=True)
class _Sign:
    """A query that gives a point wherever it may be odd: its step, and how far back a point looks (s)."""

    what: str
    query: str
    step: int
    reach: int


_FIELDS = (
    ("running", ""), ("waiting", ""), ("kv_usage", ""), ("generation_tokens", ""), ("preemptions", ""),
    ("responses", ""), ("inter_token_latency_seconds", "sum"), ("inter_token_latency_seconds", "count"),
)  # fmt: skip


class _Query:
    """Writes functions of a quantity's window, by every name under which this Prometheus holds it."""

    def __init__(self, ask: Ask, matchers: str, start: float, end: float) -> None:
        self._matchers = matchers
        spelt = {key: [prefix + name for prefix in PREFIXES for name in wire(*key)] for key in _FIELDS}
        every = "|".join(name for names in spelt.values() for name in names)
        match = "{" + ",".join(filter(None, (f'__name__=~"{every}"', matchers))) + "}"
        kept = {labels.get("__name__", "") for labels in ask.series(match, start, end)}
        self._names = {key: [name for name in names if name in kept] for key, names in spelt.items()}

    def of(self, function: str, field: str, window: int, part: str = "", more: str = "") -> str:
        """Return ``function(quantity[window])``; of two names of one series the preferred."""
        braces = ",".join(filter(None, (more, self._matchers)))
        names = self._names[field, part] or ["vllm:absent"]
        return "(" + " or ".join(f"{function}({name}{{{braces}}}[{window}s])" for name in names) + ")"


def _signs(query: _Query, interval: float, jobs: Sequence[str]) -> Iterator[_Sign]:
    short, minutes = round(max(SHORTEST_W, 3 * interval)), round(max(300.0, 5 * interval))
    place = f'job=~"{"|".join(escape(job) for job in jobs)}"'
    yield _Sign("failed scrapes", f"min_over_time(up{{{place}}}[{short}s]) == 0", 30, short)
    moving = f"{query.of('increase', 'generation_tokens', short)} > 0"
    for gauge in ("running", "waiting"):
        yield _Sign("stops", f"{query.of('min_over_time', gauge, short)} > 0 unless {moving}", 30, short)
    evicted = query.of("increase", "preemptions", minutes)
    finished = f"sum without (finished_reason) {query.of('increase', 'responses', minutes)}"
    yield _Sign("preemptions", f"{evicted} >= 5 unless {evicted} < 0.2 * {finished}", 60, minutes)
    failed = query.of("increase", "responses", 600, more='finished_reason="error"')
    yield _Sign("errors", f"{failed} >= 3", 120, 600)
    yield _Sign("answers", f'increase({HTTP_REQUESTS}_total{{status=~"5..",{place}}}[10m]) >= 3', 120, 600)
    held, busy = query.of("min_over_time", "kv_usage", short), query.of("max_over_time", "running", short)
    yield _Sign("held KV", f"{held} >= 0.05 unless {busy} > 0", 60, short)
    pace = max(120, short)
    now, usual = (
        f"({query.of('rate', 'inter_token_latency_seconds', window, 'sum')}"
        f" / {query.of('rate', 'inter_token_latency_seconds', window, 'count')})"
        for window in (pace, 1800)
    )
    yield _Sign("slowness", f"{now} > 1.5 * {usual}", pace, pace)


def screened(
    ask: AskRange,
    servers: Sequence[Server],
    start: float,
    end: float,
    interval: float,
    matchers: str,
    tell: Callable[[int, int, str], None],
) -> list[tuple[Server, list[Span]]]:
    """Return each server with the spans to judge, in order. Where a query fails, its whole part of the period is one.

    Raises `PromError` where no query will ever succeed.
    """
    places = _Places(servers)
    jobs = sorted({dict(server.labels).get("job", "") for server in servers})
    signs = list(_signs(_Query(ask, matchers, start, end), interval, jobs))
    for number, sign in enumerate(signs, 1):
        tell(number, len(signs), sign.what)
        for first, last in _parts(start, end, sign.step):
            try:
                found = ask.range(sign.query, first, last, sign.step)
            except PromError as error:
                if error.fatal:
                    raise
                places.all((first, last))
                continue
            for series in found:
                for at, _ in series.points:
                    places.add(series.labels, (float(at) - sign.reach, float(at) + sign.step + AFTER_S))
    return [(server, _merged(spans, start, end)) for server, spans in places.spans.items()]


def _parts(start: float, end: float, step: int) -> Iterator[Span]:
    at = start
    while at < end:
        yield at, min(end, at + (STEPS - 1) * step)
        at += STEPS * step


class _Places:
    """Spans by server; each series is filed under the servers whose labels it carries, or which carry its own."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.spans: dict[Server, list[Span]] = {server: [] for server in servers}
        self._by_address: dict[str, list[Server]] = {}
        for server in servers:
            self._by_address.setdefault(dict(server.labels).get("instance", ""), []).append(server)

    def add(self, labels: Mapping[str, str], span: Span) -> None:
        """File a span; one that touches the last is one with it."""
        for server in self._by_address.get(labels.get("instance", ""), ()):
            if all(labels.get(name, value) == value for name, value in server.labels):
                mine = self.spans[server]
                if mine and mine[-1][0] <= span[0] <= mine[-1][1]:
                    mine[-1] = mine[-1][0], max(mine[-1][1], span[1])
                else:
                    mine.append(span)

    def all(self, span: Span) -> None:
        """File a span under every server."""
        for spans in self.spans.values():
            spans.append(span)


def _merged(spans: list[Span], start: float, end: float) -> list[Span]:
    """Join what lies closer than what is read before a span."""
    found: list[Span] = []
    for first, last in sorted((max(start, first), min(end, last)) for first, last in spans):
        if found and first - found[-1][1] <= WARM_UP_S:
            found[-1] = found[-1][0], max(found[-1][1], last)
        elif first < last:
            found.append((first, last))
    return found
