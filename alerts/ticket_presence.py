"""Tickets about engines that cannot be seen, do not answer, sleep, or make nothing while their peers work.

Input: config. Output: `Alert`s of severity ticket, which match their state or worse; inhibition keeps the worst.
"""

from alerts.config import Config
from alerts.model import Alert
from alerts.promql import on
from alerts.text import COUNT, ask, duration_words, label, now, waiting
from alerts.victims import WHO, fold, in_state, ticket
from exporter.core.snapshot import State

ENGINE = "vllm-vitals-engine"


def alerts(config: Config) -> tuple[Alert, ...]:
    """All of them."""
    return (
        _blind(config),
        _down(config),
        _asleep(config),
        _silent(config),
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
    limits = config.limits
    return ticket(
        config,
        "VLLMEngineDown",
        "availability",
        in_state(config, State.DOWN),
        f"{WHO} does not answer.",
        f"For {duration_words(limits.engine_down_for)} nothing has answered at {label('target')}. If no other engine "
        "serves the model, VLLMModelUnavailable pages; else the others carry its load.\n"
        "Next: read the exit reason in its log (exit code 0 proves nothing), then restart it.",
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
    idle_states = in_state(config, State.DOWN, State.ASLEEP, State.BLIND)
    return ticket(
        config,
        "VLLMEngineSilent",
        "stall",
        f"({rate} == 0) and {model} (quantile by ({labels}) (0.5, {rate}) > 0) and {model} (count by ({labels}) "
        f"({rate}) >= 3) unless {on(config.identity)} ({idle_states})",
        f"{WHO} makes no tokens while its peers work.",
        f"{WHO} has not generated a token for {duration_words(limits.silent_seconds)}, while the median engine of the "
        "model does. Its metrics may look idle: a frozen engine behind a living API server looks exactly so.\n"
        f"Running {ask(now('requests_running'), COUNT)}, waiting {ask(waiting(), COUNT)}.\n"
        "Next: send it one request directly. No answer: drain, capture, restart. An answer: the balancer does not use "
        "it.",
        f"{ENGINE}:Tokens per second",
        60,
    )
