"""The alerts that wake a person: users are hurt now, and there is something to do now. Each is about a whole model.

A page is one line of what and where, what to do now with its number, three numbers with thresholds, the worst victims,
and what is not known; the rest stands behind its links. It asks Prometheus at most three times, however many engines
are in trouble. Everything else is a ticket.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.durations import duration_text
from vllm_vitals.core.states import State
from vllm_vitals.rules import losses, presence, slo
from vllm_vitals.rules.concurrency import CAP, RATE, RATE_BEFORE
from vllm_vitals.rules.description import described, said
from vllm_vitals.rules.model import Alert, Scope, Severity
from vllm_vitals.rules.overload import overload
from vllm_vitals.rules.promql import by, metric, number, on
from vllm_vitals.rules.selectors import but_batch, fold, in_state, interactive
from vllm_vitals.rules.text import COUNT, ask, duration_words, each, facts, label, percent, preamble

# How much longer than before a wait must be to rise: with a queue that grows as much, and by itself (`_wait_grows`).
_RISEN, _DOUBLED = 1.2, 2.0
# A model that nobody can serve for half of this many times `unavailable_for` is as good as down.
_LOOP = 5
_NUMBER = '{{ $value | printf "%.0f" }}'
_MODEL = label("model_name")
_AT_RISK = ("requests on engines in trouble", f"max({losses.AT_RISK}{{&}})", "count")
_ENGINES = ("engines of the model", f"max({losses.ENGINES}{{&}})", "count")


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all pages."""
    patient = interactive(config)
    burns = tuple(a for a in slo.alerts(config, *patient) if a.severity is Severity.PAGE)
    own = (_death_spiral(config), _stalled(config), _failing(config), _capacity(config), _unavailable(config))
    return (*own, *overload(config), *burns, _thrashing(config, patient))


def _worst(config: Config, *states: State) -> str:
    """Name the worst victims, with their requests; one query."""
    engine = "{{ .Labels.target }}{{ with .Labels.engine }} engine {{ . }}{{ end }}" + said(config, ".Labels")
    shown = f"{engine} ({{{{ .Labels.state }}}}, {{{{ .Value | {COUNT} }}}} requests)"
    return f"Worst first: {each(losses.victims(config, *states), shown, 'not known any more')}.\n"


def _survivors(config: Config) -> tuple[str, str, str]:
    objective = number(config.limits.ttft_objective_seconds)
    return f"expected wait on the other engines (threshold {objective} s)", f"max({losses.SURVIVORS_WAIT}{{&}})", "time"


def _of_victims(config: Config, name: str, state: State, how: str = "max") -> str:
    mine = f'max by (target, engine) ({metric("state")}{{&,state="{state}"}}) == 1'
    return f"{how}(max by (target, engine) ({metric(name)}{{&}}) and on (target, engine) ({mine}))"


def _sum(series: str, state: State) -> str:
    mine = f'max by (target, engine) ({metric("state")}{{&,state="{state}"}}) == 1'
    chosen = series if "(" in series else f"{series}{{&}}"
    return f"sum(max by (target, engine) ({chosen}) and on (target, engine) ({mine}))"


def _page(config: Config, name: str, signal: str, state: State, summary: str, body: str, why: str) -> Alert:
    """Return the page of one state: where it takes a share of the model, or the other engines drown."""
    return Alert(
        name,
        Severity.PAGE,
        signal,
        Scope.MODEL,
        f"max {by(config.model_identity)} ({losses.wide(config, affected(config, state))})",
        summary,
        preamble(config, Scope.MODEL) + body,
        "vllm-vitals-overview:State of each engine",
        keep=slo.KEEP,
        why_no_hold=why,
    )


def affected(config: Config, *states: State) -> str:
    """Return how many engines of each model are in one of the states that page."""
    which = f'state="{states[0]}"' if len(states) == 1 else f'state=~"{"|".join(states)}"'
    return f"max {by((*config.model_identity, 'state'))} ({losses.AFFECTED}{{{which}}})"


