"""Whether requests lie unevenly on the engines of one server: some queue while others are free.

Inputs: the engines' snapshots of one poll. Output: one line of evidence for the crowded ones. Invariant: one engine
alone, or engines that all queue or all are free, are never called uneven.
"""

from collections.abc import Sequence

from exporter.core.snapshot import EngineSnapshot, Evidence, State

AT_LEAST = 2.0  # a crowded engine holds so many times what a free one does


def uneven(engines: Sequence[EngineSnapshot]) -> tuple[frozenset[str], Evidence] | None:
    """The crowded engines' names and what to say of them, or None. Engines of one model_name are compared."""
    loads = {e.key.engine: _load(e) for e in engines if e.sample is not None and e.state is not State.ASLEEP}
    crowded = {name: load for name, (load, queued) in loads.items() if queued}
    free = {name: load for name, (load, queued) in loads.items() if not queued}
    if not crowded or not free or _mean(crowded) < AT_LEAST * max(1.0, _mean(free)):
        return None
    held, total = sum(crowded.values()), sum(crowded.values()) + sum(free.values())
    where = f"{held:.0f} of {total:.0f} requests are on {len(crowded)} of {len(loads)} engines and queue there"
    text = f"uneven load: {where}, {len(free)} without a queue: look at the routing first"
    return frozenset(crowded), Evidence(text, held / total)


def _load(engine: EngineSnapshot) -> tuple[float, bool]:
    """Requests present, and whether any of them wait."""
    sample = engine.sample
    running, waiting = (sample.running, sample.waiting) if sample is not None else (None, None)
    return (running or 0.0) + (waiting or 0.0), bool(waiting)


def _mean(loads: dict[str, float]) -> float:
    return sum(loads.values()) / len(loads)
