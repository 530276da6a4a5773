"""What to turn, as a table: symptom -> now, without a restart -> one knob at the next restart -> watch -> cost.

One knob at a time: max_num_seqs and max_num_batched_tokens are never changed together, and gpu_memory_utilization is
never lowered against preemption (that shrinks the cache). How far to turn is worked out in `sizing`.
"""

from collections.abc import Callable, Mapping

from vllm_vitals.core import sizing
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.sizing import Case
from vllm_vitals.core.snapshot import Advice, Reading
from vllm_vitals.core.state_machine import Facts, overloaded
from vllm_vitals.core.states import State
from vllm_vitals.core.vital_signs import DEFERRED

TRUNCATED = 0.05  # share of responses truncated at a cap that is worth a word
LATE_FIRST_TOKEN_S = 5.0  # p99 that a person waits for in vain; move to your own objective
SHORT_QUEUE_S = 1.0  # mean time in the queue below which a late first token is prefill's own
PINNED = 0.9  # KV usage of a prefill engine that can take no prompt for what it still holds
RUNAWAY_FACTOR, RUNAWAY_TOKENS = 8.0, 4096.0  # an open request beyond both is worth a look (as the alert has it)

# What needs no restart; all other knobs are for the next one.
NOW_KNOBS = (
    "gateway_concurrency", "replicas", "drain", "restart", "resume", "route_long_prompts", "cancel_oldest_request",
    "deferred_requests",
)  # fmt: skip


def advise(
    state: State,
    facts: Facts | None,
    readings: Mapping[str, Reading],
    sample: EngineSample | None,
    settings: Mapping[str, str],
) -> tuple[Advice, ...]:
    """Return what to do now, then at most one knob. Where the state asks for nothing, what the workload asks for."""
    case = Case(state, facts, readings, sample, settings)
    trouble = _BY_STATE.get(state, _nothing)(case)
    return trouble or _runaway(case) or (*_late_first_token(case), *_cut_answers(case))


def _nothing(_: Case) -> tuple[Advice, ...]:
    return ()


def _evicting(case: Case) -> tuple[Advice, ...]:
    size = sizing.concurrency_that_fits(case)
    symptom = (
        "preempt, requeue, preempt again" if case.state is State.DEATH_SPIRAL else "KV cache short under many requests"
    )
    now = Advice(
        symptom,
        "now",
        "gateway_concurrency",
        "down",
        size,
        f"preemptions per second falls to 0{sizing.once_through(case)}; then time to first token falls",
        "requests wait at the gateway instead; tokens/s may fall (by a fifth where it was measured)",
    )
    fed = f"the loop is fed by long inputs ({case.number('prompt_tokens_mean') or 0.0:.0f} tokens on average)"
    if _is_deferred(case):
        return now, *_deferred(case)
    if case.state is State.DEATH_SPIRAL and case.long_input and case.is_on("scheduler_reserve_full_isl"):
        knob = Advice(
            f"{fed} although all of an input is reserved",
            "restart",
            "watermark",
            "up",
            "0.01-0.05 (vLLM 0.24 on): that share of the blocks is kept for requests that run",
            "preemptions per finished request below 0.3",
            "that share of the KV cache admits no requests",
        )
    elif case.state is State.DEATH_SPIRAL and case.long_input:
        knob = Advice(
            fed,
            "restart",
            "scheduler_reserve_full_isl",
            "set",
            "true (from vLLM 0.19 on the default: see who turned it off; then watermark 0.01-0.05, from 0.24 on)",
            "preemptions per finished request below 0.3",
            "long prompts wait until all of their input fits",
        )
    else:
        knob = Advice(
            symptom,
            "restart",
            "max_num_seqs",
            "down",
            size,
            "preemptions and TPOT p99 fall; roll back where useful tokens/s fall or first tokens come later",
            "a longer queue; too low leaves the GPU idle",
        )
    return now, knob


def _stalled(case: Case) -> tuple[Advice, ...]:
    if _pinned(case):
        return _kv_held(case)  # restarting a prefill engine that nobody fetches from helps until its cache is full
    deferral = _deferred(case) if _is_deferred(case) else ()
    return (
        Advice(
            "work is present and nothing progresses",
            "now",
            "drain",
            "do",
            "capture first (py-spy dump, logs, a recording), then drain and restart the server",
            "generation tokens move again",
            "requests in flight are lost; no knob helps a hang",
        ),
        *deferral,
    )


