"""Contradictions: what a page says that cannot be true together, looked for before anything is concluded from it.

Input: one engine's view, or one server's. Output: sentences, and the view without what cannot be trusted. Invariant:
`CHECKS` is the closed set of names; a check answers a sentence or nothing, and a check that cannot be made (a number is
absent) finds nothing. Unknown is never read as "off", and a contradiction never proves a state by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from vllm_vitals.core import vital_signs
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.snapshot import Contradiction

# Every check, by the label that its metric carries, with what it compares.
CHECKS: Mapping[str, str] = {
    "several_servers": "start times, or counters, that come back: one address leads to several servers",
    "http_without_engine": "inference requests answered 2xx for a minute while no engine counter moves",
    "unread_family": "lines that cannot be read, or series that stand twice with two values: the family is dropped",
    "split_labels": "labels that vLLM does not have and that separate otherwise equal series",
    "kv_capacity": "the KV capacity against what running requests hold, and against the server's own log",
    "prefix_caching": "prefix-cache lookups against the label that says caching is off",
    "waiting_reasons": "waiting requests by reason against their total",
    "running_limit": "running requests against max_num_seqs",
}

# Those after which nothing is said of any engine.
WITHHOLDING = frozenset({"several_servers", "http_without_engine"})

# A capacity is doubted where requests hold less than half of what finished ones had, or more than three times that.
LEAST_HELD, MOST_HELD = 0.5, 3.0
LEAST_USAGE = 0.05  # below it a few blocks of rounding decide
LOG_TOLERANCE = 0.05  # vLLM's log and its label count the same blocks


def examine(view: WindowView) -> tuple[WindowView, tuple[Contradiction, ...]]:
    """Make every check of one engine: the view without what fails one, or no longer trusting it; and what was found."""
    found = []
    for name, check, mend in _ENGINE_CHECKS:
        if text := check(view):
            found.append(Contradiction(name, text))
            view = mend(view)
    return view, tuple(found)


def _caching(view: WindowView) -> str:
    """Find a label that says off beside counted lookups, which vLLM counts only where it is on."""
    sample = view.sample
    if sample.prefix_caching is not False or sample.caches_prefixes is False:
        return ""
    if sample.prefix_cache_hits:
        return (
            f"enable_prefix_caching=False cannot be true: {sample.prefix_cache_hits:.0f} tokens were found in the "
            "prefix cache. It is taken as on"
        )
    return (
        f"enable_prefix_caching=False beside {sample.prefix_cache_queries:.0f} tokens looked up in the prefix cache: "
        "whether it is on is taken as unknown"
    )


def _capacity(view: WindowView) -> str:
    """Compare what running requests hold by usage x capacity with the lengths of those that finished, or the log.

    Shared prefixes let requests hold less than their lengths: what the cache was hit for is taken off.
    """
    labelled, logged = view.sample.kv_capacity_tokens, view.logged_capacity
    if not labelled:
        return ""
    if logged:
        if abs(labelled - logged) <= LOG_TOLERANCE * logged:
            return ""
        return (
            f"the page's labels give a KV capacity of {labelled:.0f} tokens, the server's log "
            f"{logged:.0f}: the log's is used"
        )
    means, span = view.means, view.finished.span if view.finished else view.slow
    if means.running is None or means.running < 1 or means.kv_usage is None or means.kv_usage < LEAST_USAGE:
        return ""
    prompt, output = span.mean("request_prompt_tokens"), span.mean("request_output_tokens")
    if not prompt or output is None:
        return ""
    held = means.kv_usage * labelled / means.running
    hits = vital_signs.prefix_hit_ratio(span).value or 0.0
    longest = vital_signs.setting(view.settings, "max_model_len")
    least, most = LEAST_HELD * (prompt * (1 - hits) + output / 2), max(longest or 0.0, MOST_HELD * (prompt + output))
    if least <= held <= most:
        return ""
    return (
        f"a KV capacity of {labelled:.0f} tokens (by its labels) cannot be true: at "
        f"{means.kv_usage:.0%} usage each of {means.running:.1f} running requests would hold {held:.0f} tokens, and "
        f"those that finished had {prompt:.0f} in and {output:.0f} out"
    )


def _reasons(view: WindowView) -> str:
    """Reasons that do not add up to the waiting requests, in every scrape of the window."""
    now = view.sample
    if (
        not now.waiting_by_reason
        or now.waiting is None
        or not _differ(sum(now.waiting_by_reason.values()), now.waiting)
    ):
        return ""
    pairs = [
        (sum(sample.waiting_by_reason.values()), sample.waiting)
        for sample in view.samples
        if sample.waiting_by_reason and sample.waiting is not None
    ]
    if len(pairs) < 3 or not all(_differ(by_reason, waiting) for by_reason, waiting in pairs):
        return ""
    by_reason, waiting = pairs[-1]
    return f"{waiting:.0f} requests wait in all and {by_reason:.0f} by reason: the reasons are left out"


def _differ(by_reason: float, waiting: float) -> bool:
    return abs(by_reason - waiting) > max(1.0, 0.2 * waiting)


def _running(view: WindowView) -> str:
    """More requests run than max_num_seqs allows."""
    limit = vital_signs.setting(view.settings, "max_num_seqs")
    if limit is None:
        return ""
    most = max((sample.running or 0.0 for sample in view.samples), default=0.0)
    if most <= limit:
        return ""
    return f"max_num_seqs {limit:.0f} cannot be this server's: {most:.0f} requests ran at once. It is left out"


def _trust_lookups(view: WindowView) -> WindowView:
    return view  # `EngineSample.caches_prefixes` asks the lookups first


def _doubt_capacity(view: WindowView) -> WindowView:
    if logged := view.logged_capacity:
        return replace(view, sample=replace(view.sample, kv_capacity_tokens=logged))
    return replace(view, capacity_trusted=False)


def _drop_reasons(view: WindowView) -> WindowView:
    return replace(view, sample=replace(view.sample, waiting_by_reason={}))


def _drop_limit(view: WindowView) -> WindowView:
    return replace(view, settings={name: text for name, text in view.settings.items() if name != "max_num_seqs"})


_ENGINE_CHECKS: tuple[tuple[str, Callable[[WindowView], str], Callable[[WindowView], WindowView]], ...] = (
    ("prefix_caching", _caching, _trust_lookups),
    ("kv_capacity", _capacity, _doubt_capacity),
    ("waiting_reasons", _reasons, _drop_reasons),
    ("running_limit", _running, _drop_limit),
)
