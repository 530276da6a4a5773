"""The alerts for working hours: it will hurt, or hurts slowly, or a promise rests on an assumption that broke.

Input: config. Output: `Alert`s of severity ticket. An alert matches its state or worse; inhibition keeps the worst.
"""

from alerts import slo
from alerts.config import Config
from alerts.model import Alert, Scope, Severity
from alerts.page import evidence, load
from alerts.promql import metric, number, on
from alerts.text import COUNT, PERCENT, RATIO, TIME, ask, duration_words, label, now, percent, preamble, waiting
from alerts.victims import fold, in_state, interactive
from exporter.core.snapshot import State

_WHO = f"{label('model_name')} on {label('target')} (engine {label('engine')})"
_EVICTING = (State.PREEMPTING, State.THRASHING, State.DEATH_SPIRAL)
_LATELY = 300  # gauges are read over five minutes, so that one blip of a state does not restart the clock
_KEEP = 900
ENGINE = "vllm-vitals-engine"
WORKLOAD = "vllm-vitals-workload"


def alerts(config: Config) -> tuple[Alert, ...]:
    """All tickets about engines, models and workloads."""
    patient = interactive(config)
    burns = tuple(
        a
        for a in slo.alerts(config, *(m for m in patient if m.startswith("model_name")))
        if a.severity is Severity.TICKET
    )
    return (
        _thrashing(config),
        _preempting(config),
        _kv_pressure(config),
        _tail(config, patient),
        _truncated(config),
        _reasoning(config),
        _queue(config, patient),
        _starved(config, patient),
        _runaway(config),
        _stragglers(config),
        _setting(config),
        _imbalance(config),
        _blind(config),
        _down(config),
        _asleep(config),
        _silent(config),
        *burns,
    )


def _ticket(
    config: Config,
    name: str,
    signal: str,
    expr: str,
    summary: str,
    body: str,
    dashboard: str,
    hold: int,
    scope: Scope = Scope.ENGINE,
    keep: int = _KEEP,
) -> Alert:
    return Alert(
        name,
        Severity.TICKET,
        signal,
        scope,
        expr,
        summary,
        preamble(config, scope) + body,
        dashboard,
        hold=hold,
        keep=keep,
    )


def _thrashing(config: Config) -> Alert:
    hold = config.limits.thrash_for
    return _ticket(
        config,
        "VLLMThrashing",
        "preemption",
        in_state(config, State.THRASHING, State.DEATH_SPIRAL, lately=60),
        f"{_WHO} evicts running requests nearly as fast as it finishes them.",
        f"{_WHO} has been thrashing for {duration_words(hold)}: evictions feed on themselves and the queue does"
        f" not drain."
        " Users are not yet proven to be hurt; if they are, this becomes a page.\n"
        + evidence(config)
        + "Next: cap concurrency at the gateway if the wait matters to you; else review max_num_seqs.",
        f"{ENGINE}:Preemptions and stall gaps",
        hold,
    )


def _preempting(config: Config) -> Alert:
    hold = config.limits.preempting_for
    return _ticket(
        config,
        "VLLMPreempting",
        "preemption",
        in_state(config, *_EVICTING, lately=_LATELY),
        f"{_WHO} keeps preempting requests, and is still productive.",
        f"{_WHO} has preempted requests for {duration_words(hold)}. Each victim stalls in mid-answer and is"
        f" computed again.\n"
        f"Preemptions/s: {ask(now('preemptions_per_second'), RATIO)}; per finished request (R):"
        f" {ask(now('preemptions_per_completion'), RATIO)} (thrashing from"
        f" {number(config.thresholds.thrash_preemptions_per_completion)});"
        f" work done again: {ask(now('recompute_tax_ratio'), PERCENT)};"
        f" gaps over 1 s in answers, a second: {ask(now('stall_gaps_per_second'), RATIO)}.\n{load()}\n"
        "Next: nothing tonight. Review whether max_num_seqs is higher than the cache can hold.",
        f"{ENGINE}:Preemptions and stall gaps",
        hold,
    )


