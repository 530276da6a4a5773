"""The trouble of each alert, as series of the exporter. One case per (alert, severity); see `scenario`."""

from collections.abc import Mapping

from tests.rules.scenario import SCRAPED, STEP, VICTIM, Case, Level, Series
from vllm_vitals.core.states import State

V = VICTIM
SERVER = {k: V[k] for k in ("target", "model_name")}
TARGET = {"target": V["target"]}
MODEL = {"model_name": V["model_name"]}
P = "vllm_vitals_"


def gauge(
    name: str,
    calm: Level,
    bad: Level,
    under: Level = None,
    idle: Level = 0.0,
    victim: Mapping[str, str] = V,
    /,
    **labels: str,
) -> Series:
    return Series(P + name, {**SCRAPED, **victim, **labels}, calm, bad, calm if under is None else under, idle)


def counter(
    name: str,
    calm: Level,
    bad: Level,
    under: Level = None,
    idle: Level = 0.0,
    victim: Mapping[str, str] = V,
    /,
    **labels: str,
) -> Series:
    return Series(
        P + name, {**SCRAPED, **victim, **labels}, calm, bad, calm if under is None else under, idle, counter=True
    )


def states(
    bad: State, calm: State = State.HEALTHY, under: State = State.HEALTHY, victim: Mapping[str, str] = V
) -> tuple[Series, ...]:
    """All states of one engine: exactly one holds in each phase."""
    return tuple(
        gauge(
            "state", float(s is calm), float(s is bad), float(s is under), float(s is State.IDLE), victim, state=str(s)
        )
        for s in State
    )


def load(
    running: float = 4, waiting: float = 0, bad_waiting: Level = 8.0, victim: Mapping[str, str] = V
) -> tuple[Series, ...]:
    """Running and waiting, and the counters of an engine that works."""
    return (
        gauge("requests_running", running, running, running, 0, victim),
        gauge("requests_waiting", waiting, bad_waiting, waiting, 0, victim, reason="capacity"),
        counter("generation_tokens_total", 100, 40, 100, 0, victim),
        counter("responses_total", 1, 0.5, 1, 0, victim, finished_reason="stop"),
        counter("responses_total", 0, 0, 0, 0, victim, finished_reason="length"),
    )


def evidence(r: float, tax: float) -> tuple[Series, ...]:
    """What the exporter says of an engine that evicts, so that the page can be read in full."""
    return (
        gauge("preemptions_per_completion", 0.1, r), gauge("repeat_preemption_ratio", 0, 0.7),
        gauge("recompute_tax_ratio", 0, tax), gauge("recompute_tax_lower_ratio", 0, tax * 0.8),
        gauge("recompute_tax_upper_ratio", 0, tax * 1.1), counter("preemptions_total", 0, 12),
        gauge("useful_tokens_per_second", 820, 240), gauge("useful_tokens_baseline_per_second", 800, 800),
        gauge("kv_cache_usage_max_ratio", 0.6, 1), gauge("kv_cache_usage_ratio", 0.5, 0.98),
        gauge("prompt_tokens_mean", 500, 1270), gauge("state_since_timestamp_seconds", 0, 600),
        gauge("advice", None, 1, None, None, V, knob="scheduler_reserve_full_isl", direction="set"),
        Series(P + "server_info", {**SCRAPED, **TARGET, "version": "0.32.0", "dialect": "v1"}, 1, 1, 1, 1),
    )  # fmt: skip


def peers(number: int) -> tuple[Series, ...]:
    """Further engines of the same model, which work throughout."""
    others: list[Series] = []
    for i in range(number):
        victim = {**V, "target": f"peer{i}:8000"}
        others.append(counter("generation_tokens_total", 100, 100, 100, 0, victim))
        others.append(counter("responses_total", 1, 1, 1, 0, victim, finished_reason="stop"))
    return tuple(others)


