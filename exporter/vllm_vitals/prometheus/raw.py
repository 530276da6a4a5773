"""vLLM servers and their scrapes as a Prometheus kept them: raw samples, at their own times.

Input: an API client and a period. Output: `Server`s; a server's `Scrape`s in order, as the daemon would have taken
them. Invariant: memory holds one server and one slice of time; a slice that is too much for the API is halved, and
nothing that was not scraped is filled in. A scrape that failed is one whose ``up`` is 0: why is not kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Protocol

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.prometheus.bodies import Pages, escape
from vllm_vitals.prometheus.promapi import PromError, Series
from vllm_vitals.vllm.families import FAMILIES, HTTP, PROCESS_START
from vllm_vitals.vllm.lookup import PREFIXES, WANTED, WIRE, wire

POINTS = 150_000  # of one answer
FIRST_S, LONGEST_S = 300, 6 * 3600  # slices: the first shows how many points a second there are
LOOK_BACK_S = 86400.0  # a server that had stopped answering before the period is known from here
PATIENCE_S = 4.5  # a failure that took so long is a timeout; a refusal takes milliseconds
MAX_SERVERS = 2_000
MAX_NAMES = 2_000
# vLLM's own labels on a gauge that every engine has, and Ray's: all others say which server it is.
_OWN = frozenset({"__name__", "model_name", "engine", "pid", "model", "ReplicaId", "WorkerId"})


class Ask(Protocol):
    """An API client (`promapi.PromApi` is one)."""

    def samples(self, selector: str, end: float, seconds: int) -> list[Series]:
        """Return samples as scraped, in the seconds up to ``end``."""
        ...

    def series(self, match: str, start: float, end: float) -> list[Mapping[str, str]]:
        """Label sets that had samples between two times."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """One server: the labels that its scrape config put on every series, sorted, and the models that it names."""

    labels: tuple[tuple[str, str], ...]
    models: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """What the daemon would call the target: its address, else every label."""
        return dict(self.labels).get("instance") or ",".join(f"{k}={v}" for k, v in self.labels) or "server"

    def selector(self, names: Sequence[str] = ()) -> str:
        """Return PromQL for its series of these names, all where none are given."""
        found = [f'{key}="{escape(value)}"' for key, value in self.labels]
        if names:
            found.insert(0, f'__name__=~"{"|".join(names)}"')
        return "{" + ",".join(found or ['__name__=~".+"']) + "}"


@dataclass(slots=True)
class Kept:
    """What is known of a server's samples after reading: the interval (s) of its scrapes, names, whether ``up``."""

    interval: float = 0.0
    names: frozenset[str] = frozenset()
    up: bool = False
    failed: int = 0
    scrapes: int = 0

    @property
    def lacking(self) -> list[str]:
        """Families that a verdict may need and that this Prometheus does not hold, by vLLM's newest name."""
        fields = {spelling.family.field for name in self.names if (spelling := WIRE.get(name))}
        return [label for field, label in _NEEDED.items() if field not in fields]


_NEEDED = {
    row.field: (PREFIXES[0] if row.field not in ("http", "process_start") else "") + row.names[0].text
    for row in FAMILIES
    if row.field in ("running", "waiting", "kv_usage", "preemptions", "generation_tokens", "prompt_tokens", "responses")
    or row.name in ("tpot_seconds", "inter_token_latency_seconds", "ttft_seconds", "request_preemptions",
                    "request_prompt_tokens", "request_output_tokens", "iteration_tokens")
} | {row.field: row.names[0].text for row in (HTTP, PROCESS_START)}  # fmt: skip
_RUNNING = [prefix + name for prefix in PREFIXES for name in wire("running")]


def servers(ask: Ask, start: float, end: float, matchers: str = "") -> list[Server]:
    """Return the vLLM servers that had samples in the period or a day before it.

    ``matchers`` are more label matchers. Raises `PromError` where there is none.
    """
    match = "{" + ",".join([f'__name__=~"{"|".join(_RUNNING)}"', *([matchers] if matchers else [])]) + "}"
    found: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for labels in ask.series(match, start - LOOK_BACK_S, end):
        key = tuple(sorted((name, value) for name, value in labels.items() if name not in _OWN))
        found.setdefault(key, set()).add(labels.get("model_name", labels.get("model", "")))
    if not found:
        chosen = f" with {matchers}" if matchers else ""
        raise PromError(
            f"no vLLM series{chosen} in the period (looked for {_RUNNING[0]}): does this Prometheus scrape vLLM?",
            fatal=True,
        )
    if len(found) > MAX_SERVERS:
        raise PromError(f"{len(found)} servers, more than the limit of {MAX_SERVERS}: choose with --model", fatal=True)
    return [Server(key, tuple(sorted(found[key]))) for key in sorted(found)]