def _kv_pressure(config: Config) -> Alert:
    hold = config.limits.kv_pressure_for
    return _ticket(
        config,
        "VLLMKVPressure",
        "kv",
        in_state(config, State.KV_PRESSURE, *_EVICTING, lately=_LATELY),
        f"{_WHO} runs with its KV cache nearly full.",
        f"For {duration_words(hold)} the KV cache of {_WHO} has been at or above"
        f" {percent(config.thresholds.kv_pressure_ratio)} at its highest, or requests were evicted. More load or longer"
        f" outputs will mean more preemptions.\n{load()}\n"
        f"KV usage if every waiting request ran too: {ask(now('kv_cache_demand_ratio'), PERCENT)};"
        f" requests of full length that fit at once: {ask(now('kv_cache_full_windows'), RATIO)}.\n"
        "Next: nothing tonight. Put it on the agenda of the capacity review.",
        f"{ENGINE}:KV cache: usage and demand",
        hold,
    )


def _tail(config: Config, patient: tuple[str, ...]) -> Alert:
    limits, identity = config.limits, on(config.identity)
    engine = fold(config)
    lower, estimate = ('source="request"', 'bound="lower"'), ('source="request"', 'bound="estimate"')
    ratio = engine.gauge("tpot_p99_p50_ratio", *lower, *patient)
    count = engine.rate("tpot_seconds_count", seconds=config.thresholds.slow_window, function="increase")
    return _ticket(
        config,
        "VLLMTailDivergence",
        "tail",
        f"{ratio} >= {number(limits.tail_ratio)} and {identity} ({count} >= {number(limits.tail_samples)})",
        f"The slowest answers of {_WHO} are far slower than the usual one.",
        f"Time per output token of {_WHO}: p99 is at least {ask(now('tpot_p99_p50_ratio', *lower), RATIO)}"
        f" times the median (limit {number(limits.tail_ratio)}, lower bound of the histogram's buckets, at least"
        f" {number(limits.tail_samples)} requests).\n"
        f"p50 {ask(now('tpot_p50_seconds', *estimate), TIME)},"
        f" p99 {ask(now('tpot_p99_seconds', *estimate), TIME)};"
        f" gaps over 1 s, a second: {ask(now('stall_gaps_per_second'), RATIO)};"
        f" preemptions/s: {ask(now('preemptions_per_second'), RATIO)}.\n"
        "Next: if gaps and preemptions rise together, treat it as preemption; if not, look for long prompts that"
        " share the"
        " batch, or a wide mix of lengths.",
        f"{ENGINE}:Tail ratio p99 / p50, with bounds",
        limits.tail_for,
    )


def _truncated(config: Config) -> Alert:
    limits, identity = config.limits, on(config.identity)
    engine = fold(config)
    finished = engine.rate(
        "responses_total", seconds=config.thresholds.slow_window, function="increase", keep=("finished_reason",)
    )
    total = f"sum by ({', '.join(config.identity)}) ({finished})"
    return _ticket(
        config,
        "VLLMResponsesTruncated",
        "truncation",
        f"{engine.gauge('truncated_ratio')} >= {number(limits.truncated_ratio)}"
        f" and {identity} ({total} >= {number(limits.truncated_samples)})",
        f"Many answers of {_WHO} are cut at a length cap.",
        f"{ask(now('truncated_ratio'), PERCENT)} of the answers of {_WHO} ended by length in the last 10 minutes (limit"
        f" {percent(limits.truncated_ratio)}, at least {number(limits.truncated_samples)} answers).\n"
        f"Mean output: {ask(now('output_tokens_mean'), COUNT)} tokens; spread (CV):"
        f" {ask(now('output_tokens_cv'), RATIO)}.\n"
        "Which cap it is (the request's, the server's default, the context window) is known only where logs are read.\n"
        "Next: see which routes are cut, then raise max_tokens there, or shorten what is asked.",
        f"{WORKLOAD}:Truncated at a cap, by model",
        limits.truncated_for,
    )


