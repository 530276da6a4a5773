"""Every rule of the machine at its levels: where it is just entered, just held, and the one change that ends either.

A `Row` holds facts at which a condition is just met, each number at its level, and `misses`: one change each, by the
least that a person would write, after which it is met no longer. A new rule needs a row in PROVEN and one in STAYS
(test_levels says so), a fact that a condition newly looks at a miss in one of its rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_vitals.core.http_answers import FailingAnswers
from vllm_vitals.core.kv_held import KvHeld
from vllm_vitals.core.outcomes import Completions, Finishes
from vllm_vitals.core.pace import Pace
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.state_machine import Facts
from vllm_vitals.core.window import Span

CALM = Facts(
    seconds=60.0, work=8.0, asleep=False, busy=True, preemptions=0.0, completions=None, tax=0.0, mean_waiting=0.0,
    draining=False, generated=1000.0, seconds_without_token=0.0, generation_vs_baseline=1.0,
    seconds_without_progress=0.0,
    stall_limit=45.0, latency_factor=1.0, prefill_factor=1.0,
    queued_share=0.0, kv_max=0.8, running_full=None, decodes=True,
)  # fmt: skip
SPAN = Span(0.0, 60.0, EngineSample(), EngineSample())


def finished(completions: float, preemptions: float | None, repeated: float | None = None) -> Completions:
    return Completions(SPAN, completions, preemptions, repeated)


@dataclass(frozen=True)
class Row:
    """``met``: what differs from `CALM`. ``misses``: by fact, the values at which the condition is met no longer."""

    met: Mapping[str, Any]
    misses: Mapping[str, tuple[Any, ...]]


# By the name of the rule's condition of entry.
PROVEN: Mapping[str, tuple[Row, ...]] = {
    "stalled": (
        Row(
            {"seconds_without_progress": 45.0, "stall_limit": 45.0, "preemptions": 9.0},
            {"seconds_without_progress": (44.9, None), "stall_limit": (45.1,), "preemptions": (10.0,),
             "asleep": (True,), "paused_since": (0.0,), "errors_per_minute": (10.0,)},
        ),
        Row(
            {"seconds_without_progress": 45.0, "preemptions": 10.0, "kv_max": 0.69, "errors_per_minute": 9.9},
            {"kv_max": (0.7, None), "errors_per_minute": (10.0,)},
        ),
        Row({"canary_unanswered_seconds": 0.0}, {"canary_unanswered_seconds": (None,), "preemptions": (10.0,)}),
    ),
    "failing": (
        Row(
            {"finishes": Finishes(60, 10, 10, 0)},
            {"finishes": (Finishes(60, 11, 10, 0), Finishes(60, 0, 9, 0), None)},
        ),
        # those that were given up count among all
        Row({"finishes": Finishes(60, 5, 10, 5)}, {"finishes": (Finishes(60, 5, 10, 6),)}),
    ),
    "failing_answers": (
        # half of the answers, and less than half as many good finishes as before
        Row(
            {"answers": FailingAnswers(10, 20, 60, 0.49, 1.0)},
            {"answers": (FailingAnswers(10, 21, 60, 0.49, 1.0), FailingAnswers(9, 9, 60, 0.49, 1.0),
                         FailingAnswers(10, 20, 60, 0.5, 1.0), None)},
        ),
        # before was not seen: fewer finish than fail
        Row(
            {"answers": FailingAnswers(30, 40, 60, 0.49, None)},
            {"answers": (FailingAnswers(30, 40, 60, 0.5, None),)},
        ),
    ),
    "redoing": (
        # beyond what chance would do to an engine at 1.0: 60 + 1.28 * sqrt(1.5 * 60) = 72.1
        Row(
            {"completions": finished(60, 73), "preemptions": 1.0, "mean_waiting": 1.0, "tax": 0.4, "kv_max": 0.7},
            {"kv_max": (0.69,), "completions": (finished(60, 72), finished(60, None), None), "preemptions": (0.9, None),
             "mean_waiting": (0.9, None), "tax": (0.39, None), "draining": (True, None)},
        ),
        Row(
            {"completions": finished(2, 10), "preemptions": 1.0, "mean_waiting": 1.0, "tax": 0.4},
            {"completions": (finished(2, 9),)},
        ),
    ),
    "barren": (
        Row(
            {"preemptions": 10.0, "seconds_without_token": 30.0, "work": 1.0, "kv_max": 0.7},
            {"kv_max": (0.69,), "preemptions": (9.9, None), "seconds_without_token": (29.9, None), "work": (0.9, None)},
        ),
    ),
    "collapsed": (
        Row(
            {"preemptions": 10.0, "generation_vs_baseline": 0.3, "kv_max": 0.7},
            {"kv_max": (0.69,), "preemptions": (9.9, None), "generation_vs_baseline": (0.31, None)},
        ),
    ),
    "thrashing": (
        # 0.5 * 50 + 1.28 * sqrt(1.5 * 25) = 32.8
        Row(
            {"completions": finished(50, 33), "preemptions": 1.0, "mean_waiting": 1.0, "kv_max": 0.7},
            {"kv_max": (0.69,), "completions": (finished(50, 32), finished(50, None), None), "preemptions": (0.9, None),
             "mean_waiting": (0.9, None), "draining": (True, None)},
        ),
        Row(
            {"completions": finished(2, 10), "preemptions": 1.0, "mean_waiting": 1.0},
            {"completions": (finished(2, 9),)},
        ),
        # by repeats: 0.1 * 100 + 1.28 * sqrt(1.5 * 10) = 14.96
        Row(
            {"completions": finished(100, 10, 15), "preemptions": 1.0, "mean_waiting": 1.0},
            {"completions": (finished(100, 10, 14), finished(100, 9, 15), finished(100, None, 15))},
        ),
    ),
    "starved": (
        Row(
            {"seconds": 54.0, "latency_factor": 3.0, "prefill_factor": 5.0, "prefill_lasts": True},
            {"seconds": (53.9,), "latency_factor": (2.9, None), "prefill_factor": (4.9, None),
             "prefill_lasts": (False,), "preemptions": (1.0,), "decodes": (False,)},
        ),
        Row({"latency_factor": 3.0, "prefill_factor": 5.0, "prefill_lasts": None, "preemptions": None}, {}),
    ),
    "slower": (
        Row(
            {"pace": Pace(0, 0.06, 0.04, 30)},
            {"pace": (Pace(0, 0.0599, 0.04, 30), None), "decodes": (False,)},
        ),
        Row(
            {"pace": Pace(0, 0.03, 0.03, 30, acceptance=0.44, usual_acceptance=0.9)},
            {"pace": (Pace(0, 0.03, 0.03, 30, acceptance=0.45, usual_acceptance=0.9),)},
        ),
    ),
    "some_fail": (
        Row(
            {"some_errors": Finishes(60, 190, 10, 0)},
            {"some_errors": (Finishes(60, 191, 10, 0), Finishes(60, 9, 9, 0), None)},
        ),
    ),
    "kv_held": (
        Row(
            {"kv_held": KvHeld(0.05, 60)},
            {"kv_held": (KvHeld(0.049, 60), KvHeld(0.05, 59.9), KvHeld(0.05, 60, present=True), None)},
        ),
        Row({"kv_held": KvHeld(0.05, 5, (0.02, 0.03, 0.04, 0.05))}, {"kv_held": (KvHeld(0.05, 5),)}),
    ),
    "preempting": (Row({"preemptions": 1.0}, {"preemptions": (0.9, None)}),),
    "saturated": (Row({"queued_share": 0.8}, {"queued_share": (0.79, None), "preemptions": (1.0,)}),),
    "kv_pressure": (Row({"kv_max": 0.9}, {"kv_max": (0.89, None), "preemptions": (1.0,)}),),
}  # fmt: skip

# Half of it, plainly counted, in most.
STAYS: Mapping[str, tuple[Row, ...]] = {
    "stalled": PROVEN["stalled"],
    "failing": (
        Row({"finishes": Finishes(60, 15, 5, 0)}, {"finishes": (Finishes(60, 16, 5, 0), Finishes(60, 0, 4, 0), None)}),
    ),
    "failing_answers": (
        Row(
            {"answers": FailingAnswers(5, 20, 60, 9.0, 1.0)},
            {"answers": (FailingAnswers(5, 21, 60, 9.0, 1.0), FailingAnswers(4, 4, 60, 0.0, 1.0), None)},
        ),
    ),
    "redoing": (
        Row(
            {"completions": finished(60, 30), "preemptions": 1.0, "mean_waiting": 0.5, "tax": 0.2},
            {"completions": (finished(60, 29), finished(60, None), None), "preemptions": (0.9, None),
             "mean_waiting": (0.49, None), "tax": (0.19, None)},
        ),
    ),
    "barren": (
        Row(
            {"preemptions": 5.0, "seconds_without_token": 15.0},
            {"preemptions": (4.9, None), "seconds_without_token": (14.9, None)},
        ),
    ),
    "collapsed": (
        Row(
            {"preemptions": 5.0, "generation_vs_baseline": 0.6},
            {"preemptions": (4.9, None), "generation_vs_baseline": (0.61, None)},
        ),
    ),
    "thrashing": (
        Row(
            {"completions": finished(60, 15), "preemptions": 1.0, "mean_waiting": 0.5},
            {"completions": (finished(60, 14), finished(60, 14, 2)), "preemptions": (0.9, None),
             "mean_waiting": (0.49, None)},
        ),
        Row(
            {"completions": finished(100, 10, 5), "preemptions": 1.0, "mean_waiting": 0.5},
            {"completions": (finished(100, 10, 4),)},
        ),
        # where too few finish to say, and where nobody counts what they say
        Row({"preemptions": 5.0, "mean_waiting": 0.5}, {"preemptions": (4.9, None), "mean_waiting": (0.49, None)}),
        Row({"completions": finished(60, None), "preemptions": 5.0, "mean_waiting": 0.5}, {"preemptions": (4.9,)}),
    ),
    "starved": (
        Row(
            {"latency_factor": 1.5, "prefill_factor": 2.5},
            {"latency_factor": (1.4, None), "prefill_factor": (2.4, None), "preemptions": (1.0,)},
        ),
    ),
    "slower": (
        Row({"pace": Pace(0, 0.05, 0.04, 30)}, {"pace": (Pace(0, 0.0499, 0.04, 30), None), "decodes": (False,)}),
        Row(
            {"pace": Pace(0, 0.03, 0.03, 30, acceptance=0.44, usual_acceptance=0.9)},
            {"pace": (Pace(0, 0.03, 0.03, 30, acceptance=0.45, usual_acceptance=0.9),)},
        ),
    ),
    "some_fail": (
        Row(
            {"some_errors": Finishes(60, 195, 5, 0)},
            {"some_errors": (Finishes(60, 196, 5, 0), Finishes(60, 4, 4, 0), None)},
        ),
    ),
    "kv_held": PROVEN["kv_held"],
    "preempting": PROVEN["preempting"],
    "saturated": (Row({"queued_share": 0.4}, {"queued_share": (0.39, None), "preemptions": (1.0,)}),),
    "kv_pressure": PROVEN["kv_pressure"],
}  # fmt: skip

# How long a condition must hold before the state is said, and fail before it is taken back, in seconds.
HOLDS: Mapping[str, tuple[float, float]] = {
    "stalled": (0, 0),
    "failing": (30, 60),
    "failing_answers": (30, 60),
    "redoing": (30, 60),
    "barren": (0, 60),
    "collapsed": (30, 60),
    "thrashing": (30, 60),
    "starved": (0, 60),
    "slower": (600, 60),
    "some_fail": (30, 60),
    "kv_held": (0, 0),
    "preempting": (0, 0),
    "saturated": (0, 0),
    "kv_pressure": (0, 0),
}