def _pinned(case: Case) -> bool:
    """Whether a prefill engine waits with a full cache and nothing that runs: its decode side does not pull."""
    facts, sample = case.facts, case.sample
    if facts is None or facts.decodes or sample is None or sample.running:
        return False
    return sample.kv_usage is not None and sample.kv_usage >= PINNED


def _down(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "nothing answers",
            "now",
            "restart",
            "do",
            "only where the address is right, and after the exit reason in its log is read: exit code 0 does not mean "
            "a clean end (vllm#48966)",
            "a fresh sample, and another state than down",
            "model load takes minutes",
        ),
    )


def _failing(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "requests are processed and fail",
            "now",
            "drain",
            "do",
            "send requests elsewhere, then read the ERROR lines of its log (KV load failure, EngineDeadError, CUDA "
            "errors) and restart it",
            "finished requests that end in error fall to 0",
            "requests in flight are lost; no knob helps",
        ),
    )


def _degraded(case: Case) -> tuple[Advice, ...]:
    if case.facts is not None and case.facts.pace is None:
        return _failing(case)
    return (
        Advice(
            "slower than its usual at the same load",
            "now",
            "drain",
            "do",
            "compare it with a peer of the same hardware (GPU clocks, throttling, a noisy neighbour, a lost NVLink); "
            "where only this one is slow, drain and restart it, on another node if it comes back slow",
            "milliseconds a token return to the usual",
            "requests in flight are lost",
        ),
    )


def _kv_held(case: Case) -> tuple[Advice, ...]:
    if case.facts is not None and not case.facts.decodes:
        return (
            Advice(
                "a prefill engine holds the KV of finished requests",
                "now",
                "drain",
                "do",
                "check the decode side first: why it does not fetch; this engine frees its blocks when the lease ends",
                "KV usage falls",
                "",
            ),
        )
    return (
        Advice(
            "KV blocks are held although no request is present",
            "now",
            "drain",
            "do",
            "send one request first: if the usage falls, the gauge was stale; else drain and restart, for nothing "
            "else frees leaked blocks",
            "KV usage without requests is 0",
            "requests in flight are lost",
        ),
    )


def _paused(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "an operator paused it",
            "now",
            "resume",
            "do",
            "POST /resume once the reason is gone; find out who called /pause",
            "generation tokens move again",
            "",
        ),
    )


def _is_deferred(case: Case) -> bool:
    return case.facts is not None and (case.facts.deferred_share or 0.0) >= DEFERRED


def _deferred(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "waiting requests are deferred",
            "now",
            "deferred_requests",
            "do",
            "find what defers them: remote KV loads (offload tier, connector: bytes, failures, latency), more LoRA "
            "adapters than max_loras, or grammars that compile; slots and replicas do not help",
            "deferred waiting falls to 0",
            "",
        ),
    )


def _preempting(case: Case) -> tuple[Advice, ...]:
    """Nothing for evictions that hurt little; a queue that does not drain is overload whatever they are."""
    if case.facts is None:
        return ()
    if (case.facts.queued_share or 0.0) > 0 and _is_deferred(case):
        return _deferred(case)
    if not overloaded(case.facts):
        return ()
    wait = case.number("expected_wait_seconds")
    return (
        Advice(
            "more work comes than this engine can do",
            "now",
            "replicas",
            "up",
            "add replicas or shed load" + ("" if wait is None else f": a new request waits about {wait:.0f} s"),
            "waiting falls below 1",
            "GPUs, or refused requests",
        ),
    )


def _starved(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "prefill crowds out decode",
            "now",
            "route_long_prompts",
            "do",
            "send long prompts to another replica",
            "inter-token latency returns to its usual",
            "the other replica serves them later",
        ),
        Advice(
            "prefill crowds out decode",
            "restart",
            "max_num_batched_tokens",
            "down",
            sizing.token_budget(case, 0.5),
            "inter-token latency, then time to first token",
            "first tokens of long prompts come later",
        ),
    )


