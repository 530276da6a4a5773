"""What we say about a target and its engines: immutable values that every page, metric and log line is drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Literal, NamedTuple

from vllm_vitals.core.lora import Lora
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.states import State


class Role(StrEnum):
    """What work an engine does, from config or inferred from its finishes."""

    SERVE = "serve"
    PREFILL = "prefill"
    DECODE = "decode"
    POOLING = "pooling"


class Reading(NamedTuple):
    """A derived number: a value with optional bounds, or absent, or invalid, and why."""

    value: float | None
    lower: float | None = None
    upper: float | None = None
    status: Literal["value", "absent", "invalid"] = "value"
    why: str = ""


def absent(why: str) -> Reading:
    """Return a number that cannot be known now, and the reason a person would want to read."""
    return Reading(None, status="absent", why=why)


def invalid(why: str) -> Reading:
    """Return a number that was there but cannot be true."""
    return Reading(None, status="invalid", why=why)


def checked(readings: dict[str, Reading]) -> dict[str, Reading]:
    """Return the same without numbers that are not finite: everything after this may count and format them.

    A bound may be infinite (above the last bucket), a value may not.
    """
    odd = [
        name
        for name, (value, lower, upper, _, _) in readings.items()
        if (value is not None and not isfinite(value)) or lower != lower or upper != upper  # noqa: PLR0124 - NaN
    ]
    return {**readings, **{name: _possible(readings[name]) for name in odd}} if odd else readings


def _possible(reading: Reading) -> Reading:
    value, lower, upper, _, why = reading
    if value is not None and not isfinite(value):
        return invalid(why or "the numbers that it comes from cannot be true")
    if lower != lower or upper != upper:  # noqa: PLR0124 - NaN
        return Reading(value, why=why) if value is not None else invalid(why or "its bounds are no numbers")
    return reading


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of proof for the state: what was measured, and the threshold it is judged by."""

    text: str
    value: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do. ``when`` is now (no restart) or restart (one knob). ``size`` says how far, with its arithmetic."""

    symptom: str
    when: Literal["now", "restart"]
    knob: str
    direction: Literal["up", "down", "set", "do"]
    size: str
    watch: str
    cost: str


@dataclass(frozen=True, slots=True)
class Followed:
    """What was seen to be done about evictions, since when (epoch s), and what became of them.

    ``word`` is one of `follow_up`'s: worked, draining, no effect.
    """

    since: float
    what: str
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What cannot be true together: the check's name (a key of `contradictions.CHECKS`), and a sentence."""

    check: str
    text: str


@dataclass(frozen=True, slots=True)
class EngineKey:
    """The identity of what is judged."""

    target: str
    model_name: str
    engine: str


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Everything known about one engine after a poll.

    ``at`` is when its last good sample was taken (epoch s); ``readings`` is keyed by the catalogue's name without the
    namespace, with ``.inter_token`` appended for the second source. ``unknown`` says what cannot be known and why.
    """

    key: EngineKey
    state: State
    since: float
    at: float | None
    role: Role = Role.SERVE
    sample: EngineSample | None = None
    readings: Mapping[str, Reading] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    unknown: tuple[str, ...] = ()
    state_seconds: Mapping[State, float] = field(default_factory=dict)
    death_spirals: int = 0
    window_s: float | None = None
    contradictions: tuple[Contradiction, ...] = ()
    followed: Followed | None = None


@dataclass(frozen=True, slots=True)
class Scrape:
    """One attempt to read a target: a body, or the reason why there is none.

    ``reason`` is one of `SCRAPE_ERRORS`, empty on success; ``detail`` is one line for a person.
    """

    at: float
    duration_s: float
    body: bytes | None
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Canary:
    """One canary request: when it was sent (epoch s), how long it took (s), how it ended, why, and its size.

    ``prompt_tokens`` and ``output_tokens`` are what the answer's ``usage`` says, None where it has none.
    """

    sent_at: float
    took_s: float
    outcome: Literal["ok", "timeout", "error"]
    detail: str = ""
    prompt_tokens: float | None = None
    output_tokens: float | None = None


# The closed set of reasons. Those in DOWN_REASONS mean nothing answered; those in OUR_REASONS are ours (our own limits
# kept us from looking) and prove nothing about the server; all others mean that something answered.
SCRAPE_ERRORS = (
    "refused", "dns", "unreachable", "timeout", "tls", "unauthorized", "not_found", "unavailable", "http_error",
    "redirect", "not_metrics", "no_vllm_metrics", "empty", "too_large", "too_many_series", "truncated", "encoding",
    "malformed", "duplicate", "protocol", "over_budget", "impaired",
)  # fmt: skip
DOWN_REASONS = frozenset({"refused", "dns", "unreachable"})
# How a server that loads its model may answer; any other reason shows a server that runs.
STARTING_REASONS = DOWN_REASONS | {"timeout", "unavailable"}
OUR_REASONS = frozenset({"over_budget", "impaired"})


@dataclass(frozen=True, slots=True)
class TargetSnapshot:
    """One target after a poll: whether it answers, and its engines, worst first.

    A target never yet seen has ``up`` False and one engine without a name, so that it shows. ``canary`` is the last
    one's result, ``canaries`` counts them by outcome; without canaries None and empty.
    """

    target: str
    up: bool
    at: float
    duration_s: float
    last_scrape_at: float | None = None
    reason: str = ""
    detail: str = ""
    errors: Mapping[str, int] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)
    dialect: str = ""
    version: str = ""
    unknown_families: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    engines: tuple[EngineSnapshot, ...] = ()
    canary: Canary | None = None
    canaries: Mapping[str, int] = field(default_factory=dict)
    lora: Lora | None = None
    contradictions: tuple[Contradiction, ...] = ()