class Reader:
    """Reads one server's scrapes; ``kept`` says afterwards what there was."""

    def __init__(self, ask: Ask, server: Server) -> None:
        self._ask, self.server, self.kept = ask, server, Kept()
        self._pages = Pages([name for name, _ in server.labels])

    def scrapes(self, start: float, end: float, tell: Callable[[float], None] = lambda at: None) -> Iterator[Scrape]:
        """Yield what was scraped from ``start`` to ``end``, in order. Raises `PromError`."""
        names = sorted(self._names(start, end))
        self.kept.names = frozenset(names)
        selector = self.server.selector(names) if names else ""
        up, took = self._about("up", start, end), self._about("scrape_duration_seconds", start, end)
        at, seconds, last = start, FIRST_S, -1.0
        while at < end:
            seconds = max(1, min(seconds, round(end - at + 0.5)))
            try:
                series = self._ask.samples(selector, at + seconds, seconds) if selector else []
                pages = self._pages.build(series)
                alive, spent = self._values(up, at, seconds), self._values(took, at, seconds)
            except PromError as error:
                if not error.too_much or seconds <= 1:
                    raise
                seconds //= 2
                continue
            self.kept.up = self.kept.up or bool(alive)
            for when in sorted(pages.keys() | alive.keys()):
                if last < when <= end and (scrape := _scrape(when, pages, alive, spent)) is not None:
                    last = when
                    self._count(scrape)
                    yield scrape
            at += seconds
            tell(min(at, end))
            held = sum(len(each.points) for each in series)
            seconds = min(LONGEST_S, 2 * seconds, max(1, round(POINTS * seconds / max(1, held))))

    def probe(self, start: float, end: float) -> float:
        """Return the interval of its scrapes (s), whole as configs have it: the median gap in the newest samples.

        0 where there are none.
        """
        selector = self.server.selector(_RUNNING)
        for seconds in (600, 7200, 86400):
            found = self._ask.samples(selector, end, min(seconds, max(1, round(end - start))))
            times = sorted({float(at) for each in found for at, _ in each.points})
            if len(times) > 3:
                self.kept.interval = max(1.0, round(median(later - earlier for earlier, later in pairwise(times))))
                return self.kept.interval
        return 0.0

    def _names(self, start: float, end: float) -> set[str]:
        found = {each.get("__name__", "") for each in self._ask.series(self.server.selector(), start - 1, end)}
        return set(sorted(found & WANTED)[:MAX_NAMES])

    def _about(self, name: str, start: float, end: float) -> str:
        """Return PromQL for what Prometheus itself says of this server's scrapes, "" where that is not kept."""
        own = dict(self.server.labels)
        place = [(key, own[key]) for key in ("job", "instance") if key in own]
        if "instance" not in own:
            return ""
        match = "{" + ",".join([f'__name__="{name}"', *(f'{key}="{escape(value)}"' for key, value in place)]) + "}"
        for labels in self._ask.series(match, start - 1, end):
            if all(own.get(key) == value for key, value in labels.items() if key != "__name__"):
                return "{" + ",".join(f'{key}="{escape(value)}"' for key, value in labels.items()) + "}"
        return ""

    def _values(self, selector: str, at: float, seconds: int) -> dict[float, float]:
        if not selector:
            return {}
        found = self._ask.samples(selector, at + seconds, seconds)
        return {round(float(when), 3): float(value) for each in found for when, value in each.points}

    def _count(self, scrape: Scrape) -> None:
        self.kept.scrapes += 1
        self.kept.failed += scrape.body is None


def _scrape(
    at: float, pages: Mapping[float, bytes], alive: Mapping[float, float], took: Mapping[float, float]
) -> Scrape | None:
    """Return what was scraped at a time; None where only ``up`` says that something was."""
    seconds = took.get(at, 0.0)
    if at in pages:
        return Scrape(at, seconds, pages[at])
    if alive.get(at) == 0:
        why = "the scrape failed (up is 0): Prometheus does not keep why"
        if seconds >= PATIENCE_S:
            return Scrape(at, seconds, None, "timeout", f"no answer within {seconds:.1f} s (up is 0)")
        return Scrape(at, seconds, None, "refused", why)
    return Scrape(at, seconds, None, "no_vllm_metrics", "the scrape brought no vLLM series") if at in alive else None
