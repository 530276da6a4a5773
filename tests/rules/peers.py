"""Rules that others have published for vLLM, over the same recordings.

Expressions are as published; those written for Ray's names read vLLM's own, and those published as prose are written as
PromQL. Each is judged by promtool in simulated time on what Prometheus would have scraped every 15 s. A rule is not
wrong for being a warning: the table only says when it would have fired.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.rules.recordings import FOLDER, NAMES, Timeline, raw
from tests.rules.scenario import STEP, document
from tests.rules.tools import promtool_test


@dataclass(frozen=True)
class Peer:
    """One published rule: ``hold`` is its ``for`` in minutes."""

    name: str
    source: str
    expr: str
    hold: int


PEERS = (
    Peer("preemptions, bare name", "llm-d PR 553", "sum by (pod) (rate(vllm:num_preemptions[5m])) > 1", 5),
    Peer("KV cache > 0.9", "llm-d PR 553", "avg by (pod, model_name) (vllm:kv_cache_usage_perc) > .90", 10),
    Peer("queue > 50", "llm-d PR 553", "sum by (pod, model_name) (vllm:num_requests_waiting) > 50", 5),
    Peer(
        "TTFT p99 > 30 s", "llm-d PR 553",
        "histogram_quantile(.99, sum by (le, model_name) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 30", 5,
    ),
    Peer("KV cache > 0.9", "k8s-ai-observability", "vllm:kv_cache_usage_perc > .9", 5),
    Peer("queue > 50", "k8s-ai-observability", "vllm:num_requests_waiting > 50", 5),
    Peer(
        "TTFT p95 > 2 s", "k8s-ai-observability",
        "histogram_quantile(.95, sum by (le, model_name) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 2", 2,
    ),
    Peer("preemptions > 0", "modelship", "rate(vllm:num_preemptions_total[5m]) > 0", 5),
    Peer("KV cache > 0.95", "modelship", "vllm:kv_cache_usage_perc > .95", 5),
    Peer("waiting > 10", "modelship", "vllm:num_requests_waiting > 10", 5),
    Peer(
        "KV >= 85 %, waiting > 5, any preemption", "Kestra blueprint",
        "vllm:kv_cache_usage_perc >= .85 or vllm:num_requests_waiting > 5 or"
        " increase(vllm:num_preemptions_total[5m]) > 0", 0,
    ),
    Peer("preemptions ever, KV >= 0.8", "vllm-doctor", "vllm:num_preemptions_total > 0 and"
        " vllm:kv_cache_usage_perc >= .80", 0),
    Peer("queue > 100", "gigagpu", "vllm:num_requests_waiting > 100", 2),
)  # fmt: skip


def rules(folder: Path) -> str:
    """All of them as one Prometheus rule file."""
    listed = [
        {"alert": f"Peer{i}", "expr": p.expr, **({"for": f"{p.hold}m"} if p.hold else {})} for i, p in enumerate(PEERS)
    ]
    path = folder / "peers.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "peers", "rules": listed}]}))
    return str(path)


def fired(name: str, folder: Path) -> dict[int, str]:
    """When each rule (by index) first fired on a recording, in words; in brackets when it only began to wait."""
    timeline: Timeline = raw(FOLDER / name / "metrics.jsonl.gz", STEP, buckets=True)
    query = "count by (alertname, alertstate) (ALERTS)"
    checks = [
        # Expected to be nothing: what promtool then complains of is what fires.
        {"expr": query, "eval_time": f"{at}s", "exp_samples": []}
        for at in range(0, timeline.seconds + 1, STEP)
    ]
    test = {"interval": f"{STEP}s", "input_series": timeline.inputs(), "promql_expr_test": checks}
    said = promtool_test(document([test], [rules(folder)]), folder, f"peers-{name}")
    first: dict[tuple[int, str], int] = {}
    for minutes, seconds, got in re.findall(r"time: (?:(\d+)m)?(?:(\d+)s)?,.*?\n.*?exp:.*?\n\s*got:(.*)", said):
        at = 60 * int(minutes or 0) + int(seconds or 0)
        for index, state in re.findall(r'alertname="Peer(\d+)", alertstate="(\w+)"', got):
            first.setdefault((int(index), state), at)
    words = {index: f"({at} s)" for (index, state), at in first.items() if state == "pending"}
    return words | {index: f"{at} s" for (index, state), at in first.items() if state == "firing"}


def table(folder: Path) -> str:
    """Peers by recording."""
    results = {name: fired(name, folder) for name in NAMES}
    head = ["| rule | from | " + " | ".join(NAMES) + " |", "|---|---|" + "---|" * len(NAMES)]
    rows = [
        f"| {peer.name}{f', for {peer.hold} min' if peer.hold else ''} | {peer.source} | "
        + " | ".join(results[name].get(i, "-") for name in NAMES)
        + " |"
        for i, peer in enumerate(PEERS)
    ]
    return "\n".join(head + rows)
