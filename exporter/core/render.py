"""Snapshots as Prometheus text, rendered once a poll and only joined at a scrape.

Input: a `TargetSnapshot` after each poll. Output: per family the bytes of its samples, which `join` puts under their
HELP and TYPE in the catalogue's order, as text 0.0.4 or OpenMetrics. Invariant: what is absent has no series, a value
is always finite, and two engines never share a label set.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Literal
from zlib import crc32

from exporter import catalog
from exporter.catalog import BY_NAME, METRICS, Kind, Metric
from exporter.core.sample import EngineSample, Histogram
from exporter.core.snapshot import SCRAPE_ERRORS, EngineSnapshot, Reading, State, TargetSnapshot

Families = Mapping[str, bytes]
Histograms = Literal["all", "latency", "none"]
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MAX_LABEL_CHARS = 256
MAX_SETTINGS = 100
MAX_LINES = 4_000  # rendered lines kept per engine: some 200 without histograms

_FROM_SAMPLE = {
    "requests_running": "running",
    "kv_cache_usage_ratio": "kv_usage",
    "kv_cache_capacity_tokens": "kv_capacity_tokens",
    "preemptions_total": "preemptions",
    "prompt_tokens_total": "prompt_tokens",
    "prompt_tokens_computed_total": "prompt_tokens_computed",
    "generation_tokens_total": "generation_tokens",
    "prefix_cache_queries_total": "prefix_cache_queries",
    "prefix_cache_hits_total": "prefix_cache_hits",
}
_BY_SOURCE = ("tpot_p50_seconds", "tpot_p99_seconds", "tpot_p99_p50_ratio")
_BOUNDED = ("ttft_p99_seconds",)
_PLAIN = tuple(
    metric.name
    for metric in catalog.DERIVED
    if metric.kind is Kind.GAUGE and not metric.labels and metric.scope == catalog.ENGINE_LABELS
)
_HISTOGRAMS = tuple(metric.name for metric in catalog.NORMALISED if metric.kind is Kind.HISTOGRAM)
_LATENCY = tuple(name for name in _HISTOGRAMS if name.endswith("_seconds"))
_OWN = "\0"
_SHOWN: Mapping[Histograms, tuple[str, ...]] = {"all": _HISTOGRAMS, "latency": _LATENCY, "none": ()}


def number(value: float) -> str:
    """A float on the wire, as short as it can be without loss."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def escape(text: str) -> str:
    """A label value: escaped, and cut where it is absurdly long, with a checksum so that two stay two."""
    if len(text) > MAX_LABEL_CHARS:
        text = f"{text[: MAX_LABEL_CHARS - 9]}~{crc32(text.encode(errors='replace')):08x}"
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def label_text(labels: Mapping[str, str]) -> str:
    """``a="1",b="2"``: what stands between the braces."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())


class TargetRenderer:
    """Renders one target's snapshots. It keeps each line while its value is the same, and so for whole histograms."""

    def __init__(
        self, labels: Mapping[str, str] | None = None, histograms: Histograms = "all", service_class: str = ""
    ) -> None:
        self._extra, self._service_class = labels or {}, service_class
        self._shown = _SHOWN[histograms]
        self._lines: dict[tuple[str, ...], tuple[float, str]] = {}
        self._blocks: dict[tuple[str, str], tuple[object, str]] = {}
        self._buckets: dict[tuple[str, str], tuple[Histogram, bytes]] = {}

    def render(self, snapshot: TargetSnapshot, skew: float = 0.0) -> Families:
        """Bytes by family. ``skew`` is added to every timestamp (see `exporter.clock`)."""
        if len(self._lines) > MAX_LINES * max(1, len(snapshot.engines)):
            self._lines.clear()
            self._blocks.clear()
        lines: dict[str, list[str]] = {}
        target = label_text({"target": snapshot.target, **self._extra})
        self._target(lines, target, snapshot, skew)
        first = min((e.key for e in snapshot.engines if e.sample is not None), key=str, default=None)
        rendered: dict[str, list[bytes]] = {}
        kept: dict[tuple[str, str], tuple[Histogram, bytes]] = {}
        for engine in snapshot.engines:
            key = engine.key
            names = {"target": key.target, "model_name": key.model_name, "engine": key.engine, **self._extra}
            own = label_text(names)
            self._engine(lines, own, engine, skew)
            if key == first:  # one number a server, which every engine's sample repeats
                self._add(lines, "rejected_requests_total", own, engine.sample.rejections if engine.sample else None)
            for name in self._shown:
                histogram = None if engine.sample is None else engine.sample.histograms.get(name)
                if histogram is not None:
                    kept[name, own] = known = self._histogram(name, own, histogram)
                    rendered.setdefault(name, []).append(known[1])
        self._buckets = kept
        text = {name: "".join(parts).encode(errors="replace") for name, parts in lines.items()}
        return {**text, **{name: b"".join(parts) for name, parts in rendered.items()}}

    def _add(self, lines: dict[str, list[str]], name: str, own: str, value: float | None, *labels: str) -> None:
        if value is not None and isfinite(value):
            lines.setdefault(name, []).append(self._line(name, own, value, *labels))

    def _add_block(
        self, lines: dict[str, list[str]], name: str, own: str, of: object, values: Iterable[tuple[str, float | None]]
    ) -> None:
        """The lines of a family with one label, kept as long as what they say, ``of``, is the same."""
        known = self._blocks.get((name, own))
        if known is None or known[0] != of:
            text = "".join(
                self._line(name, own, value, label) for label, value in values if value is not None and isfinite(value)
            )
            known = self._blocks[name, own] = (of, text)
        if known[1]:
            lines.setdefault(name, []).append(known[1])

    def _line(self, name: str, own: str, value: float, *labels: str) -> str:
        key = (name, own, *labels)
        known = self._lines.get(key)
        if known is None:
            more = label_text(dict(zip(BY_NAME[name].labels, labels, strict=True)))
            prefix = f"{BY_NAME[name].full_name}{{{own}{',' if more else ''}{more}}}"
            known = self._lines[key] = (value, f"{prefix} {number(float(value))}\n")
        elif known[0] != value:
            known = self._lines[key] = (value, f"{known[1].rpartition(' ')[0]} {number(float(value))}\n")
        return known[1]

    def _target(self, lines: dict[str, list[str]], own: str, snapshot: TargetSnapshot, skew: float) -> None:
        add = self._add
        add(lines, "target_up", own, float(snapshot.up))
        if self._service_class:
            add(lines, "target_service_class", own, 1.0, self._service_class)
        if snapshot.last_scrape_at is not None:
            add(lines, "last_scrape_timestamp_seconds", own, round(snapshot.last_scrape_at + skew, 3))
        add(lines, "scrape_duration_seconds", own, round(snapshot.duration_s, 6))
        errors = snapshot.errors
        self._add_block(lines, "scrape_errors_total", own, errors, ((r, errors.get(r, 0)) for r in SCRAPE_ERRORS))
        for outcome, count in snapshot.canaries.items():
            add(lines, "canary_requests_total", own, count, outcome)
        if snapshot.canary is not None:
            add(lines, "canary_duration_seconds", own, round(snapshot.canary.took_s, 6))
        for family, count in snapshot.invalid.items():
            add(lines, "invalid_samples_total", own, count, family)
        if snapshot.dialect:
            add(lines, "unknown_vllm_families", own, len(snapshot.unknown_families))
            add(lines, "server_info", own, 1.0, snapshot.version, snapshot.dialect)
        settings = ((name, _numeric(value)) for name, value in islice(snapshot.settings.items(), MAX_SETTINGS))
        self._add_block(lines, "server_setting", own, snapshot.settings, settings)

    def _engine(self, lines: dict[str, list[str]], own: str, engine: EngineSnapshot, skew: float) -> None:
        add = self._add
        now, held = engine.state, engine.state_seconds
        self._add_block(lines, "state", own, now, ((state.value, float(state is now)) for state in State))
        never = [state for state in State if state not in held]
        self._add_block(lines, "state_seconds_total", own, never, ((state.value, 0.0) for state in never))
        for state, seconds in held.items():
            add(lines, "state_seconds_total", own, round(seconds, 3), state.value)
        if engine.since:
            add(lines, "state_since_timestamp_seconds", own, round(engine.since + skew, 3))
        add(lines, "death_spirals_total", own, engine.death_spirals)
        add(lines, "window_seconds", own, engine.window_s)
        for knob, direction in dict.fromkeys((advice.knob, advice.direction) for advice in engine.advice):
            add(lines, "advice", own, 1.0, knob, direction)
        if engine.sample is not None:
            self._sample(lines, own, engine.sample)
        self._readings(lines, own, engine.readings)

    def _sample(self, lines: dict[str, list[str]], own: str, sample: EngineSample) -> None:
        for name, field in _FROM_SAMPLE.items():
            self._add(lines, name, own, getattr(sample, field))
        for reason, count in waiting_by_reason(sample).items():
            self._add(lines, "requests_waiting", own, count, reason)
        for reason, count in (sample.responses or {}).items():
            self._add(lines, "responses_total", own, count, reason)

    def _readings(self, lines: dict[str, list[str]], own: str, readings: Mapping[str, Reading]) -> None:
        for name in _PLAIN:
            reading = readings.get(name)
            if reading is not None:
                self._add(lines, name, own, reading.value)
        tax = readings.get("recompute_tax_ratio")
        if tax is not None:
            self._add(lines, "recompute_tax_lower_ratio", own, tax.lower)
            self._add(lines, "recompute_tax_upper_ratio", own, tax.upper)
        for name in _BY_SOURCE:
            self._bounds(lines, name, own, readings.get(name), "request")
            self._bounds(lines, name, own, readings.get(f"{name}.inter_token"), "inter_token")
        for name in _BOUNDED:
            self._bounds(lines, name, own, readings.get(name))

    def _bounds(self, lines: dict[str, list[str]], name: str, own: str, reading: Reading | None, *source: str) -> None:
        if reading is not None:
            for bound, value in zip(catalog.BOUNDS, (reading.value, reading.lower, reading.upper), strict=True):
                self._add(lines, name, own, value, *source, bound)

    def _histogram(self, name: str, own: str, histogram: Histogram) -> tuple[Histogram, bytes]:
        known = self._buckets.get((name, own))
        return known if known is not None and known[0] is histogram else (histogram, _buckets(name, own, histogram))


