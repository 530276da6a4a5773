"""Whether requests lie unevenly on the engines of one server: some queue while others are free.

Inputs: the engines' snapshots of one poll. Output: the same, with a line of evidence for the crowded ones. Invariant:
one engine alone, or engines that all queue or all are free, are never called uneven.
"""

from collections.abc import Sequence
from dataclasses import replace

from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Evidence
from vllm_vitals.core.states import State

IMBALANCE_FACTOR = 2.0  # a crowded engine holds so many times what a free one does


def flag_imbalance(engines: list[EngineSnapshot]) -> list[EngineSnapshot]:
    """Return the engines; those that queue while others of their model are free get a line of evidence on it."""
    if len(engines) < 2:
        return engines
    models: dict[str, list[EngineSnapshot]] = {}
    for engine in engines:
        models.setdefault(engine.key.model_name, []).append(engine)
    words: dict[EngineKey, Evidence] = {}
    for own in models.values():
        words |= _crowded(own)
    return [replace(e, evidence=(*e.evidence, words[e.key])) if e.key in words else e for e in engines]


def _crowded(engines: Sequence[EngineSnapshot]) -> dict[EngineKey, Evidence]:
    """Return the crowded engines of one model, and their line of evidence."""
    awake = ((e.key, e.sample) for e in engines if e.sample is not None and e.state is not State.ASLEEP)
    loads = {key: (sample.work, bool(sample.waiting)) for key, sample in awake}
    crowded = {key: load for key, (load, queued) in loads.items() if queued}
    free = {key: load for key, (load, queued) in loads.items() if not queued}
    if not crowded or not free or _mean(crowded) < IMBALANCE_FACTOR * max(1.0, _mean(free)):
        return {}
    held, total = sum(crowded.values()), sum(crowded.values()) + sum(free.values())
    where = f"{held:.0f} of {total:.0f} requests are on {len(crowded)} of {len(loads)} engines and queue there"
    text = f"uneven load: {where}, {len(free)} without a queue: look at the routing first"
    return dict.fromkeys(crowded, Evidence(text, held / total))


def _mean(loads: dict[EngineKey, float]) -> float:
    return sum(loads.values()) / len(loads)