def _death_spiral(config: Config) -> Alert:
    limits, spiral = config.thresholds, State.DEATH_SPIRAL
    rows = (
        (
            f"preemptions per finished request, worst engine (spiral from "
            f"{number(limits.spiral_preemptions_per_completion)})",
            _of_victims(config, "preemptions_per_completion", spiral), "number",
        ),
        (
            f"recompute tax, worst engine (spiral from {percent(limits.spiral_recompute_tax)})",
            _of_victims(config, "recompute_tax_ratio", spiral), "share",
        ),
        (
            f"generated tokens/s on these engines (none for {duration_words(limits.spiral_silence)} is a spiral)",
            _sum(RATE, spiral), "number",
        ),
        (
            f"generated tokens/s before the first preemption (down to {percent(limits.spiral_generation_share)} is a "
            "spiral)",
            _sum(f"last_over_time({RATE_BEFORE}{{&}}[1d])", spiral), "number",
        ),
        _AT_RISK,
        _survivors(config),
    )  # fmt: skip
    cap = ask(f"min(last_over_time({CAP}{{&}}[10m]))", COUNT, "a quarter below what runs")
    return _page(
        config, "VLLMDeathSpiral", "spiral", spiral,
        f"{_MODEL}: death spiral on {_NUMBER} engine(s), a preemption/recompute loop.",
        f"{_NUMBER} engine(s) of {_MODEL} preempt, requeue and recompute in a loop; users wait or time out.\n"
        f"DO NOW, no restart: cap concurrency of each of them at the gateway at {cap}; shed or postpone batch work; "
        f"add "
        "a replica if you have one. It works if preemptions/s fall to 0 within two minutes.\n"
        f"{_worst(config, spiral)}{facts(*rows)}"
        "Not known: client disconnects; a spiral without tokens or finished requests shows no R.",
        f"the state has held for {duration_words(limits.hold)} before it is said",
    )  # fmt: skip


def _stalled(config: Config) -> Alert:
    stall, mine = duration_words(config.thresholds.stall_after), State.STALLED
    # Of two exporters that see it, the one that has seen it longest knows when it began.
    says = f'{metric("state")}{{&,state="{mine}"}} == 1'
    began = f"time() - min({metric('state_since_timestamp_seconds')}{{&}} and ignoring (state) ({says}))"
    rows = (
        (f"longest in this state (said after {stall} without progress)", began, "time"),
        ("KV usage, highest (1 is full)", _of_victims(config, "kv_cache_usage_max_ratio", mine), "share"),
        _AT_RISK,
        _survivors(config),
    )
    return _page(
        config, "VLLMStalled", "stall", mine,
        f"{_MODEL}: {_NUMBER} engine(s) have requests and make no progress.",
        f"{_NUMBER} engine(s) of {_MODEL} have requests and neither a token nor KV progress. /health may still be "
        f"200.\n"
        "DO NOW: drain them at the gateway; capture one (py-spy dump of its EngineCore process, the last log lines); "
        "restart them. No knob helps against a hang. If all of it waits deferred, check remote KV transfer, LoRA and "
        "grammar first.\n"
        f"{_worst(config, mine)}{facts(*rows)}"
        "Not known: whether the GPU is busy; whether clients gave up. Gauges frozen after a mass disconnect read the "
        "same: compare with the gateway's requests in flight.",
        f"the state itself needs {stall} without any progress",
    )  # fmt: skip


def _failing(config: Config) -> Alert:
    limits, mine = config.thresholds, State.FAILING
    bad = f'max by (target, engine) ({metric("state")}{{&,state="{mine}"}}) == 1'

    def ended(matcher: str, window: str = "10m") -> str:
        counted = f"increase({metric('responses_total')}{{&{matcher}}}[{window}])"
        counts = f"max by (target, engine, finished_reason) ({counted})"
        return f"sum({counts} and on (target, engine) ({bad}))"

    rows = (
        (
            f"requests that ended in error, last 10 minutes (threshold {number(limits.failing_errors)})",
            ended(',finished_reason="error"'), "count",
        ),
        (
            f"share of all that ended, last 2 minutes (threshold {percent(limits.failing_share)})",
            ended(',finished_reason="error"', "2m") + " / " + ended("", "2m"), "share",
        ),
        _ENGINES,
        _survivors(config),
    )  # fmt: skip
    return _page(
        config, "VLLMFailing", "errors", mine,
        f"{_MODEL}: most requests fail on {_NUMBER} engine(s).",
        f"{_NUMBER} engine(s) of {_MODEL} process requests and most of them fail. A stream that fails has answered 200 "
        "before, so status codes at the gateway may look well.\n"
        "DO NOW: drain them at the gateway, so that retries reach engines that work; read the last error lines of one "
        "log; roll back what changed last (image, weights, flags, LoRA); restart one and send it a request by hand.\n"
        f"{_worst(config, mine)}{facts(*rows)}"
        "Not known: why. Errors inside the engine and 5xx of the server are counted apart; where only 5xx rise, the "
        "first two numbers are small or absent.",
        f"the share of errors has held for {duration_words(limits.hold)} before it is said",
    )  # fmt: skip


