"""Tickets about engines that cannot be seen, do not answer, sleep, complain, or make nothing while their peers work.

Input: config. Output: `Alert`s of severity ticket, which match their state or worse; inhibition keeps the worst.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.model import Alert, Scope
from vllm_vitals.rules.presence import DOWN
from vllm_vitals.rules.promql import by, number, on
from vllm_vitals.rules.selectors import WHO, fold, in_state, ticket
from vllm_vitals.rules.text import COUNT, TIME, ask, duration_words, label, now, preamble, waiting, when

ENGINE = "vllm-vitals-engine"
_ERRORS_SECONDS = 900
_IMPROBABLE = 14  # requests: exp(-14) is below 1e-6
_LOOP, _LATELY = 3600, 900  # s: a loop of crashes is seen within the hour, and is over after a quarter without one
# Kinds that also come without an engine in trouble: while a server compiles, from one bad request, from anything at
# level ERROR. V0's line about a preemption is in neither list: VLLMPreempting tells it.
NOISY = ("shm_broadcast_wait", "request_failed", "other")
FATAL = (
    "engine_dead", "output_handler_failed", "out_of_memory", "rpc_timeout", "collective_failed", "uncaught_exception",
)  # fmt: skip


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all of them."""
    return (
        _blind(config),
        _down(config),
        _asleep(config),
        _silent(config),
        _errors(config),
    )


def _blind(config: Config) -> Alert:
    limits = config.limits
    return ticket(
        config,
        "VLLMBlind",
        "availability",
        in_state(config, State.BLIND),
        f"{WHO} answers, but its metrics cannot be read.",
        f"For {duration_words(limits.blind_for)} scrapes of {label('target')} have failed although something answers "
        "there (an error status, a time-out under load, a broken body). Its state is unknown: it may be serving "
        "well.\n"
        "Next: fetch /metrics by hand; look at the exporter's scrape errors by reason; a time-out wants a longer one.",
        "vllm-vitals-self:Failed scrapes per second, by reason",
        limits.blind_for,
        keep=0,
    )


def _down(config: Config) -> Alert:
    limits, engine = config.limits, fold(config)
    by_engine = by(config.identity)
    down = f"max {by_engine} ({DOWN})"
    returns = f"max {by_engine} (resets({DOWN}{engine.range(_LOOP)}))"
    lately = f"max {by_engine} (resets({DOWN}{engine.range(_LATELY)}))"
    returned = f"max(resets({DOWN}{{@}}[{_LOOP}s]))"
    lasted = f"max(sum_over_time({DOWN}{{@}}[{_LATELY}s])) * {config.evaluation_seconds}"
    loops = f"{returned} >= {number(limits.engine_restarts)}"
    return ticket(
        config,
        "VLLMEngineDown",
        "availability",
        f"{down} == 1 or ({returns} >= {number(limits.engine_restarts)} and {on(config.identity)} {lately} >= 1)",
        preamble(config, Scope.ENGINE) + f"{WHO} {when(loops, 'goes down again and again', 'does not answer')}.",
        f"For {ask(lasted, TIME)} of the last {duration_words(_LATELY)} nothing has answered at {label('target')}; "
        f"within the hour it came back {ask(returned, COUNT)} times (limit: down for "
        f"{duration_words(limits.engine_down_for)}, or back {number(limits.engine_restarts)} times). Each time every "
        "request in flight is lost. If no other engine serves the model, VLLMModelUnavailable pages; else the others "
        "carry its load.\n"
        "Next: read the exit reason in its log (exit code 0 proves nothing), then restart it; if it does not stay up, "
        "take it out of the gateway and go back to the version or the settings before.",
        "vllm-vitals-overview:State of each engine",
        limits.engine_down_for,
        keep=0,
    )