def _once(seconds: float) -> float:
    """The slope of a counter that grows by one as the trouble begins, and then no more."""
    return 1 / STEP if seconds == 0 else 0.0


def _errors(source: str, kind: str, calm: Level, bad: Level, under: Level = None) -> Series:
    return counter("log_engine_errors_total", calm, bad, under, 0, {}, source=source, kind=kind)


def engine(severity: str, alert: str, after: int, keeps: int, *series: Series, **more: object) -> Case:
    return Case(alert, severity, series, after, V, keeps, **more)  # type: ignore[arg-type]


def model(severity: str, alert: str, after: int, keeps: int, *series: Series, **more: object) -> Case:
    return Case(alert, severity, series, after, MODEL, keeps, **more)  # type: ignore[arg-type]


PAGES = (
    model("page", "VLLMDeathSpiral", 0, 600, *states(State.DEATH_SPIRAL, under=State.THRASHING),
           *load(), *evidence(11.2, 0.78)),
    model(
        "page", "VLLMFailing", 0, 600, *states(State.FAILING, under=State.DEGRADED), *load(),
        counter("responses_total", 0, 2, 0.1, 0, finished_reason="error"),
    ),
    # Two of three are down; just under: one.
    Case(
        "VLLMCapacityLost", "page",
        (
            *states(State.DOWN, under=State.HEALTHY),
            *states(State.DOWN, under=State.DOWN, victim={**V, "target": "peer1:8000"}),
            *states(State.HEALTHY, victim={**V, "target": "peer2:8000"}), *load(),
        ),
        600, MODEL, 600, settles=600,
    ),
    # The queue of an engine that finishes one request in two seconds.
    model(
        "page", "VLLMOverload", 675, 600, *states(State.SATURATED),
        *load(bad_waiting=lambda seconds: 40 + 0.05 * seconds), settles=600,
    ),
    model(
        "page", "VLLMStalled", 0, 600, *states(State.STALLED, under=State.SATURATED), *load(),
        counter("canary_requests_total", 1 / 60, 0, 1 / 60, 0, TARGET, outcome="ok"),
        counter("canary_requests_total", 0, 1 / 60, 0, 0, TARGET, outcome="timeout"),
    ),
    Case("VLLMModelUnavailable", "page", (*states(State.DOWN, under=State.BLIND), *load()), 180, MODEL, 600),
    # The wait must have been above the objective and have risen for ten minutes: it rises with the queue.
    model(
        "page", "VLLMThrashing", 600, 600, *states(State.THRASHING, under=State.PREEMPTING),
        *load(bad_waiting=lambda seconds: 8 + 0.04 * seconds),
        gauge("expected_wait_seconds", 1, lambda seconds: 20 + 0.1 * seconds, 9), *evidence(0.7, 0.2),
    ),
)  # fmt: skip

