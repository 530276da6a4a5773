"""Events to figures, with bounded state. Inputs: decoded lines, their source, the time. Output: `LogSnapshot`.

Invariant: state is bounded by the number of sources and ``max_series``; a log can hold whatever it likes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_vitals.core.snapshot import Reading
from vllm_vitals.logs import derive
from vllm_vitals.logs.events import Decoded, EngineError, EngineStats, RequestFinished, ServerSetting
from vllm_vitals.logs.server import ServerState
from vllm_vitals.logs.snapshot import LogSnapshot, SeriesView, ServerView, split_of
from vllm_vitals.logs.tally import OTHER, Pair, SeriesCounts, Tally
from vllm_vitals.logs.window import ResponseWindow, Rows, mean, quantile, variation


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One log source: the target that it belongs to ("" for none) and what config says about the server's caps."""

    target: str = ""
    limits: derive.ServerLimits = field(default_factory=derive.ServerLimits)


class LogAggregator:
    """Counts, windows and settings of all sources. ``tally`` may come from a checkpoint."""

    def __init__(
        self,
        sources: Mapping[str, SourceInfo],
        max_series: int = 200,
        window_s: float = 600.0,
        tally: Tally | None = None,
    ) -> None:
        self.tally = tally or Tally()
        self._sources = sources
        self._max_series = max_series
        self._window_s = window_s
        self._windows: dict[tuple[str, Pair], ResponseWindow] = {}

    def observe(self, source: str, decoded: Decoded, read_at: float) -> None:
        """Take in what became of one line. ``read_at`` stands in for an event's time where it has none."""
        if decoded.result is None:
            return
        records = self.tally.records.setdefault(source, {})
        records[decoded.result] = records.get(decoded.result, 0) + 1
        if decoded.held:
            records["partial"] = records.get("partial", 0) + decoded.held
        for event in decoded.events:
            match event:
                case RequestFinished():
                    if event.finish_reason not in ("error", "abort"):
                        self._finished(source, event, read_at)
                case EngineStats():
                    self.tally.stats_lines[source] = self.tally.stats_lines.get(source, 0) + 1
                case ServerSetting():
                    self.tally.servers.setdefault(self._sources[source].target, ServerState()).apply(event)
                case EngineError():
                    errors = self.tally.errors.setdefault(source, {})
                    errors[event.kind] = errors.get(event.kind, 0) + 1

    def snapshot(self, now: float, served: Tally | None = None) -> LogSnapshot:
        """Everything known. ``served`` replaces the counts by those that a checkpoint holds."""
        tally = served or self.tally
        start = now - self._window_s
        rows = {key: window.since(start) for key, window in self._windows.items()}
        series = [
            _view(source, pair, counts, rows.get((source, pair)))
            for source, pairs in tally.series.items()
            for pair, counts in pairs.items()
        ]
        mixed = _mixed(series, rows)
        return LogSnapshot(
            now,
            {source: info.target for source, info in self._sources.items()},
            {source: dict(results) for source, results in tally.records.items()},
            {source: dict(kinds) for source, kinds in tally.errors.items()},
            dict(tally.stats_lines),
            tuple(series),
            tuple(mixed),
            {target: ServerView(dict(one.values), one.overrides()) for target, one in tally.servers.items()},
            tuple(split for one in mixed if (split := split_of(one, series)) is not None),
        )

    def _finished(self, source: str, event: RequestFinished, read_at: float) -> None:
        pair = self.tally.admit(source, event.model, event.route, self._max_series)
        counts = self.tally.counts(source, pair)
        counts.responses += 1
        counts.generated_tokens += event.completion_tokens or 0
        counts.unreturned_tokens += derive.unreturned(event)
        cap = derive.cap_of(event, self._limits(source)) if derive.at_cap(event) else None
        if cap is not None:
            counts.truncated[cap] += 1
            counts.disagreements += derive.disagrees(event)
            counts.reasoning_truncated += derive.reasoning_truncated(event)
        window = self._windows.get((source, pair))
        if window is None:
            window = self._windows[source, pair] = ResponseWindow()
        # A time ahead of the clock is a wrong zone or a wrong clock: it must not stay in the window for hours.
        at = read_at if event.at is None else min(event.at, read_at)
        window.add(at, event.tpot_s, event.completion_tokens, cap is not None, event.predicted_tokens,
                   event.reasoning_tokens)  # fmt: skip

    def _limits(self, source: str) -> derive.ServerLimits:
        info = self._sources[source]
        state = self.tally.servers.get(info.target)
        if state is None:
            return info.limits
        learned = derive.limits_of(state.values)
        return derive.ServerLimits(
            info.limits.max_model_len or learned.max_model_len,
            info.limits.default_max_tokens or learned.default_max_tokens,
        )


def _view(source: str, pair: Pair, counts: SeriesCounts, rows: Rows | None) -> SeriesView:
    rows = rows or Rows()
    p50, p99 = quantile(rows.tpot, 0.5), quantile(rows.tpot, 0.99)
    ratio = (
        Reading(p99.value / p50.value)
        if p50.value and p99.value is not None
        else Reading(None, status=p50.status, why=p50.why)
    )
    pairs = [(said, real) for said, real in zip(rows.predicted, rows.output, strict=True) if said == said and real > 0]  # noqa: PLR0124 - not NaN
    return SeriesView(
        source,
        *pair,
        counts,
        len(rows),
        p50,
        p99,
        ratio,
        mean(rows.output),
        variation(rows.output),
        mean(rows.truncated),
        mean([(said - real) / real for said, real in pairs]),
        mean([float(said < real) for said, real in pairs]),
        quantile(rows.thinking, 0.9),
        quantile(rows.answers, 0.9),
    )


def _mixed(series: list[SeriesView], rows: Mapping[tuple[str, Pair], Rows]) -> list[SeriesView]:
    """For each (source, model) with two routes or more: its routes as one, as if nobody had told them apart."""
    groups: dict[tuple[str, str], list[SeriesView]] = {}
    for view in series:
        if view.model != OTHER:
            groups.setdefault((view.source, view.model), []).append(view)
    mixed = []
    for (source, model), views in groups.items():
        if len(views) > 1:
            together = sum((rows[source, (model, one.route)] for one in views if (source, (model, one.route)) in rows),
                           Rows())  # fmt: skip
            mixed.append(_view(source, (model, ""), SeriesCounts(), together))
    return mixed
