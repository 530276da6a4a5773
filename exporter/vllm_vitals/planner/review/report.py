"""The review as one value: everything that the HTML, the Markdown and the JSON say.

Input: telemetry of the period, of the period before, weeks of history, prices and objectives. Output: a `Review`. Pure.
Invariant: all three formats are drawn from this value alone, so that they cannot disagree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.review import change, incidents, knee, latency, load, max_num_seqs, money, shape, slo_report
from vllm_vitals.planner.review.findings import RANK, Finding, Level, findings, worst
from vllm_vitals.planner.review.forecast import Forecast, forecast
from vllm_vitals.planner.review.incidents import Incident, Preemption
from vllm_vitals.planner.review.slo_report import Promise
from vllm_vitals.planner.review.trend import Trend, trend
from vllm_vitals.planner.telemetry.grid import DAY
from vllm_vitals.planner.telemetry.telemetry import EngineId, EngineSeries, Missing, Setting, Telemetry, known, mean
from vllm_vitals.planner.whatif.engine_capacity import Carries
from vllm_vitals.planner.whatif.whatif import WhatIf

Past = Mapping[str, Sequence[tuple[float, float]]]  # by measure: kv, running (daily peaks), demand (by the hour)


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine in one line."""

    engine: EngineId
    harmful_minutes: float
    kv_p95: float | None
    kv_max: float | None
    running_mean: float | None
    running_max: float | None
    waiting_max: float | None
    requests: float
    generated_per_second: float | None
    preemptions: float
    tpot_p99: Reading
    ttft_p99: Reading


@dataclass(frozen=True, slots=True)
class Cut:
    """Answers of one route that were cut, by which cap; from logs."""

    route: str
    cap: str
    answers: float
    share: float | None


@dataclass(frozen=True, slots=True)
class ModelReview:
    """One model. See the modules for each part."""

    model_name: str
    findings: tuple[Finding, ...]
    traffic: load.Traffic
    headroom: load.Headroom
    state_minutes: Mapping[str, float]
    incidents: list[Incident]
    preemption: Preemption
    tails: Mapping[str, latency.Tail]
    gap: latency.Gap
    by_length: list[latency.LengthClass]
    promises: list[Promise]
    knee: knee.Knee
    shape: shape.Shape
    slots: max_num_seqs.SlotsAdvice
    truncated_share: float | None
    cuts: list[Cut]
    reasoning_cut: float
    money: money.Money
    trends: list[Trend]
    forecast: Forecast | None
    versus_before: list[change.Change]
    engines: list[EngineRow]
    settings: Mapping[str, Mapping[str, str]]
    changes: list[Setting]
    whatif: WhatIf | None = None
    no_whatif: str = ""
    restarts: int = 0

    @property
    def common_settings(self) -> Mapping[str, str]:
        """What all servers of the model have in common."""
        every = list(self.settings.values())
        return {
            key: value
            for key, value in (every[0] if every else {}).items()
            if all(own.get(key) == value for own in every)
        }

    @property
    def own_settings(self) -> Mapping[str, Mapping[str, str]]:
        """What each server has of its own."""
        common = self.common_settings
        return {
            target: {key: value for key, value in own.items() if key not in common}
            for target, own in self.settings.items()
        }

    @property
    def tightest(self) -> Promise | None:
        """The promise with least error budget left, of those that were observed."""
        left = [(each.budget_left.lower, each) for each in self.promises if each.budget_left.lower is not None]
        return min(left, key=lambda pair: pair[0])[1] if left else None

    @property
    def verdict(self) -> Level:
        """The worst of the findings."""
        return worst(self.findings)


