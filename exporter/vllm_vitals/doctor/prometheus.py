"""Prometheus: does it scrape the daemon, keep its labels, evaluate the rules, know an Alertmanager.

Input: documents of its HTTP API, and the rules that ought to be there. Output: findings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_vitals.config.durations import parse_duration
from vllm_vitals.doctor.finding import Finding

LONGEST_INTERVAL_S = 30.0
_LIMITS = ("sample_limit", "sample limit", "body size", "label_limit", "label limit", "label value length")


def scraping(name: str, targets: Any, job: str) -> Iterator[Finding]:
    """Yield what is wrong with the scrapes of the daemon. ``targets``: data of /api/v1/targets."""
    active = [one for one in targets.get("activeTargets", []) if one.get("labels", {}).get("job") == job]
    if not active:
        yield Finding(
            name,
            f"no target has the job {job}: the daemon is not scraped",
            f"add a scrape job called {job} (in Kubernetes: the PodMonitor, with the labels that Prometheus selects)",
        )
    for one in active:
        error, url = one.get("lastError", ""), one.get("scrapeUrl", "?")
        if any(limit in error for limit in _LIMITS):
            yield Finding(name, f"drops every scrape of {url}: {error}", "raise that limit of the scrape job, or shard")
        elif one.get("health") == "down":
            yield Finding(name, f"cannot scrape {url}: {error}", "mend the job's address, or what is between them")
        try:
            seldom = parse_duration(one.get("scrapeInterval", "15s")) > LONGEST_INTERVAL_S
        except ValueError:
            seldom = False
        if seldom:
            interval = one["scrapeInterval"]
            yield Finding(name, f"scrapes {url} every {interval} (limit 30s)", "set the job's scrape_interval to 15s")


def rules(name: str, document: Any, expected: Mapping[str, float]) -> Iterator[Finding]:
    """Yield rules that lack, fail or are of another release. ``expected``: each alert's and recording's hold (s)."""
    groups = document.get("groups", [])
    loaded = {rule["name"]: rule for group in groups for rule in group.get("rules", [])}
    lacking = sorted(set(expected) - set(loaded))
    build = "load alerts/recording.yml and alerts/alerts.yml of this release"
    if len(lacking) == len(expected):
        yield Finding(name, "none of our rules is loaded", f"{build}, and see that rule_files names them")
    elif lacking:
        shown = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        yield Finding(name, f"{len(lacking)} of {len(expected)} rules are not loaded: {shown}", build)
    for rule in sorted(set(expected) & set(loaded)):
        found = loaded[rule]
        if found.get("health") == "err":
            yield Finding(name, f"rule {rule} fails: {found.get('lastError', '')[:200]}", build)
        elif "duration" in found and found["duration"] != expected[rule]:
            held = f"{found['duration']:g} s, here {expected[rule]:g} s"
            yield Finding(name, f"rule {rule} is of another release: it holds for {held}", build)


def labels(name: str, lacking: Mapping[str, int]) -> Iterator[Finding]:
    """Yield labels that our series came without. ``lacking``: by label the series without it."""
    for label, count in lacking.items():
        if count:
            yield Finding(
                name,
                f"{count} series of vllm_vitals_target_up have no label {label}",
                "set honor_labels: true in the scrape job, or labels in the config of the daemon",
            )


def alertmanagers(name: str, document: Any) -> Iterator[Finding]:
    """Yield a finding where alerts go nowhere. ``document``: data of /api/v1/alertmanagers."""
    if not document.get("activeAlertmanagers"):
        yield Finding(
            name, "knows no Alertmanager: alerts fire and reach no receiver", "add it to alerting in its config"
        )