def _reasoning(config: Config) -> Alert:
    limits, route = config.limits, fold(config, Scope.ROUTE)
    cut = route.rate("log_reasoning_truncated_total", seconds=1800, function="increase", keep=("source",))
    total = route.rate("log_responses_total", seconds=1800, function="increase", keep=("source",))
    cut, total = (f"sum by (model_name, route) ({part})" for part in (cut, total))
    share = (
        f"sum(max by (source) (increase({metric('log_reasoning_truncated_total')}{{@}}[30m]))) / sum(max by"
        f" (source) (increase({metric('log_responses_total')}{{@}}[30m])))"
    )
    return _ticket(
        config,
        "VLLMReasoningTruncated",
        "truncation",
        f"{cut} / ({total} >= {number(limits.reasoning_samples)}) >= {number(limits.reasoning_truncated_ratio)}",
        f"Answers of {label('model_name')} on route {label('route')} are cut while still thinking.",
        f"{ask(share, PERCENT)} of the answers of {label('model_name')} on route {label('route')} in the last 30"
        f" minutes were"
        f" cut inside their reasoning (limit {percent(limits.reasoning_truncated_ratio)}). Whoever asked got no"
        f" answer at all.\n"
        "Next: raise max_tokens on that route, or limit the reasoning itself.",
        f"{WORKLOAD}:Cut while still thinking",
        900,
        scope=Scope.ROUTE,
    )


def _queue(config: Config, patient: tuple[str, ...]) -> Alert:
    limits = config.limits
    wait = fold(config).gauge("expected_wait_seconds", *patient, over="max_over_time", seconds=60)
    return _ticket(
        config,
        "VLLMLongQueue",
        "queue",
        f"{wait} > {number(limits.ttft_objective_seconds)}",
        f"New requests to {_WHO} wait longer than the objective.",
        f"For {duration_words(limits.queue_for)} a new request to {_WHO} has had to expect"
        f" {ask(now('expected_wait_seconds'), TIME)} in the queue (objective"
        f" {number(limits.ttft_objective_seconds)} s).\n"
        f"{load()}\n"
        "Next: with the KV cache below 70 % and a queue, max_num_seqs may be too low; with a full cache, add"
        " replicas or cap"
        " the client that sends more than the slots.",
        f"{ENGINE}:Expected wait",
        limits.queue_for,
    )


def _starved(config: Config, patient: tuple[str, ...]) -> Alert:
    limits = config.limits
    return _ticket(
        config,
        "VLLMStarvedDecode",
        "starved",
        in_state(config, State.STARVED, matchers=patient, lately=60),
        f"Prefill of long prompts starves the answers of {_WHO}.",
        f"For {duration_words(limits.starved_for)} prompts have taken nearly all of {_WHO}: tokens come at least"
        f" {number(config.thresholds.starved_latency_factor)} times slower than usual, with no preemption.\n"
        f"Mean prompt: {ask(now('prompt_tokens_mean'), COUNT)} tokens; useful tokens/s:"
        f" {ask(now('useful_tokens_per_second'), COUNT)}.\n{load()}\n"
        "Next: route long prompts to their own replica; then max_num_batched_tokens down.",
        f"{ENGINE}:Tokens per second",
        limits.starved_for,
    )


