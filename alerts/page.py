"""The alerts that wake a person: users are hurt now, and there is something to do now.

Each text is read at 03:00: who, what is measured against which limit, before and now, what is unknown, and the first
step that needs no restart. Everything else is a ticket.
"""

from alerts import slo
from alerts.config import Config
from alerts.model import Alert, Scope, Severity
from alerts.promql import metric, number, on
from alerts.text import (
    COUNT,
    PERCENT,
    RATIO,
    TIME,
    ask,
    before,
    duration_words,
    each,
    label,
    now,
    percent,
    preamble,
    waiting,
    when,
)
from alerts.victims import WHO, but_batch, fold, in_state, interactive
from exporter.core.advice import NOW_KNOBS
from exporter.core.snapshot import State


def alerts(config: Config) -> tuple[Alert, ...]:
    """All pages."""
    patient = interactive(config)
    burns = tuple(a for a in slo.alerts(config, *patient) if a.severity is Severity.PAGE)
    return (_death_spiral(config), _stalled(config), _unavailable(config), *burns, _thrashing(config, patient))


def evidence(config: Config) -> str:
    """R, tax, work, queue and cache, each before and now; what happened around it; what cannot be known."""
    limits = config.thresholds
    pace = f"increase({metric('preemptions_total')}{{@}}[61s])"
    finished = f"sum(max by (finished_reason) (increase({metric('responses_total')}{{@}}[61s])))"
    restarts = f"max(resets({metric('generation_tokens_total')}{{@}}[1h]))"
    return (
        f"Preemptions per finished request (R): {ask(now('preemptions_per_completion'), RATIO)} (thrashing from "
        f"{number(limits.thrash_preemptions_per_completion)}, a spiral from "
        f"{number(limits.spiral_preemptions_per_completion)}; healthy below 0.25). In the last minute: "
        f"{ask(f'max({pace})', COUNT)} preemptions, {ask(finished, COUNT)} finished.\n"
        f"Finished requests preempted twice or more: {ask(now('repeat_preemption_ratio'), PERCENT)} (limit "
        f"{percent(limits.thrash_repeat_ratio)}).\n"
        f"Work that is done again (recompute tax): {ask(now('recompute_tax_ratio'), PERCENT)}, between "
        f"{ask(now('recompute_tax_lower_ratio'), PERCENT)} and {ask(now('recompute_tax_upper_ratio'), PERCENT)} (a "
        f"spiral from {percent(limits.spiral_recompute_tax)}).\n"
        f"Useful tokens/s: {ask(before('useful_tokens_per_second'), COUNT)} before, "
        f"{ask(now('useful_tokens_per_second'), COUNT)} now (usual at this load: "
        f"{ask(now('useful_tokens_baseline_per_second'), COUNT)}).\n"
        f"{load()}\n"
        "Prompt length against before: x "
        f"{ask(now('prompt_tokens_mean') + ' / ' + before('prompt_tokens_mean'), RATIO)}; arrivals/s: "
        f"{ask(before('arrivals'), RATIO)} before, {ask('max(engine:vllm_vitals_arrivals:rate1m{@})', RATIO)} now.\n"
        f"Restarts in the last hour: {ask(restarts, COUNT)}; vLLM versions seen in it: {versions()}.\n"
        f"{unknowns()}\n"
    )


def load() -> str:
    """Queue and cache, before and now."""
    return (
        f"Running {ask(before('requests_running'), COUNT)} before, {ask(now('requests_running'), COUNT)} now; waiting "
        f"{ask(before('requests_waiting'), COUNT)} before, {ask(waiting(), COUNT)} now; KV cache at most "
        f"{ask(before('kv_cache_usage_max_ratio'), PERCENT)} before, {ask(now('kv_cache_usage_max_ratio'), PERCENT)} "
        f"now. Expected wait of a new request: {ask(now('expected_wait_seconds'), TIME, 'unknown (nothing finishes)')}."
    )


def versions() -> str:
    """The releases that this server said it runs within the last hour."""
    seen = f'count by (version) (last_over_time({metric("server_info")}{{^,version!=""}}[1h]))'
    return each(seen, "{{ .Labels.version }}", "unknown")


def unknowns() -> str:
    """What this server or this producer does not say."""
    missing = (
        ("preemptions_per_completion", "R (fewer than 20 finished in 10 minutes); "),
        ("repeat_preemption_ratio", "repeat share (needs vLLM 0.30); "),
        ("useful_tokens_baseline_per_second", "usual throughput (needs a day of the exporter); "),
        ("recompute_tax_ratio", "recompute tax; "),
    )
    text = "".join(when(f"absent({metric(name)}{{@}})", words) for name, words in missing)
    return f"Not known here: {text}client disconnects (vLLM does not count them)."


