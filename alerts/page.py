"""The alerts that wake a person: users are hurt now, and there is something to do now.

Each text is read at 03:00: who, what is measured against which limit, before and now, what is unknown, and the first
step that needs no restart. Everything else is a ticket.
"""

from alerts import slo
from alerts.config import Config
from alerts.evidence import burn_line, canaries, engines, evidence, first_step, next_restart, spiral_proofs, versions
from alerts.model import Alert, Scope, Severity
from alerts.promql import duration, metric, number, on
from alerts.text import COUNT, PERCENT, TIME, ask, before, duration_words, each, label, now, preamble, waiting, when
from alerts.victims import WHO, but_batch, fold, in_state, interactive
from exporter.core.snapshot import State

# How much longer than before a wait must be to rise: with a queue that grows as much, and by itself (`_wait_grows`).
_RISEN, _DOUBLED = 1.2, 2.0


def alerts(config: Config) -> tuple[Alert, ...]:
    """All pages."""
    patient = interactive(config)
    burns = tuple(a for a in slo.alerts(config, *patient) if a.severity is Severity.PAGE)
    return (_death_spiral(config), _stalled(config), _unavailable(config), *burns, _thrashing(config, patient))


def _death_spiral(config: Config) -> Alert:
    return Alert(
        name="VLLMDeathSpiral",
        severity=Severity.PAGE,
        signal="spiral",
        scope=Scope.ENGINE,
        expr=in_state(config, State.DEATH_SPIRAL),
        keep=slo.KEEP,
        why_no_hold=f"the state has held for {duration_words(config.thresholds.hold)} before it is said",
        summary=f"{WHO} is in a death spiral: it preempts, requeues and preempts again.",
        description=preamble(config, Scope.ENGINE)
        + f"{WHO} is in a death spiral: it evicts requests, computes them again and evicts them again; users wait or"
        + " time out.\n"
        + first_step()
        + spiral_proofs(config)
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


def _wait_grows(config: Config, patient: tuple[str, ...]) -> str:
    """Engines whose expected wait was above the objective throughout, and rose from the first half to the second.

    A wait is noisy, since it divides by the rate of completions: at 5 a minute a flat one rises by half from one five
    minutes to the next every other hour, and doubles never. The queue is counted, not estimated.
    """
    limits, identity, engine = config.limits, on(config.identity), fold(config)
    half = limits.thrash_rise_seconds // 2
    least = engine.gauge("expected_wait_seconds", *patient, over="min_over_time", seconds=limits.thrash_rise_seconds)
    wait, waited = (
        engine.gauge("expected_wait_seconds", *patient, over="avg_over_time", seconds=half, offset=ago)
        for ago in (0, half)
    )
    queue = f"engine:vllm_vitals_waiting:requests{engine.range(half)}"
    longer = f"avg_over_time({queue}) >= {number(_RISEN)} * avg_over_time({queue} offset {duration(half)})"
    grown = f"({wait}) >= {number(_RISEN)} * ({waited}) and {identity} ({longer})"
    return (
        f"{least} > {number(limits.ttft_objective_seconds)} and {identity}"
        f" ({grown} or ({wait}) >= {number(_DOUBLED)} * ({waited}))"
    )


def _thrashing(config: Config, patient: tuple[str, ...]) -> Alert:
    limits, identity = config.limits, on(config.identity)
    rise = limits.thrash_rise_seconds
    growing = f"({_wait_grows(config, patient)})"
    half = f"{metric('expected_wait_seconds')}{{@}}[{rise // 2}s]"
    earlier, later = f"max(avg_over_time({half} offset {rise // 2}s))", f"max(avg_over_time({half}))"
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
        + f" {number(limits.ttft_objective_seconds)} s for {duration_words(rise)} and rises, or an SLO burns.\n"
        + first_step()
        + f"Expected wait in the last {duration_words(rise // 2)}: {ask(later, TIME)} on average, in those before them"
        + f" {ask(earlier, TIME)}; it rises from {number(_RISEN)} times on if the queue grows as much, or from"
        + f" {number(_DOUBLED)} times.\n"
        + evidence(config)
        + f"{burn_line(config)}\n{engines(State.THRASHING, State.DEATH_SPIRAL)}\n"
        + next_restart(),
        dashboard="vllm-vitals-engine:Preemptions and stall gaps",
    )