def _capacity(config: Config) -> Alert:
    """Engines of several states, or down: together a share of the model, and no single page says it."""
    limits, model = config.limits, on(config.model_identity)
    lasting = fold(config, Scope.MODEL).range(limits.engine_down_for)
    held = fold(config, Scope.MODEL).range(limits.unavailable_for)
    share = (
        f"min_over_time({losses.LOST}{lasting}) and {model} "
        f"(count_over_time({losses.LOST}{lasting}) >= {_most(config)})"
    )
    said = f"max {by(config.model_identity)} ({losses.wide(config, affected(config, *losses.PAGING))})"
    drowned = f"(min_over_time({losses.LOST}{held}) > 0) and {model} ({losses.drowning(config)})"
    rows = (
        ("engines lost", f"max({losses.LOST}{{&}})", "count"),
        _ENGINES,
        _survivors(config),
        _AT_RISK,
    )
    which = (*losses.PAGING, State.DOWN)
    return Alert(
        "VLLMCapacityLost",
        Severity.PAGE,
        "availability",
        Scope.MODEL,
        f"max {by(config.model_identity)} (({losses.wide(config, share)}) or ({drowned})) unless {model} ({said})"
        f" unless {model} ({presence.UNAVAILABLE} == 1)",
        f"{_MODEL}: {_NUMBER} engine(s) are lost, and the others carry or drown in their load.",
        preamble(config, Scope.MODEL)
        + f"{_NUMBER} engine(s) of {_MODEL} are down, stalled, failing or in a death spiral.\n"
        "DO NOW: cap or shed load at the gateway to what the others can serve; then bring engines back, those that are "
        "down first: read the exit reason in their logs, and a shared cause (node, network, weights volume, rollout).\n"
        f"{_worst(config, *which)}{facts(*rows)}"
        "Not known: why. vLLM may exit with code 0 after its engine died.",
        "vllm-vitals-overview:State of each engine",
        keep=slo.KEEP,
        why_no_hold=f"engines are lost for {duration_words(limits.engine_down_for)}, or for "
        f"{duration_words(limits.unavailable_for)} while the others drown",
    )


