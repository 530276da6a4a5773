"""Figures of the newest responses of each series, computed again only where something changed.

Input: windows and the time. Output: `Figures` for each series and each mix. Invariant: one look computes at most
ROWS_A_LOOK rows anew (and one series at least), the longest waiting first, so that looking costs the same however many
series a log has; the figures of a busy log with very many series are some seconds old.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from vllm_vitals.core.snapshot import Reading
from vllm_vitals.logs.window import ResponseWindow, Rows, mean, quantile, variation

ROWS_A_LOOK = 16_384


@dataclass(frozen=True, slots=True)
class Figures:
    """What the rows of a window say, ``recent`` of them; lengths in tokens, times in s.

    ``prediction_error`` is the mean of (predicted - actual) / actual; ``underpredicted`` the share predicted too short.
    ``thinking_p90`` and ``answer_p90`` share one max_tokens.
    """

    recent: int
    tpot_p50_s: Reading
    tpot_p99_s: Reading
    tpot_ratio: Reading
    output_mean: Reading
    output_cv: Reading
    truncated: Reading
    prediction_error: Reading
    underpredicted: Reading
    thinking_p90: Reading
    answer_p90: Reading


def figures_of(rows: Rows) -> Figures:
    """Compute all figures."""
    p50, p99 = quantile(rows.tpot, 0.5), quantile(rows.tpot, 0.99)
    ratio = (
        Reading(p99.value / p50.value)
        if p50.value and p99.value is not None
        else Reading(None, status=p50.status, why=p50.why)
    )
    pairs = [(said, real) for said, real in zip(rows.predicted, rows.output, strict=True) if said == said and real > 0]  # noqa: PLR0124 - not NaN
    return Figures(
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


NOTHING = figures_of(Rows())


@dataclass(slots=True)
class _Kept:
    """Figures, the windows' versions that they are of, and until when (epoch s) no row of them grows too old."""

    figures: Figures
    versions: tuple[int, ...]
    until: float
    looked: int = 0


@dataclass(slots=True)
class FigureCache:
    """Keeps the figures of every series."""

    _kept: dict[Hashable, _Kept] = field(default_factory=dict)
    _looks: int = 0

    def look(
        self, series: Mapping[Hashable, tuple[ResponseWindow, ...]], now: float, span_s: float
    ) -> dict[Hashable, Figures]:
        """Give the figures of each series over the last ``span_s`` seconds."""
        self._looks += 1
        for key in self._kept.keys() - series.keys():
            del self._kept[key]
        stale = [key for key, windows in series.items() if self._is_stale(key, windows, now)]
        stale.sort(key=lambda key: self._kept[key].looked if key in self._kept else -1)
        room = ROWS_A_LOOK
        for key in stale:
            if room <= 0:
                break
            windows = series[key]
            room -= sum(map(len, windows))
            self._kept[key] = self._compute(windows, now - span_s, span_s)
        return {key: self._kept[key].figures if key in self._kept else NOTHING for key in series}

    def _is_stale(self, key: Hashable, windows: Iterable[ResponseWindow], now: float) -> bool:
        kept = self._kept.get(key)
        return kept is None or now > kept.until or kept.versions != tuple(window.version for window in windows)

    def _compute(self, windows: tuple[ResponseWindow, ...], start: float, span_s: float) -> _Kept:
        rows = sum((window.since(start) for window in windows), Rows())
        oldest = min((window.oldest(start) for window in windows), default=float("inf"))
        return _Kept(figures_of(rows), tuple(window.version for window in windows), oldest + span_s, self._looks)