TICKETS = (
    engine("ticket", "VLLMDeathSpiral", 60, 900, *states(State.DEATH_SPIRAL, under=State.THRASHING),
           *load(), *evidence(11.2, 0.78)),
    engine("ticket", "VLLMStalled", 60, 900, *states(State.STALLED, under=State.SATURATED), *load()),
    engine("ticket", "VLLMFailing", 60, 900, *states(State.FAILING, under=State.SATURATED), *load(),
           counter("responses_total", 0, 2, 0.1, 0, finished_reason="error")),
    engine("ticket", "VLLMDegraded", 300, 900, *states(State.DEGRADED, under=State.SATURATED), *load()),
    engine("ticket", "VLLMKVHeld", 600, 900, *states(State.KV_HELD, under=State.IDLE)),
    engine("ticket", "VLLMPaused", 900, 900, *states(State.PAUSED, under=State.IDLE)),
    engine("ticket", "VLLMThrashing", 300, 960, *states(State.THRASHING, under=State.PREEMPTING), *load()),
    engine("ticket", "VLLMPreempting", 1800, 1200, *states(State.PREEMPTING, under=State.SATURATED), *load()),
    # With a queue the state is saturated.
    engine("ticket", "VLLMKVPressure", 3600, 1200, *states(State.SATURATED), *load(),
           gauge("kv_cache_usage_max_ratio", 0.6, 0.95, 0.89)),
    engine(
        "ticket", "VLLMTailDivergence", 900, 900, *states(State.HEALTHY), *load(),
        gauge("tpot_p99_p50_ratio", 1.5, 4.5, 3.9, source="request", bound="lower"),
        counter("tpot_seconds_count", 1, 1, 1),
    ),
    engine(
        "ticket", "VLLMResponsesTruncated", 1800, 900, *states(State.HEALTHY), *load(),
        gauge("truncated_ratio", 0.05, 0.35, 0.29),
    ),
    Case(
        "VLLMReasoningTruncated", "ticket",
        (
            counter("log_responses_total", 1, 1, 1, 0, MODEL, route="/chat", source="a.log"),
            counter("log_reasoning_truncated_total", 0, 0.2, 0.04, 0, MODEL, route="/chat", source="a.log"),
        ),
        900 + 435, {**MODEL, "route": "/chat"}, 900, lead=2400, settles=1800, other={"model_name": "mistral"},
    ),
    engine("ticket", "VLLMLongQueue", 900, 960, *states(State.SATURATED), *load(),
           gauge("expected_wait_seconds", 1, 30, 9.5)),
    engine("ticket", "VLLMStarvedDecode", 300, 960, *states(State.STARVED, under=State.SATURATED), *load()),
    engine(
        "ticket", "VLLMRunawayRequest", 120 + 60, 900, *states(State.HEALTHY), *load(),
        gauge("inflight_output_tokens_estimate", 100, 6000, 4000), gauge("output_tokens_mean", 300, 300),
    ),
    engine(
        "ticket", "VLLMOutputStragglers", 1800, 900, *states(State.HEALTHY), *load(),
        gauge("output_tokens_straggler_ratio", 2, 9, 7.9), counter("request_output_tokens_count", 1, 1, 1),
    ),
    Case(
        "VLLMServerSettingDropped", "ticket",
        (gauge("server_setting_overridden", 1, 0, 1, 1, TARGET, name="max_tokens"),),
        60, {**TARGET, "name": "max_tokens"},
    ),
    Case(
        "VLLMDPImbalance", "ticket",
        (
            gauge("requests_running", 4, 40, 11), gauge("requests_waiting", 0, 0, reason="capacity"),
            gauge("requests_running", 4, 4, 4, 0, {**V, "engine": "1"}),
            gauge("requests_waiting", 0, 0, 0, 0, {**V, "engine": "1"}, reason="capacity"),
        ),
        1800 + 60, SERVER, 900, settles=300,
    ),
    engine("ticket", "VLLMBlind", 300, 0, *states(State.BLIND)),
    engine("ticket", "VLLMEngineDown", 600, 0, *states(State.DOWN, under=State.BLIND)),
    engine(
        "ticket", "VLLMAsleepWithWork", 300, 900, *states(State.ASLEEP), gauge("requests_running", 0, 0),
        gauge("requests_waiting", 0, 3, reason="deferred"),
    ),
    engine(
        "ticket", "VLLMEngineSilent", 285 + 60, 900, *states(State.HEALTHY),
        counter("generation_tokens_total", 100, 0, 1), counter("responses_total", 1, 0, 1, finished_reason="stop"),
        *peers(2),
    ),
    # One fatal error; just under: 18 harmless ones within 15 minutes.
    Case(
        "VLLMEngineErrors", "ticket",
        (
            _errors("vllm-0", "engine_dead", 0, _once),
            _errors("vllm-0", "request_failed", 0, 0, 0.05),
        ),
        60, {"source": "vllm-0", "kind": "engine_dead"}, 900, settles=900, other={"source": "vllm-1"},
    ),
)  # fmt: skip


