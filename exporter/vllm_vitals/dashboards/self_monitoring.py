"""Self-monitoring: does vllm-vitals see what it should, and does it stay small?"""

from typing import Any

from vllm_vitals.dashboards import field_config, levels, links, panels, recorded, theme
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import folded_target, gauge, metric, most, overall, rate
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import ANY_IS_BAD, Site
from vllm_vitals.dashboards.theme import Row
from vllm_vitals.rules import boards

_REPLICA = f"and on (job, instance) {metric('build_info').full_name}"


def build(site: Site) -> dict[str, Any]:
    """Return the dashboard's JSON."""
    rows = (
        Row("Is every server seen?", _seen(site)),
        Row("What was odd", _odd(site)),
        Row("What it costs", _cost(site)),
    )
    return theme.dashboard(
        links.SELF,
        "Whether vllm-vitals sees every server, what it could not use, and what it costs. If this page is red, the "
        "others cannot be trusted.",
        rows,
        variables=("target",),
    )


def _seen(site: Site) -> tuple[Panel, ...]:
    up = folded_target("target_up")
    age = f"time() - {folded_target('last_scrape_timestamp_seconds')}"
    server = [Column("target", "Server")]
    return (
        panels.stat(
            "Servers not seen",
            "Servers whose last scrape gave nothing usable, and all servers. The first must be 0: what is not seen "
            "is not healthy, it is unknown.",
            [Query(f"count({up}) - sum({up})", "not seen", instant=True), Query(f"count({up})", "all", instant=True)],
            "none",
            "no server configured",
            named=True,
            levels=ANY_IS_BAD,
            width=5,
            height=7,
            overrides=[field_config.by_name("all", colour=levels.GREY)],
        ),
        panels.table(
            "Servers",
            "Each server: whether it answers, how old its numbers are, how long a scrape takes, its version and "
            "dialect. A scrape near its timeout is the first sign of a server that will go blind.",
            [
                up,
                age,
                folded_target("scrape_duration_seconds"),
                folded_target("unknown_vllm_families"),
                folded_target("server_info", keep=("version", "dialect")),
            ],
            [
                *server,
                Column("Value #A", "Seen", width=70, mappings=[panels.YES_NO]),
                Column("Value #B", "Age", "s", levels=site.scale.scrape_age, decimals=0, width=80),
                Column("Value #C", "Scrape takes", "s", width=110),
                Column("version", "vLLM", width=90),
                Column("dialect", "Dialect", width=110),
                Column("Value #D", "Unknown families", "none", width=135, decimals=0),
            ],
            "No server is configured, or Prometheus does not scrape the daemon.",
            width=19,
            height=7,
            sort="Seen",
        ),
    )


def _odd(site: Site) -> tuple[Panel, ...]:
    return (
        panels.table(
            "Contradictions",
            "What a server's page says that cannot be true together, by check, and how many findings now. While there "
            "is one, a verdict that rests on it is withheld or wider: mend it first.",
            [f"{folded_target('contradictions', keep=('check',))} > 0"],
            [Column("target", "Server"), Column("check", "Check"), Column("Value", "Findings", width=80, decimals=0)],
            "No server contradicts itself.",
            width=12,
            height=6,
            sort="Server",
        ),
        panels.table(
            "What keeps vllm-vitals from looking",
            "A reason why the daemon itself cannot look as it should: file descriptors, event loop, disk. While "
            "one is here, a server that looks down may be well.",
            [f"{gauge('monitor_impaired')} == 1"],
            [Column("reason", "Reason")],
            "Nothing: the daemon looks as it should, or none feeds this Prometheus.",
            width=6,
            height=6,
            sort="Reason",
        ),
        panels.timeseries(
            "Longest stop of the event loop",
            "The longest that the daemon's event loop stood still over the last minute. Near the scrape interval, its "
            "times are no longer its servers': give it more CPU, or shard the targets.",
            [Query(gauge("event_loop_lag_seconds"), "longest stop")],
            "s",
            "No daemon feeds this Prometheus.",
            width=6,
            height=6,
        ),
        panels.timeseries(
            "Failed scrapes per second, by reason",
            "Why scrapes fail: refused and dns are a server that is gone; timeout, truncated and http_error one that "
            "is there and cannot answer; unauthorized is a key.",
            [Query(recorded.of_targets(boards.FAILED, "reason"), "{{target}} {{reason}}")],
            "cps",
            "No scrape has failed, or this Prometheus has not loaded recording.yml.",
        ),
        panels.timeseries(
            "Samples dropped as impossible",
            "Values that cannot be true (KV usage above 1, a negative count), by family. Never shown as data, but a "
            "sign of a bug on the server: report it.",
            [Query(recorded.of_targets(boards.DROPPED, "family"), "{{target}} {{family}}")],
            "cps",
            "Every sample was possible, or this Prometheus has not loaded recording.yml.",
        ),
        panels.timeseries(
            "Log lines per second, by what became of them",
            "Each line ends in exactly one result. Many unmatched lines: the schema does not fit this log, see "
            "`vllm-vitals logs FILE`.",
            [
                Query(
                    most(
                        f"sum by (source, result) ({rate('log_records_total', keep=())})",
                        "source, result",
                        overall("log_records_total", "source, result"),
                    ),
                    "{{source}} {{result}}",
                )
            ],
            "cps",
            "No logs are read: set logs in the config.",
            stack=True,
        ),
    )


def _cost(site: Site) -> tuple[Panel, ...]:
    build_info = metric("build_info").full_name
    return (
        panels.timeseries(
            "Duration of a scrape",
            "How long the slowest server takes to answer /metrics, and the one in the middle. It grows when a server's "
            "event loop is busy: an early warning. The table above has each server's.",
            [Query(f"max({boards.SLOWEST})", "slowest server"), Query(f"max({boards.USUAL})", "median server")],
            "s",
            "No server is configured, or this Prometheus has not loaded recording.yml.",
            width=6,
        ),
        panels.timeseries(
            "Memory of the daemon",
            "Resident memory of each replica. It is bounded by the number of engines; steady growth without new "
            "servers is a leak to report.",
            [Query(f"process_resident_memory_bytes {_REPLICA}", "{{instance}}")],
            "bytes",
            "Only the daemon has memory: native mode runs none.",
            width=6,
        ),
        panels.timeseries(
            "CPU of the daemon",
            "Cores in use by each replica. Above one core, shard the targets.",
            [Query(f"rate(process_cpu_seconds_total[$__rate_interval]) {_REPLICA}", "{{instance}}")],
            "none",
            "Only the daemon uses CPU: native mode runs none.",
            width=6,
        ),
        panels.table(
            "Replicas and versions",
            "Every daemon that feeds this Prometheus. Two replicas of one version are a fine pair; two versions for "
            "more than a rollout are not.",
            [f"max by (instance, version, python) ({build_info}{{}})"],
            [
                Column("instance", "Replica"),
                Column("version", "Version", width=90),
                Column("python", "Python", width=90),
            ],
            "No daemon: recording rules alone feed this Prometheus.",
            width=6,
        ),
    )
