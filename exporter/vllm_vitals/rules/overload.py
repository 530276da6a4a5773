"""The page for overload: more work comes than the model can do, whatever its engines' states say.

Input: waits and queues by model (`losses`), and the histogram of the time to first token. Output: one page, or none
where the option turns it off. A queue that fell by a tenth meanwhile is a benchmark that drains; batch services never
page.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.objectives import HISTOGRAM_OF
from vllm_vitals.rules import losses, raw, slo
from vllm_vitals.rules.description import described, said
from vllm_vitals.rules.model import Alert, Recording, Scope, Severity
from vllm_vitals.rules.promql import by, number, on
from vllm_vitals.rules.selectors import but_batch, fold, interactive
from vllm_vitals.rules.text import duration_words, each, facts, label, preamble
from vllm_vitals.vllm.lookup import family, wire

LATE = "model:vllm_vitals_late_first_tokens:ratio"
_RATE, _SMOOTH = 300, 120  # s
_LEAST = 10  # first tokens within the rate's window from which a median is one


def recordings(config: Config) -> tuple[Recording, ...]:
    """Record the share of first tokens that came later than the wait that pages; half of them is the median."""
    limit = config.limits.overload_wait_seconds
    above = [bound for bound in family("ttft_seconds").bounds(max_model_len=0) if bound >= limit]
    if not limit or not above:
        return ()
    within, every = (_first_tokens(config, le) for le in (slo.bucket(above[0]), slo.bucket(None)))
    return (Recording(LATE, f"1 - ({within}) / (({every}) * {_RATE} >= {_LEAST}) * {_RATE}"),)


def _first_tokens(config: Config, le: str) -> str:
    engine, models = fold(config), interactive(config)
    name = HISTOGRAM_OF["ttft"] + "_bucket"
    daemon = engine.rate(name, f'le=~"{le}"', *models, seconds=_RATE)
    names, window = wire(HISTOGRAM_OF["ttft"], "bucket"), engine.range(_RATE)
    native = raw.folded(config, names, f'le=~"{le}"', *models, function="rate", window=window)
    return f"sum {by(config.model_identity)} (({daemon} or {native}) {but_batch(config)})"


def overload(config: Config) -> tuple[Alert, ...]:
    """Return the page, unless it is turned off."""
    limits, model = config.limits, on(config.model_identity)
    if not limits.overload_wait_seconds:
        return ()
    limit = number(limits.overload_wait_seconds)
    window = fold(config, Scope.MODEL).range(_SMOOTH)
    # Its highest in the earlier half: the average of a queue that came at once is of its ramp.
    half = max(limits.overload_for // 2, _SMOOTH)
    before = f"max_over_time({losses.WAITING}{fold(config, Scope.MODEL).range(half)} offset {half}s)"
    drains = f"avg_over_time({losses.WAITING}{window}) <= 0.9 * ({before} > 0)"
    late = f" or ({LATE} > 0.5) * 0 + {limit}" if recordings(config) else ""
    slow = f"{losses.WAIT} > {limit}{late}"
    rows = (
        (f"expected wait of a new request (threshold {limit} s)", f"max({losses.WAIT}{{&}})", "time"),
        ("requests waiting", f"max({losses.WAITING}{{&}})", "count"),
        (f"first tokens later than {limit} s, last 5 minutes (threshold 50 %)", f"max({LATE}{{&}})", "share"),
        ("engines of the model", f"max({losses.ENGINES}{{&}})", "count"),
    )
    queues = (
        described(config, "topk(5, max by (target, engine) (engine:vllm_vitals_waiting:requests{&}) > 0)"),
        "{{ .Labels.target }}{{ with .Labels.engine }} engine {{ . }}{{ end }}"
        + said(config, ".Labels")
        + " ({{ .Value | printf `%.0f` }})",
        "not known",
    )
    return (
        Alert(
            "VLLMOverload",
            Severity.PAGE,
            "queue",
            Scope.MODEL,
            f"max {by(config.model_identity)} ({slow}) unless {model} ({drains})",
            f"{label('model_name')}: overloaded, new requests wait above {limit} s.",
            preamble(config, Scope.MODEL)
            + f"For {duration_words(limits.overload_for)} new requests to {label('model_name')} have had to expect "
            f"more than {limit} s until their first token, or half waited that long, and the queue does not drain.\n"
            "DO NOW: shed or postpone batch work and cap the client that sends most at the gateway; add replicas. It "
            "works if the requests waiting fall by a tenth within ten minutes.\n"
            f"{facts(*rows)}Longest queues: {each(*queues)}.\n"
            "Not known: which client sends it, and who gave up: see the gateway.",
            "vllm-vitals-overview:State of each engine",
            hold=limits.overload_for,
            keep=slo.KEEP,
        ),
    )