def _buckets(name: str, own: str, histogram: Histogram) -> bytes:
    counts = histogram.counts
    written = map(int, counts) if all(map(float.is_integer, counts)) else map(number, counts)
    lines = _template(name, histogram.bounds).replace(_OWN, own.replace("%", "%%"))
    text = lines % (*written, number(histogram.sum), number(histogram.count))
    return text.encode(errors="replace")


@lru_cache(maxsize=512)
def _template(name: str, bounds: tuple[float, ...]) -> str:
    """The lines of a histogram, to be filled with every count, then sum and count; `_OWN` stands for the labels."""
    full = BY_NAME[name].full_name
    edges = [repr(float(bound)) for bound in bounds] + ["+Inf"]
    buckets = "".join(f'{full}_bucket{{{_OWN},le="{edge}"}} %s\n' for edge in edges)
    return f"{buckets}{full}_sum{{{_OWN}}} %s\n{full}_count{{{_OWN}}} %s\n"


def waiting_by_reason(sample: EngineSample) -> Mapping[str, float]:
    """Waiting requests by reason; ``unsplit`` where vLLM (before 0.20) does not say why they wait."""
    if sample.waiting_by_reason or sample.waiting is None:
        return sample.waiting_by_reason
    return {"unsplit": sample.waiting}