@dataclass(frozen=True, slots=True)
class Review:
    """The whole report. Times are epoch s; ``window`` and ``state_step`` are in s."""

    start: float
    end: float
    source: str
    written_at: float
    window: int
    state_step: int
    currency: str
    models: tuple[ModelReview, ...]
    missing: tuple[Missing, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def build(
    telemetry: Telemetry,
    settings: ReviewSettings,
    source: str,
    written_at: float,
    before: Mapping[str, change.Measures] | None = None,
    past: Mapping[str, Past] | None = None,
    warnings: Sequence[str] = (),
    carried: Mapping[str, Carries | str] | None = None,
) -> Review:
    """Measure every model. By model name: ``before`` holds what `change.measures` said of the period before, ``past``
    its weeks of history, ``carried`` what the simulated server carries, or why that is not known.
    """
    models = tuple(
        _model(
            name,
            telemetry,
            settings,
            (before or {}).get(name),
            (past or {}).get(name, {}),
            (carried or {}).get(name, ""),
        )
        for name in telemetry.models()
    )
    return Review(
        start=telemetry.grid.start,
        end=telemetry.grid.end,
        source=source,
        written_at=written_at,
        window=telemetry.grid.step,
        state_step=telemetry.states.step,
        currency=settings.currency,
        models=_ordered(models),
        missing=tuple(_joined(telemetry.missing)),
        warnings=tuple(warnings),
    )


def _model(
    name: str, telemetry: Telemetry, settings: ReviewSettings, before: change.Measures | None, past: Past,
    twin: Carries | str = "",
) -> ModelReview:  # fmt: skip
    engines, grid = telemetry.of(name), telemetry.grid
    numbers, texts, changed = _settings(telemetry, engines, settings, name)
    room = load.headroom(engines, numbers.get("max_num_seqs"))
    work = load.traffic(engines, grid)
    tails = {
        key: latency.tail(latency.whole(engines, key))
        for key in (
            "ttft_seconds",
            "tpot_seconds",
            "inter_token_latency_seconds",
            "e2e_latency_seconds",
            "queue_time_seconds",
        )
    }
    evicted = incidents.preemption(engines, grid)
    bend = knee.knee(engines, grid.step, room.slots)
    truncated = work.by_reason.get("length", 0.0) / work.requests if work.requests else None
    form = shape.shape(engines, room, work.prefix_hit_ratio, truncated, tails["tpot_seconds"].mean, numbers)
    slos = settings.slos_of(name)
    judged = slo_report.promises(engines, slos, form.outputs)
    kept = all(promise.met is True for promise in judged) if judged else None
    bill = money.money(
        engines, grid, work, bend, slos, settings.gpus_of(name), settings.price_of(name), twin, kept
    )  # fmt: skip
    missed = None if not judged else all(promise.met is not False for promise in judged)
    model = ModelReview(
        model_name=name,
        findings=(),
        traffic=work,
        headroom=room,
        state_minutes=incidents.minutes(engines, telemetry.states),
        incidents=incidents.incidents(engines, grid, telemetry.states),
        preemption=evicted,
        tails=tails,
        gap=latency.gap(engines, grid.step),
        by_length=latency.by_length(engines, grid.step),
        promises=judged,
        knee=bend,
        shape=form,
        slots=max_num_seqs.advise(room, evicted, bend, missed),
        truncated_share=truncated,
        cuts=_cuts(telemetry, name),
        reasoning_cut=sum(
            n for key, n in telemetry.logs.items() if key[0] == "log_reasoning_truncated_total" and key[1] == name
        ),
        money=bill,
        trends=_trends(past, room),
        forecast=forecast(past.get("demand") or load.by_hour(engines, grid), grid.end, work.demand_p99, bill),
        versus_before=change.changes(before, change.measures(engines, grid)),
        engines=[_row(engine, series, telemetry) for engine, series in engines.items()],
        settings=texts,
        changes=changed,
        restarts=sum(series.restarts for series in engines.values()),
    )
    return _with_findings(model)


def with_whatif(review: Review, tried: Mapping[str, WhatIf | str]) -> Review:
    """Return the review with what-ifs by model name, or why there is none; findings are judged anew with them."""

    def judged(model: ModelReview) -> ModelReview:
        found = tried.get(model.model_name, "")
        if isinstance(found, str):
            return replace(model, no_whatif=found)
        return _with_findings(replace(model, whatif=found))

    return replace(review, models=_ordered(map(judged, review.models)))


def _ordered(models: Iterable[ModelReview]) -> tuple[ModelReview, ...]:
    return tuple(sorted(models, key=lambda model: (RANK[model.verdict], model.model_name)))


def _with_findings(model: ModelReview) -> ModelReview:
    return replace(model, findings=findings(model))


def _settings(
    telemetry: Telemetry, engines: Mapping[EngineId, EngineSeries], settings: ReviewSettings, name: str
) -> tuple[dict[str, float], dict[str, dict[str, str]], list[Setting]]:
    """Numbers in force (the smallest over the targets), every target's settings as text, and what changed when."""
    targets = {engine.target for engine in engines}
    texts: dict[str, dict[str, str]] = {target: {} for target in sorted(targets)}
    changed: list[Setting] = []
    for setting in sorted(telemetry.settings, key=lambda s: s.at):
        if setting.target in targets:
            own = texts[setting.target]
            if setting.name in own and own[setting.name] != setting.value:
                changed.append(setting)
            own[setting.name] = setting.value
    own_settings = settings.models.get(name)
    for own in texts.values():
        for key, given in (own_settings.settings if own_settings else {}).items():
            own.setdefault(key, f"{given:.15g}")
    numbers: dict[str, float] = {}
    for own in texts.values():
        for key, text in own.items():
            value = _number(text)
            if value is not None:
                numbers[key] = min(value, numbers.get(key, value))
    return numbers, texts, changed


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cuts(telemetry: Telemetry, name: str) -> list[Cut]:
    answers: dict[str, float] = {}
    for key, count in telemetry.logs.items():
        if key[0] == "log_responses_total" and key[1] == name:
            answers[key[2]] = answers.get(key[2], 0.0) + count
    cut: dict[tuple[str, str], float] = {}
    for key, count in telemetry.logs.items():
        if key[0] == "log_truncated_responses_total" and key[1] == name and count > 0:
            cut[key[2], key[4]] = cut.get((key[2], key[4]), 0.0) + count
    return [
        Cut(route, cap, n, n / answers[route] if answers.get(route) else None)
        for (route, cap), n in sorted(cut.items())
    ]


def _trends(past: Past, room: load.Headroom) -> list[Trend]:
    found = []
    if past.get("kv"):
        found.append(trend("KV usage, daily peak", "share", past["kv"], 1.0))
    if past.get("running"):
        found.append(trend("Running on the busiest engine, daily peak", "requests", past["running"], room.slots))
    return found


def _row(engine: EngineId, series: EngineSeries, telemetry: Telemetry) -> EngineRow:
    one = {engine: series}
    kv = load.spread([series.gauge("kv_cache_usage_max_ratio")])
    seconds = len(known(load.up(series) or ())) * telemetry.grid.step
    spent = incidents.minutes(one, telemetry.states)
    return EngineRow(
        engine=engine,
        harmful_minutes=sum(spent.get(state.value, 0.0) for state in incidents.HARMFUL),
        kv_p95=kv.p95,
        kv_max=kv.max,
        running_mean=mean(series.gauge("requests_running") or ()),
        running_max=max(known(series.gauge("requests_running_max") or ()), default=None),
        waiting_max=max(known(series.gauge("requests_waiting") or ()), default=None),
        requests=sum(known(load.completions(series) or ())),
        generated_per_second=load.total(one, "generation_tokens_total") / seconds if seconds else None,
        preemptions=load.total(one, "preemptions_total"),
        tpot_p99=latency.tail(latency.whole(one, "tpot_seconds")).p99,
        ttft_p99=latency.tail(latency.whole(one, "ttft_seconds")).p99,
    )


def _joined(missing: Sequence[Missing]) -> list[Missing]:
    """Neighbouring gaps of the same thing, missing for the same reason, as one."""
    found: list[Missing] = []
    for each in sorted(missing, key=lambda m: (m.what, m.why, m.start)):
        last = found[-1] if found else None
        if last and (last.what, last.why) == (each.what, each.why) and each.start - last.end < DAY / 2:
            found[-1] = Missing(last.what, last.start, max(last.end, each.end), last.why)
        else:
            found.append(each)
    return found
