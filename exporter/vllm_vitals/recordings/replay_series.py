"""The series of ``check --replay --json``: one entry per scrape and engine, kept on disk until all are known.

Input: polls. Output: JSON, engine by engine. Invariant: memory does not grow with the recording, and the file is
bounded by `MAX_ENTRIES`.
"""

from collections.abc import Collection, Iterator, Mapping
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

import orjson

from vllm_vitals.catalog import DERIVED, Kind
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.recordings.recording import RecordingError
from vllm_vitals.serve import views

MAX_ENTRIES = 2_000_000  # 2 to 4 GiB of JSON
CHUNK = 64 * 1024

_TAX_BOUNDS = ("recompute_tax_lower_ratio", "recompute_tax_upper_ratio")
_ABOUT_STATE = ("state_since_timestamp_seconds", "window_seconds")
_PLAIN = tuple(
    metric.name
    for metric in DERIVED
    if metric.kind is Kind.GAUGE and not metric.labels and metric.name not in (*_ABOUT_STATE, *_TAX_BOUNDS)
)
_TAILS = ("tpot_p50_seconds", "tpot_p99_seconds", "tpot_p99_p50_ratio")
SIGNALS = (*_PLAIN, *_TAILS, *(f"{name}.inter_token" for name in _TAILS), "ttft_p99_seconds")


class _Series:
    """One engine's entries: pieces of the file, then what is not yet written."""

    __slots__ = ("pieces", "rest")

    def __init__(self, pieces: list[tuple[int, int]], rest: bytes) -> None:
        self.pieces, self.rest = pieces, bytearray(rest)


class SeriesSpool:
    """Entries by engine. Before an engine is first seen it has the state of the target's nameless engine."""

    def __init__(self) -> None:
        try:
            self._file = TemporaryFile(prefix="vllm-vitals-")  # noqa: SIM115 - closed in __exit__
        except OSError as error:
            why = error.strerror or str(error)
            raise RecordingError(f"no folder for temporary files ({why}): let TMPDIR name one") from None
        self._size = 0
        self._series: dict[EngineKey, _Series] = {}
        self._before = _Series([], b"")
        self.entries = 0

    @property
    def is_full(self) -> bool:
        """Whether entries were left out."""
        return self.entries >= MAX_ENTRIES

    def begin(self, key: EngineKey) -> None:
        """Begin an engine's series with what was before it."""
        self._series[key] = _Series(list(self._before.pieces), bytes(self._before.rest))

    def add(
        self,
        at: float,
        known: Mapping[EngineKey, EngineSnapshot],
        nameless: EngineSnapshot | None,
        keys: Collection[EngineKey],
    ) -> None:
        """Take in one poll."""
        if self.entries + len(keys) > MAX_ENTRIES:
            self.entries = MAX_ENTRIES
            return
        absent = orjson.dumps(_entry(at, nameless, own=False))
        self._put(self._before, absent)
        for key in keys:
            own = known.get(key)
            self._put(self._series[key], absent if own is None else orjson.dumps(_entry(at, own, own=True)))
        self.entries += len(keys)

    def read(self, key: EngineKey) -> Iterator[bytes]:
        """Yield an engine's entries as the inside of a JSON array."""
        series, first = self._series[key], True
        for piece in self._pieces(series):
            yield piece[1:] if first else piece  # every entry is preceded by a comma
            first = False

    def _pieces(self, series: _Series) -> Iterator[bytes]:
        for at, size in series.pieces:
            self._file.seek(at)
            yield self._file.read(size)
        if series.rest:
            yield bytes(series.rest)

    def _put(self, series: _Series, entry: bytes) -> None:
        series.rest += b","
        series.rest += entry
        if len(series.rest) >= CHUNK:
            self._file.seek(self._size)
            self._file.write(series.rest)
            series.pieces.append((self._size, len(series.rest)))
            self._size += len(series.rest)
            series.rest = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: TracebackType | None) -> None:
        self._file.close()


def _entry(at: float, snapshot: EngineSnapshot | None, own: bool) -> dict[str, Any]:
    state = snapshot.state if snapshot is not None else State.UNKNOWN
    sample = snapshot.sample if snapshot is not None and own else None
    readings = snapshot.readings if snapshot is not None and own else {}
    values = {**views.sample_values(sample), **views.reading_values(readings, SIGNALS)}
    return {"t": at, "state": state.value, **values}