def _runaway(config: Config) -> Alert:
    limits, identity = config.limits, on(config.identity)
    engine = fold(config)
    made = engine.gauge("inflight_output_tokens_estimate", over="min_over_time", seconds=120)
    usual = f"{number(limits.runaway_factor)} * ({engine.gauge('output_tokens_mean')})"
    return _ticket(
        config,
        "VLLMRunawayRequest",
        "runaway",
        f"{made} >= {number(limits.runaway_tokens)} and {identity} ({made} >= {usual})",
        f"A request on {_WHO} has been generating far longer than usual.",
        f"Some unfinished request on {_WHO} has made about {ask(now('inflight_output_tokens_estimate'), COUNT)}"
        f" tokens; the mean"
        f" answer has {ask(now('output_tokens_mean'), COUNT)} (limit {number(limits.runaway_factor)} times that,"
        f" and at least"
        f" {number(limits.runaway_tokens)}). It holds a slot and its KV blocks.\n{load()}\n"
        "Next: find it at the gateway (oldest open request of this server) and cancel it; then give that route a"
        " max_tokens.",
        f"{ENGINE}:In flight and abandoned",
        limits.runaway_for,
    )


def _stragglers(config: Config) -> Alert:
    limits, identity = config.limits, on(config.identity)
    engine = fold(config)
    count = engine.rate("request_output_tokens_count", seconds=config.thresholds.slow_window, function="increase")
    enough = f"{identity} ({count} >= {number(limits.straggler_samples)})"
    broken = [f"{engine.gauge('output_tokens_straggler_ratio')} >= {number(limits.straggler_ratio)}"]
    told = "No SLO states which output length it assumes.\n"
    if config.slos:
        broken = []
        told = ""
        for s in config.slos:
            models, assumed = f'model_name=~"{s.models}"', s.output_tokens
            spread = limits.assumption_factor * assumed.p99 / assumed.mean
            broken.append(f"{engine.gauge('output_tokens_straggler_ratio', models)} >= {number(round(spread, 6))}")
            broken.append(
                f"{engine.gauge('output_tokens_mean', models)} >= {number(limits.assumption_factor * assumed.mean)}"
            )
            told += f"{s.name} assumes a mean of {number(assumed.mean)} tokens and a p99 of {number(assumed.p99)}.\n"
    either = " or ".join(broken)
    return _ticket(
        config,
        "VLLMOutputStragglers",
        "workload",
        f"({either}) and {enough}",
        f"Output lengths of {_WHO} are not what was planned for.",
        f"p99 output length of {_WHO} is {ask(now('output_tokens_straggler_ratio'), RATIO)} times the mean of"
        f" {ask(now('output_tokens_mean'), COUNT)} tokens; spread (CV) {ask(now('output_tokens_cv'), RATIO)}.\n{told}"
        "An objective on latency holds only for the lengths it was made for; sized for the mean, the cache runs out.\n"
        "Next: split the long route off, or restate the SLO and size max_num_seqs for the new lengths.",
        f"{WORKLOAD}:Stragglers: p99 output over the mean",
        limits.straggler_for,
    )


def _setting(config: Config) -> Alert:
    dropped = fold(config, Scope.TARGET).gauge("server_setting_overridden", keep=("name",))
    return _ticket(
        config,
        "VLLMServerSettingDropped",
        "config",
        f"{dropped} == 0",
        f"{label('target')} dropped a configured default: {label('name')}.",
        f"{label('target')} was configured with a default for {label('name')}, and its start-up log shows that"
        f" vLLM did not take"
        " it over. Requests that rely on it get another value, often a much longer max_tokens.\n"
        "Next: check the spelling of override_generation_config and the model's generation_config.json.",
        f"{ENGINE}:Settings of the server",
        60,
        scope=Scope.TARGET,
        keep=0,
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
        f"{busiest} >= {number(limits.imbalance_requests)} and {busiest} >= {number(limits.imbalance_factor)} *"
        f" clamp_min({calmest}, 1)"
        f" and count by ({server}) ({load_}) >= 2",
        f"The data-parallel ranks of {label('model_name')} on {label('target')} are unevenly loaded.",
        preamble(config, Scope.SERVER)
        + f"On {label('target')} the busiest rank of {label('model_name')} has"
        + f" {ask('max(engine:vllm_vitals_work:requests{@})', COUNT)} requests, the calmest"
        + f" {ask('min(engine:vllm_vitals_work:requests{@})', COUNT)}, for {duration_words(limits.imbalance_for)}"
        + f" (limit {number(limits.imbalance_factor)} times). The busy rank queues or evicts while others idle.\n"
        + "Next: look at the balancer (session pinning, prefix routing); restarting the API servers resets its counts.",
        f"{ENGINE}:Running and waiting",
        hold=limits.imbalance_for,
        keep=_KEEP,
    )


