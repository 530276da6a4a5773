"""Tickets about load: evictions, a full cache, a slow tail, a queue, starved decode, uneven ranks.

Input: config. Output: `Alert`s of severity ticket, which match their state or worse; inhibition keeps the worst.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.concurrency import EVICTING
from vllm_vitals.rules.evidence import evidence, load
from vllm_vitals.rules.model import Alert, Scope, Severity
from vllm_vitals.rules.promql import by, metric, number, on, selector
from vllm_vitals.rules.selectors import KEEP, WHO, but_batch, fold, in_state, interactive, ticket
from vllm_vitals.rules.text import (
    COUNT,
    RATIO,
    TIME,
    ask,
    duration_words,
    facts,
    label,
    now,
    percent,
    preamble,
    waiting,
    when,
)

_LATELY = 300  # gauges are read over five minutes, so that one blip of a state does not restart the clock
ENGINE = "vllm-vitals-engine"


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all of them."""
    patient = interactive(config)
    return (
        _thrashing(config),
        _preempting(config),
        _kv_pressure(config),
        _tail(config, patient),
        _queue(config, patient),
        _starved(config, patient),
        _imbalance(config),
    )


def _thrashing(config: Config) -> Alert:
    hold = config.limits.thrash_for
    return ticket(
        config,
        "VLLMThrashing",
        "preemption",
        in_state(config, State.THRASHING, State.DEATH_SPIRAL, lately=60),
        f"{WHO} evicts running requests nearly as fast as it finishes them.",
        f"{WHO} has been thrashing for {duration_words(hold)}: preemption/recompute loop, the queue does not drain. "
        "Not yet proven to affect users; it becomes a page if it does.\n"
        + evidence(config)
        + "Next: cap concurrency at the gateway if the wait matters to you; else review max_num_seqs.",
        f"{ENGINE}:Preemptions and stall gaps",
        hold,
    )


def _preempting(config: Config) -> Alert:
    hold = config.limits.preempting_for
    return ticket(
        config,
        "VLLMPreempting",
        "preemption",
        in_state(config, *EVICTING, lately=_LATELY),
        f"{WHO} keeps preempting requests, and is still productive.",
        f"{WHO} has preempted requests for {duration_words(hold)}. Each preempted request stalls and is recomputed.\n"
        f"{evidence(config)}"
        "Next: nothing tonight. Review whether max_num_seqs is higher than the cache can hold.",
        f"{ENGINE}:Preemptions and stall gaps",
        hold,
    )


def _kv_pressure(config: Config) -> Alert:
    hold, limits = config.limits.kv_pressure_for, config.thresholds
    # Not the state of this name: a queue outranks it, and a queue is what a full cache brings.
    full = fold(config).gauge("kv_cache_usage_max_ratio", over="max_over_time", seconds=_LATELY)
    return ticket(
        config,
        "VLLMKVPressure",
        "kv",
        f"{full} >= {number(limits.kv_pressure_ratio)} or {in_state(config, *EVICTING, lately=_LATELY)}",
        f"{WHO} runs with its KV cache nearly full.",
        f"For {duration_words(hold)} the KV cache of {WHO} has been at or above "
        f"{percent(limits.kv_pressure_ratio)} at its highest, or requests were evicted. More load or longer "
        "outputs will mean more preemptions.\n"
        f"{load()}"
        + facts(
            ("KV usage if every waiting request ran too", now("kv_cache_demand_ratio"), "share"),
            ("requests of full length that fit at once", now("kv_cache_full_windows"), "number"),
            none="",
        )
        + "Next: nothing tonight. Put it on the agenda of the capacity review.",
        f"{ENGINE}:KV cache: usage and demand",
        hold,
    )


def _tail(config: Config, patient: tuple[str, ...]) -> Alert:
    limits, identity = config.limits, on(config.identity)
    engine = fold(config)
    lower, estimate = ('source="request"', 'bound="lower"'), ('source="request"', 'bound="estimate"')
    ratio = engine.gauge("tpot_p99_p50_ratio", *lower, *patient)
    count = engine.rate("tpot_seconds_count", seconds=config.thresholds.slow_window, function="increase")
    return ticket(
        config,
        "VLLMTailDivergence",
        "tail",
        f"{ratio} >= {number(limits.tail_ratio)} and {identity} ({count} >= {number(limits.tail_samples)}) "
        f"{but_batch(config)}",
        f"The slowest answers of {WHO} are far slower than the usual one.",
        f"Time per output token of {WHO}: p99 is at least {ask(now('tpot_p99_p50_ratio', *lower), RATIO)} times the "
        f"median (limit {number(limits.tail_ratio)}, lower bound of the histogram's buckets, at least "
        f"{number(limits.tail_samples)} requests).\n"
        + facts(
            ("time per output token, p50", now("tpot_p50_seconds", *estimate), "time"),
            ("time per output token, p99", now("tpot_p99_seconds", *estimate), "time"),
            ("gaps over 1 s, a second", now("stall_gaps_per_second"), "number"),
            ("preemptions/s", now("preemptions_per_second"), "number"),
        )
        + "Next: if gaps and preemptions rise together, treat it as preemption; if not, check for long prompts in "
        "the batch, or a wide mix of lengths.",
        f"{ENGINE}:Tail ratio p99 / p50, with bounds",
        limits.tail_for,
    )