def engines(*states: State) -> str:
    """How many of the model's engines are in trouble."""
    which = "|".join(states)
    bad = f'count(max by (target, engine) ({metric("state")}{{&,state=~"{which}"}}) == 1)'
    total = f"count(count by (target, engine) ({metric('state')}{{&}}))"
    return f"Engines of this model in this state: {ask(bad, COUNT)} of {ask(total, COUNT)}."


def burn_line(config: Config) -> str:
    """How fast each SLO of the model burns."""
    if not config.slos:
        return "SLO burn: no SLO is configured."
    name = slo.burn(3600)
    rates = each(f"max by (slo) ({name}{{&}})", "{{ .Labels.slo }} {{ .Value | humanize }}", "unknown")
    return f"SLO burn over the last hour (1 is sustainable): {rates}"


def cap() -> str:
    """The cap to set at the gateway: 0.9 x what ran while the cache was full; 25 % off max_num_seqs once reached."""
    running, usage = now("requests_running"), now("kv_cache_usage_ratio")
    mean = f"avg_over_time(({running} and {usage} >= 0.9)[5m:15s])"
    slots = f'max({metric("server_setting")}{{^,name="max_num_seqs"}})'
    reached = f"floor(0.75 * {slots}) and {running} >= {slots}"
    unknown = "0.9 x the mean running while KV is full (unknown here)"
    return ask(f"({reached}) or clamp_min(floor(0.9 * {mean}), 1)", COUNT, unknown)


def knobs() -> str:
    """What the advice table says for the next restart."""
    knob = f'max by (knob, direction) ({metric("advice")}{{@,knob!~"{"|".join(NOW_KNOBS)}"}}) == 1'
    fallback = (
        "max_num_seqs down to the cap above; with long inputs rather scheduler_reserve_full_isl on (vLLM 0.19), then "
        "watermark 0.01-0.05 (0.24)"
    )
    return each(knob, "{{ .Labels.knob }} {{ .Labels.direction }}", fallback)


def first_step() -> str:
    """What to do now about evictions that feed on themselves."""
    return (
        f"DO NOW, no restart: cap concurrency for this engine at the gateway at {cap()}; shed or postpone batch work; "
        "add a replica if you have one. It works if preemptions stop and useful tokens/s rise within two minutes.\n"
    )


def next_restart() -> str:
    """The one knob for later."""
    return f"At the next restart, one knob: {knobs()}. Do not lower gpu_memory_utilization: that shrinks the cache."


def canaries() -> str:
    """What became of the last canaries to this server; none is sent unless the exporter's config says so."""
    sent = metric("canary_requests_total")
    ended = {
        outcome: ask(f'max(increase({sent}{{^,outcome="{outcome}"}}[5m]))', COUNT) for outcome in ("ok", "timeout")
    }
    told = f"Canary requests in the last 5 minutes: {ended['ok']} answered, {ended['timeout']} timed out."
    return when(f"max({sent}{{^}})", told, "No canary is sent to this server.")


def _death_spiral(config: Config) -> Alert:
    return Alert(
        name="VLLMDeathSpiral",
        severity=Severity.PAGE,
        signal="spiral",
        scope=Scope.ENGINE,
        expr=in_state(config, State.DEATH_SPIRAL),
        keep=slo.KEEP,
        why_no_hold=f"the state has held for {duration_words(config.thresholds.hold)} before it is said",
        summary=f"{WHO} preempts, requeues and preempts again: it redoes about as much work as it does.",
        description=preamble(config, Scope.ENGINE)
        + f"{WHO} is in a death spiral. It answers, but most of its work is thrown away; users wait or time out.\n"
        + first_step()
        + evidence(config)
        + f"{burn_line(config)}\n{engines(State.DEATH_SPIRAL)}\n"
        + next_restart(),
        dashboard="vllm-vitals-engine:R, preemptions per finished request",
    )


def _stalled(config: Config) -> Alert:
    stall = duration_words(config.thresholds.stall_after)
    deferred = now("requests_waiting", 'reason="deferred"') + f" >= {waiting()} > 0 and {now('requests_running')} == 0"
    restarts = f"max(resets({metric('generation_tokens_total')}{{@}}[1h]))"
    return Alert(
        name="VLLMStalled",
        severity=Severity.PAGE,
        signal="stall",
        scope=Scope.ENGINE,
        expr=in_state(config, State.STALLED),
        keep=slo.KEEP,
        why_no_hold=f"the state itself needs {stall} without any progress",
        summary=f"{WHO} has requests but makes no progress.",
        description=preamble(config, Scope.ENGINE)
        + f"{WHO} has work, and for at least {stall} no token, no step and no growth of the KV cache was seen"
        + " (or the canary request got no answer). /health may still answer 200.\n"
        + "DO NOW: drain it at the gateway; capture (py-spy dump of the EngineCore process, the last log lines); then"
        + " restart it. No knob helps against a hang.\n"
        + f"Running {ask(now('requests_running'), COUNT)}, waiting {ask(waiting(), COUNT)},"
        + f" KV cache at most {ask(now('kv_cache_usage_max_ratio'), PERCENT)}.\n"
        + f"{canaries()}\n"
        + f"Useful tokens/s before: {ask(before('useful_tokens_per_second'), COUNT)}; in this state for"
        + f" {ask('time() - ' + now('state_since_timestamp_seconds'), TIME)}.\n"
        + when(
            deferred,
            "Everything waits deferred and nothing runs: look at remote KV transfer, LoRA loading or grammar "
            "compilation first.\n",
        )
        + f"{engines(State.STALLED)}\n"
        + f"Restarts in the last hour: {ask(restarts, COUNT)};"
        + f" vLLM versions seen in it: {versions()}.\n"
        + "Not known here: whether the GPU is busy; whether clients already gave up. Gauges that vLLM froze after a "
        "mass disconnect look the same: compare with the gateway's requests in flight.",
        dashboard="vllm-vitals-engine:State over time",
    )


