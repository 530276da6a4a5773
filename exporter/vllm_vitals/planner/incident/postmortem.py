"""What is written about incidents: one document, as JSON, and drawn by templates as Markdown and HTML.

Input: servers' pasts. Output: plain values, text. Invariant: every figure is the judge's own or a difference of
counters; what was not kept, or cannot be told from samples, is said.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined

from vllm_vitals.core.snapshot import EngineKey
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.planner.incident.beside import Fact
from vllm_vitals.planner.incident.episodes import LEAD_S, READINGS, Change, Incident, Moment
from vllm_vitals.planner.incident.past import COARSE_S, Past
from vllm_vitals.planner.incident.rule_margin import margins
from vllm_vitals.planner.review.render_text import escape
from vllm_vitals.serve.views import duration, finite, quantity

SCHEMA = 1
CALLED = {
    "ttft_p99_seconds": "time to first token, p99",
    "tpot_p99_seconds": "time per output token, p99",
    "tpot_p99_seconds.inter_token": "inter-token latency, p99",
    "useful_tokens_per_second": "useful tokens",
    "abandoned_requests_per_second": "abandoned requests, estimate",
    "preemptions_per_second": "preemptions",
    "recompute_tax_ratio": "recompute tax",
    "kv_cache_usage_max_ratio": "KV usage, max",
    "prefix_cache_hit_ratio": "prefix-cache hits",
    "prompt_tokens_mean": "prompt length, mean",
    "output_tokens_mean": "output length, mean",
    "truncated_ratio": "truncated at cap",
}
FELT = ("ttft_p99_seconds", "tpot_p99_seconds", "tpot_p99_seconds.inter_token", "useful_tokens_per_second",
        "abandoned_requests_per_second", "truncated_ratio")  # fmt: skip
COUNTED = {"completions": "finished", "errors": "failed", "aborts": "aborted", "preemptions": "preempted"}
MAX_LISTED = 200


def document(
    pasts: Sequence[Past],
    chosen: Iterable[Incident],
    start: float,
    end: float,
    source: str,
    at: float | None,
    limits: Thresholds | None = None,
    beside: Callable[[Incident], Sequence[Fact]] = lambda _: (),
) -> dict[str, Any]:
    """Return everything that there is to say, the worst incident first.

    ``at``: the moment that was asked for; ``beside``: what else changed in an incident's minutes.
    """
    found = sorted(chosen, key=lambda i: (i.state.rank, i.start, i.key.target))
    return {
        "schema": SCHEMA,
        "source": source,
        "from": start,
        "to": end,
        "at": at,
        "servers": len(pasts),
        "judged": sum(past.judged for past in pasts),
        "engines": sum(len(past.episodes.runs) for past in pasts),
        "incidents": [
            {**_incident(each, limits or Thresholds()), "beside": [asdict(fact) for fact in beside(each)]}
            for each in found[:MAX_LISTED]
        ],
        "left_out": max(0, len(found) - MAX_LISTED) + sum(past.episodes.dropped for past in pasts),
        "states_at": [] if at is None else _states(pasts, at),
        "not_known": _not_known(pasts),
    }


def _states(pasts: Sequence[Past], at: float) -> list[dict[str, Any]]:
    """Return the state that each engine was in at a moment: that of the last scrape before it."""
    found = []
    for past in pasts:
        for key, runs in past.episodes.runs.items():
            for _, last, state in [run for run in runs if run[0] <= at][-1:]:
                found.append({**_engine(key), "state": state.value, "label": state.spec.label, "last_scrape": last})
    return sorted(found, key=lambda each: str(each["target"]))


def _engine(key: EngineKey) -> dict[str, str]:
    return {"target": key.target, "model_name": key.model_name, "engine": key.engine}


def _incident(incident: Incident, limits: Thresholds) -> dict[str, Any]:
    worst, spec = incident.worst, incident.state.spec
    return {
        **_engine(incident.key),
        "state": incident.state.value,
        "label": spec.label,
        "headline": spec.headline,
        "severity": spec.severity,
        "harm": spec.harm,
        "pages_at": next((each.at for each in incident.changes if each.state and each.state.spec.pages), None),
        "start": incident.start,
        "end": incident.end,
        "open": incident.open,
        "worst_at": incident.peak.at if incident.peak else incident.start,
        "problem": incident.problem,
        "changes": [_change(each) for each in incident.changes],
        "lead": [_change(each) for each in incident.lead],
        "evidence": [
            {"text": e.text, "value": finite(e.value), "limit": finite(e.threshold)} for e in worst.evidence
        ],
        "advice": [
            {"when": a.when, "knob": a.knob, "direction": a.direction, "size": a.size, "watch": a.watch, "cost": a.cost}
            for a in worst.advice
        ],
        "margins": [asdict(each) for each in margins(incident, limits)],
        "counts": {COUNTED[name]: count for name, count in incident.counts.items()},
        "before_at": before.at if (before := _before(incident)) else None,
        "figures": _figures(incident),
        "not_known": [*worst.unknown, *(found.text for found in worst.contradictions)],
    }  # fmt: skip


def _change(change: Change) -> dict[str, Any]:
    return {"at": change.at, "text": change.text, "state": change.state and change.state.value, "proof": change.proof}


def _figures(incident: Incident) -> list[dict[str, Any]]:
    """Return rows of before, onset and worst."""
    before = _before(incident)
    moments = {"before": before, "onset": incident.onset, "worst": incident.peak}
    rows = [("requests running", "", "running"), ("requests waiting", "", "waiting")]
    figures = [
        {"name": name, "unit": unit, "felt": False,
         **{when: each and finite(getattr(each, field)) for when, each in moments.items()}}
        for name, unit, field in rows
    ]  # fmt: skip
    figures.append(
        {"name": "arrivals", "unit": "/s", "felt": False, "before": _arrivals(incident.before[:4]),
         "onset": _arrivals([*incident.before[-3:], incident.onset]), "worst": None}
    )  # fmt: skip
    for name, unit in READINGS.items():
        values = {when: each and finite(each.values[name]) for when, each in moments.items()}
        figures.append({"name": CALLED[name], "unit": unit, "felt": name in FELT, **values})
    return [row for row in figures if any(row[when] is not None for when in moments)]


def _before(incident: Incident) -> Moment | None:
    """Return the last moment that lies ten minutes before the onset; the middle one where less is known."""
    early = [each for each in incident.before if each.at <= incident.start - LEAD_S]
    if early:
        return early[-1]
    return incident.before[len(incident.before) // 2] if incident.before else None


def _arrivals(moments: Sequence[Moment]) -> float | None:
    """Return requests that arrived a second, from what finished and what was present; vLLM counts no arrivals."""
    known = [(each.at, each.arrived) for each in moments if each.arrived is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    (first, old), (last, new) = known[0], known[-1]
    return (new - old) / (last - first) if new >= old else None


def _not_known(pasts: Sequence[Past]) -> list[str]:
    """Return what this Prometheus does not hold, each said once with the servers that lack it."""
    lacking: dict[str, list[str]] = {}
    for past in pasts:
        kept, name = past.kept, past.server.name
        if not past.judged:
            continue
        if past.error:
            lacking.setdefault(f"could not be read to the end: {past.error}", []).append(name)
        elif not kept.scrapes:
            lacking.setdefault("no sample in the period", []).append(name)
            continue
        if absent := kept.lacking:
            lacking.setdefault(f"not kept, so not judged by: {', '.join(absent)}", []).append(name)
        if kept.scrapes and not kept.up:
            lacking.setdefault("up is not kept: a failed scrape looks like none", []).append(name)
        if kept.failed:
            text = "why scrapes failed is not kept: a fast failure is taken for down, a slow one for blind"
            lacking.setdefault(text, []).append(name)
        if kept.interval > COARSE_S:
            text = f"scraped every {duration(kept.interval)}: states that last less than four scrapes cannot be seen"
            lacking.setdefault(text, []).append(name)
    found = [f"{text} ({_some(names, len(pasts))})" for text, names in lacking.items()]
    return [*found, "start-up logs, canaries and the server's version are not in a Prometheus"]


def _some(names: Sequence[str], of: int) -> str:
    if len(names) == of > 1:
        return f"all {of} servers"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# ---------------------------------------------------------------- drawing


def json(found: Mapping[str, Any]) -> str:
    """Return the document as JSON."""
    return orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n"


def markdown(found: Mapping[str, Any]) -> str:
    """Return the document as Markdown."""
    return _draw("incident.md.j2", found, html=False).rstrip() + "\n"


def html(found: Mapping[str, Any]) -> str:
    """Return the document as one HTML file: no script, no network."""
    return _draw("incident.html.j2", found, html=True)


def _draw(template: str, found: Mapping[str, Any], html: bool) -> str:
    environment = Environment(
        loader=PackageLoader("vllm_vitals.planner"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=html,  # noqa: S701 - Markdown: foreign text goes through `text`
    )  # fmt: skip
    environment.filters.update(
        text=escape, when=when, clock=clock, lasted=lasted, quantity=quantity, who=who, plain=plain
    )
    return environment.get_template(template).render(r=found)


def plain(value: float) -> str:
    """Return a number with three significant figures."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def who(engine: Mapping[str, str]) -> str:
    """Name an engine in one line."""
    parts = (engine["target"], engine["model_name"], f"engine {engine['engine']}" if engine["engine"] else "")
    return " ".join(part for part in parts if part)


def when(at: float) -> str:
    """Return a time as day and clock (UTC)."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def lasted(incident: Mapping[str, Any]) -> str:
    """Return how long an incident lasted, from its first to its last scrape."""
    seconds = round(incident["end"] - incident["start"])
    text = f"{seconds // 60} min {seconds % 60} s" if 60 <= seconds < 3600 else duration(seconds)
    return f"{text}, still in it at the last scrape" if incident["open"] else text


def clock(at: float) -> str:
    """Return a time of day (UTC)."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