def _queue(config: Config, patient: tuple[str, ...]) -> Alert:
    limits, engine, slow = config.limits, fold(config), config.thresholds.slow_window
    wait = engine.gauge("expected_wait_seconds", *patient, over="max_over_time", seconds=60)
    # Where few finish it has gaps, and where none does it is absent: then ten minutes tell it, or that it is endless.
    waits = f"min_over_time({selector('engine:vllm_vitals_waiting:requests', *patient)}{engine.range(60)})"
    finished = engine.rate("responses_total", *patient, seconds=slow, keep=("finished_reason",))
    endless = f"{waits} / sum {by(config.identity)} ({finished})"
    rate = f"sum(max by (finished_reason) (rate({metric('responses_total')}{{@}}{engine.range(slow)})))"
    told = ask(f"{now('expected_wait_seconds')} or ({waiting()} / ({rate} > 0))", TIME)
    return ticket(
        config,
        "VLLMLongQueue",
        "queue",
        f"({wait} or {endless}) > {number(limits.ttft_objective_seconds)} unless {on(config.identity)} "
        f"({in_state(config, State.ASLEEP)}) {but_batch(config)}",
        f"New requests to {WHO} wait longer than the objective.",
        f"For {duration_words(limits.queue_for)} a new request to {WHO} has had to "
        + when(
            f"{rate} == 0",
            f"wait without an end in sight, as none has finished in {duration_words(slow)},",
            f"expect {told}",
        )
        + f" in the queue (objective {number(limits.ttft_objective_seconds)} s).\n"
        f"{load()}"
        "Next: with the KV cache below 70 % and a queue, max_num_seqs may be too low; with a full cache, add replicas "
        "or cap the client that sends more than the slots.",
        f"{ENGINE}:Expected wait",
        limits.queue_for,
    )


def _starved(config: Config, patient: tuple[str, ...]) -> Alert:
    limits = config.limits
    return ticket(
        config,
        "VLLMStarvedDecode",
        "starved",
        f"{in_state(config, State.STARVED, matchers=patient, lately=60)} {but_batch(config)}",
        f"Prefill of long prompts starves the answers of {WHO}.",
        f"For {duration_words(limits.starved_for)} prompts have taken nearly all of {WHO}: tokens come at least "
        f"{number(config.thresholds.starved_latency_factor)} times slower than usual, with no preemption.\n"
        f"Mean prompt: {ask(now('prompt_tokens_mean'), COUNT)} tokens; useful tokens/s: "
        f"{ask(now('useful_tokens_per_second'), COUNT)}.\n"
        f"{load()}"
        "Next: route long prompts to their own replica; then max_num_batched_tokens down.",
        f"{ENGINE}:Tokens per second",
        limits.starved_for,
    )


def _imbalance(config: Config) -> Alert:
    limits = config.limits
    server = ", ".join(label_ for label_ in config.identity if label_ != "engine")
    load_ = f"avg_over_time(engine:vllm_vitals_work:requests{fold(config).range(_LATELY)})"
    busiest = f"max by ({server}) ({load_})"
    calmest = f"min by ({server}) ({load_})"
    return Alert(
        "VLLMDPImbalance",
        Severity.TICKET,
        "imbalance",
        Scope.SERVER,
        f"{busiest} >= {number(limits.imbalance_requests)} and {busiest} >= {number(limits.imbalance_factor)} * "
        f"clamp_min({calmest}, 1) and count by ({server}) ({load_}) >= 2",
        f"The data-parallel ranks of {label('model_name')} on {label('target')} are unevenly loaded.",
        preamble(config, Scope.SERVER)
        + f"On {label('target')} the busiest rank of {label('model_name')} has"
        + f" {ask('max(engine:vllm_vitals_work:requests{@})', COUNT)} requests, the calmest"
        + f" {ask('min(engine:vllm_vitals_work:requests{@})', COUNT)}, for {duration_words(limits.imbalance_for)}"
        + f" (limit {number(limits.imbalance_factor)} times). The busy rank queues or evicts while others idle.\n"
        + "Next: check the balancer (session pinning, prefix routing); restarting the API servers resets its counts.",
        f"{ENGINE}:Running and waiting",
        hold=limits.imbalance_for,
        keep=KEEP,
    )
