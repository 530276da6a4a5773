"""Keys that an earlier release read under another name or at another place. None of them is read silently.

Input: the path of a key that nobody knows, without list indices. Output: what to write instead, or nothing.
"""

from collections.abc import Mapping, Sequence

# Old path -> what it is called now, at the same place, and a value of its kind.
RENAMED: Mapping[str, tuple[str, str]] = {
    "logs.limits.window_s": ("window", "10m"),
    "logs.limits.poll_s": ("poll", "500ms"),
    "logs.limits.checkpoint_s": ("checkpoint", "1s"),
    "logs.limits.max_line_bytes": ("max_line", "1MiB"),
    "logs.limits.max_push_bytes": ("max_push", "8MiB"),
    "logs.limits.max_push_pending_bytes": ("max_push_pending", "32MiB"),
    "flight_recorder.max_bytes": ("max_size", "1GiB"),
    "review.slos.seconds": ("threshold", "2500ms"),
    "alerts.slos.seconds": ("threshold", "2500ms"),
    "alerts.evaluation_seconds": ("evaluation_interval", "15s"),
    "alerts.scrape_seconds": ("scrape_interval", "15s"),
    "alerts.limits.ttft_objective_seconds": ("ttft_objective", "10s"),
    "alerts.limits.thrash_rise_seconds": ("thrash_rise", "10m"),
    "alerts.limits.silent_seconds": ("silent_for", "5m"),
    "alerts.limits.stale_seconds": ("stale_for", "2m"),
}
# Keys of the alert config, which once was a file of its own with these at its top.
ONCE_AT_THE_TOP = frozenset({
    "slos", "batch", "receivers", "identity_labels", "evaluation_seconds", "scrape_seconds", "exporter_job",
    "spellings", "grafana_url", "runbook_base", "team",
})  # fmt: skip


def renamed(path: Sequence[str]) -> str:
    """Return the new name of the key at ``path``; empty where it has none."""
    return RENAMED.get(".".join(path), ("", ""))[0]


def mend(path: Sequence[str]) -> str:
    """Return what to write instead of the key at ``path``; empty where it never was one."""
    now = RENAMED.get(".".join(path))
    if now is not None:
        return f'is called {now[0]} now: write {now[0]}: "{now[1]}" or such'
    if path[:2] == ["alerts", "thresholds"]:
        return "write thresholds at the top of the file: the daemon and the rules judge by the same numbers"
    if path[0] in ONCE_AT_THE_TOP:
        return f"stands below alerts: now: alerts.{path[0]}"
    return ""
