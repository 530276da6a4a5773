"""The counts that must survive a restart: plain data, so that a checkpoint holds them beside their offsets.

Invariant: for each source at most ``max_series`` label pairs, plus one ("other", "other"), whatever the log holds.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.logs.events import CAPS
from vllm_vitals.logs.server import ServerState

OTHER = "other"
UNKNOWN_ROUTE = "unknown"
MAX_LABEL = 128


@dataclass(slots=True)
class SeriesCounts:
    """Cumulative figures of the responses of one (source, model, route)."""

    responses: int = 0
    truncated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAPS, 0))
    reasoning_truncated: int = 0
    disagreements: int = 0
    generated_tokens: int = 0
    unreturned_tokens: int = 0


Pair = tuple[str, str]


@dataclass(slots=True)
class Tally:
    """All cumulative state. Keys: records by source and result, errors by source and kind, servers by target."""

    records: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: dict[str, dict[str, int]] = field(default_factory=dict)
    stats_lines: dict[str, int] = field(default_factory=dict)
    series: dict[str, dict[Pair, SeriesCounts]] = field(default_factory=dict)
    servers: dict[str, ServerState] = field(default_factory=dict)
    _room: dict[str, tuple[int, set[str], int]] = field(default_factory=dict, repr=False, compare=False)

    def counts(self, source: str, pair: Pair) -> SeriesCounts:
        """Look up the counts of a pair that `admit` has returned."""
        return self.series.setdefault(source, {}).setdefault(pair, SeriesCounts())

    def keep(self, sources: Collection[str], targets: Collection[str]) -> None:
        """Forget the sources and servers that config no longer names."""
        for by_source in (self.records, self.errors, self.stats_lines, self.series):
            for gone in by_source.keys() - sources:
                del by_source[gone]
        for target in self.servers.keys() - targets:
            del self.servers[target]

    def admit(self, source: str, model: str, route: str, max_series: int) -> Pair:
        """Choose the label pair that a response counts under.

        The first models and routes to come are kept. A model takes two places beside its routes: one for its routes
        beyond the limit, one for all its routes mixed.
        """
        known = self.series.get(source, {})
        pair = (model[:MAX_LABEL], route[:MAX_LABEL] or UNKNOWN_ROUTE)
        if pair in known:
            return pair
        size, models, places = self._room.get(source, (-1, set(), 0))
        if size != len(known):
            models = {name for name, _ in known if name != OTHER}
            places = 2 * len(models) + sum(1 for names in known if OTHER not in names)
            self._room[source] = len(known), models, places
        if pair[0] in models:
            return pair if places < max_series else (pair[0], OTHER)
        return pair if places + 3 <= max_series else (OTHER, OTHER)


def to_plain(tally: Tally) -> dict[str, Any]:
    """Show the tally as orjson can write it, which knows dataclasses."""
    series = [[source, *pair, counts] for source, pairs in tally.series.items() for pair, counts in pairs.items()]
    return {
        "records": tally.records, "errors": tally.errors, "stats_lines": tally.stats_lines, "series": series,
        "servers": tally.servers,
    }  # fmt: skip


def from_plain(plain: Mapping[str, Any]) -> Tally:
    """Read what `to_plain` shows. Raises KeyError, TypeError, ValueError on anything else."""
    tally = Tally(dict(plain["records"]), dict(plain["errors"]), dict(plain["stats_lines"]))
    for source, model, route, counts in plain["series"]:
        tally.series.setdefault(source, {})[model, route] = SeriesCounts(**counts)
    tally.servers = {target: ServerState(**state) for target, state in plain["servers"].items()}
    return tally
