"""The proof of a state in numbers a person can check, and what the metrics cannot say.

`evidence` answers why this state and not another; `unknowns` answers what nobody should conclude from it.
"""

from collections.abc import Callable, Iterator, Mapping

from vllm_vitals.core.advice import TRUNCATED
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Evidence, Reading
from vllm_vitals.core.state_machine import Facts, recovering
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

Readings = Mapping[str, Reading]
Proof = Callable[[Facts, Readings, EngineSample, Thresholds], Iterator[Evidence]]


def evidence(
    state: State,
    facts: Facts,
    readings: Readings,
    sample: EngineSample,
    limits: Thresholds,
    pending: tuple[State, float] | None = None,
) -> tuple[Evidence, ...]:
    """What was measured, and the limit it is judged by, most telling first.

    ``pending`` is a worse state whose conditions are met, and for how many seconds: not long enough yet.
    """
    proof = list(_PROOFS[state](facts, readings, sample, limits)) if state in _PROOFS else []
    if recovering(state, facts, limits):
        text = (
            f"it eases: no longer at the level that proves it, taken back after {limits.release:.0f} s below half of it"
        )
        proof.insert(0, Evidence(text))
    if pending is not None and pending[0].rank < state.rank:
        name, seconds = pending[0].spec.label, pending[1]
        text = f"the conditions of {name} have been met for {seconds:.0f} s: it is called so after {limits.hold:.0f} s"
        proof.insert(0, Evidence(text, seconds, limits.hold))
    if facts.rejected:
        text = f"{facts.rejected:.0f} requests refused in {facts.seconds:.0f} s: the server's queue is at its limit"
        proof.append(Evidence(text, facts.rejected))
    if sample.updating_weights:
        proof.append(Evidence("its weights are being updated or moved: requests wait for that"))
    return tuple(proof)


def unknowns(
    state: State, facts: Facts, readings: Readings, sample: EngineSample, limits: Thresholds, answers: bool = False
) -> tuple[str, ...]:
    """What cannot be known from this server's metrics now, and why. ``answers``: its last canary was answered."""
    said = []
    if state is State.UNKNOWN:
        said += [
            f"the state: the server's {family} is {'not a possible number' if family in sample.unusable else 'missing'}"
            for family, value in _needed(sample).items()
            if value is None
        ]
    if state in (State.IDLE, State.HEALTHY) and not (sample.running or sample.waiting or answers):
        said.append(
            "an engine that froze while its gauges read 0 looks idle too: only a canary or the gateway can tell"
        )
    if state is State.STALLED:
        said.append("gauges refresh only when the engine steps: if the gateway has nothing in flight, they are stale")
    crowded = facts.decodes and facts.prefill_factor is not None
    if crowded and (facts.prefill_factor or 0.0) >= limits.starved_prefill_factor and facts.latency_factor is None:
        said.append(
            f"whether prefill starves decode: {facts.prefill_factor:.0f} prompt tokens are computed per generated one, "
            "but how long a token usually takes here was not seen"
        )
    if sample.recompute_counted and facts.preemptions:
        said.append("useful tokens without what preemption repeats: a V0 engine counts both together")
    if state in (State.STALLED, State.ASLEEP):
        return tuple(said)  # what it would be like if it worked does not matter now
    told = (name for name in _TELL if facts.preemptions != 0 or name not in _ABOUT_PREEMPTION)
    said += [
        f"{_TELL[name]}: {readings[name].why}" for name in told if name in readings and readings[name].value is None
    ]
    if sample.responses is not None:
        said.append("client disconnects: vLLM counts them nowhere")
    return tuple(said)


def _needed(sample: EngineSample) -> Mapping[str, float | None]:
    """Without these no state can be told, by our names."""
    return {
        "requests_running": sample.running,
        "requests_waiting": sample.waiting,
        "generation_tokens_total": sample.generation_tokens,
    }


_ABOUT_PREEMPTION = ("preemptions_per_completion", "repeat_preemption_ratio", "recompute_tax_ratio")
_TELL = {
    "preemptions_per_completion": "preemptions per finished request",
    "repeat_preemption_ratio": "share preempted twice or more",
    "recompute_tax_ratio": "work that is recomputed",
    "kv_cache_usage_max_ratio": "KV usage",
    "tpot_p99_p50_ratio": "TPOT p99 / p50",
    "truncated_ratio": "share cut at a cap",
}