def _saturated(case: Case) -> tuple[Advice, ...]:
    if _is_deferred(case):
        return _deferred(case)
    if held := _runaway(case):
        return held
    kv, reason = case.number("kv_cache_usage_max_ratio"), sizing.why_slots_do_not_help(case)
    now = Advice(
        "more requests than slots",
        "now",
        "replicas",
        "up",
        "add replicas, or cap the client that sends more than the slots" + (reason and f"; {reason}"),
        "waiting falls below 1",
        "GPUs",
    )
    if kv is not None and kv < sizing.ROOM and not reason:
        knob = Advice(
            f"a queue while the KV cache is at most {kv:.0%} full",
            "restart",
            "max_num_seqs",
            "up",
            sizing.more_slots(case),
            "time to first token falls, TPOT stays within its objective, no preemptions",
            "every request decodes slower",
        )
        return now, knob
    return (now,)


def _runaway(case: Case) -> tuple[Advice, ...]:
    """Advise on an answer that does not end: it holds a slot and its KV blocks until a cap or the window stops it."""
    made = case.number("inflight_output_tokens_estimate")
    if made is None or made < RUNAWAY_TOKENS:
        return ()
    usual = case.usual_output
    if not usual or made < RUNAWAY_FACTOR * usual:
        return ()
    symptom = f"an open request has made about {made:.0f} tokens; the usual answer has {usual:.0f}"
    return (
        Advice(
            symptom,
            "now",
            "cancel_oldest_request",
            "do",
            "cancel the oldest open request at the gateway",
            "requests complete again",
            "its client gets no answer",
        ),
        Advice(
            symptom,
            "restart",
            "default_max_tokens",
            "set",
            "max_new_tokens in override_generation_config: the longest answer you accept (model cards: 32768), with a "
            "presence_penalty against repetition. The start-up log must confirm both: some releases drop unknown keys",
            "share of responses that end by length",
            "longer legitimate responses are truncated",
        ),
    )


def _late_first_token(case: Case) -> tuple[Advice, ...]:
    """Advise on long inputs whose first token is late without a queue: the token budget cuts them into many steps."""
    ttft = case.readings.get("ttft_p99_seconds")
    waiting = None if case.facts is None else case.facts.mean_waiting
    late = ttft is not None and ttft.lower is not None and ttft.lower >= LATE_FIRST_TOKEN_S
    if ttft is None or not late or not case.long_input or waiting is None or waiting >= 1 or _queued_or_evicted(case):
        return ()
    return (
        Advice(
            f"the first token of long inputs is late (p99 at least {ttft.lower:g} s) without a queue",
            "restart",
            "max_num_batched_tokens",
            "up",
            sizing.token_budget(case, 1.5),
            "time to first token, then TPOT and the KV capacity, which pays for larger steps",
            "decoding requests wait longer for each prefill step; where prefill already fills the GPU nothing is "
            "gained (8192 to 32768 was measured at 2 % more throughput for 17 % less KV cache)",
        ),
    )


def _queued_or_evicted(case: Case) -> bool:
    """Return whether the first tokens that are judged were late for a queue or evictions, which may be over by now."""
    if case.facts is None:
        return False
    return (case.facts.queued_seconds or 0.0) >= SHORT_QUEUE_S or (case.facts.evicted_lately or 0.0) > 0


def _cut_answers(case: Case) -> tuple[Advice, ...]:
    """Size max_tokens by the spread of output lengths, where responses are truncated and memory is not short."""
    if case.state is State.KV_PRESSURE or (case.facts is not None and case.facts.preemptions):
        return ()
    share = case.number("truncated_ratio")
    if share is None or share < TRUNCATED:
        return ()
    size = sizing.output_cap(case)
    if size is None:
        return ()
    return (
        Advice(
            f"truncated at cap: {share:.0%} of responses",
            "restart",
            "max_tokens",
            "set",
            size,
            "share of responses that end by length",
            "longer answers hold their slots longer",
        ),
    )


_BY_STATE: Mapping[State, Callable[[Case], tuple[Advice, ...]]] = {
    State.DOWN: _down,
    State.STALLED: _stalled,
    State.FAILING: _failing,
    State.DEATH_SPIRAL: _evicting,
    State.THRASHING: _evicting,
    State.STARVED: _starved,
    State.DEGRADED: _degraded,
    State.KV_HELD: _kv_held,
    State.PREEMPTING: _preempting,
    State.PAUSED: _paused,
    State.SATURATED: _saturated,
}
