"""Snapshots as plain values: the JSON of `/api/v1/engines` and `check --json`, and numbers as a person reads them.

Input: snapshots. Output: dicts of JSON scalars. Invariant: a number that is absent or invalid is null with its reason
in ``absent``; nothing here holds an address's credentials, since snapshots hold none.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from vllm_vitals.core.render import waiting_by_reason
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import EngineSnapshot, Followed, Reading, TargetSnapshot

if TYPE_CHECKING:
    from vllm_vitals.logs.server_complaints import Complaint

SCHEMA = 1  # of this JSON: docs/check.schema.json; names are added under it, never changed

# Readings that are shown with their bounds, and what those are called.
_BOUNDED = {
    **{
        name: (f"{name}_lower", f"{name}_upper")
        for name in ("tpot_p50_seconds", "tpot_p99_seconds", "tpot_p99_p50_ratio", "ttft_p99_seconds")
    },
    **{
        f"{name}.inter_token": (f"{name}_inter_token_lower", f"{name}_inter_token_upper")
        for name in ("tpot_p50_seconds", "tpot_p99_seconds", "tpot_p99_p50_ratio")
    },
    "recompute_tax_ratio": ("recompute_tax_lower_ratio", "recompute_tax_upper_ratio"),
}


def finite(value: float | None) -> float | None:
    """Return a JSON number, or null."""
    return value if value is not None and isfinite(value) else None


def sample_values(sample: EngineSample | None) -> dict[str, Any]:
    """Return what the server exposes, by the catalogue's names."""
    known = sample or EngineSample()
    return {
        "requests_running": finite(known.running),
        "requests_waiting": finite(known.waiting),
        "requests_waiting_by_reason": dict(waiting_by_reason(known)),
        "kv_cache_usage_ratio": finite(known.kv_usage),
        "kv_cache_capacity_tokens": finite(known.kv_capacity_tokens),
        "preemptions_total": finite(known.preemptions),
        "prompt_tokens_total": finite(known.prompt_tokens),
        "prompt_tokens_computed_total": finite(known.prompt_tokens_computed),
        "generation_tokens_total": finite(known.generation_tokens),
        "responses_total": None if known.responses is None else dict(known.responses),
        "prefix_cache_queries_total": finite(known.prefix_cache_queries),
        "prefix_cache_hits_total": finite(known.prefix_cache_hits),
    }


def reading_values(readings: Mapping[str, Reading], names: Iterable[str]) -> dict[str, float | None]:
    """Return readings by name, null where absent; those with bounds add ``_lower`` and ``_upper``."""
    values: dict[str, float | None] = {}
    for name in names:
        reading = readings.get(name) or Reading(None)
        values[name.replace(".", "_")] = finite(reading.value)
        for bound, value in zip(_BOUNDED.get(name, ()), (reading.lower, reading.upper), strict=False):
            values[bound] = finite(value)
    return values


def engine(snapshot: EngineSnapshot, now: float, skew: float = 0.0) -> dict[str, Any]:
    """Return one engine. ``now`` is our time of reading, for ages."""
    return {
        "target": snapshot.key.target,
        "model_name": snapshot.key.model_name,
        "engine": snapshot.key.engine,
        "state": snapshot.state.value,
        "severity": snapshot.state.severity,
        "since": snapshot.since + skew if snapshot.since else None,
        "for_seconds": round(now - snapshot.since, 3) if snapshot.since else None,
        "sample_age_seconds": round(now - snapshot.at, 3) if snapshot.at is not None else None,
        "window_seconds": finite(snapshot.window_s),
        "role": snapshot.role.value,
        "evidence": [
            {"text": e.text, "value": finite(e.value), "limit": finite(e.threshold)} for e in snapshot.evidence
        ],
        "advice": [
            {
                "symptom": a.symptom, "when": a.when, "knob": a.knob, "direction": a.direction, "size": a.size,
                "watch": a.watch, "cost": a.cost,
            }
            for a in snapshot.advice
        ],
        "followed": followed(snapshot.followed, skew),
        "unknown": list(snapshot.unknown),
        "contradictions": [{"check": c.check, "text": c.text} for c in snapshot.contradictions],
        "absent": {name: r.why for name, r in sorted(snapshot.readings.items()) if r.value is None},
        "values": {**sample_values(snapshot.sample), **reading_values(snapshot.readings, sorted(snapshot.readings))},
        "death_spirals_total": snapshot.death_spirals,
    }  # fmt: skip


def followed(found: Followed | None, skew: float = 0.0) -> dict[str, Any] | None:
    """Return what became of what was done, or null."""
    if found is None:
        return None
    return {"since": found.since + skew, "what": found.what, "result": found.word, "text": found.text}


def since(found: Followed) -> str:
    """Return what became of what was done, with its time (UTC)."""
    at = datetime.fromtimestamp(found.since, UTC).strftime("%H:%M:%S")
    return f"since {at} UTC ({found.what}): {found.text}"


def target(snapshot: TargetSnapshot, now: float, skew: float = 0.0) -> dict[str, Any]:
    """Return one target with its engines, worst first."""
    return {
        "target": snapshot.target,
        "up": snapshot.up,
        "reason": snapshot.reason,
        "detail": snapshot.detail,
        "last_scrape": snapshot.last_scrape_at + skew if snapshot.last_scrape_at is not None else None,
        "scrape_age_seconds": round(now - snapshot.last_scrape_at, 3) if snapshot.last_scrape_at is not None else None,
        "scrape_duration_seconds": round(snapshot.duration_s, 6),
        "version": snapshot.version,
        "dialect": snapshot.dialect,
        "settings": dict(snapshot.settings),
        "contradictions": [{"check": c.check, "text": c.text} for c in snapshot.contradictions],
        "engines": [engine(item, now, skew) for item in snapshot.engines],
    }


def complaints(said: "Iterable[Complaint] | None") -> dict[str, Any]:
    """Return the errors of a target's log; nothing where no log of it is read."""
    if said is None:
        return {}
    return {"log_errors": [{"at": each.at, "kind": each.kind, "text": visible(each.text)} for each in said]}


def target_or_fault(snapshot: TargetSnapshot, now: float, skew: float = 0.0) -> dict[str, Any]:
    """Return the same; what cannot be told of one target costs no other its own."""
    try:
        return target(snapshot, now, skew)
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:
        why = f"a bug in vllm-vitals: its numbers cannot be shown ({type(error).__name__})"
        return {"target": snapshot.target, "up": snapshot.up, "reason": snapshot.reason, "detail": why, "engines": []}


def worst_first(snapshots: Iterable[TargetSnapshot]) -> list[TargetSnapshot]:
    """Targets by their worst engine, then by name."""
    return sorted(snapshots, key=lambda s: (min((e.state.rank for e in s.engines), default=99), s.target))


def visible(text: str) -> str:
    """Return a text with what cannot be seen written out: escapes, controls, marks that turn the order of letters."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() or ch in "\n\t" else ch.encode("unicode_escape").decode() for ch in text)


def duration(seconds: float) -> str:
    """Return a duration in words: 45 s, 12 min, 3 h 20 min, 2 d 4 h."""
    if not isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 100:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def quantity(value: float | None, unit: str = "") -> str:
    """Return a number with three significant figures and its unit, ungrouped as in evidence; a dash if absent."""
    if value is None or not isfinite(value):
        return "–"
    if unit == "ratio":
        return f"{value * 100:.3g} %" if value < 10 else f"{value * 100:.0f} %"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    text = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
