"""The daemon as it answers: is it one, can it see, do its canaries come through.

Input: the texts of /metrics and /api/v1/engines, clocks. Output: findings.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.doctor.finding import Finding

MAX_SKEW_S = 10.0


def check(name: str, metrics: str, engines: Any) -> Iterator[Finding]:
    """Yield what the daemon's own pages say."""
    try:
        families = {family.name: family.samples for family in text_string_to_metric_families(metrics)}
    except ValueError:
        families = {}
    if "vllm_vitals_build_info" not in families:
        vllm = any(family.startswith("vllm:") for family in families)
        what = "this is vLLM itself, not vllm-vitals" if vllm else "something else than vllm-vitals answers here"
        yield Finding(name, what, "give --daemon the address that `vllm-vitals run` listens on, port 9840 by default")
        return
    version = families["vllm_vitals_build_info"][0].labels.get("version", "?")
    up = families.get("vllm_vitals_target_up", [])
    down = sorted(sample.labels.get("target", "?") for sample in up if not sample.value)
    if not up:
        yield Finding(name, "watches no target", "add targets or discovery to its config")
    elif down:
        shown = ", ".join(down[:3]) + (f" and {len(down) - 3} more" if len(down) > 3 else "")
        yield Finding(
            name, f"cannot read {len(down)} of {len(up)} targets: {shown}", "read the reason on its status page"
        )
    for why in (engines.get("impaired") or {}).values() if isinstance(engines, dict) else ():
        yield Finding(name, f"is impaired: {why}", "mend that first, as it misses scrapes or log lines meanwhile")
    yield from _canaries(name, families.get("vllm_vitals_canary_requests", []))
    yield Finding(name, f"version {version}, {len(up)} targets")


def _canaries(name: str, samples: list[Any]) -> Iterator[Finding]:
    counts: dict[str, dict[str, float]] = defaultdict(dict)
    for sample in samples:
        if sample.name.endswith("_total"):
            counts[sample.labels.get("target", "?")][sample.labels.get("outcome", "")] = sample.value
    for target, by in sorted(counts.items()):
        if by.get("error", 0) and not by.get("ok", 0):
            yield Finding(
                name,
                f"the canary of {target} is blocked: {by['error']:g} requests, each answered with an error",
                "let its bearer token or address through the gateway, or set canary.model to a model that is served",
            )


def clocks(seen: dict[str, tuple[float, float]]) -> Iterator[Finding]:
    """Yield clocks that differ from ours. ``seen``: by server its clock and ours when it answered (epoch s)."""
    for name, (theirs, ours) in seen.items():
        if abs(theirs - ours) > MAX_SKEW_S:
            way = "ahead of" if theirs > ours else "behind"
            yield Finding(
                name,
                f"its clock is {abs(theirs - ours):.0f} s {way} this machine's",
                "synchronise the clocks (NTP): ages and alerts are off by as much",
            )
