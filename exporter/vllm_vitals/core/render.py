"""Snapshots as Prometheus text, rendered once a poll and only joined at a scrape.

Input: a `TargetSnapshot` after each poll. Output: per family the bytes of its samples, which `join` puts under their
HELP and TYPE in the catalogue's order, as text 0.0.4 or OpenMetrics. Invariant: what is absent has no series, a value
is always finite, and two engines never share a label set.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import isfinite
from operator import attrgetter
from typing import Literal

from vllm_vitals import catalog
from vllm_vitals.catalog import BY_NAME, METRICS, Kind, Metric
from vllm_vitals.core.contradictions import CHECKS
from vllm_vitals.core.lora import Lora
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.series_block import Row, SampleLines, SeriesBlock, label_text, plain
from vllm_vitals.core.snapshot import SCRAPE_ERRORS, EngineKey, EngineSnapshot, Reading, TargetSnapshot
from vllm_vitals.core.states import State

Families = Mapping[str, bytes]
Histograms = Literal["all", "latency", "none"]
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MAX_SETTINGS = 100

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
_PLAIN = tuple(
    metric.name
    for metric in catalog.DERIVED
    if metric.kind is Kind.GAUGE and not metric.labels and metric.scope == catalog.ENGINE_LABELS
)
_JUDGED = tuple(metric.name for metric in catalog.NORMALISED if metric.kind is Kind.HISTOGRAM)
_HISTOGRAMS = _JUDGED + tuple(metric.name for metric in catalog.DETAILS if metric.kind is Kind.HISTOGRAM)
_LATENCY = tuple(name for name in _JUDGED if name.endswith("_seconds"))
_SHOWN: Mapping[Histograms, tuple[str, ...]] = {"all": _HISTOGRAMS, "latency": _LATENCY, "none": ()}


def _each(name: str, labels: Iterable[str]) -> tuple[Row, ...]:
    return tuple((name, label) for label in labels)


def _bounds(name: str, *labels: str) -> tuple[Row, ...]:
    return tuple((name, *labels, bound) for bound in catalog.BOUNDS)


# The rows that every page has, made once.
_SAMPLE_ROWS, _sample_values = tuple((name,) for name in _FROM_SAMPLE), attrgetter(*_FROM_SAMPLE.values())
_PLAIN_ROWS = tuple((name,) for name in _PLAIN)
_TAX_ROWS = (("recompute_tax_lower_ratio",), ("recompute_tax_upper_ratio",))
_STATE_ROWS, _STATE_SECONDS_ROWS = _each("state", State), _each("state_seconds_total", State)
_CHECK_ROWS = _each("contradictions", CHECKS)
_ERROR_ROWS = _each("scrape_errors_total", SCRAPE_ERRORS)
_STATES: Mapping[State, tuple[float, ...]] = {now: tuple(int(state is now) for state in State) for now in State}
# (name of a reading, the rows of its value and bounds)
_BOUNDED: tuple[tuple[str, tuple[Row, ...]], ...] = (
    *(
        (f"{name}{suffix}", _bounds(name, source))
        for name in ("tpot_p50_seconds", "tpot_p99_seconds", "tpot_p99_p50_ratio")
        for source, suffix in (("request", ""), ("inter_token", ".inter_token"))
    ),
    ("ttft_p99_seconds", _bounds("ttft_p99_seconds")),
)


class TargetRenderer:
    """Renders one target's snapshots. It keeps the text around the values, and whole histograms while they are."""

    def __init__(
        self, labels: Mapping[str, str] | None = None, histograms: Histograms = "all", service_class: str = ""
    ) -> None:
        self._extra, self._service_class = labels or {}, service_class
        self._shown = _SHOWN[histograms]
        self._settings: tuple[Mapping[str, str], SampleLines] = ({}, SampleLines())
        self._sheets: dict[EngineKey | str, SeriesBlock] = {}
        self._details: dict[EngineKey, tuple[object, SampleLines]] = {}  # kept while they are the same object

    def render(self, snapshot: TargetSnapshot, skew: float = 0.0) -> Families:
        """Render bytes by family. ``skew`` is added to every timestamp (see `vllm_vitals.clock`)."""
        sheets: dict[EngineKey | str, SeriesBlock] = {}
        parts: dict[str, list[bytes]] = {}

        def put(key: EngineKey | str, labels: Mapping[str, str], lines: SampleLines) -> SeriesBlock:
            sheet = sheets[key] = self._sheets.get(key) or SeriesBlock(label_text({**labels, **self._extra}))
            for family, text in sheet.render(lines):
                parts.setdefault(family, []).append(text)
            return sheet

        put(snapshot.target, {"target": snapshot.target}, self._target(snapshot, skew))
        details: dict[EngineKey, tuple[object, SampleLines]] = {}
        # one number a server, which every engine's sample repeats
        first = min((e.key for e in snapshot.engines if e.sample is not None), key=_order, default=None)
        for engine in snapshot.engines:
            key, lines = engine.key, _engine(engine, skew)
            if engine.sample is not None and engine.sample.details:
                known = self._details.get(key)
                if known is None or known[0] is not engine.sample.details:
                    known = engine.sample.details, _details(engine.sample.details)
                details[key] = known
                lines.put(known[1].rows, known[1].values)
            if engine.sample is not None and key == first:
                lines.add(engine.sample.rejections, "rejected_requests_total")
            names = {"target": key.target, "model_name": key.model_name, "engine": key.engine}
            sheet = put(key, names, lines)
            histograms = {} if engine.sample is None else engine.sample.histograms
            for name in self._shown:
                if (histogram := histograms.get(name)) is not None:
                    parts.setdefault(name, []).append(sheet.histogram(name, histogram))
        self._sheets, self._details = sheets, details
        return {name: b"".join(texts) for name, texts in parts.items()}

    def _target(self, snapshot: TargetSnapshot, skew: float) -> SampleLines:
        lines = SampleLines()
        add = lines.add
        add(float(snapshot.up), "target_up")
        if self._service_class:
            add(1.0, "target_service_class", self._service_class)
        if snapshot.last_scrape_at is not None:
            add(round(snapshot.last_scrape_at + skew, 3), "last_scrape_timestamp_seconds")
        add(round(snapshot.duration_s, 6), "scrape_duration_seconds")
        lines.put(_ERROR_ROWS, [snapshot.errors.get(reason, 0) for reason in SCRAPE_ERRORS])
        if snapshot.up:
            found = Counter(contradiction.check for contradiction in snapshot.contradictions)
            lines.put(_CHECK_ROWS, [found[check] for check in CHECKS])
        for outcome, count in snapshot.canaries.items():
            add(count, "canary_requests_total", outcome)
        if snapshot.canary is not None:
            add(round(snapshot.canary.took_s, 6), "canary_duration_seconds")
        for family, count in snapshot.invalid.items():
            add(count, "invalid_samples_total", family)
        if snapshot.dialect:
            add(len(snapshot.unknown_families), "unknown_vllm_families")
            add(1.0, "server_info", snapshot.version, snapshot.dialect)
        if snapshot.lora is not None:
            _lora(lines, snapshot.lora)
        if snapshot.settings != self._settings[0]:
            self._settings = (snapshot.settings, _settings(snapshot.settings))
        lines.put(self._settings[1].rows, self._settings[1].values)
        return lines


