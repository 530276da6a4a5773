"""The proof of a state in numbers a person can check: quantity, value, threshold; most telling first.

`evidence` answers why this state and not another. Two axes are always spoken of: evictions and the queue.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from vllm_vitals.core import sizing
from vllm_vitals.core.advice import TRUNCATED
from vllm_vitals.core.outcomes import ENOUGH_FINISHES, Finishes
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Evidence, Reading
from vllm_vitals.core.state_machine import Facts, for_room, overloaded, recovering
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import DEFERRED, SOME_DEFERRED

Readings = Mapping[str, Reading]
Proof = Callable[[Facts, Readings, EngineSample, Thresholds], Iterator[Evidence]]
GIVEN_UP = 0.05  # share of requests that ended by abort, or by the repetition detector, that is worth a line


def evidence(
    state: State,
    facts: Facts,
    readings: Readings,
    sample: EngineSample,
    limits: Thresholds,
    pending: tuple[State, float] | None = None,
    settings: Mapping[str, str] | None = None,
) -> tuple[Evidence, ...]:
    """Say what was measured, and the threshold it is judged by.

    ``pending`` is a worse state whose conditions are met, and for how many seconds: not long enough yet.
    """
    case = sizing.Case(state, facts, readings, sample, settings or {})
    proof = list(_PROOFS[state](facts, readings, sample, limits)) if state in _PROOFS else []
    if state is State.SATURATED:
        proof += _cause(case, limits)
    if recovering(state, facts, limits):
        proof.insert(
            0, Evidence(f"recovering: below the entry threshold; clears after {limits.release:.0f} s below half of it")
        )
    if pending is not None and pending[0].rank < state.rank:
        wait = limits.degraded_hold if pending[0] is State.DEGRADED else limits.hold
        text = f"pending {pending[0].spec.label}: {pending[1]:.0f} s of {wait:.0f} s"
        proof.insert(0, Evidence(text, pending[1], wait))
    return (*proof, *_beside(state, facts, readings, sample))


def _beside(state: State, f: Facts, readings: Readings, sample: EngineSample) -> Iterator[Evidence]:
    """Yield what is worth a line in any state."""
    if state in (State.PREEMPTING, State.THRASHING) and overloaded(f):
        wait = readings["expected_wait_seconds"].value
        text = "overload: the queue does not drain, and recomputation is not the reason"
        yield Evidence(text + ("" if wait is None else f" (estimated queue wait: {wait:.0f} s)"), wait)
    ended = f.finishes
    if ended is not None and state is not State.FAILING:
        if ended.errors and state is not State.DEGRADED:
            counts = f"{ended.errors:.0f} of {ended.all:.0f} in {ended.seconds:.0f} s"
            yield Evidence(f"finished requests that end in error: {counts}", ended.error_share)
        if ended.abort_share >= GIVEN_UP and ended.all >= ENOUGH_FINISHES:
            text = f"requests given up by their clients (finished_reason abort): {ended.abort_share:.0%}"
            yield Evidence(f"{text} of {ended.all:.0f} in {ended.seconds:.0f} s", ended.abort_share)
        if ended.repetition >= GIVEN_UP * ended.all and ended.all >= ENOUGH_FINISHES:
            share = ended.repetition / ended.all
            yield Evidence(f"answers ended by the repetition detector: {share:.0%} of {ended.all:.0f}", share)
    if f.rejected:
        text = f"requests refused: {f.rejected:.0f} in {f.seconds:.0f} s (the server's queue is at its limit)"
        yield Evidence(text, f.rejected)
    if sample.updating_weights:
        yield Evidence("weights are being updated or moved: requests wait for that")


def _evictions(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    level = limits.thrash_preemptions_per_completion
    c = f.completions
    if c is not None and c.ratio is not None and c.preemptions is not None:
        counts = f"{c.preemptions:.0f} preemptions, {c.completions:.0f} finished in {c.span.seconds:.0f} s"
        yield Evidence(
            f"preemptions per finished request: {c.ratio:.2f} ({counts}; threshold {level:g})", c.ratio, level
        )
    elif f.preemptions is not None:
        least = limits.min_preemptions
        text = f"preemptions: {f.preemptions:.0f} in {f.seconds:.0f} s (nothing is concluded below {least:g})"
        yield Evidence(text, f.preemptions, least)
    if not for_room(f, limits):
        text = f"KV cache max: {f.kv_max:.0%}, so evictions are not for lack of room (reset_prefix_cache, a pause)"
        yield Evidence(text, f.kv_max, limits.eviction_kv_ratio)
    repeat = readings["repeat_preemption_ratio"].value
    if repeat is not None:
        least = limits.thrash_repeat_ratio
        yield Evidence(
            f"finished requests preempted twice or more: {repeat:.0%} (threshold {least:.0%})", repeat, least
        )
    tax = readings["recompute_tax_ratio"]
    if tax.value is not None:
        most = limits.spiral_recompute_tax
        bounds = "" if tax.lower == tax.upper else f"between {tax.lower:.0%} and {tax.upper:.0%}; "
        text = f"work spent on recomputing evicted tokens: about {tax.value:.0%} ({bounds}threshold {most:.0%})"
        yield Evidence(text, tax.value, most)
    yield from _queue(f, sample)
    yield from _throughput(readings)


def _queue(f: Facts, sample: EngineSample) -> Iterator[Evidence]:
    if sample.running is None or sample.waiting is None:
        return
    queued = f.mean_waiting is not None and f.mean_waiting >= 1 and sample.waiting > 0
    trend = {True: ", the queue drains", False: ", the queue does not drain", None: ""}[f.draining if queued else None]
    yield Evidence(f"requests: {sample.running:.0f} running, {sample.waiting:.0f} waiting{trend}", sample.waiting)
    if f.deferred_share is not None and f.deferred_share >= SOME_DEFERRED and sample.waiting:
        text = (
            f"waiting requests that are deferred: {f.deferred_share:.0%}: held by remote KV loads, the LoRA budget or "
            "grammar compilation, not by the scheduler's capacity"
        )
        yield Evidence(text, f.deferred_share, DEFERRED)


def _throughput(readings: Readings) -> Iterator[Evidence]:
    useful, usual = readings["useful_tokens_per_second"].value, readings["useful_tokens_baseline_per_second"].value
    if useful is not None:
        against = "" if usual is None else f" (usual at this load: {usual:.0f})"
        yield Evidence(f"useful tokens/s: {useful:.0f}{against}", useful, usual)


def _spiral(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.seconds_without_token is not None and f.seconds_without_token >= limits.spiral_silence:
        most = limits.spiral_silence
        text = f"time without a generated token: {f.seconds_without_token:.0f} s (threshold {most:.0f} s)"
        yield Evidence(text, f.seconds_without_token, most)
    limit = limits.spiral_generation_share
    if f.generation_vs_baseline is not None and f.generation_vs_baseline <= limit:
        share = f.generation_vs_baseline
        text = f"generation against before the first preemption: {share:.0%} (threshold {limit:.0%})"
        yield Evidence(text, share, limit)
    yield from _evictions(f, readings, sample, limits)


def _stalled(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.canary_unanswered_seconds is not None:
        yield Evidence(
            f"canary: no answer for {f.canary_unanswered_seconds:.0f} s, and nothing moved since it was sent"
        )
    stuck = f.seconds_without_progress
    if stuck is not None and (f.canary_unanswered_seconds is None or stuck >= f.stall_limit):
        text = f"time without a token or KV growth: {stuck:.0f} s (threshold {f.stall_limit:.0f} s)"
        yield Evidence(text, stuck, f.stall_limit)
    yield from _queue(f, sample)
    reasons = sample.waiting_by_reason
    if any(reasons.values()) and (f.deferred_share is None or f.deferred_share < DEFERRED):
        yield Evidence("waiting by reason: " + ", ".join(f"{name} {n:.0f}" for name, n in reasons.items()))
    if sample.kv_usage is not None:
        pulling = sample.kv_usage >= limits.kv_pressure_ratio and not sample.running and not f.decodes
        note = ": the decode side is not pulling" if pulling else ""
        yield Evidence(f"KV cache: {sample.kv_usage:.0%}{note}", sample.kv_usage)


def _failing(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    ended, answers = f.finishes, f.answers
    if ended is not None and ended.errors:
        yield _errors(ended, limits.failing_share)
    if answers is not None:
        yield Evidence(
            f"inference requests answered 5xx: {answers.share:.0%} ({answers.failed:.0f} of {answers.answers:.0f} in "
            f"{answers.seconds:.0f} s, all engines of the server; threshold {limits.failing_share:.0%})",
            answers.share,
            limits.failing_share,
        )
    yield Evidence("a stream that fails after its first byte is counted as HTTP 2xx")
    yield from _queue(f, sample)


def _errors(ended: Finishes, threshold: float) -> Evidence:
    counts = f"{ended.errors:.0f} of {ended.all:.0f} in {ended.seconds:.0f} s; threshold {threshold:.0%}"
    text = f"finished requests that end in error: {ended.error_share:.0%} ({counts})"
    return Evidence(text, ended.error_share, threshold)


def _degraded(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    pace = f.pace
    if pace is not None and pace.since is not None:
        since = datetime.fromtimestamp(pace.since, UTC).strftime("%H:%M UTC")
        yield Evidence(
            f"slower than its usual at this load since {since}: {1000 * pace.now:.1f} ms a token against "
            f"{1000 * pace.usual:.1f} ms ({pace.factor:.1f} x, median of {pace.windows} windows at equal running, KV "
            f"and prefill share; threshold {limits.degraded_latency_factor:g} x)",
            pace.factor,
            limits.degraded_latency_factor,
        )
        if pace.rejected and pace.acceptance is not None and pace.usual_acceptance is not None:
            text = f"draft tokens accepted: {pace.acceptance:.0%} (usual {pace.usual_acceptance:.0%}; threshold half)"
            yield Evidence(text, pace.acceptance, pace.usual_acceptance / 2)
    if f.some_errors is not None and f.some_errors.error_share >= limits.degraded_error_share / 2:
        yield _errors(f.some_errors, limits.degraded_error_share)
    yield from _queue(f, sample)
    yield from _throughput(readings)


def _kv_held(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    held = f.kv_held
    if held is None:
        return
    least = limits.kv_held_ratio
    when = "until the request that is present now" if held.present else f"for {held.seconds:.0f} s"
    text = f"KV cache held without a request present: {held.usage:.0%} {when} (threshold {least:.0%})"
    yield Evidence(text, held.usage, least)
    if held.rising:
        floors = ", ".join(f"{floor:.0%}" for floor in held.rising)
        yield Evidence(f"idle floor rises from lull to lull: {floors}")
    if not f.decodes:
        yield Evidence(
            "a prefill engine's finished requests wait for their KV to be fetched: the decode side is not pulling"
        )
    else:
        yield Evidence(
            "blocks that no request holds are leaked, or pinned by a KV transfer; long requests will not fit"
        )


def _starved(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.latency_factor is not None:
        least = limits.starved_latency_factor
        text = f"inter-token latency: {f.latency_factor:.1f} x its usual (threshold {least:g} x)"
        yield Evidence(text, f.latency_factor, least)
    if f.prefill_factor is not None:
        least = limits.starved_prefill_factor
        text = f"prompt tokens computed per generated one: {f.prefill_factor:.0f} (threshold {least:g})"
        yield Evidence(text, f.prefill_factor, least)
    yield Evidence("preemptions: 0, so this is prefill crowding out decode, not a lack of KV cache")
    yield from _queue(f, sample)


def _saturated(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    yield from _queue(f, sample)
    if f.queued_share is not None:
        least = limits.saturated_share
        text = f"scrapes with a queue: {f.queued_share:.0%} of the last {f.seconds:.0f} s (threshold {least:.0%})"
        yield Evidence(text, f.queued_share, least)


def _cause(case: sizing.Case, limits: Thresholds) -> Iterator[Evidence]:
    """Yield what a queue without evictions waits for; where that cannot be told, both candidates."""
    f = case.facts
    if f is None:
        return
    wait = case.number("expected_wait_seconds")
    if wait:
        yield Evidence(f"estimated queue wait: {wait:.0f} s", wait)
    if f.deferred_share is not None and f.deferred_share >= DEFERRED:
        return  # the queue's own line says it
    if f.kv_max is None:
        return
    if f.kv_max >= limits.kv_pressure_ratio:
        why = "the KV cache is the limit"
    elif reason := sizing.why_slots_do_not_help(case):
        why = f"not the limit; {reason}"
    elif sizing.slots_are_full(case):
        why = f"not the limit: max_num_seqs {case.setting('max_num_seqs'):.0f} is"
    else:
        why = "not the limit: max_num_seqs or the token budget is"
    yield Evidence(f"KV cache max: {f.kv_max:.0%}, {why}", f.kv_max, limits.kv_pressure_ratio)


def _pressure(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.kv_max is not None:
        pulling = not f.decodes and not sample.running
        note = "nothing runs: the decode side is not pulling" if pulling else "no preemption yet"
        least = limits.kv_pressure_ratio
        yield Evidence(f"KV cache max: {f.kv_max:.0%} (threshold {least:.0%}), {note}", f.kv_max, least)
    yield from _queue(f, sample)


def _calm(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    yield from _queue(f, sample)
    yield from _throughput(readings)
    if f.kv_max is not None:
        yield Evidence(f"KV cache max: {f.kv_max:.0%}", f.kv_max, limits.kv_pressure_ratio)
    cut = readings["truncated_ratio"].value
    if cut is not None and cut >= TRUNCATED:
        which = "which cap: the request's, the server's default or the context window; only logs show it"
        yield Evidence(f"truncated at cap: {cut:.0%} of responses ({which})", cut)


def _asleep(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    yield Evidence("the engine sleeps")
    if sample.waiting:
        yield Evidence(f"requests waiting for an engine that sleeps: {sample.waiting:.0f}: wake it", sample.waiting)


def _paused(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.paused_since is not None:
        since = datetime.fromtimestamp(f.paused_since, UTC).strftime("%H:%M:%S UTC")
        yield Evidence(f"POST /pause was answered about {since}, and no /resume since")
    yield from _queue(f, sample)


_PROOFS: Mapping[State, Proof] = {
    State.STALLED: _stalled,
    State.FAILING: _failing,
    State.DEATH_SPIRAL: _spiral,
    State.THRASHING: _evictions,
    State.STARVED: _starved,
    State.DEGRADED: _degraded,
    State.KV_HELD: _kv_held,
    State.PREEMPTING: _evictions,
    State.SATURATED: _saturated,
    State.KV_PRESSURE: _pressure,
    State.PAUSED: _paused,
    State.HEALTHY: _calm,
    State.IDLE: _calm,
    State.ASLEEP: _asleep,
}