def _evictions(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    level = limits.thrash_preemptions_per_completion
    c = f.completions
    if c is not None and c.ratio is not None and c.preemptions is not None:
        counts = f"{c.preemptions:.0f} preemptions, {c.completions:.0f} finished in {c.span.seconds:.0f} s"
        yield Evidence(f"{c.ratio:.2f} preemptions per finished request ({counts})", c.ratio, level)
    elif f.preemptions is not None:
        yield Evidence(f"{f.preemptions:.0f} preemptions in {f.seconds:.0f} s", f.preemptions, limits.min_preemptions)
    repeat = readings["repeat_preemption_ratio"].value
    if repeat is not None:
        yield Evidence(
            f"{repeat:.0%} of finished requests were preempted twice or more", repeat, limits.thrash_repeat_ratio
        )
    tax = readings["recompute_tax_ratio"]
    if tax.value is not None:
        bounds = "" if tax.lower == tax.upper else f" (between {tax.lower:.0%} and {tax.upper:.0%})"
        yield Evidence(
            f"about {tax.value:.0%} of the work recomputes evicted tokens{bounds}",
            tax.value,
            limits.spiral_recompute_tax,
        )
    yield from _queue(f, sample)
    yield from _throughput(readings)


def _queue(f: Facts, sample: EngineSample) -> Iterator[Evidence]:
    if sample.running is None or sample.waiting is None:
        return
    queued = f.mean_waiting is not None and f.mean_waiting >= 1 and sample.waiting > 0
    trend = {True: ", the queue drains", False: ", the queue does not drain", None: ""}[f.draining if queued else None]
    yield Evidence(f"{sample.running:.0f} running, {sample.waiting:.0f} waiting{trend}", sample.waiting)


def _throughput(readings: Readings) -> Iterator[Evidence]:
    useful, usual = readings["useful_tokens_per_second"].value, readings["useful_tokens_baseline_per_second"].value
    if useful is not None:
        against = "" if usual is None else f" (usual at this load: {usual:.0f})"
        yield Evidence(f"{useful:.0f} useful tokens/s{against}", useful, usual)


def _spiral(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.seconds_without_token is not None and f.seconds_without_token >= limits.spiral_silence:
        yield Evidence(
            f"no generated token for {f.seconds_without_token:.0f} s", f.seconds_without_token, limits.spiral_silence
        )
    limit = limits.spiral_generation_share
    if f.generation_vs_baseline is not None and f.generation_vs_baseline <= limit:
        text = f"generation fell to {f.generation_vs_baseline:.0%} of what it was before the first preemption"
        yield Evidence(text, f.generation_vs_baseline, limit)
    yield from _evictions(f, readings, sample, limits)


def _stalled(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.canary_unanswered_seconds is not None:
        yield Evidence(f"a canary sent {f.canary_unanswered_seconds:.0f} s ago has no answer, and nothing moved since")
    if f.seconds_without_progress is not None and (
        f.canary_unanswered_seconds is None or f.seconds_without_progress >= f.stall_limit
    ):
        text = (
            f"no token and no KV progress for {f.seconds_without_progress:.0f} s (the limit is {f.stall_limit:.0f} s)"
        )
        yield Evidence(text, f.seconds_without_progress, f.stall_limit)
    yield from _queue(f, sample)
    reasons = sample.waiting_by_reason
    if reasons.get("deferred") and not reasons.get("capacity") and not sample.running:
        yield Evidence(
            "all that wait are deferred: held by remote KV, LoRA or grammar, not by the scheduler's capacity"
        )
    elif any(reasons.values()):
        yield Evidence("waiting by reason: " + ", ".join(f"{name} {n:.0f}" for name, n in reasons.items()))
    if sample.kv_usage is not None:
        pulling = sample.kv_usage >= limits.kv_pressure_ratio and not sample.running and not f.decodes
        yield Evidence(
            f"KV cache {sample.kv_usage:.0%} full" + (": the decode side is not pulling" if pulling else ""),
            sample.kv_usage,
        )


def _starved(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.latency_factor is not None:
        yield Evidence(
            f"gaps between tokens are {f.latency_factor:.1f} times their usual",
            f.latency_factor,
            limits.starved_latency_factor,
        )
    if f.prefill_factor is not None:
        yield Evidence(
            f"{f.prefill_factor:.0f} prompt tokens computed per generated one",
            f.prefill_factor,
            limits.starved_prefill_factor,
        )
    yield Evidence("no preemption: this is prefill crowding out decode, not a lack of KV cache")
    yield from _queue(f, sample)


def _saturated(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    yield from _queue(f, sample)
    if f.queued_share is not None:
        yield Evidence(
            f"a queue in {f.queued_share:.0%} of the last {f.seconds:.0f} s' scrapes",
            f.queued_share,
            limits.saturated_share,
        )
    if f.kv_max is not None:
        full = f.kv_max >= limits.kv_pressure_ratio
        limit = (
            "the KV cache is the limit"
            if full
            else "not the KV cache, so max_num_seqs (or the token budget) is the limit"
        )
        yield Evidence(f"KV cache at most {f.kv_max:.0%} full: {limit}", f.kv_max, limits.kv_pressure_ratio)
    wait = readings["expected_wait_seconds"].value
    if wait:
        yield Evidence(f"the last in line waits about {wait:.0f} s", wait)


def _pressure(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    if f.kv_max is not None:
        pulling = not f.decodes and not sample.running
        note = ", nothing runs: the decode side is not pulling" if pulling else ", nobody evicted yet"
        yield Evidence(f"KV cache up to {f.kv_max:.0%} full{note}", f.kv_max, limits.kv_pressure_ratio)
    yield from _queue(f, sample)


def _calm(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    yield from _queue(f, sample)
    yield from _throughput(readings)
    if f.kv_max is not None:
        yield Evidence(f"KV cache at most {f.kv_max:.0%} full", f.kv_max, limits.kv_pressure_ratio)
    cut = readings["truncated_ratio"].value
    if cut is not None and cut >= TRUNCATED:
        which = "the request's own, the server's default or the context window: only its log says which"
        yield Evidence(f"{cut:.0%} of responses are cut at a cap ({which})", cut)


def _asleep(f: Facts, readings: Readings, sample: EngineSample, limits: Thresholds) -> Iterator[Evidence]:
    yield Evidence("the engine sleeps")
    if sample.waiting:
        yield Evidence(f"{sample.waiting:.0f} requests wait for an engine that sleeps: wake it", sample.waiting)


_PROOFS: Mapping[State, Proof] = {
    State.STALLED: _stalled,
    State.DEATH_SPIRAL: _spiral,
    State.THRASHING: _evictions,
    State.STARVED: _starved,
    State.PREEMPTING: _evictions,
    State.SATURATED: _saturated,
    State.KV_PRESSURE: _pressure,
    State.HEALTHY: _calm,
    State.IDLE: _calm,
    State.ASLEEP: _asleep,
}
