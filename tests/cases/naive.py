"""The vital signs of DESIGN's vocabulary worked out a second time, plainly, from the text of a real server.

Nothing of the product is imported: a line is split with one pattern, a window is a list, a quantile is looked for
bucket by bucket. Slow and short; only right.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from math import inf

_LINE = re.compile(r"^vllm:([a-z0-9_]+)\{(.*)\} (\S+)$", re.MULTILINE)
# the names of V0 and of early V1
_NEW = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache": "prefix_cache",
    "time_per_output_token_seconds": "inter_token_latency_seconds",
}
_OLD = re.compile(rf"^({'|'.join(_NEW)})")
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


@dataclass
class Seen:
    """One body: the sum of each name's series, histograms as {bound: count}, finishes by reason, capacity."""

    at: float
    plain: dict[str, float]
    buckets: dict[str, dict[float, float]]
    finished: dict[str, float]
    capacity: float | None
    caching: bool

    @property
    def finishes(self) -> float:
        return sum(self.finished.values())


def seen(at: float, text: str, engine: str) -> Seen:
    plain: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = defaultdict(dict)
    finished: dict[str, float] = {}
    capacity, caching = None, False
    for wire, inside, value in _LINE.findall(text):
        name = _OLD.sub(lambda old: _NEW[old[1]], wire)
        labels = dict(_LABEL.findall(inside))
        if labels.get("engine", engine) != engine:
            continue
        if name == "cache_config_info":
            caching = labels["enable_prefix_caching"] == "True"
            sized = labels.get("kv_cache_size_tokens")
            capacity = float(sized) if sized else float(labels["num_gpu_blocks"]) * float(labels["block_size"])
        elif name == "request_success_total":
            finished[labels["finished_reason"]] = float(value)
        elif name.endswith("_bucket"):
            buckets[name.removesuffix("_bucket")][float(labels["le"])] = float(value)
        elif name == "prompt_tokens_by_source_total":
            plain[f"computed:{labels['source']}"] = float(value)
        elif name not in ("num_requests_waiting_by_reason", "engine_sleep_state"):
            plain[name] = float(value)
    return Seen(at, plain, buckets, finished, capacity, caching)


def grown(window: list[Seen], name: str) -> float:
    return window[-1].plain[name] - window[0].plain[name]


def histogram(window: list[Seen], name: str) -> dict[float, float]:
    """Observations up to each bound; empty where the server has no such histogram."""
    new, old = window[-1].buckets.get(name, {}), window[0].buckets.get(name, {})
    return {bound: new[bound] - old[bound] for bound in sorted(new)}


def bucket(observed: dict[float, float], q: float) -> tuple[float, float]:
    """Lower and upper edge of the bucket that holds the q-quantile."""
    below = 0.0
    for bound, count in observed.items():
        if count >= q * observed[inf] and count > 0:
            return below, bound
        below = bound
    raise AssertionError("an empty histogram")


def mean(window: list[Seen], name: str) -> float:
    values = [one.plain[name] for one in window if name in one.plain]  # several API servers: absent until first set
    return sum(values) / len(values)


def gauges(window: list[Seen], seconds: float) -> list[Seen]:
    """The scrapes whose gauges count: those of the last so many seconds."""
    return [one for one in window if one.at > window[-1].at - seconds]


def useful(window: list[Seen]) -> float:
    """Tokens generated and prompt tokens computed, a second."""
    if "computed:local_compute" in window[-1].plain:
        prompts = grown(window, "computed:local_compute")
    else:
        hits = grown(window, "prefix_cache_hits_total") if "prefix_cache_hits_total" in window[-1].plain else 0.0
        prompts = max(0.0, grown(window, "prompt_tokens_total") - hits)
    return (grown(window, "generation_tokens_total") + prompts) / (window[-1].at - window[0].at)


def tax(window: list[Seen], share: float) -> float:
    """p f context / (p f context + useful), context = mean KV usage x capacity / mean running."""
    recent = gauges(window, 60.0)
    preemptions = grown(window, "num_preemptions_total") / (window[-1].at - window[0].at)
    running = max(1.0, mean(recent, "num_requests_running"))
    context = mean(recent, "kv_cache_usage_perc") * (window[-1].capacity or 0.0) / running
    again = preemptions * share * context
    return again / (again + useful(window)) if again else 0.0
