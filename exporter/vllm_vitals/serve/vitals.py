"""The numbers of an engine that people need first, as text: on the page and in a terminal.

Input: an engine's snapshot. Output: `Vital`s in their order. Invariant: an absent number is a dash.
"""

from dataclasses import dataclass

from vllm_vitals.core.snapshot import EngineSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.serve import views
from vllm_vitals.terms import anchor, term_of

# What finished before says nothing of how long these queues last.
_STANDS_STILL = (State.DOWN, State.STALLED, State.PAUSED, State.ASLEEP)


@dataclass(frozen=True, slots=True)
class Vital:
    """One number: its name, its value as text, what the bounds or the source add, and how full its bar is (0-1)."""

    name: str
    text: str
    note: str = ""
    share: float | None = None

    @property
    def about(self) -> str:
        """Where the glossary explains it; empty where nothing is to be explained."""
        term = term_of(self.name)
        return f"glossary#{anchor(term)}" if term else ""


def vitals(engine: EngineSnapshot) -> list[Vital]:
    """Return the numbers that people need first, in that order."""
    sample = engine.sample
    if sample is None:
        return []
    kv, waiting = engine.readings.get("kv_cache_usage_max_ratio"), sample.waiting
    usage = kv.value if kv is not None and kv.value is not None else sample.kv_usage
    return [
        Vital("running", views.quantity(sample.running)),
        Vital("waiting", views.quantity(waiting), _wait(engine)),
        Vital("KV cache, max", views.quantity(usage, "ratio"), _capacity(sample.kv_capacity_tokens), usage),
        _vital(engine, "preemptions", "preemptions_per_second", "/s"),
        _vital(engine, "preemptions per finish", "preemptions_per_completion"),
        _vital(engine, "recomputed work", "recompute_tax_ratio", "ratio"),
        _tpot(engine, "TPOT p50", "tpot_p50_seconds"),
        _tpot(engine, "TPOT p99", "tpot_p99_seconds"),
        _vital(engine, "first token p99", "ttft_p99_seconds", "s"),
        _vital(engine, "truncated at cap", "truncated_ratio", "ratio"),
        _vital(engine, "useful tokens", "useful_tokens_per_second", "/s"),
        _vital(engine, "output length", "output_tokens_mean", "tokens"),
    ]


def _vital(engine: EngineSnapshot, name: str, reading_name: str, unit: str = "") -> Vital:
    reading = engine.readings.get(reading_name)
    if reading is None:
        return Vital(name, "–")
    if reading.value is None and reading.upper is not None:
        return Vital(name, f"< {views.quantity(reading.upper, unit)}", "below the first bucket's edge")
    if reading.value is None and reading.lower is not None:
        return Vital(name, f"> {views.quantity(reading.lower, unit)}", "above the last bucket's edge")
    bounds = ""
    if reading.lower is not None and reading.upper is not None and reading.lower != reading.upper:
        bounds = f"{views.quantity(reading.lower, unit)} to {views.quantity(reading.upper, unit)}"
    return Vital(name, views.quantity(reading.value, unit), bounds)


def _tpot(engine: EngineSnapshot, name: str, reading_name: str) -> Vital:
    """Per request where the server says it, else per gap, and then it says so."""
    request = _vital(engine, name, reading_name, "s")
    if request.text != "–":
        return request
    gaps = _vital(engine, name, f"{reading_name}.inter_token", "s")
    return gaps if gaps.text == "–" else Vital(name, gaps.text, f"{gaps.note} (between tokens)".strip())


def _wait(engine: EngineSnapshot) -> str:
    wait = engine.readings.get("expected_wait_seconds")
    if wait is None or not wait.value or engine.state in _STANDS_STILL:
        return ""
    return f"estimated queue wait: {views.duration(wait.value)}"


def _capacity(tokens: float | None) -> str:
    return "" if tokens is None else f"of {tokens:.0f} tokens"
