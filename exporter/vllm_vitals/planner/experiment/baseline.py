"""A baseline: what one model's servers did over a stretch, with the settings and the workload that it was under.

Input: `Telemetry`. Output: a `Baseline`, and its JSON file. The stretch is cut into equal parts, whose spread is the
noise that a comparison must beat; a part that was not scraped throughout is left out. Invariant: unscraped time is
never counted as time without work, and a file that this version cannot read is refused by name, never half read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import orjson
from pydantic import Field

from vllm_vitals.config.values import Strict
from vllm_vitals.core.distribution import fit, is_sure
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner import versioned
from vllm_vitals.planner.review import shape
from vllm_vitals.planner.review.latency import LengthClass, by_length
from vllm_vitals.planner.review.load import Engines, completions, demand, in_flight
from vllm_vitals.planner.telemetry import coverage
from vllm_vitals.planner.telemetry.grid import Grid
from vllm_vitals.planner.telemetry.telemetry import Telemetry, WindowedHistogram, added, known, mean, merged

SCHEMA = 2
# A closed load: a queue in 80 % of the windows, and in flight within 7 % of its median in 70 % of them.
ALWAYS, LEVEL, MOSTLY = 0.8, 0.07, 0.7
MAX_BYTES = 4 * 1024 * 1024
Better = Literal["higher", "lower"]

# What is compared: unit, and which way is better.
VITALS: Mapping[str, tuple[str, Better]] = {
    "generated tokens": ("tokens/s", "higher"),
    "completed requests": ("requests/s", "higher"),
    "time to first token, mean": ("s", "lower"),
    "time to first token, p50": ("s", "lower"),
    "time to first token, p95": ("s", "lower"),
    "time to first token, p99": ("s", "lower"),
    "time per output token, mean": ("s", "lower"),
    "time per output token, p50": ("s", "lower"),
    "time per output token, p95": ("s", "lower"),
    "time per output token, p99": ("s", "lower"),
    "whole request, mean": ("s", "lower"),
    "whole request, p95": ("s", "lower"),
    "preemptions a request": ("", "lower"),
}

_TIMES = {
    "time to first token": "ttft_seconds", "time per output token": "tpot_seconds",
    "whole request": "e2e_latency_seconds",
}  # fmt: skip


class BaselineError(Exception):
    """The stretch or the file cannot be a baseline. One line."""


class Measure(Strict):
    """One vital: a value for each part (None where nothing was observed), and the whole stretch with its bounds.

    ``weights`` are what each part is a mean over (s, tokens, requests). ``sure``: no bucket leaves the whole open.
    """

    repeats: list[float | None]
    weights: list[float]
    value: float | None
    lower: float | None = None
    upper: float | None = None
    sure: bool = True

    @property
    def reading(self) -> Reading:
        """The whole stretch, as everything else is shown."""
        upper = inf if self.lower is not None and self.upper is None else self.upper
        return Reading(self.value, self.lower, upper)


class ByLength(Strict):
    """Windows by their mean prompt length: from ``low`` tokens on."""

    low: float
    requests: float
    preemptions: float
    ttft_p95: Measure
    tpot_p95: Measure


class Baseline(Strict, populate_by_name=True):
    """The file. Times are epoch s; workload figures are tokens, requests and shares.

    ``parts`` is where each began, in s after the first, and ``seconds`` how long the stretch was in all.
    """

    schema_version: Annotated[int, Field(alias="schema")] = SCHEMA
    name: str
    taken_at: float
    start: float
    end: float
    source: str
    model_name: str
    engines: int
    version: str
    settings: dict[str, str]
    workload: dict[str, float | None]
    vitals: dict[str, Measure]
    by_length: list[ByLength]
    parts: list[float]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Stretch:
    engines: Engines
    step: int
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Observed:
    """A vital, and what it is a mean over."""

    reading: Reading
    weight: float


def baseline(
    telemetry: Telemetry,
    model_name: str,
    name: str,
    source: str,
    taken_at: float,
    repeats: int,
    told: Mapping[str, str],
) -> Baseline:
    """Measure the whole of ``telemetry`` in ``repeats`` equal parts. ``told`` are settings that no metric tells."""
    engines, grid = telemetry.of(model_name), telemetry.grid
    if not engines:
        raise BaselineError(f"there is no model {model_name!r}; there are {', '.join(telemetry.models()) or 'none'}")
    parts = [_Stretch(engines, grid.step, tuple(part)) for part in _repeats(engines, grid, repeats)]
    whole = _Stretch(engines, grid.step, tuple(w for part in parts for w in part.windows))
    measured = [_vitals(part) for part in parts]
    settings, version = _settings(telemetry, engines, told)
    return Baseline(
        name=name, taken_at=taken_at, start=grid.at(whole.windows[0]), end=grid.at(whole.windows[-1] + 1),
        source=source, model_name=model_name, engines=len(engines), version=version, settings=settings,
        workload=_workload(whole, grid),
        vitals={
            key: _measure(seen, [part[key] for part in measured]) for key, seen in _vitals(whole).items()
        },
        by_length=[_length(each) for each in by_length(engines, grid.step)],
        parts=[float((part.windows[0] - whole.windows[0]) * grid.step) for part in parts],
        seconds=float(len(whole.windows) * grid.step),
    )  # fmt: skip


def _repeats(engines: Engines, grid: Grid, repeats: int) -> list[range]:
    """Return the parts that were scraped throughout, at most one a window.

    Raises `BaselineError` where two are not left of several.
    """
    if grid.windows < min(2, repeats):
        raise BaselineError(f"{grid.windows * grid.step} s are too short for two parts: take a longer period")
    repeats = min(repeats, grid.windows)
    there = coverage.scraped(engines, grid)
    found = coverage.whole_repeats(there, repeats)
    if len(found) < min(2, repeats):
        run = coverage.longest(there)
        inside = f"stay within {_when(grid.at(run.start))} to {_when(grid.at(run.stop))}" if run else "look elsewhere"
        raise BaselineError(
            f"of {grid.windows * grid.step} s only {sum(there) * grid.step} s hold samples of every engine, "
            f"which leaves {len(found)} of {repeats} parts: {inside}"
        )
    return found


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _measure(whole: _Observed, parts: Sequence[_Observed]) -> Measure:
    reading = whole.reading
    return Measure(
        repeats=[each.reading.value for each in parts], weights=[each.weight for each in parts],
        value=reading.value, lower=reading.lower, upper=_end(reading), sure=is_sure(reading),
    )  # fmt: skip


def _end(reading: Reading) -> float | None:
    """Return the upper bound; JSON knows no infinity."""
    return None if reading.upper is None or reading.upper == inf else reading.upper


def _vitals(part: _Stretch) -> dict[str, _Observed]:
    seconds = float(len(part.windows) * part.step)
    engines = list(part.engines.values())
    generated = _sum([s.counter("generation_tokens_total") for s in engines], part.windows)
    finished = _sum([completions(s) for s in engines], part.windows)
    evicted = _sum([s.counter("preemptions_total") for s in engines], part.windows)
    found = {
        "generated tokens": _Observed(Reading(None if generated is None else generated / seconds), seconds),
        "completed requests": _Observed(Reading(None if finished is None else finished / seconds), seconds),
        "preemptions a request": _Observed(
            Reading(evicted / finished if evicted is not None and finished else None), finished or 0.0
        ),
    }
    for words, name in _TIMES.items():
        shown = fit(_histogram(part, name))
        found[f"{words}, mean"] = _Observed(shown.mean(), shown.count)
        for q in (50, 95, 99):
            found[f"{words}, p{q}"] = _Observed(shown.quantile(q / 100), shown.count)
    return {name: found[name] for name in VITALS}


def _sum(series: "Sequence[Sequence[float] | None]", windows: Sequence[int]) -> float | None:
    there = [each for each in series if each is not None]
    return sum(sum(known(each[w] for w in windows)) for each in there) if there else None


def _histogram(part: _Stretch, name: str) -> Histogram | None:
    return merged(h.total(_own(h, part)) for s in part.engines.values() if (h := s.histograms.get(name)) is not None)


def _own(histogram: WindowedHistogram, part: _Stretch) -> list[int]:
    """Return the histogram's windows that begin in the part, so that no two parts share one; or the one around it."""
    every, ours = histogram.grid.step // part.step, frozenset(part.windows)
    begun = sorted({w // every for w in ours if w // every * every in ours})
    return begun or [part.windows[0] // every]


def _settings(telemetry: Telemetry, engines: Engines, told: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the settings that all servers share, and the version. Raises where one changes inside the stretch."""
    targets = {engine.target for engine in engines}
    found: dict[str, set[str]] = {}
    for setting in telemetry.settings:
        if setting.target in targets:
            found.setdefault(setting.name, set()).add(setting.value)
    mixed = sorted(name for name, values in found.items() if len(values) > 1 and name not in told)
    if mixed:
        raise BaselineError(
            f"{mixed[0]} is not the same over the whole period on all servers: choose another period, or one --target"
        )
    settings = {**{name: next(iter(values)) for name, values in found.items()}, **told}
    return dict(sorted(settings.items())), settings.pop("version", "")


def _workload(part: _Stretch, grid: Grid) -> dict[str, float | None]:
    engines = part.engines
    inputs = shape.lengths(_histogram(part, "request_prompt_tokens"))
    outputs = shape.lengths(_histogram(part, "request_output_tokens"))
    queued = added([w for s in engines.values() if (w := s.gauge("requests_waiting")) is not None])
    present = added([p for s in engines.values() if (p := in_flight(s)) is not None])
    wanted = added([d for s in engines.values() if (d := demand(s, grid)) is not None])
    looked = _sum([s.counter("prefix_cache_queries_total") for s in engines.values()], part.windows)
    hits = _sum([s.counter("prefix_cache_hits_total") for s in engines.values()], part.windows)
    over = inputs.share_over.get(32_000)
    return {
        "prompt tokens, mean": inputs.mean,
        "prompt tokens, p50": inputs.p50.value,
        "prompts over 32,000 tokens": None if over is None else over[1],
        "output tokens, mean": outputs.mean,
        "output tokens, CV": outputs.cv.value,
        "output cap, p50": shape.lengths(_histogram(part, "request_max_tokens")).p50.value,
        "requests in flight, mean": _mean(present, part),
        "time with a queue": _share(queued, part),
        "clients who wait": _clients(present, queued, part),
        "requests/s": _mean(wanted, part),
        "prefix-cache hits": hits / looked if looked and hits is not None else None,
    }


def _mean(values: "Sequence[float] | None", part: _Stretch) -> float | None:
    return None if values is None else mean(values[w] for w in part.windows)


def _share(queued: "Sequence[float] | None", part: _Stretch) -> float | None:
    """Return the share of windows in which a request waited on average."""
    values = known(queued[w] for w in part.windows) if queued is not None else []
    return sum(value >= 1 for value in values) / len(values) if values else None


def _clients(
    present: "Sequence[float] | None", queued: "Sequence[float] | None", part: _Stretch
) -> float | None:  # fmt: skip
    """Return how many clients wait for their answers: in flight level beside a queue; None for an open load."""
    values = known(present[w] for w in part.windows) if present is not None else []
    if not values or (_share(queued, part) or 0.0) < ALWAYS:
        return None
    centre = median(values)
    level = sum(abs(value - centre) <= max(1.0, LEVEL * centre) for value in values)
    return centre if level >= MOSTLY * len(values) else None


def _length(each: LengthClass) -> ByLength:
    return ByLength(
        low=each.low, requests=each.requests, preemptions=each.preemptions,
        ttft_p95=_measure(_Observed(each.ttft.p95, each.ttft.count), []),
        tpot_p95=_measure(_Observed(each.tpot.p95, each.tpot.count), []),
    )  # fmt: skip


def to_bytes(each: Baseline) -> bytes:
    """Return the file's content."""
    return orjson.dumps(each.model_dump(by_alias=True), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read(path: Path) -> Baseline:
    """Read a baseline file. Raises `BaselineError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror}") from None
    wrote = "that vllm-vitals snapshot wrote"
    return versioned.parse(path, content, Baseline, SCHEMA, BaselineError, wrote, "; take it again")
