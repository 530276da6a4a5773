"""Alerts about the monitoring itself, and the Watchdog that proves the whole path works.

No rule's output carries the exporter's own job or instance: two exporters for one fleet are one truth.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.durations import duration_text
from vllm_vitals.core.states import State
from vllm_vitals.rules.model import Alert, Recording, Scope, Severity
from vllm_vitals.rules.promql import metric, number, on
from vllm_vitals.rules.selectors import KEEP, fold
from vllm_vitals.rules.text import COUNT, TIME, ask, duration_words, facts, label, now, preamble

SELF = "vllm-vitals-self"


# Exporters that Prometheus read within the hour before the last of them was gone; written for that hour.
_GONE = "fleet:vllm_vitals_exporters_gone:count"
_ONE_STATE = f'state="{State.HEALTHY}"'
_SEEN = "fleet:vllm_vitals_engines:count"
_KNOWN = 30 * 86400  # s: how long it is held against them
_KNOWN_GONE = f"last_over_time({_GONE}[{duration_text(_KNOWN)}])"
# What the rules can do with: rates over a minute, and two scrapes in each (s).
_LONGEST_INTERVAL, _LOOK = 30, 300
_RULES_LOOK, _RULES_HOLD = 901, 300  # s: a reload or a restart may miss one evaluation
_IMPAIRED = 300  # s: a spike of load, or a full disk that is rotated at once, needs nobody


def recordings(config: Config) -> tuple[Recording, ...]:
    """Return how many engines are seen."""
    # every engine has every state: one of them counts
    engines = fold(config).gauge("state", _ONE_STATE, 'model_name!=""')
    return (Recording(_SEEN, f"count({engines})"),)


def own_recordings() -> tuple[Recording, ...]:
    """Return the memory of exporters that were there."""
    info = metric("build_info")
    return (Recording(_GONE, f"count(last_over_time({info}[1h])) and on () absent({info})"),)


def alerts(config: Config) -> tuple[Alert, ...]:
    """Return all of them."""
    return (
        _all_gone(config),
        _down(config),
        *_sight(config),
        _seldom(config),
        _stale(config),
        _impaired(config),
        _rules_fail(),
        _contradicts(config),
        _unknown(config),
        _watchdog(),
    )


def _all_gone(config: Config) -> Alert:
    known = f"last_over_time({_GONE}[{duration_text(_KNOWN)}])"
    return Alert(
        "VLLMExporterDown",
        Severity.PAGE,
        "meta",
        Scope.FLEET,
        f"absent({metric('build_info')}) and on () {known}",
        "No vllm-vitals exporter is left: nothing watches vLLM.",
        preamble(config, Scope.FLEET)
        + f"Prometheus reads no exporter any more; it had {ask(known, COUNT)}. No alert on its servers can fire: "
        "silence proves nothing.\n"
        "DO NOW: restart the exporter, or find out why Prometheus no longer scrapes it (its PodMonitor or job, its "
        "namespace, the network).\n"
        "Not known: the state of every server. If none is meant to run any more, build the rules with --mode native.",
        f"{SELF}:Replicas and versions",
        hold=300,
        keep=KEEP,
    )


def _sight(config: Config) -> tuple[Alert, ...]:
    """Losing sight of engines: all of them, half of them, or more than a model may lose."""
    wanted = config.desired_replicas
    none_wanted = f" unless on () (sum({wanted}) == 0)" if wanted else ""
    fewer_wanted = f" unless on () (sum({wanted}) < sum({wanted} offset 1h))" if wanted else ""
    # without the label that absent() makes of its matcher: nothing is healthy there
    none = f"max(absent({metric('state')}{{{_ONE_STATE}}}))"
    # Where the exporters are gone, VLLMExporterDown says it.
    emptied = f"({none} and on () (max_over_time({_SEEN}[1h]) > 0) unless on () {_GONE}){none_wanted}"
    halved = f"({_SEEN} < 0.5 * ({_SEEN} offset 1h > 1)){fewer_wanted}"
    before = ask(f"max_over_time({_SEEN}[1h])", COUNT)
    found = [
        Alert(
            "VLLMSightLost",
            Severity.PAGE,
            "meta",
            Scope.FLEET,
            emptied,
            "No vLLM engine is seen any more.",
            preamble(config, Scope.FLEET)
            + f"Engines watched within the hour: {before}; now: none. Nothing says that they were scaled to zero.\n"
            "DO NOW: see whether the servers answer (kubectl get pods, curl /metrics); then what discovers them: a "
            "selector of a PodMonitor, a label, file_sd, DNS, the exporter's config.\n"
            "Not known: whether anything is served. If they were scaled to zero on purpose, give "
            "alerts.desired_replicas "
            "(docs/alerts.md): then this stays silent.",
            f"{SELF}:Servers not seen",
            hold=180,
            keep=KEEP,
        ),
        Alert(
            "VLLMEnginesFewer",
            Severity.TICKET,
            "meta",
            Scope.FLEET,
            halved,
            "Fewer than half of the engines of an hour ago are seen.",
            preamble(config, Scope.FLEET)
            + f"Engines watched now: {ask(_SEEN, COUNT)}; within the hour: {before}. No series of desired replicas "
            "explains it.\n"
            "Next: see whether somebody scaled down; else check discovery.",
            f"{SELF}:Servers not seen",
            hold=600,
        ),
    ]
    if config.min_engines:
        serving = f'state!~"{State.DOWN}|{State.STARTING}|{State.BLIND}"'
        each = []
        for model_name, least in sorted(config.min_engines.items()):
            mine = fold(config).gauge("state", f'model_name="{model_name}"', serving)
            none = f'label_replace(vector(0), "model_name", "{model_name}", "", "")'
            each.append(f"((count by (model_name) ({mine} == 1) or on (model_name) {none}) < {least})")
        found.append(
            Alert(
                "VLLMTooFewEngines",
                Severity.PAGE,
                "availability",
                Scope.FLEET,
                f"max by (model_name) ({' or '.join(each)})",
                f"{label('model_name')} has fewer engines than it must have.",
                preamble(config, Scope.FLEET)
                + f"{{{{ $value }}}} engine(s) of {label('model_name')} answer, fewer than the least that the config "
                f"asks "
                "for (alerts.min_engines).\n"
                "DO NOW: see whether its servers run; if they do, check discovery; else start them, and cap its load "
                "at "
                "the gateway meanwhile.\n"
                "Not known: whether those that are not seen serve.",
                "vllm-vitals-overview:State of each engine",
                hold=180,
                keep=KEEP,
            )
        )
    return tuple(found)


def _contradicts(config: Config) -> Alert:
    target = fold(config, Scope.TARGET)
    return Alert(
        "VLLMPageContradicts",
        Severity.TICKET,
        "meta",
        Scope.TARGET,
        f"{target.gauge('contradictions', over='min_over_time', seconds=300, keep=('check',))} > 0",
        f"The metrics of {label('target')} contradict each other: {label('check')}.",
        preamble(config, Scope.TARGET)
        + f"{label('target')} says things that cannot be true together (check {label('check')}). What rests on them is "
        "withheld or has wide bounds, so a verdict may be missing.\n"
        "Next: read the sentence on its status page. several_servers: discover each pod, not a Service; split_labels, "
        "unread_family: see what relabels or joins its metrics; kv_capacity, prefix_caching: see its start-up log.",
        f"{SELF}:Servers",
        hold=600,
        keep=KEEP,
    )


def _down(config: Config) -> Alert:
    info = metric("build_info")
    job = f'up{{job="{config.exporter_job}"}}'
    scraped = facts(
        ("exporters that answer", f"sum({job})", "count"),
        ("exporters that do not answer", f"count({job} == 0)", "count"),
        (f"exporters within {duration_words(_KNOWN)}, where none is left", f"max({_KNOWN_GONE})", "count"),
    )
    return Alert(
        "VLLMExporterDown",
        Severity.TICKET,
        "meta",
        Scope.FLEET,
        # Quiet where no exporter ever ran: in native mode none is meant to.
        f"(absent({info}) and on () last_over_time({_GONE}[{duration_text(_KNOWN)}])) or count({job} == 0)",
        "A vllm-vitals exporter is down.",
        preamble(config, Scope.FLEET)
        + scraped
        + "The servers that only these watched are unwatched: silence from them proves nothing.\n"
        + "Next: read the exporter's log and restart it; its memory of the last day fills again by itself. If none"
        " is meant to run any more, build the rules with --mode native.",
        f"{SELF}:Replicas and versions",
        hold=300,
    )


def _seldom(config: Config) -> Alert:
    scrapes = f"count_over_time({metric('build_info')}{fold(config, Scope.FLEET).range(_LOOK)})"
    return Alert(
        "VLLMExporterScrapedSeldom",
        Severity.TICKET,
        "meta",
        Scope.FLEET,
        f"count({scrapes} < {_LOOK // _LONGEST_INTERVAL}) > 0",
        "Prometheus scrapes an exporter too seldom for these rules.",
        preamble(config, Scope.FLEET)
        + f"Prometheus scrapes an exporter every {ask(f'{_LOOK} / min({scrapes})', TIME)} "
        f"(limit {duration_words(_LONGEST_INTERVAL)}). Rules that count within a minute then find one sample or none: "
        "they stay silent, and texts say unknown.\n"
        "Next: set the scrape interval of this job to 15 s (in Kubernetes: of the PodMonitor). Prometheus' own default "
        "is a minute.",
        f"{SELF}:Replicas and versions",
        hold=900,
    )


def _stale(config: Config) -> Alert:
    target, stale = fold(config, Scope.TARGET), config.limits.stale_seconds
    age = f"time() - {target.gauge('last_scrape_timestamp_seconds')}"
    return Alert(
        "VLLMExporterStale",
        Severity.TICKET,
        "meta",
        Scope.TARGET,
        f"{age} > {number(stale)} and {on(target.labels)} ({target.gauge('target_up')} == 1)",
        f"Data of {label('target')} is stale.",
        preamble(config, Scope.TARGET) + f"The last good scrape of {label('target')} is "
        f"{ask('time() - ' + now('last_scrape_timestamp_seconds'), TIME)} old"
        + f" (limit {duration_words(stale)}), although target_up is 1. Every alert on it may be "
        "late.\n" + "Next: look at the exporter's CPU and its number of targets; shard it if it is too slow.",
        f"{SELF}:Duration of a scrape",
        hold=300,
    )


def _unknown(config: Config) -> Alert:
    target = fold(config, Scope.TARGET)
    return Alert(
        "VLLMUnknownFamilies",
        Severity.TICKET,
        "meta",
        Scope.TARGET,
        f"{target.gauge('unknown_vllm_families', over='min_over_time', seconds=900)} > 0",
        f"{label('target')} exposes vLLM metrics that this release of the exporter does not know.",
        preamble(config, Scope.TARGET)
        + f"{label('target')} has {ask(now('unknown_vllm_families'), COUNT)} unknown families, most likely after an "
        "upgrade of vLLM."
        + " What is known is still read; a renamed family would make its vital sign absent.\n"
        + "Next: see on the dashboard that no vital sign has gone absent; then upgrade the exporter.",
        f"{SELF}:Servers",
        hold=3600,
    )


def _impaired(config: Config) -> Alert:
    lag = f"max({metric('event_loop_lag_seconds')})"
    return Alert(
        "VLLMMonitorImpaired",
        Severity.TICKET,
        "meta",
        Scope.FLEET,
        f"max by (reason) ({fold(config, Scope.FLEET).gauge('monitor_impaired', keep=('reason',))}) == 1",
        f"vllm-vitals itself is impaired: {label('reason')}.",
        preamble(config, Scope.FLEET)
        + f"For {duration_words(_IMPAIRED)} a vllm-vitals daemon has been kept from looking by its own "
        f"{label('reason')}. Its scrapes may fail or come late, and that says nothing about the servers.\n"
        f"Longest lag of its event loop in the last minute: {ask(lag, TIME)} (impaired from 1 s).\n"
        "Next: file_descriptors: raise the limit (LimitNOFILE, ulimit -n) or shard the targets; event_loop: give it "
        "more CPU or shard; disk: free or grow the volume of its recordings.",
        f"{SELF}:Replicas and versions",
        hold=_IMPAIRED,
        keep=KEEP,
    )


def _rules_fail() -> Alert:
    """Rules that are not evaluated judge nothing; Prometheus, or Mimir, says it of itself where it is scraped."""
    ours = 'rule_group=~".*vllm_vitals[.].*"'
    counters = ("rule_evaluation_failures_total", "rule_group_iterations_missed_total")
    counts = [f"{ruler}_{name}{{{ours}}}" for name in counters for ruler in ("prometheus", "cortex_prometheus")]
    grown = " or ".join(f"max by (rule_group) (increase({count}[{_RULES_LOOK}s]))" for count in counts)
    return Alert(
        "VLLMRulesFail",
        Severity.TICKET,
        "meta",
        Scope.FLEET,
        f"max by (rule_group) ({grown}) > 0",
        f"Rules of {label('rule_group')} fail or are evaluated too late.",
        f"In the last {duration_words(_RULES_LOOK - 1)} rules of the group {label('rule_group')} failed, "
        "or an evaluation of it was left out because the one before had not ended. Alerts that rest on it may be late "
        "or missing.\n"
        "Next: read the error on the page Rules of Prometheus, or in its log. many-to-many: two series where one is "
        "expected; a query that takes too long: more CPU, or a ruler of its own.",
        f"{SELF}:Servers",
        hold=_RULES_HOLD,
        keep=KEEP,
    )


def _watchdog() -> Alert:
    return Alert(
        "VLLMVitalsWatchdog",
        Severity.NONE,
        "meta",
        Scope.FLEET,
        "vector(1)",
        "Alerting works.",
        "This alert always fires. If it stops arriving at its receiver, nothing tells of any alert.",
        f"{SELF}:Servers not seen",
        why_no_hold="it must always fire",
    )
