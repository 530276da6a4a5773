"""The verdict on a model: fine, watch or act, each with the numbers that it rests on.

Input: everything that was measured. Output: `Finding`s, worst first. Invariant: a finding says a number, where it comes
from and what to do; what could not be measured is itself a finding, never silence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Literal

from vllm_vitals.core.states import State
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.load import FULL
from vllm_vitals.planner.telemetry.grid import DAY
from vllm_vitals.planner.whatif.verified import MIXED, WORSE

if TYPE_CHECKING:
    from vllm_vitals.planner.review.report import ModelReview

Level = Literal["act", "watch", "fine"]
RANK: dict[Level, int] = {"act": 0, "watch": 1, "fine": 2}

# Each limit says where it comes from; the alerts use the same where they judge the same thing.
TAX_ACT, TAX_WATCH = 0.10, 0.02  # a thrash was measured at 0.19, productive preemption below 0.02
TRUNCATED_ACT, TRUNCATED_WATCH = 0.30, 0.05
PREEMPTING_WATCH = 0.05  # share of the time
BUDGET_WATCH = 0.25  # a quarter of the error budget left
SOON_DAYS, LATER_DAYS = 28, 91  # hardware takes weeks
SPARE_WATCH = 0.2  # share of all engine-hours that were not needed

_STATES = tuple((state, state.spec.incident) for state in State if state.spec.incident)


@dataclass(frozen=True, slots=True)
class Finding:
    """``topic`` names the section of the report that shows it."""

    level: Level
    topic: str
    text: str


def worst(findings: tuple[Finding, ...]) -> Level:
    """Return the worst level."""
    return min((finding.level for finding in findings), key=RANK.__getitem__, default="fine")


def findings(model: "ModelReview") -> tuple[Finding, ...]:
    """Everything worth saying, worst first."""
    checks = (
        _states,
        _objectives,
        _cache,
        _slots,
        _preemption,
        _truncation,
        _trends,
        _forecast,
        _money,
        _lengths,
        _settings,
    )
    found = [finding for check in checks for finding in check(model)]
    return tuple(sorted(found, key=lambda finding: RANK[finding.level])) or (
        Finding("fine", "verdict", "Nothing in this period needs action."),
    )


def _states(model: "ModelReview") -> Iterator[Finding]:
    for state, level in _STATES:
        count = sum(1 for incident in model.incidents if incident.worst is state)
        spent = model.state_minutes.get(state.value, 0.0)
        if count:
            yield Finding(
                level,
                "incidents",
                f"{spent:.1f} minutes {words.state(state.value)} in {count} incident{'s' if count > 1 else ''}.",
            )
    dark = model.state_minutes.get("not known", 0.0)
    total = sum(model.state_minutes.values())
    if total and dark / total >= 0.05:
        yield Finding(
            "watch",
            "incidents",
            f"The state is not known for {words.share(dark / total)} of the engine time: was something not scraped?",
        )


def _objectives(model: "ModelReview") -> Iterator[Finding]:
    for promise in model.promises:
        slo, got = promise.slo, promise.attained
        what = f"{slo.name}: {slo.indicator} within {slo.seconds:g} s for {words.share(slo.share)}"
        if promise.met is False:
            yield Finding(
                "act", "objectives", f"Objective missed. {what}, but only {words.share(got.upper or 0)} at best."
            )
        elif promise.met is None and got.lower is not None:
            yield Finding(
                "watch",
                "objectives",
                f"{what}: somewhere between {words.share(got.lower)} and {words.share(got.upper)}; {got.why}.",
            )
        elif promise.budget_left.lower is not None and promise.budget_left.lower < BUDGET_WATCH:
            yield Finding(
                "watch", "objectives", f"{what}: {words.share(promise.budget_left.lower)} of the error budget is left."
            )
        if promise.assumption == "broken":
            yield Finding(
                "watch",
                "objectives",
                f"{slo.name}: traffic left the lengths that it assumes ({promise.assumption_text}).",
            )
        elif promise.assumption == "not stated" and "means little" in promise.assumption_text:
            yield Finding("watch", "objectives", f"{slo.name}: {promise.assumption_text}.")


def _cache(model: "ModelReview") -> Iterator[Finding]:
    room = model.headroom
    if room.demand.p95 is not None and room.demand.p95 > 1:
        yield Finding(
            "act",
            "headroom",
            f"KV demand was above the cache ({words.share(room.demand.p95)} at p95): what waits would not fit. "
            "Fewer long requests, or more engines.",
        )
    elif room.kv.p95 is not None and room.kv.p95 >= FULL:
        yield Finding(
            "watch",
            "headroom",
            f"KV usage was at {words.share(room.kv.p95)} or more in one window of twenty: the next burst evicts.",
        )
    if room.kv.max is None:
        yield Finding("watch", "headroom", "KV usage is not known.")


def _slots(model: "ModelReview") -> Iterator[Finding]:
    advice = model.slots
    if advice.direction == "down" and advice.value is not None and _still_rose(model, advice.value):
        yield Finding(
            "watch", "settings",
            f"Evictions are frequent, yet throughput still grew beyond {advice.value} running: fewer max_num_seqs "
            "would only make requests wait. Try it with whatif before changing it.",
        )  # fmt: skip
    elif advice.direction in ("up", "down") and advice.value is not None:
        yield _tried(model, advice.value, advice.arithmetic)
    room, knee = model.headroom, model.knee
    if advice.direction == "keep" and knee.at is not None and room.slots is not None and room.slots > 2 * knee.at:
        yield Finding(
            "watch",
            "knee",
            f"max_num_seqs is {room.slots:.0f}, but throughput stops growing at about {knee.at:.0f} running: "
            "beyond it requests only get slower.",
        )


def _tried(model: "ModelReview", value: int, arithmetic: str) -> Finding:
    """Return the advice of so many max_num_seqs, as the simulated server judges it where there is one."""
    rows = () if model.whatif is None else model.whatif.rows
    row = next((r for r in rows if r.ours and r.knob == "max_num_seqs" and f"→ {value} " in r.setting), None)
    if model.whatif is None or row is None or row.verdict is None:
        return Finding("act", "settings", f"Set max_num_seqs to {value}: {arithmetic}.")
    best = model.whatif.first
    other = "" if not best or row.setting in best else f" Try {best} first."
    if row.verdict.word in (WORSE, MIXED):
        text = (
            f"max_num_seqs {value} would follow from the rule ({arithmetic}), but the simulated server gets worse by it"
        )
        return Finding("watch", "settings", f"{text} ({row.verdict}): leave it.{other}")
    said = f"the simulated server: {row.verdict.word}{f' ({row.verdict})' if str(row.verdict) else ''}"
    return Finding("act", "settings", f"Set max_num_seqs to {value}: {arithmetic}; {said}.{other}")


def _still_rose(model: "ModelReview", slots: int) -> bool:
    """Return whether more was done with more running than ``slots``."""
    judged = [band for band in model.knee.bands if band.judged]
    best = max(judged, key=lambda band: band.useful, default=None)
    return best is not None and best.running > 1.1 * slots


def _preemption(model: "ModelReview") -> Iterator[Finding]:
    evicted = model.preemption
    if evicted.tax is not None and evicted.tax >= TAX_WATCH:
        level: Level = "act" if evicted.tax >= TAX_ACT else "watch"
        yield Finding(
            level,
            "preemption",
            f"{words.share(evicted.tax)} of the work was done twice "
            f"(between {words.share(evicted.tax_lower or 0)} and {words.share(evicted.tax_upper or 0)}).",
        )
    elif evicted.share_of_time is not None and evicted.share_of_time >= PREEMPTING_WATCH:
        yield Finding(
            "watch",
            "preemption",
            f"Preemptions in {words.share(evicted.share_of_time)} of the time ({evicted.events:.0f} in all), "
            "at little cost so far.",
        )


def _truncation(model: "ModelReview") -> Iterator[Finding]:
    share = model.truncated_share
    if share is not None and share >= TRUNCATED_WATCH:
        level: Level = "act" if share >= TRUNCATED_ACT else "watch"
        advice = model.shape.max_tokens
        to = f" The lengths call for max_tokens {advice.low} to {advice.high}." if advice.low is not None else ""
        yield Finding(level, "truncation", f"{words.share(share)} of the responses were truncated at a cap.{to}")
    if model.reasoning_cut:
        yield Finding(
            "watch",
            "truncation",
            f"{model.reasoning_cut:.0f} responses were truncated inside their reasoning and hold no answer.",
        )


def _trends(model: "ModelReview") -> Iterator[Finding]:
    for trend in model.trends:
        if trend.verdict != "grows" or trend.reached is None or not trend.days:
            continue
        days = (trend.reached - trend.days[-1][0]) / DAY
        if days <= LATER_DAYS:
            level: Level = "act" if days <= SOON_DAYS else "watch"
            if days < 0.5:
                yield Finding("act", "trend", f"{trend.what}: at its limit already.")
                continue
            first = (trend.earliest - trend.days[-1][0]) / DAY if trend.earliest else days
            yield Finding(
                level,
                "trend",
                f"{trend.what}: reaches its limit in about {days:.0f} days ({first:.0f} at the earliest), "
                "if the trend continues.",
            )


def _forecast(model: "ModelReview") -> Iterator[Finding]:
    """Say when the engines that are there stop carrying the peak, where demand grows."""
    there = floor(model.money.engines + 1e-9)
    found = next((each for each in (model.forecast.suffices if model.forecast else ()) if each.engines == there), None)
    if model.forecast is None or found is None or found.until is None or not model.forecast.trend.days:
        return
    days = (found.until - model.forecast.trend.days[-1][0]) / DAY
    if days <= 0 or days > LATER_DAYS:
        return  # short already: the money says so
    bound = model.money.capacity is not None and model.money.capacity.bound
    when = words.until(found.until, found.earliest, found.latest)
    yield Finding(
        "act" if days <= SOON_DAYS and not bound else "watch",
        "trend",
        f"Demand grows by {words.growth(model.forecast.trend)} a week: the peak is carried by "
        f"{there} engine{'s' if there > 1 else ''} until about {when}, none spare"
        f"{'; an engine may carry more than was seen' if bound else ''}.",
    )


def _money(model: "ModelReview") -> Iterator[Finding]:
    bill = model.money
    if bill.engines_needed is not None and bill.engines and bill.engines_needed > bill.engines + 0.5:
        yield _short(model, bill.engines_needed)
    hours = model.traffic.engine_hours
    if bill.spare_engine_hours and hours and bill.spare_engine_hours / hours >= SPARE_WATCH:
        yield Finding(
            "watch",
            "capacity",
            f"{bill.spare_engine_hours:.0f} of {hours:.0f} engine-hours were beyond each hour's need: "
            "they could be given back off-peak.",
        )


def _short(model: "ModelReview", needed: int) -> Finding:
    """More engines than there are: an act only where the peak alone needs them and capacity is no lower bound."""
    bill = model.money
    carries = bill.capacity
    there = f"{bill.engines:.0f} {'was' if round(bill.engines) == 1 else 'were'} there"
    if carries is None or carries.bound:
        return Finding(
            "watch", "capacity",
            f"By what was seen {needed} engines would be needed with one spare ({there}); an engine may carry more.",
        )  # fmt: skip
    if bill.engines_for_peak is not None and bill.engines_for_peak <= bill.engines + 0.5:
        return Finding("watch", "capacity", f"The peak needs {bill.engines_for_peak} engines; {there}: none is spare.")
    text = f"{needed} engines are needed for the peak and one spare; {there}."
    return Finding("act", "capacity", text)


def _lengths(model: "ModelReview") -> Iterator[Finding]:
    run = model.shape.runaway
    if run is not None and run.seconds >= 600:
        share = f", {words.share(run.share)} of the server," if run.share else ""
        yield Finding(
            "watch",
            "lengths",
            f"A request that never stops may make {words.number(run.tokens)} tokens and hold its slot{share} for "
            f"{run.seconds / 60:.0f} minutes: set a default max_tokens.",
        )


def _settings(model: "ModelReview") -> Iterator[Finding]:
    if model.changes:
        names = ", ".join(dict.fromkeys(change.name for change in model.changes))
        yield Finding(
            "watch", "settings", f"Settings changed in the period ({names}): before and after are not the same server."
        )