def _lora(lines: SampleLines, lora: Lora) -> None:
    lines.add(lora.slots, "lora_slots")
    for status, count, names in (
        ("running", lora.running, lora.running_names),
        ("waiting", lora.waiting, lora.waiting_names),
    ):
        lines.add(count, "lora_adapters", status)
        for adapter in names:
            lines.add(1.0, "lora_adapter", adapter, status)


def _settings(settings: Mapping[str, str]) -> SampleLines:
    lines = SampleLines()
    for name, value in islice(settings.items(), MAX_SETTINGS):
        lines.add(_numeric(value), "server_setting", name)
    return lines


def _order(key: EngineKey) -> tuple[str, str]:
    return key.model_name, key.engine


def _engine(engine: EngineSnapshot, skew: float) -> SampleLines:
    lines = SampleLines()
    add, held = lines.add, engine.state_seconds
    lines.put(_STATE_ROWS, _STATES[engine.state])
    lines.put(_STATE_SECONDS_ROWS, [plain(round(held[state], 3)) if state in held else 0 for state in State])
    if engine.since:
        add(round(engine.since + skew, 3), "state_since_timestamp_seconds")
    add(engine.death_spirals, "death_spirals_total")
    add(engine.window_s, "window_seconds")
    for knob, direction in dict.fromkeys((advice.knob, advice.direction) for advice in engine.advice):
        add(1.0, "advice", knob, direction)
    if engine.sample is not None:
        _sample(lines, engine.sample)
    if engine.readings:
        _readings(lines, engine.readings)
    return lines