def _most(config: Config) -> str:
    """Count the samples that a window of `engine_down_for` must hold, less a few that a ruler may miss."""
    return number(max(1, config.limits.engine_down_for // config.evaluation_seconds - 3))


def _unavailable(config: Config) -> Alert:
    limit, step, model = config.limits.unavailable_for, config.evaluation_seconds, fold(config, Scope.MODEL)
    # A loop of crashes serves now and then, for too short a time to be of use.
    window = _LOOP * limit
    gone = f"max {by(config.model_identity)} ({presence.UNAVAILABLE}) == 1"
    half = number(-(-window // (2 * step)))
    mostly = f"max {by(config.model_identity)} (sum_over_time({presence.UNAVAILABLE}{model.range(window)})) >= {half}"
    lately = f"max_over_time({presence.UNAVAILABLE}{model.range(limit)}) == 1"
    states = f"max by (target, engine, state) ({metric('state')}{{&}}) == 1"
    remembered = f'label_replace(max by (target, engine) ({presence.DOWN}{{&}}) == 1, "state", "{State.DOWN}", "", "")'
    causes = f"count by (state) ({states} or {remembered})"
    servers = f'{metric("state")}{{&,state=~"{presence.CANNOT_SERVE}"}} == 1 or {presence.DOWN}{{&}} == 1'
    shown = "{{ .Labels.target }}" + said(config, ".Labels")
    rows = (
        (
            f"time without service in the last {duration_words(window)} (threshold: {duration_words(limit)} "
            f"continuous, "
            "or 50 %)",
            f"max(sum_over_time({presence.UNAVAILABLE}{{&}}[{window}s])) * {step}", "time",
        ),
        ("returns within the hour (above 1: a crash loop)", f"max(resets({presence.UNAVAILABLE}{{&}}[1h]))", "count"),
    )  # fmt: skip
    return Alert(
        name="VLLMModelUnavailable",
        severity=Severity.PAGE,
        signal="availability",
        scope=Scope.MODEL,
        expr=f"{gone} or ({mostly} and {on(config.model_identity)} {lately})",
        hold=limit,
        keep=slo.KEEP,
        summary=f"No engine serves {_MODEL}.",
        description=preamble(config, Scope.MODEL) + f"No engine of {_MODEL} can serve. Its engines now: "
        f"{each(causes, '{{ .Value }} {{ .Labels.state }}', 'none left')}.\n"
        "DO NOW: send its traffic to another model or region, or answer with an honest error; read the last log "
        "lines of each server (exit reason, out of memory, failed weight load); restart one and watch it load. Paused "
        "on purpose: POST /resume. In a crash loop: keep it out of the gateway until it stays up.\n"
        f"{facts(*rows)}"
        + f"Servers: {each(described(config, f'topk(5, count by (target) ({servers}))'), shown, 'unknown')}.\n"
        "Not known: why. vLLM may exit with code 0 after its engine died. A model scaled to zero on purpose does not "
        "page.",
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
    half = f"{metric('expected_wait_seconds')}{{&}}[{rise // 2}s]"
    earlier, later = f"max(avg_over_time({half} offset {rise // 2}s))", f"max(avg_over_time({half}))"
    burns = [f"{on(config.model_identity)} {slo.burning(config, s, Severity.PAGE, *patient)}" for s in config.promises]
    thrashing = f"({in_state(config, State.THRASHING, State.DEATH_SPIRAL, matchers=patient)} {but_batch(config)})"
    harmed = " or ".join([f"({thrashing} and {identity} {growing})", *(f"({thrashing} and {burn})" for burn in burns)])
    rows = (
        (
            f"expected wait, last {duration_words(rise // 2)} (threshold {number(limits.ttft_objective_seconds)} s, "
            f"and "
            f"{number(_RISEN)} x with its queue, or {number(_DOUBLED)} x)",
            later, "time",
        ),
        (f"expected wait, {duration_words(rise // 2)} before", earlier, "time"),
        (
            f"preemptions per finished request, worst engine (thrashing from "
            f"{number(config.thresholds.thrash_preemptions_per_completion)})",
            f"max({metric('preemptions_per_completion')}{{&}})", "number",
        ),
    )  # fmt: skip
    cap = ask(f"min(last_over_time({CAP}{{&}}[10m]))", COUNT, "a quarter below what runs")
    return Alert(
        name="VLLMThrashing",
        severity=Severity.PAGE,
        signal="preemption",
        scope=Scope.MODEL,
        expr=f"count {by(config.model_identity)} ({harmed})",
        hold=0,
        keep=slo.KEEP,
        why_no_hold="the state has held, and the harm is itself measured over ten minutes or by a burn rate",
        summary=f"{_MODEL}: {_NUMBER} engine(s) are thrashing, and users are affected.",
        description=preamble(config, Scope.MODEL)
        + f"{_NUMBER} engine(s) of {_MODEL} are in a preemption/recompute loop, and the expected wait has been above "
        f"{number(limits.ttft_objective_seconds)} s for {duration_words(rise)} and rises, or an SLO burns.\n"
        f"DO NOW, no restart: cap concurrency of each of them at the gateway at {cap}; shed or postpone batch work; "
        f"add "
        "a replica if you have one. It works if preemptions/s fall to 0 within two minutes.\n"
        f"{_worst(config, State.DEATH_SPIRAL, State.THRASHING)}{facts(*rows)}"
        "Not known: client disconnects.",
        dashboard="vllm-vitals-overview:State of each engine",
    )
