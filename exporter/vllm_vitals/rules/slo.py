"""Service-level objectives: shares of good requests, and burn alerts over several windows.

Input: `Config.slos`. Output: recordings of good and total requests per model, and the burn rules. Windows and factors
are the Google SRE workbook's (chapter 5): a page needs the long and the short window both burning, so it starts soon
and stops soon. A request that never got its first token is in no histogram: stalls are the state's to find.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.objectives import HISTOGRAM_OF, OutputLength, Slo
from vllm_vitals.config.values import duration_text
from vllm_vitals.rules import raw
from vllm_vitals.rules.model import Alert, Recording, Scope, Severity
from vllm_vitals.rules.promql import Fold, by, metric, number
from vllm_vitals.rules.selectors import but_batch
from vllm_vitals.rules.text import each, facts, label, percent, preamble
from vllm_vitals.vllm.lookup import wire

WORDS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "inter_token": "gap between two tokens",
    "e2e": "time from arrival to finish",
    "queue_time": "time in the queue",
}
# (severity, long window s, short window s, factor, share of a 30-day budget that is gone when it fires)
WINDOWS = (
    (Severity.PAGE, 3600, 300, 14.4, "2 %"),
    (Severity.PAGE, 21600, 1800, 6.0, "5 %"),
    (Severity.TICKET, 86400, 7200, 3.0, "10 %"),
    (Severity.TICKET, 259200, 21600, 1.0, "10 %"),
)
_SHORT = 300
_RARE = 1800  # s: one request in half an hour still says how it goes
_LEAST_BAD = 10  # bad requests in the long window; seven of a young model prove nothing
KEEP = 600  # a page outlasts a pause of its incident, and a restart of the exporter
GOOD, TOTAL = "model:vllm_vitals_slo_good:rate5m", "model:vllm_vitals_slo_total:rate5m"


def burn(window: int) -> str:
    """Return the record of how fast the budget burns over ``window`` seconds (1 is just sustainable)."""
    return f"model:vllm_vitals_slo_burn:ratio{duration_text(window)}"


def _per_model(config: Config, slo: Slo, le: str) -> str:
    """Return requests/s at or below a bucket: the daemon's series, else vLLM's own; folded, then summed over engines.

    Those of targets whose users can wait are in no promise.
    """
    fold = Fold(config.identity, config.evaluation_seconds)
    models = f'model_name=~"{slo.models}"'
    daemon = fold.rate(HISTOGRAM_OF[slo.indicator] + "_bucket", f'le=~"{le}"', models, seconds=_SHORT)
    names = wire(HISTOGRAM_OF[slo.indicator], "bucket")
    native = raw.folded(config, names, f'le=~"{le}"', models, function="rate", window=fold.range(_SHORT))
    return f"sum {by(config.model_identity)} (({daemon} or {native}) {but_batch(config)})"


def bucket(value: float | None) -> str:
    """Return a pattern of ``le``, which may be written ``1`` or ``1.0``; None is +Inf."""
    if value is None:
        return r"\\+Inf"
    plain = number(value)
    return plain.replace(".", "\\\\.") if "." in plain else f"{plain}|{plain}\\\\.0"


def recordings(config: Config) -> tuple[Recording, ...]:
    """Good and total rates, and from them the burn over every window, weighted by traffic."""
    step = config.evaluation_seconds
    rules: list[Recording] = []
    for slo in config.slos:
        labels = {"slo": slo.name}
        rules.append(Recording(GOOD, _per_model(config, slo, bucket(slo.seconds)), labels))
        rules.append(Recording(TOTAL, _per_model(config, slo, bucket(None)), labels))
        for window in sorted({w for _, long, short, _, _ in WINDOWS for w in (long, short)}):
            span = Fold((), step).range(window)
            mine = f'{{slo="{slo.name}"}}'
            good, total = f"avg_over_time({GOOD}{mine}{span})", f"avg_over_time({TOTAL}{mine}{span})"
            budget = number(round(1 - slo.share, 9))
            rules.append(Recording(burn(window), f"(1 - {good} / ({total} > 0)) / {budget}"))
    return tuple(rules)


def _all(mine: str, over: str, step: int) -> str:
    return f"(sum_over_time({TOTAL}{{{mine}}}{over}) * {step})"


def burning(config: Config, slo: Slo, severity: Severity, *matchers: str) -> str:
    """Models that burn this SLO in both windows of any pair of this severity, with enough requests to judge."""
    mine = ",".join((f'slo="{slo.name}"', *matchers))
    least = number(round(config.limits.slo_samples / _SHORT, 9))
    step = config.evaluation_seconds
    pairs = []
    for level, long, short, factor, _ in WINDOWS:
        if level is not severity:
            continue
        over = Fold((), step).range(long)
        bad = f"(sum_over_time({TOTAL}{{{mine}}}{over}) - sum_over_time({GOOD}{{{mine}}}{over})) * {step}"
        both = f"{burn(long)}{{{mine}}} > {number(factor)} and {bad} >= {_LEAST_BAD}"
        enough = f"avg_over_time({TOTAL}{{{mine}}}[{duration_text(short)}]) * {number(short / _SHORT)} >= {least}"
        pairs.append(f"({both} and {burn(short)}{{{mine}}} > {number(factor)} and {enough})")
        # Where requests are rare the short window is empty now and then: what it said last counts.
        last = f"last_over_time({burn(short)}{{{mine}}}[{duration_text(max(short, _RARE))}])"
        pairs.append(f"({both} and {last} > {number(factor)} and {bad} >= 0.9 * {_all(mine, over, step)})")
    return f"max {by((*config.model_identity, 'slo'))} ({' or '.join(pairs)})"


def alerts(config: Config, *patient: str) -> tuple[Alert, ...]:
    """Return one alert per SLO and severity; ``patient`` are matchers that leave batch services out."""
    return tuple(
        _alert(config, slo, severity, patient) for slo in config.slos for severity in (Severity.PAGE, Severity.TICKET)
    )


def _promised_for(length: OutputLength | None) -> str:
    if length is None:
        return "The promise does not say which output lengths it assumes."
    return f"It was promised for outputs of {number(length.mean)} tokens on average, p99 {number(length.p99)}."


def _alert(config: Config, slo: Slo, severity: Severity, patient: tuple[str, ...]) -> Alert:
    promise = f"{percent(slo.share)} of requests with a {WORDS[slo.indicator]} of at most {number(slo.seconds)} s"
    length = _promised_for(slo.output_tokens)
    mine = f'&,slo="{slo.name}"'
    length_now = f"max({metric('output_tokens_mean')}{{&}})"
    states = f'count by (state) (max by (target, engine, state) ({metric("state")}{{&,state!~"healthy|idle"}}) == 1)'
    rows = [
        (
            "bad requests, last 5 minutes (share)", f"max(1 - {GOOD}{{{mine}}} / {TOTAL}{{{mine}}})", "share",
        ),
        ("requests in them", f"max({TOTAL}{{{mine}}}) * {_SHORT}", "count"),
    ]  # fmt: skip
    for level, long, short, factor, _ in WINDOWS:
        if level is severity:
            rows += [
                (
                    f"budget burn over {duration_text(window)} (threshold {number(factor)} here and over "
                    f"{duration_text(other)}; 1 is sustainable)",
                    f"max({burn(window)}{{{mine}}})", "number",
                )
                for window, other in ((long, short), (short, long))
            ]  # fmt: skip
    rows.append(("mean output tokens", length_now, "count"))
    spent = " or ".join(
        f"{share} within {duration_text(long)}" for level, long, _, _, share in WINDOWS if level is severity
    )
    return Alert(
        name="VLLMSLOBurn",
        severity=severity,
        signal="slo",
        scope=Scope.MODEL,
        expr=burning(config, slo, severity, *patient),
        hold=0,
        keep=KEEP if severity is Severity.PAGE else 0,
        why_no_hold="both windows must already agree, and the short one ends it",
        summary=f"{label('model_name')} breaks its promise {slo.name} fast enough to spend the error budget.",
        description=preamble(config, Scope.MODEL)
        + f"The promise {slo.name}: {promise}.\n"
        + f"{'DO NOW' if severity is Severity.PAGE else 'Next'}: read the state of the worst engine; its page or "
        "ticket names the first step. If all are healthy, the load outgrew the fleet: add replicas or cap clients at "
        "the gateway.\n"
        + f"{facts(*rows)}At the thresholds it spends {spent} of the 30-day budget. {length}\n"
        + f"Engines of this model that are not healthy: {each(states, '{{ .Value }} {{ .Labels.state }}', 'none')}.",
        dashboard="vllm-vitals-overview:Budget burn, by window",
        labels={"slo": slo.name},
    )
