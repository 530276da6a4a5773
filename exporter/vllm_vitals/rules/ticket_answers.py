"""Tickets about the answers themselves: cut, endless, of other lengths than planned, or made under another setting.

Input: config. Output: `Alert`s of severity ticket, which match their state or worse; inhibition keeps the worst.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.durations import duration_text
from vllm_vitals.rules.evidence import load
from vllm_vitals.rules.model import Alert, Scope
from vllm_vitals.rules.promql import by, metric, number, on
from vllm_vitals.rules.selectors import WHO, fold, ticket
from vllm_vitals.rules.text import COUNT, PERCENT, RATIO, ask, duration_words, label, now, percent

ENGINE = "vllm-vitals-engine"
WORKLOAD = "vllm-vitals-workload"
_REMEMBERED = 7200  # s: how long the mean length of answers is known after the last one


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all of them."""
    return (
        _truncated(config),
        _reasoning(config),
        _runaway(config),
        _stragglers(config),
        _setting(config),
    )


def _truncated(config: Config) -> Alert:
    limits, identity = config.limits, on(config.identity)
    engine = fold(config)
    finished = engine.rate(
        "responses_total", seconds=config.thresholds.slow_window, function="increase", keep=("finished_reason",)
    )
    total = f"sum by ({', '.join(config.identity)}) ({finished})"
    return ticket(
        config,
        "VLLMResponsesTruncated",
        "truncation",
        f"{engine.gauge('truncated_ratio')} >= {number(limits.truncated_ratio)} and {identity} ({total} >= "
        f"{number(limits.truncated_samples)})",
        f"Many responses of {WHO} are truncated at cap.",
        f"{ask(now('truncated_ratio'), PERCENT)} of the answers of {WHO} ended by length in the last "
        f"{duration_words(config.thresholds.slow_window)} (limit {percent(limits.truncated_ratio)}, at least "
        f"{number(limits.truncated_samples)} answers).\n"
        f"Mean output: {ask(now('output_tokens_mean'), COUNT)} tokens; spread (CV): "
        f"{ask(now('output_tokens_cv'), RATIO)}.\n"
        "Which cap it is (the request's, the server's default, the context window) is known only where logs are "
        "read.\n"
        "Next: see which routes are cut, then raise max_tokens there, or shorten what is asked.",
        f"{WORKLOAD}:Truncated at a cap, by model",
        limits.truncated_for,
    )


def _reasoning(config: Config) -> Alert:
    limits, route = config.limits, fold(config, Scope.ROUTE)
    cut = route.rate("log_reasoning_truncated_total", seconds=1800, function="increase", keep=("source",))
    total = route.rate("log_responses_total", seconds=1800, function="increase", keep=("source",))
    cut, total = (f"sum {by(route.labels)} ({part})" for part in (cut, total))
    share = (
        f"sum(max by (source) (increase({metric('log_reasoning_truncated_total')}{{@}}[30m]))) / sum(max by (source) "
        f"(increase({metric('log_responses_total')}{{@}}[30m])))"
    )
    return ticket(
        config,
        "VLLMReasoningTruncated",
        "truncation",
        f"{cut} / ({total} >= {number(limits.reasoning_samples)}) >= {number(limits.reasoning_truncated_ratio)}",
        f"Answers of {label('model_name')} on route {label('route')} are truncated inside their reasoning.",
        f"{ask(share, PERCENT)} of the answers of {label('model_name')} on route {label('route')} in the last 30 "
        f"minutes were cut inside their reasoning (limit {percent(limits.reasoning_truncated_ratio)}). These "
        "responses hold no answer.\n"
        "Next: raise max_tokens on that route, or limit the reasoning itself.",
        f"{WORKLOAD}:Cut while still thinking",
        900,
        scope=Scope.ROUTE,
    )


def _runaway(config: Config) -> Alert:
    limits, identity = config.limits, on(config.identity)
    engine = fold(config)
    made = engine.gauge("inflight_output_tokens_estimate", over="min_over_time", seconds=60)
    # Beside a runaway nothing else may finish, and then there is no mean: what it was last is what is usual.
    mean = engine.gauge("output_tokens_mean", over="last_over_time", seconds=_REMEMBERED)
    usual = f"{number(limits.runaway_factor)} * ({mean})"
    mean_then = f"max(last_over_time({metric('output_tokens_mean')}{{@}}[{duration_text(_REMEMBERED)}]))"
    return ticket(
        config,
        "VLLMRunawayRequest",
        "runaway",
        f"{made} >= {number(limits.runaway_tokens)} and {identity} ({made} >= {usual})",
        f"A request on {WHO} has been generating far longer than usual.",
        f"Some unfinished request on {WHO} has made about {ask(now('inflight_output_tokens_estimate'), COUNT)} tokens; "
        f"the mean answer has {ask(mean_then, COUNT)} (limit {number(limits.runaway_factor)} times "
        f"that, and at least {number(limits.runaway_tokens)}). It holds a slot and its KV blocks.\n"
        f"{load()}"
        "Next: find it at the gateway (oldest open request of this server) and cancel it; then give that route a "
        "max_tokens.",
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
    assuming = [(s, s.output_tokens) for s in config.slos if s.output_tokens is not None]
    if assuming:
        broken = []
        told = ""
        for s, assumed in assuming:
            models = f'model_name=~"{s.models}"'
            spread = limits.assumption_factor * assumed.p99 / assumed.mean
            broken.append(f"{engine.gauge('output_tokens_straggler_ratio', models)} >= {number(round(spread, 6))}")
            broken.append(
                f"{engine.gauge('output_tokens_mean', models)} >= {number(limits.assumption_factor * assumed.mean)}"
            )
            told += f"{s.name} assumes a mean of {number(assumed.mean)} tokens and a p99 of {number(assumed.p99)}.\n"
    either = " or ".join(broken)
    return ticket(
        config,
        "VLLMOutputStragglers",
        "workload",
        f"({either}) and {enough}",
        f"Output lengths of {WHO} are not what was planned for.",
        f"p99 output length of {WHO} is {ask(now('output_tokens_straggler_ratio'), RATIO)} times the mean of "
        f"{ask(now('output_tokens_mean'), COUNT)} tokens; spread (CV) {ask(now('output_tokens_cv'), RATIO)}.\n"
        f"{told}An objective on latency holds only for the lengths it was made for; a cache sized for the mean runs "
        "out.\n"
        "Next: split the long route off, or restate the SLO and size max_num_seqs for the new lengths.",
        f"{WORKLOAD}:Stragglers: p99 output over the mean",
        limits.straggler_for,
    )


def _setting(config: Config) -> Alert:
    dropped = fold(config, Scope.TARGET).gauge("server_setting_overridden", keep=("name",))
    return ticket(
        config,
        "VLLMServerSettingDropped",
        "config",
        f"{dropped} == 0",
        f"{label('target')} dropped a configured default: {label('name')}.",
        f"{label('target')} was configured with a default for {label('name')}, and its start-up log shows that vLLM "
        "did not take it over. Requests that rely on it get another value, often a much longer max_tokens.\n"
        "Next: check the spelling of override_generation_config and the model's generation_config.json.",
        f"{ENGINE}:Settings of the server",
        60,
        scope=Scope.TARGET,
        keep=0,
    )
