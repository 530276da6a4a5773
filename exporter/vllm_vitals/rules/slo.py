"""Service-level objectives: shares of good requests, and burn alerts over several windows.

Input: `Config.slos` and `availability`. Output: recordings of good and total requests per model, and the burn rules.
Windows and factors are the Google SRE workbook's (chapter 5): a page needs the long and the short window both burning,
so it starts soon and stops soon. A request that never got its first token is in no histogram: stalls are the state's to
find.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.durations import duration_text
from vllm_vitals.config.objectives import HISTOGRAM_OF, Availability, OutputLength, Slo
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
_SHORT, _FAST = 300, 3600
_RARE = 1800  # s: one request in half an hour still says how it goes
_LEAST_BAD = 10  # bad requests in the long window; seven of a young model prove nothing
KEEP = 600  # a page outlasts a pause of its incident, and a restart of the exporter
GOOD, TOTAL = "model:vllm_vitals_slo_good:rate5m", "model:vllm_vitals_slo_total:rate5m"


def burn(window: int) -> str:
    """Return the record of how fast the budget burns over ``window`` seconds (1 is just sustainable)."""
    return f"model:vllm_vitals_slo_burn:ratio{duration_text(window)}"


def bad(window: int) -> str:
    """Return the record of the requests that missed the objective within ``window`` seconds."""
    return f"model:vllm_vitals_slo_bad:requests{duration_text(window)}"


def requests(window: int) -> str:
    """Return the record of all requests within ``window`` seconds."""
    return f"model:vllm_vitals_slo:requests{duration_text(window)}"


def _ended(config: Config, slo: Availability, which: str) -> str:
    """Return requests/s that ended for ``which`` reasons, from series that both producers make."""
    reasons, models = f"finished_reason{which}", f'model_name=~"{slo.models}"'
    ended = Fold(config.identity, config.evaluation_seconds).rate(
        "responses_total", reasons, models, seconds=_SHORT, keep=("finished_reason",)
    )
    return f"sum {by(config.model_identity)} ({ended} {but_batch(config)})"


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
    """Good and total rates, and from them the burn over every window up to an hour, weighted by traffic."""
    rules: list[Recording] = []
    for slo in config.promises:
        labels = {"slo": slo.name}
        if isinstance(slo, Availability):
            good, every = _ended(config, slo, '!~"error|abort"'), _ended(config, slo, '!="abort"')
        else:
            good, every = _per_model(config, slo, bucket(slo.seconds)), _per_model(config, slo, bucket(None))
        rules.append(Recording(GOOD, good, labels))
        rules.append(Recording(TOTAL, every, labels))
        rules += (_burn(config, slo, window) for window in _all_windows() if window <= _FAST)
    return tuple(rules)


def slow_recordings(config: Config) -> tuple[Recording, ...]:
    """Burns over longer windows, and the requests in the long ones: samples of hours, so not at every evaluation."""
    rules: list[Recording] = []
    for slo in config.promises:
        mine = f'{{slo="{slo.name}"}}'
        rules += (_burn(config, slo, window) for window in _all_windows() if window > _FAST)
        for window in sorted({long for _, long, _, _, _ in WINDOWS}):
            over = Fold((), config.evaluation_seconds).range(window)
            every, good = f"sum_over_time({TOTAL}{mine}{over})", f"sum_over_time({GOOD}{mine}{over})"
            rules.append(Recording(requests(window), f"{every} * {config.evaluation_seconds}", {"slo": slo.name}))
            rules.append(Recording(bad(window), f"({every} - {good}) * {config.evaluation_seconds}", {"slo": slo.name}))
    return tuple(rules)


def _all_windows() -> list[int]:
    return sorted({w for _, long, short, _, _ in WINDOWS for w in (long, short)})


def _burn(config: Config, slo: Slo | Availability, window: int) -> Recording:
    mine, span = f'{{slo="{slo.name}"}}', Fold((), config.evaluation_seconds).range(window)
    good, total = f"avg_over_time({GOOD}{mine}{span})", f"avg_over_time({TOTAL}{mine}{span})"
    spent = f"(1 - {good} / ({total} > 0)) / {number(round(1 - slo.share, 9))}"
    return Recording(burn(window), spent, {"slo": slo.name})


def burning(config: Config, slo: Slo | Availability, severity: Severity, *matchers: str) -> str:
    """Models that burn this SLO in both windows of any pair of this severity, with enough requests to judge."""
    mine = ",".join((f'slo="{slo.name}"', *matchers))
    least = number(round(config.limits.slo_samples / _SHORT, 9))
    pairs = []
    for level, long, short, factor, _ in WINDOWS:
        if level is not severity:
            continue
        missed, every = f"{bad(long)}{{{mine}}}", f"{requests(long)}{{{mine}}}"
        both = f"{burn(long)}{{{mine}}} > {number(factor)} and {missed} >= {_LEAST_BAD}"
        enough = f"avg_over_time({TOTAL}{{{mine}}}[{duration_text(short)}]) * {number(short / _SHORT)} >= {least}"
        pairs.append(f"({both} and {burn(short)}{{{mine}}} > {number(factor)} and {enough})")
        # Where requests are rare the short window is empty now and then: what it said last counts.
        last = f"last_over_time({burn(short)}{{{mine}}}[{duration_text(max(short, _RARE))}])"
        pairs.append(f"({both} and {last} > {number(factor)} and {missed} >= 0.9 * {every})")
    return f"max {by((*config.model_identity, 'slo'))} ({' or '.join(pairs)})"


def alerts(config: Config, *patient: str) -> tuple[Alert, ...]:
    """Return one alert per SLO and severity; ``patient`` are matchers that leave batch services out."""
    return tuple(
        _alert(config, slo, severity, patient)
        for slo in config.promises
        for severity in (Severity.PAGE, Severity.TICKET)
    )


def _promised(slo: Slo | Availability) -> tuple[str, str]:
    """Return the promise in words, and what it assumes."""
    if isinstance(slo, Availability):
        return (
            f"{percent(slo.share)} of requests end without an error",
            "Requests that never reached an engine are not counted.",
        )
    words = f"{percent(slo.share)} of requests with a {WORDS[slo.indicator]} of at most {number(slo.seconds)} s"
    return words, _promised_for(slo.output_tokens)


def _promised_for(length: OutputLength | None) -> str:
    if length is None:
        return "The promise does not say which output lengths it assumes."
    return f"It was promised for outputs of {number(length.mean)} tokens on average, p99 {number(length.p99)}."


def _alert(config: Config, slo: Slo | Availability, severity: Severity, patient: tuple[str, ...]) -> Alert:
    promise, length = _promised(slo)
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
