"""The alerts that wake a person: users are hurt now, and there is something to do now.

Each text is read at 03:00: who, what is measured against which limit, before and now, what is unknown, and the first
step that needs no restart. Everything else is a ticket.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.values import duration_text
from vllm_vitals.core.states import State
from vllm_vitals.rules import presence, slo
from vllm_vitals.rules.evidence import (
    burn_line,
    canaries,
    engines,
    evidence,
    first_step,
    next_restart,
    spiral_proofs,
    versions,
)
from vllm_vitals.rules.model import Alert, Scope, Severity
from vllm_vitals.rules.promql import by, metric, number, on
from vllm_vitals.rules.selectors import WHO, but_batch, fold, in_state, interactive
from vllm_vitals.rules.text import (
    COUNT,
    PERCENT,
    TIME,
    ask,
    before,
    duration_words,
    each,
    label,
    now,
    preamble,
    since,
    waiting,
    when,
)

# How much longer than before a wait must be to rise: with a queue that grows as much, and by itself (`_wait_grows`).
_RISEN, _DOUBLED = 1.2, 2.0
# A model that nobody can serve for half of this many times `unavailable_for` is as good as down.
_LOOP = 5


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all pages."""
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
        + f"{WHO} has work, and for at least {stall} none of it moved: no token and no growth of the KV cache was seen,"
        + " whether or not the engine stepped through empty batches (or the canary request got no answer). /health may"
        + " still answer 200.\n"
        + "DO NOW: drain it at the gateway; capture (py-spy dump of the EngineCore process, the last log lines); then"
        + " restart it. No knob helps against a hang.\n"
        + f"Running {ask(now('requests_running'), COUNT)}, waiting {ask(waiting(), COUNT)},"
        + f" KV cache at most {ask(now('kv_cache_usage_max_ratio'), PERCENT)}.\n"
        + f"{canaries()}\n"
        + f"Useful tokens/s before: {ask(before('useful_tokens_per_second'), COUNT)}; in this state for"
        + f" {ask(f'time() - {since(State.STALLED)}', TIME)}.\n"
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
    limit, step, model = config.limits.unavailable_for, config.evaluation_seconds, fold(config, Scope.MODEL)
    # A loop of crashes serves now and then, for too short a time to be of use.
    window = _LOOP * limit
    gone = f"max {by(config.model_identity)} ({presence.UNAVAILABLE}) == 1"
    half = number(-(-window // (2 * step)))
    mostly = f"max {by(config.model_identity)} (sum_over_time({presence.UNAVAILABLE}{model.range(window)})) >= {half}"
    lately = f"max_over_time({presence.UNAVAILABLE}{model.range(limit)}) == 1"
    lasted = f"max(sum_over_time({presence.UNAVAILABLE}{{&}}[{window}s])) * {step}"
    returned = f"max(resets({presence.UNAVAILABLE}{{&}}[1h]))"
    states = f"max by (target, engine, state) ({metric('state')}{{&}}) == 1"
    remembered = f'label_replace(max by (target, engine) ({presence.DOWN}{{&}}) == 1, "state", "{State.DOWN}", "", "")'
    causes = f"count by (state) ({states} or {remembered})"
    lost = f'{metric("state")}{{&,state=~"{presence.CANNOT_SERVE}"}} == 1 or {presence.DOWN}{{&}} == 1'
    return Alert(
        name="VLLMModelUnavailable",
        severity=Severity.PAGE,
        signal="availability",
        scope=Scope.MODEL,
        expr=f"{gone} or ({mostly} and {on(config.model_identity)} {lately})",
        hold=limit,
        keep=slo.KEEP,
        summary=f"No engine can serve {label('model_name')}, or none for long.",
        description=preamble(config, Scope.MODEL)
        + f"For {ask(lasted, TIME)} of the last {duration_words(window)} no engine of {label('model_name')} was able to"
        + f" serve (limit {duration_words(limit)} at a stretch, or half of the time); within the hour it came back"
        + f" {ask(returned, COUNT)} times. Its engines now:"
        + f" {each(causes, '{{ .Value }} {{ .Labels.state }}', 'all of them gone')}.\n"
        + "DO NOW: send its traffic to another model or region, or answer with an honest error; read the last log "
        "lines of each server (exit reason, out of memory, failed weight load); restart one and watch it load. If it "
        "came back more than once, it crashes in a loop: keep it out of the gateway until it stays up.\n"
        + f"Servers: {each(f'count by (target) ({lost})', '{{ .Labels.target }}', 'unknown')}.\n"
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
    longer = f"avg_over_time({queue}) >= {number(_RISEN)} * avg_over_time({queue} offset {duration_text(half)})"
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
