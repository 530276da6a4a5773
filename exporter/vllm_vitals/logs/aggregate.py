"""Events to figures, with bounded state. Inputs: decoded lines, their source, the time. Output: `LogSnapshot`.

Invariant: state is bounded by the number of sources and ``max_series``; a log can hold whatever it likes.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields

from vllm_vitals.logs import response_limits
from vllm_vitals.logs.events import Decoded, EngineError, EngineStats, RequestFinished, ServerSetting
from vllm_vitals.logs.response_figures import NOTHING, FigureCache, Figures
from vllm_vitals.logs.server import ServerState
from vllm_vitals.logs.server_complaints import Complaints
from vllm_vitals.logs.snapshot import LogSnapshot, SeriesView, ServerView, split_of
from vllm_vitals.logs.tally import OTHER, Pair, SeriesCounts, Tally
from vllm_vitals.logs.window import ResponseWindow


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One log source: the target that it belongs to ("" for none) and what config says about the server's caps."""

    target: str = ""
    limits: response_limits.ServerLimits = field(default_factory=response_limits.ServerLimits)


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
        self._figures = FigureCache()
        self._complaints = Complaints()

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
                    self._complaints.take(self._sources[source].target, event, read_at)

    def snapshot(self, now: float, served: Tally | None = None) -> LogSnapshot:
        """Say everything that is known. ``served`` replaces the counts by those that a checkpoint holds."""
        tally = served or self.tally
        mixes = _mixes(tally)
        windows: dict[Hashable, tuple[ResponseWindow, ...]] = {key: (one,) for key, one in self._windows.items()}
        for (source, model), pairs in mixes.items():
            members = (self._windows.get((source, pair)) for pair in pairs)
            windows["mixed", source, model] = tuple(one for one in members if one is not None)
        figures = self._figures.look(windows, now, self._window_s)
        series = [
            _view(source, pair, counts, figures.get((source, pair), NOTHING))
            for source, pairs in tally.series.items()
            for pair, counts in pairs.items()
        ]
        mixed = [_view(source, (model, ""), SeriesCounts(), figures["mixed", source, model]) for source, model in mixes]
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
            self._complaints.all(),
        )

    def _finished(self, source: str, event: RequestFinished, read_at: float) -> None:
        pair = self.tally.admit(source, event.model, event.route, self._max_series)
        counts = self.tally.counts(source, pair)
        counts.responses += 1
        counts.generated_tokens += event.completion_tokens or 0
        counts.unreturned_tokens += response_limits.unreturned(event)
        cap = response_limits.cap_of(event, self._limits(source)) if response_limits.at_cap(event) else None
        if cap is not None:
            counts.truncated[cap] += 1
            counts.disagreements += response_limits.disagrees(event)
            counts.reasoning_truncated += response_limits.reasoning_truncated(event)
        window = self._windows.get((source, pair))
        if window is None:
            window = self._windows[source, pair] = ResponseWindow()
        # A time ahead of the clock is a wrong zone or a wrong clock: it must not stay in the window for hours.
        at = read_at if event.at is None else min(event.at, read_at)
        window.add(at, event.tpot_s, event.completion_tokens, cap is not None, event.predicted_tokens,
                   event.reasoning_tokens)  # fmt: skip

    def _limits(self, source: str) -> response_limits.ServerLimits:
        info = self._sources[source]
        state = self.tally.servers.get(info.target)
        if state is None:
            return info.limits
        learned = response_limits.limits_of(state.values)
        return response_limits.ServerLimits(
            info.limits.max_model_len or learned.max_model_len,
            info.limits.default_max_tokens or learned.default_max_tokens,
        )


def _view(source: str, pair: Pair, counts: SeriesCounts, figures: Figures) -> SeriesView:
    model, route = pair
    said = {each.name: getattr(figures, each.name) for each in fields(figures)}
    return SeriesView(**said, source=source, model=model, route=route, counts=counts)


def _mixes(tally: Tally) -> dict[tuple[str, str], list[Pair]]:
    """Find each (source, model) with two routes or more: its routes as one are as if nobody had told them apart."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for source, pairs in tally.series.items():
        for pair in pairs:
            if pair[0] != OTHER:
                groups.setdefault((source, pair[0]), []).append(pair)
    return {key: pairs for key, pairs in groups.items() if len(pairs) > 1}