def _numeric(value: str) -> float | None:
    """A setting as a number, where it is one."""
    try:
        return float(value) if value.isascii() and "_" not in value else None
    except ValueError:
        return None


def plain(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Families:
    """Families from (name, labels, value) triples, for what is not about a target."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in samples:
        if isfinite(value):
            braces = f"{{{label_text(labels)}}}" if labels else ""
            lines.setdefault(name, []).append(f"{BY_NAME[name].full_name}{braces} {number(float(value))}\n")
    return {name: "".join(parts).encode(errors="replace") for name, parts in lines.items()}


def join(parts: Sequence[Families], openmetrics: bool = False, more: bytes = b"") -> bytes:
    """The whole exposition: every family once, in the catalogue's order; ``more`` is other text in the same format."""
    body: list[bytes] = []
    for metric in METRICS:
        samples = [part[metric.name] for part in parts if metric.name in part]
        if samples:
            body.append(_header(metric, openmetrics))
            body.extend(samples)
    body.append(more)
    if openmetrics:
        body.append(b"# EOF\n")
    return b"".join(body)


def _header(metric: Metric, openmetrics: bool) -> bytes:
    """HELP and TYPE. OpenMetrics names a counter's family without ``_total``, and escapes quotes in HELP."""
    name, text = metric.full_name, metric.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
        name = name.removesuffix("_total") if metric.kind is Kind.COUNTER else name
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind.value}\n".encode()