def _sample(lines: SampleLines, sample: EngineSample) -> None:
    lines.fill(_SAMPLE_ROWS, _sample_values(sample))
    for reason, count in waiting_by_reason(sample).items():
        lines.add(count, "requests_waiting", reason)
    for reason, count in (sample.responses or {}).items():
        lines.add(count, "responses_total", reason)


def _details(details: Mapping[str, Mapping[tuple[str, ...], float]]) -> SampleLines:
    lines = SampleLines()
    for name, parts in details.items():
        for labels, value in parts.items():
            lines.add(value, name, *labels)
    return lines


def _readings(lines: SampleLines, readings: Mapping[str, Reading]) -> None:
    lines.fill(_PLAIN_ROWS, (readings[name].value if name in readings else None for name in _PLAIN))
    if tax := readings.get("recompute_tax_ratio"):
        lines.fill(_TAX_ROWS, (tax.lower, tax.upper))
    for name, rows in _BOUNDED:
        if reading := readings.get(name):
            lines.fill(rows, (reading.value, reading.lower, reading.upper))


def waiting_by_reason(sample: EngineSample) -> Mapping[str, float]:
    """Give waiting requests by reason; ``unsplit`` where vLLM (before 0.20) does not say why they wait."""
    if sample.waiting_by_reason or sample.waiting is None:
        return sample.waiting_by_reason
    return {"unsplit": sample.waiting}


def _numeric(value: str) -> float | None:
    """Read a setting as a number, where it is one."""
    try:
        return float(value) if value.isascii() and "_" not in value else None
    except ValueError:
        return None


def render_samples(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> Families:
    """Make families from (name, labels, value) triples, for what is not about a target."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in samples:
        if isfinite(value):
            braces = f"{{{label_text(labels)}}}" if labels else ""
            lines.setdefault(name, []).append(f"{BY_NAME[name].full_name}{braces} {plain(value)!r}\n")
    return {name: "".join(parts).encode(errors="replace") for name, parts in lines.items()}


def join(parts: Iterable[Families], openmetrics: bool = False, more: bytes = b"") -> bytes:
    """Join every family once, in the catalogue's order; ``more`` is other text in the same format."""
    return b"".join(pieces(parts, openmetrics, more))


def pieces(parts: Iterable[Families], openmetrics: bool = False, more: bytes = b"") -> Iterator[bytes]:
    """Yield the same one family at a time: a page of a thousand engines is never whole in memory twice."""
    samples = _by_family(parts)
    for metric in METRICS:
        if metric.name in samples:
            yield b"".join((_header(metric, openmetrics), *samples[metric.name]))
    yield more + (b"# EOF\n" if openmetrics else b"")


def _by_family(parts: Iterable[Families]) -> dict[str, list[bytes]]:
    """Gather each family's samples. Most parts have the same families: those are turned at the speed of C."""
    alike: dict[tuple[str, ...], list[Families]] = {}
    for part in parts:
        alike.setdefault(tuple(part), []).append(part)
    samples: dict[str, list[bytes]] = {}
    for names, group in alike.items():
        for name, texts in zip(names, zip(*(part.values() for part in group), strict=True), strict=True):
            samples.setdefault(name, []).extend(texts)
    return samples


def _header(metric: Metric, openmetrics: bool) -> bytes:
    """Write HELP and TYPE. OpenMetrics names a counter's family without ``_total``, and escapes quotes in HELP."""
    name, text = metric.full_name, metric.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
        name = name.removesuffix("_total") if metric.kind is Kind.COUNTER else name
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind.value}\n".encode()