def _unavailable(config: Config) -> Alert:
    limits = config.limits
    model = on(config.model_identity)
    labels = ", ".join(config.model_identity)
    down = in_state(config, State.DOWN, matchers=('model_name!=""',))
    gone = "|".join((State.DOWN, State.STALLED, State.ASLEEP))
    serves = f'state!~"{gone}"'
    serving = f"{fold(config).gauge('state', serves, keep=('state',))} == 1"
    causes = f"count by (state) (max by (target, engine, state) ({metric('state')}{{&}}) == 1)"
    lost = f'max by (target) ({metric("state")}{{&,state=~"{gone}"}}) == 1'
    return Alert(
        name="VLLMModelUnavailable",
        severity=Severity.PAGE,
        signal="availability",
        scope=Scope.MODEL,
        expr=f"count by ({labels}) ({down}) unless {model} count by ({labels}) ({serving})",
        hold=limits.unavailable_for,
        keep=slo.KEEP,
        summary=f"No engine can serve {label('model_name')}.",
        description=preamble(config, Scope.MODEL)
        + f"For {duration_words(limits.unavailable_for)} no engine of {label('model_name')} has been able to serve:"
        + f" {each(causes, '{{ .Value }} {{ .Labels.state }}', 'all of them gone')}.\n"
        + "DO NOW: send its traffic to another model or region, or answer with an honest error; read the last log "
        "lines of each server (exit reason, out of memory, failed weight load); restart one and watch it load.\n"
        + f"Servers: {each(lost, '{{ .Labels.target }}', 'unknown')}.\n"
        + "Nothing listed here was taken out by discovery: a model scaled to zero on purpose does not page.\n"
        + "Not known here: why. vLLM may exit with code 0 after its engine died, so a clean exit code proves nothing.",
        dashboard="vllm-vitals-overview:State of each engine",
    )


def _thrashing(config: Config, patient: tuple[str, ...]) -> Alert:
    limits, identity = config.limits, on(config.identity)
    rise = limits.thrash_rise_seconds
    wait = fold(config)
    least = wait.gauge("expected_wait_seconds", *patient, over="min_over_time", seconds=rise)
    earlier = f"max({metric('expected_wait_seconds')}{{@}} offset {rise}s)"
    today = wait.gauge("expected_wait_seconds", *patient)
    past = wait.gauge("expected_wait_seconds", *patient, offset=rise)
    growing = f"({least} > {number(limits.ttft_objective_seconds)} and {identity} ({today}) > {identity} ({past}))"
    burns = [f"{on(config.model_identity)} {slo.burning(config, s, Severity.PAGE, *patient)}" for s in config.slos]
    thrashing = f"({in_state(config, State.THRASHING, State.DEATH_SPIRAL, matchers=patient)} {but_batch(config)})"
    harmed = " or ".join([f"({thrashing} and {identity} {growing})", *(f"({thrashing} and {burn})" for burn in burns)])
    return Alert(
        name="VLLMThrashing",
        severity=Severity.PAGE,
        signal="preemption",
        scope=Scope.ENGINE,
        expr=harmed,
        hold=0,
        keep=slo.KEEP,
        why_no_hold="the state has held, and the harm is itself measured over ten minutes or by a burn rate",
        summary=f"{WHO} evicts requests faster than it finishes them, and users are hurt.",
        description=preamble(config, Scope.ENGINE)
        + f"{WHO} is thrashing, and it does harm: the wait of a new request has been above"
        + f" {number(limits.ttft_objective_seconds)} s and rising for {duration_words(rise)}, or an SLO burns.\n"
        + first_step()
        + f"Expected wait: {ask(earlier, TIME)} then,"
        + f" {ask(now('expected_wait_seconds'), TIME)} now.\n"
        + evidence(config)
        + f"{burn_line(config)}\n{engines(State.THRASHING, State.DEATH_SPIRAL)}\n"
        + next_restart(),
        dashboard="vllm-vitals-engine:Preemptions and stall gaps",
    )