def _asleep(config: Config) -> Alert:
    limits, identity = config.limits, on(config.identity)
    work = "engine:vllm_vitals_work:requests > 0"
    return ticket(
        config,
        "VLLMAsleepWithWork",
        "availability",
        f"{in_state(config, State.ASLEEP)} and {identity} ({work})",
        f"{WHO} is asleep while requests wait for it.",
        f"{WHO} has been asleep for {duration_words(limits.asleep_for)} with {ask(waiting(), COUNT)} requests waiting "
        f"and {ask(now('requests_running'), COUNT)} running. They will not move until it is woken.\n"
        "Next: wake it (POST /wake_up), or take it out of the gateway's pool while it sleeps.",
        f"{ENGINE}:State over time",
        limits.asleep_for,
    )


def _silent(config: Config) -> Alert:
    limits = config.limits
    engine, model = fold(config), on(config.model_identity)
    labels = ", ".join(config.model_identity)
    rate = engine.rate("generation_tokens_total", seconds=limits.silent_seconds)
    # A replica that has just joined, or come back, has had no time to be silent.
    present = engine.gauge("generation_tokens_total", over="last_over_time", seconds=60, offset=limits.silent_seconds)
    away = in_state(
        config, State.DOWN, State.ASLEEP, State.BLIND, State.PAUSED, State.STARTING, lately=limits.silent_seconds
    )
    ended = engine.rate(
        "responses_total", seconds=limits.silent_seconds, function="increase", keep=("finished_reason",)
    )
    # Requests that come by chance: where its share is expected to be so many, none comes once in a million times.
    expected = f"avg by ({labels}) (sum {by(config.identity)} ({ended})) >= {_IMPROBABLE}"
    return ticket(
        config,
        "VLLMEngineSilent",
        "stall",
        f"({rate} == 0) and {model} (quantile by ({labels}) (0.5, {rate}) > 0) and {model} ({expected}) and {model} "
        f"(count by ({labels}) ({rate}) >= 3) and {on(config.identity)} {present} unless {on(config.identity)} "
        f"({away})",
        f"{WHO} generates no tokens while its peers do.",
        f"{WHO} has not generated a token for {duration_words(limits.silent_seconds)}, while the median engine of the "
        f"model does, and at least {_IMPROBABLE} requests were to be expected here. Its metrics may look idle: a "
        f"frozen engine "
        "behind a living API server reads the same.\n"
        f"Running {ask(now('requests_running'), COUNT)}, waiting {ask(waiting(), COUNT)}.\n"
        "Next: send it one request directly. No answer: drain, capture, restart. An answer: the balancer does not use "
        "it.",
        f"{ENGINE}:Tokens per second",
        60,
    )


def _errors(config: Config) -> Alert:
    limit = config.limits.engine_errors
    # A log is known by its source alone, whichever server writes it.
    found = {
        kinds: fold(config, Scope.FLEET).rate(
            "log_engine_errors_total",
            f'kind=~"{"|".join(kinds)}"',
            seconds=_ERRORS_SECONDS,
            function="increase",
            keep=("source", "kind", *config.identity_labels),
        )
        for kinds in (FATAL, NOISY)
    }
    return ticket(
        config,
        "VLLMEngineErrors",
        "errors",
        f"{found[FATAL]} > 0 or {found[NOISY]} >= {number(limit)}",
        f"The log {label('source')} holds engine errors: {label('kind')}.",
        f"In the last {duration_words(_ERRORS_SECONDS)} vLLM wrote {{{{ printf `%.0f` $value }}}} x {label('kind')} to "
        f"the log {label('source')} (limit: 1 of what ends an engine, {number(limit)} of {', '.join(NOISY)}). The "
        "level of a line does not matter: vLLM logs some of the worst at INFO. After a fatal error /metrics may keep "
        "its last values and /health its 200.\n"
        "Next: read the lines around the first of them, and see the state of the server that writes this log.",
        "vllm-vitals-overview:Engine errors in the logs",
        60,
        scope=Scope.FLEET,
    )