def _fresh(seconds: float) -> float:
    """A scrape taken just now, for a lead of 600 s."""
    return 600 + seconds


def _seen(engine: str, bad: Level) -> Series:
    return gauge("state", 1, bad, 1, 1, {**V, "engine": engine}, state="healthy")


META = (
    Case("VLLMSightLost", "page", (_seen("0", None),), 180, {}, 900, other={}),
    Case(
        "VLLMEnginesFewer", "ticket", (_seen("0", 1), _seen("1", None), _seen("2", None)), 600, {}, lead=3600, other={}
    ),
    Case(
        "VLLMExporterDown", "page", (gauge("build_info", 1, None, 1, 1, {}),), 300, {}, 900, other={},
    ),
    Case(
        "VLLMPageContradicts", "ticket", (gauge("contradictions", 0, 1, 0, 0, TARGET, check="several_servers"),),
        600 + 300, {**TARGET, "check": "several_servers"}, 900, settles=300,
    ),
    Case(
        "VLLMExporterDown", "ticket", (Series("up", {"job": "vllm-vitals", "instance": "a"}, 1, 0, 1, 1),), 300, {},
        other={},
    ),
    # Scraped once a minute; just under: twice.
    Case(
        "VLLMExporterScrapedSeldom", "ticket",
        (gauge("build_info", 1, lambda s: None if s % 60 else 1, lambda s: None if s % 30 else 1, 1, {}),),
        900 + 225, {}, other={}, settles=225,
    ),
    # The exporter's clock stands still; promtool's own starts at 0.
    Case(
        "VLLMExporterStale", "ticket",
        (
            gauge("last_scrape_timestamp_seconds", _fresh, 600, lambda s: 500 + s, _fresh, TARGET),
            gauge("target_up", 1, 1, 1, 1, TARGET),
        ),
        135 + 300, TARGET, lead=600,
    ),
    Case(
        "VLLMUnknownFamilies", "ticket", (gauge("unknown_vllm_families", 0, 3, 0, 0, TARGET),), 3600 + 900, TARGET,
        settles=900,
    ),
    Case(
        "VLLMMonitorImpaired", "ticket",
        (
            gauge("monitor_impaired", 0, 1, 0, 0, {}, reason="file_descriptors"),
            gauge("event_loop_lag_seconds", 0.01, 0.02, 0.02, 0.01, {}),
        ),
        300, {"reason": "file_descriptors"}, 900, other={},
    ),
    Case(
        "VLLMRulesFail", "ticket",
        tuple(
            Series("prometheus_rule_evaluation_failures_total", {"rule_group": group}, 0, 1, under, 0, counter=True)
            for group, under in (("/r/alerts.yml;vllm_vitals.pages", 0), ("/r/theirs.yml;node", 1))
        ),
        300, {"rule_group": "/r/alerts.yml;vllm_vitals.pages"}, 900, other={}, settles=900,
    ),
    Case("VLLMVitalsWatchdog", "none", (gauge("build_info", 1, 1, 1, 1, {}),), 0, {}, always=True, other={}),
)  # fmt: skip


def _ttft(calm: float, bad: float, under: float, le: str) -> Series:
    return Series(P + "ttft_seconds_bucket", {**SCRAPED, **V, "le": le}, calm, bad, under, 0.0, counter=True)


# Half of the requests miss the objective; just under it, one in two hundred does.
_SLO = (_ttft(1, 0.5, 0.995, "10.0"), _ttft(1, 1, 1, "+Inf"))
_PROMISE = {**MODEL, "slo": "first_token"}
SLOS = (
    Case("VLLMSLOBurn", "page", _SLO, 630, _PROMISE, 600, lead=3600, settles=3600, ruleset="slo"),
    Case("VLLMSLOBurn", "ticket", _SLO, 195, _PROMISE, lead=3600, settles=22500, ruleset="slo"),
)

CASES = (*PAGES, *TICKETS, *META, *SLOS)
