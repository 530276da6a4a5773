"""Whether two baselines can be compared: one knob, one server, one workload; and how far the load differed.

Input: two `Baseline`s. Output: reasons in words. Invariant: what follows from a knob is no second knob.
"""

from math import exp, log

from vllm_vitals.planner.experiment.baseline import Baseline
from vllm_vitals.planner.review.words import number

SAME = 0.10  # workload figures further apart than this are not the same load
ALIKE = 0.02  # a rate or number in flight that moved by less did not move
QUEUE = 0.8  # share of the time with a queue from which the server gives all it can
SOMETIMES = 0.02  # share of the time with a queue from which waiting grows faster than the load
ENOUGH = 6  # parts from which their noise is known well enough
# Follow from other settings or from the machine: no knob that someone turned, unless nothing else changed.
CONSEQUENCES = frozenset({
    "dialect", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "kv_cache_memory_bytes",
    "num_cpu_blocks", "kv_cache_capacity_tokens",
})  # fmt: skip


def knobs(before: Baseline, after: Baseline) -> dict[str, tuple[str, str]]:
    """Return the knobs that changed. Consequences count only when nothing else did."""
    names = sorted({*before.settings, *after.settings})
    pairs = {name: (before.settings.get(name, "not known"), after.settings.get(name, "not known")) for name in names}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return {name: pair for name, pair in changed.items() if name not in CONSEQUENCES} or changed


def refusals(before: Baseline, after: Baseline) -> list[str]:
    """Return why two baselines cannot be compared: another server, several knobs, or another workload."""
    found, changed = [], knobs(before, after)
    if before.model_name != after.model_name:
        found.append(f"two models: {before.model_name} and {after.model_name}")
    if before.version != after.version:
        found.append(f"two versions of vLLM: {before.version or 'not known'} and {after.version or 'not known'}")
    real = [name for name in changed if name not in CONSEQUENCES]
    if len(real) > 1:
        found.append(
            f"{len(real)} knobs changed at once ({', '.join(real)}): the effect cannot be attributed to one of them"
        )
    if before.engines != after.engines:
        found.append(f"{before.engines} engines before, {after.engines} after")
    return [*found, *_workloads(before, after)]


def _workloads(before: Baseline, after: Baseline) -> list[str]:
    """Lengths must agree, and what was in flight or the rate: a closed load fixes one, an open load the other."""
    found = [_apart(before, after, name) for name in ("prompt tokens, mean", "output tokens, mean")]
    load = [_apart(before, after, name) for name in ("requests in flight, mean", "requests/s")]
    if all(load):
        found.append(" and ".join(filter(None, load)))
    hits = [each.workload.get("prefix-cache hits") or 0.0 for each in (before, after)]
    if abs(hits[0] - hits[1]) > SAME:
        found.append(f"prefix-cache hits: {hits[0]:.0%} before, {hits[1]:.0%} after")
    return [f"another workload: {text}" for text in found if text]


def _apart(before: Baseline, after: Baseline, name: str) -> str:
    old, new = before.workload.get(name), after.workload.get(name)
    if old is None or new is None:
        return "" if old is new else f"{name} is known only once"
    if abs(new - old) <= SAME * max(abs(old), abs(new)):
        return ""
    return f"{name}: {number(old)} before, {number(new)} after"


def warnings(before: Baseline, after: Baseline) -> list[str]:
    """Return what to know about a comparison, which does not forbid it."""
    found = []
    if not knobs(before, after):
        found.append("no setting that we know of changed: this measures the noise (or give settings with --set)")
    if min(len(before.parts), len(after.parts)) < ENOUGH:
        found.append(f"fewer than {ENOUGH} parts: their noise is hardly known (snapshot --repeats)")
    more = load_changed(before, after)
    if more:
        found.append(
            f"the load was not the same: {abs(exp(more) - 1):.0%} {'more' if more > 0 else 'less'} came the second "
            "time; what that explains is not counted. Replay one trace"
        )
    return found


def queued(each: Baseline) -> bool:
    """Return whether a queue stood nearly always: only then throughput is the server's, else it is what was asked."""
    return (each.workload.get("time with a queue") or 0.0) >= QUEUE


def queues(each: Baseline) -> bool:
    """Return whether requests queued at times: then a little more load may make much more waiting."""
    return (each.workload.get("time with a queue") or 0.0) >= SOMETIMES


def load_changed(before: Baseline, after: Baseline) -> float:
    """Return the logarithm by which more came the second time; 0 where the load was the same.

    A faster server answers an open load with fewer in flight, and a closed load at a higher rate: only where both
    moved one way the load itself did. Clients who wait for their answers are counted.
    """
    clients = _moved(before, after, "clients who wait")
    if clients:
        return clients if abs(clients) > ALIKE else 0.0
    moves = [_moved(before, after, name) for name in ("requests/s", "requests in flight, mean")]
    if min(abs(move) for move in moves) <= ALIKE or moves[0] * moves[1] <= 0:
        return 0.0
    return moves[0]


def _moved(before: Baseline, after: Baseline, name: str) -> float:
    old, new = before.workload.get(name), after.workload.get(name)
    return log(new / old) if old and new else 0.0
