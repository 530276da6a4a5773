"""vLLM's own series, of every release and spelling, as one folded value per victim.

Input: a base name without prefix. Output: PromQL labelled target, model_name, engine (and identity labels). A server
upgraded across a rename or across the birth of the ``engine`` label (0.8.3) keeps one identity throughout: the newer
spelling wins by ``or``, and ``max by`` drops every other label. Sources: vLLM v1/metrics/loggers.py, releases 0.6-0.33.
"""

from collections.abc import Sequence

from vllm_vitals.rules.config import Config
from vllm_vitals.rules.promql import Fold, by, selector
from vllm_vitals.simulator.stats import FIRST_TOKEN, REQUEST_LATENCY
from vllm_vitals.simulator.stats import INTER_TOKEN as INTER_TOKEN_BOUNDS

# Newest name first. Never add two of them: releases served both for a while.
KV_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
PREFIX_QUERIES = ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total")
PREFIX_HITS = ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")
INTER_TOKEN = ("inter_token_latency_seconds", "time_per_output_token_seconds")

# vLLM's name of each histogram that an SLO may be about, by our indicator.
INDICATORS = {
    "ttft": ("time_to_first_token_seconds",),
    "tpot": ("request_time_per_output_token_seconds",),
    "inter_token": INTER_TOKEN,
    "e2e": ("e2e_request_latency_seconds",),
    "queue_time": ("request_queue_time_seconds",),
}
# Their bucket bounds, in vLLM 0.32.
BOUNDS = {
    "ttft": FIRST_TOKEN,
    "tpot": INTER_TOKEN_BOUNDS,
    "inter_token": INTER_TOKEN_BOUNDS,
    "e2e": REQUEST_LATENCY,
    "queue_time": REQUEST_LATENCY,
}


def suffixed(names: Sequence[str], suffix: str) -> tuple[str, ...]:
    """Each name with a histogram's suffix."""
    return tuple(name + suffix for name in names)


def folded(
    config: Config, names: Sequence[str], *matchers: str, function: str, window: str, keep: Sequence[str] = ()
) -> str:
    """``function`` over ``window`` of the first of ``names`` that a victim has, under any spelling."""
    choices = []
    for name in names:
        for prefix in config.spellings:
            labelled = selector(prefix + name, 'engine!=""', *matchers)
            bare = selector(prefix + name, 'engine=""', *matchers)
            choices.append(f"{function}({labelled}{window})")
            choices.append(f'label_replace({function}({bare}{window}), "engine", "0", "", "")')
    union = " or ".join(choices)
    return f'max {by((*config.identity, *keep))} (label_replace({union}, "target", "$1", "instance", "(.+)"))'


def latest(config: Config, names: Sequence[str], *matchers: str, keep: Sequence[str] = ()) -> str:
    """The last value within three scrapes, so that one missed scrape leaves no hole."""
    window = Fold(config.identity, config.evaluation_seconds).range(3 * config.scrape_seconds)
    return folded(config, names, *matchers, function="last_over_time", window=window, keep=keep)
