"""Which max_num_seqs the period calls for, with the arithmetic.

Input: headroom, preemption, knee. Output: `SlotsAdvice`. The rules are the product's: 0.9 x the mean running while the
cache is full, or 25 % less where running has reached the cap; 25 % more where requests queue beside an empty cache.
Invariant: one step at a time, and never together with max_num_batched_tokens.
"""

from dataclasses import dataclass
from math import ceil, floor

from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.incidents import Preemption
from vllm_vitals.planner.review.knee import Knee
from vllm_vitals.planner.review.load import Headroom

OFTEN = 0.05  # share of the time from which evictions count as often
ROOM = 0.7  # KV usage below which more sequences would fit
LITTLE_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class SlotsAdvice:
    """``direction``: down, up, keep or unknown."""

    direction: str
    value: int | None
    arithmetic: str


def advise(room: Headroom, evicted: Preemption, knee: Knee, objectives_met: bool | None) -> SlotsAdvice:
    """Return one step, or none."""
    if (evicted.share_of_time or 0.0) >= OFTEN and room.running_when_full:
        return _fewer(room, room.running_when_full)
    slots = room.slots
    if slots is None:
        return SlotsAdvice("unknown", None, "max_num_seqs is not known: give it under review.models.<name>.settings")
    queued = (room.waiting.p95 or 0.0) >= 1 and (room.running.p95 or 0.0) >= 0.95 * slots
    if queued and room.kv.max is not None and room.kv.max < ROOM:
        return _more(room.kv.max, slots, knee)
    if objectives_met is False and knee.at is not None and slots > 2 * knee.at:
        text = f"throughput no longer grows beyond {knee.at:.0f} running, and an objective is missed"
        return SlotsAdvice("down", max(1, ceil(knee.at)), text)
    reason = (
        "evictions are rare"
        if not queued
        else f"requests queue, but the KV cache reached {words.share(room.kv.max or 0)}: add engines"
    )
    return SlotsAdvice("keep", int(slots), f"{reason}; {_reached(room)}")


def _reached(room: Headroom) -> str:
    return (
        f"at most {room.running.max or 0:.0f} ran at once" if room.running.max is not None else "running is not known"
    )


def _fewer(room: Headroom, running: float) -> SlotsAdvice:
    slots = room.slots
    if slots is not None and running >= 0.95 * slots:
        value = max(1, floor(0.75 * slots))
        return SlotsAdvice(
            "down",
            value,
            f"0.75 x {slots:.0f}: running reaches the cap while the KV cache is full; one step of 25 % down",
        )
    value = max(1, floor(0.9 * running))
    cap = (
        f"; 25 % off the cap of {slots:.0f}, not reached while the cache is full, would change nothing" if slots else ""
    )
    return SlotsAdvice(
        "down", value, f"0.9 x {running:.1f}, the mean running while the KV cache is at 90 % and more{cap}"
    )


def _more(kv: float, slots: float, knee: Knee) -> SlotsAdvice:
    step = knee.next_step
    if step is not None and step.throughput < LITTLE_GAIN:
        text = (
            f"requests queue and the KV cache is at most {words.share(kv)} full, but 25 % more would add only "
            f"{words.share(step.throughput)} throughput and cost {words.share(-(step.token_speed or 0))} of each "
            "request's speed: add engines instead"
        )
        return SlotsAdvice("keep", int(slots), text)
    value = max(int(slots) + 1, floor(1.25 * slots))
    return SlotsAdvice(
        "up",
        value,
        f"1.25 x {slots:.0f}: requests queue beside a KV cache that is at most {words.share(kv)} full; one step up",
    )