def _blind(config: Config) -> Alert:
    limits = config.limits
    return _ticket(
        config,
        "VLLMBlind",
        "availability",
        in_state(config, State.BLIND),
        f"{_WHO} answers, but its metrics cannot be read.",
        f"For {duration_words(limits.blind_for)} scrapes of {label('target')} have failed although something"
        f" answers there"
        " (an error status, a time-out under load, a broken body). Its state is unknown: it may be serving well.\n"
        "Next: fetch /metrics by hand; look at the exporter's scrape errors by reason; a time-out wants a longer one.",
        "vllm-vitals-self:Failed scrapes per second, by reason",
        limits.blind_for,
        keep=0,
    )


def _down(config: Config) -> Alert:
    limits = config.limits
    return _ticket(
        config,
        "VLLMEngineDown",
        "availability",
        in_state(config, State.DOWN),
        f"{_WHO} does not answer.",
        f"For {duration_words(limits.engine_down_for)} nothing has answered at {label('target')}. If no other"
        f" engine serves the"
        " model, VLLMModelUnavailable pages; else the others carry its load.\n"
        "Next: read the exit reason in its log (exit code 0 proves nothing), then restart it.",
        "vllm-vitals-overview:State of each engine",
        limits.engine_down_for,
        keep=0,
    )


def _asleep(config: Config) -> Alert:
    limits, identity = config.limits, on(config.identity)
    work = "engine:vllm_vitals_work:requests > 0"
    return _ticket(
        config,
        "VLLMAsleepWithWork",
        "availability",
        f"{in_state(config, State.ASLEEP)} and {identity} ({work})",
        f"{_WHO} is asleep while requests wait for it.",
        f"{_WHO} has been asleep for {duration_words(limits.asleep_for)} with {ask(waiting(), COUNT)} requests"
        f" waiting and"
        f" {ask(now('requests_running'), COUNT)} running. They will not move until it is woken.\n"
        "Next: wake it (POST /wake_up), or take it out of the gateway's pool while it sleeps.",
        f"{ENGINE}:State over time",
        limits.asleep_for,
    )


def _silent(config: Config) -> Alert:
    limits = config.limits
    engine, model = fold(config), on(config.model_identity)
    labels = ", ".join(config.model_identity)
    rate = engine.rate("generation_tokens_total", seconds=limits.silent_seconds)
    idle_states = in_state(config, State.DOWN, State.ASLEEP, State.BLIND)
    return _ticket(
        config,
        "VLLMEngineSilent",
        "stall",
        f"({rate} == 0) and {model} (quantile by ({labels}) (0.5, {rate}) > 0) and {model} (count by ({labels})"
        f" ({rate}) >= 3)"
        f" unless {on(config.identity)} ({idle_states})",
        f"{_WHO} makes no tokens while its peers work.",
        f"{_WHO} has not generated a token for {duration_words(limits.silent_seconds)}, while the median engine"
        f" of the model does."
        " Its metrics may look idle: a frozen engine behind a living API server looks exactly so.\n"
        f"Running {ask(now('requests_running'), COUNT)}, waiting {ask(waiting(), COUNT)}.\n"
        "Next: send it one request directly. No answer: drain, capture, restart. An answer: the balancer does not"
        " use it.",
        f"{ENGINE}:Tokens per second",
        60,
    )
