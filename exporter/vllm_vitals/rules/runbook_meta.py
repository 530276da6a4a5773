"""What the runbooks of the meta alerts say. See `runbook_pages` for the rules they follow."""

from vllm_vitals.rules.model import Runbook
from vllm_vitals.rules.promql import metric

META: dict[str, Runbook] = {
    "VLLMExporterDown": Runbook(
        "An exporter that Prometheus scrapes does not answer, or none is there any more though one ran within the last "
        "thirty days (or as long as Prometheus keeps its data).",
        "The servers that only it watched are unwatched. Silence from them proves nothing.",
        ("Is its process there? What does its log end with?", "Can Prometheus reach it?"),
        (("Exporters and their versions", f"max by (version) ({metric('build_info')})"),),
        (
            "Restart it.",
            "Run two: rules fold them, so nothing pages twice.",
            "If you went over to native rules, build with `--mode native`: this alert is then left out.",
        ),
    ),
    "VLLMSightLost": Runbook(
        "Engines were watched within the hour and now none is, while no series of desired replicas says that none is "
        "wanted. Their targets left discovery, so none of them is down: they are not there.",
        "No alert on any server can fire. Whether anything is served is not known.",
        ("Do the servers answer? `kubectl get pods`, `curl /metrics`.", "Who changed a label, a selector or a file?"),
        (("Engines seen", "fleet:vllm_vitals_engines:count"), ("What is scraped", "count by (job) (up)")),
        (
            "Restore what discovers them: selector of the PodMonitor, labels, file_sd, DNS, the exporter's targets. It "
            "worked if engines are seen again within a minute.",
            "Scaled to zero on purpose: give `alerts.desired_replicas`, and it stays silent.",
        ),
    ),
    "VLLMEnginesFewer": Runbook(
        "Fewer than half of the engines of an hour ago are seen, and no series of desired replicas explains it.",
        "Perhaps none: somebody may have scaled down. Perhaps half of the fleet is unwatched.",
        ("Did somebody scale down? Do the missing servers answer?",),
        (("Engines seen", "fleet:vllm_vitals_engines:count"),),
        ("Check discovery.", "Give `alerts.desired_replicas`, so that a planned change is silent."),
    ),
    "VLLMTooFewEngines": Runbook(
        "A model has fewer engines that answer than `alerts.min_engines` asks for.",
        "Less capacity than planned; none, where it is 0.",
        ("Do its servers run?", "Are they discovered?"),
        (
            (
                "Engines by model",
                f"count by (model_name) (max by (model_name, target, engine) ({metric('state')}) == 1)",
            ),
        ),
        (
            "Cap its load at the gateway to what is there.",
            "Start the missing engines, or restore their discovery. It worked if the number is back.",
        ),
    ),
    "VLLMPageContradicts": Runbook(
        "What a server exposes cannot be true together. The `check` says which numbers: `several_servers` (one address "
        "leads to many), `split_labels`, `unread_family`, `kv_capacity`, `prefix_caching`, `waiting_reasons`, "
        "`running_limit`, `http_without_engine`.",
        "What rests on these numbers is withheld or has wide bounds: a verdict may be missing or late.",
        ("What does the server's status page say, in one sentence?",),
        (("Contradictions", f"max by (target, check) ({metric('contradictions')}) > 0"),),
        (
            "`several_servers`: discover each pod by itself, never a Service's address.",
            "`split_labels`, `unread_family`: see what relabels or joins its metrics.",
            "`kv_capacity`, `prefix_caching`, `running_limit`: compare with its start-up log; report it with a "
            "recording (`vllm-vitals record`) where the server is wrong.",
        ),
    ),
    "VLLMExporterScrapedSeldom": Runbook(
        "Prometheus scrapes an exporter less often than every 30 seconds. Rules count preemptions, tokens and finished "
        "requests within a minute, which then holds one sample or none.",
        "Some alerts stay silent, and the texts of others say unknown.",
        ("Which `scrape_interval` has the exporter's job? Without one Prometheus takes its global: by default 1m.",),
        (("Scrapes of each exporter in 5 minutes", f"count_over_time({metric('build_info')}[5m])"),),
        ("Set `scrape_interval: 15s` on the job (in Kubernetes `interval` of the PodMonitor).",),
    ),
    "VLLMExporterStale": Runbook(
        "The exporter takes a server for up, but its last good scrape is old: it cannot keep up, or a loop of it "
        "hangs.",
        "Alerts on this server may be late.",
        ("Is its CPU at the limit?", "Do scrapes take as long as the interval?"),
        (
            ("Age of the last scrape", f"time() - max by (target) ({metric('last_scrape_timestamp_seconds')})"),
            ("Duration of a scrape", f"max by (target) ({metric('scrape_duration_seconds')})"),
        ),
        ("Restart it.", "Shard the targets (`--shard 1/2`, `--shard 2/2`)."),
        ("stale_seconds",),
    ),
    "VLLMUnknownFamilies": Runbook(
        "The server exposes vLLM families that this release of the exporter does not list. Usually an upgrade of vLLM.",
        "None as long as no vital sign went absent.",
        ("Which vital signs are absent since the upgrade?",),
        (
            ("Unknown families by server", f"max by (target) ({metric('unknown_vllm_families')}) > 0"),
            ("Versions", f"max by (target, version) ({metric('server_info')})"),
        ),
        (
            "Upgrade the exporter. If there is no newer release, report the version and a recording (`vllm-vitals "
            "record`).",
        ),
    ),
    "VLLMMonitorImpaired": Runbook(
        "A vllm-vitals daemon says of itself that it is kept from looking: it is out of file descriptors, its event "
        "loop stands still for a second or more, or its disk refuses to be written.",
        "Scrapes fail or come late, recordings of incidents are lost. None of it is the servers' fault, and no state "
        "is concluded from it.",
        ("Which `reason` is it?", "Do several daemons share the host, or does one watch too many targets?"),
        (
            ("What impairs it", f"max by (reason) ({metric('monitor_impaired')}) == 1"),
            ("Longest lag of the event loop in the last minute", f"max({metric('event_loop_lag_seconds')})"),
            ("Duration of a scrape", f"max by (target) ({metric('scrape_duration_seconds')})"),
        ),
        (
            "`file_descriptors`: raise the limit (`LimitNOFILE` in systemd, `ulimit -n` in a container), restart it. "
            "It worked if the ticket ends within five minutes.",
            "`event_loop`: give it more CPU, or shard the targets (`--shard 1/2`, `--shard 2/2`).",
            "`disk`: free space on the volume of its recordings, or lower their limit in its config.",
        ),
    ),
    "VLLMRulesFail": Runbook(
        "Prometheus (or Mimir) counts failed or missed evaluations of a group of these rules. It is seen only where "
        "its own metrics are scraped.",
        "Alerts that rest on the group are late or missing; the others work.",
        (
            "Which rule, and which error? Its page Rules shows both.",
            "Did it begin with a reload, or with more engines?",
        ),
        (
            (
                "Failed evaluations in the last 15 minutes",
                "max by (rule_group) (increase(prometheus_rule_evaluation_failures_total[15m])) > 0",
            ),
            (
                "Missed evaluations in the last 15 minutes",
                "max by (rule_group) (increase(prometheus_rule_group_iterations_missed_total[15m])) > 0",
            ),
        ),
        (
            "`found duplicate series for the match group`: two series where one is expected; find what relabels them, "
            "or name the label that tells them apart in `identity_labels`, and build again.",
            "Missed evaluations: give the ruler more CPU, or move these groups to one of their own. It worked if the "
            "ticket ends within a quarter of an hour.",
        ),
    ),
    "VLLMVitalsWatchdog": Runbook(
        "Always fires, so that its absence can be noticed: Prometheus, Alertmanager and the way to your receiver work.",
        "None.",
        ("Did it stop arriving? Then no alert arrives.",),
        (("It fires", 'ALERTS{alertname="VLLMVitalsWatchdog"}'),),
        ("Send it to a dead man's switch that pages when no notification arrives for some minutes.",),
    ),
}
