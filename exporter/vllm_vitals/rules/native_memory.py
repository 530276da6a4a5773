"""Native mode: what must be remembered, told without any record that reads itself.

A record that reads its own last value is lost in a ruler that evaluates rule by rule (backfilling, a replay), and
depends on how soon a ruler sees what it wrote. So each memory is a few events with their time, written only when they
happen, and a look back at the newest of them. Invariants: an event is found by comparing two moments at least two
evaluations apart, so that a ruler that sees its own output one evaluation late finds it too; nothing is remembered
longer than `KEPT` seconds (`KEPT_SINCE` for the beginning of a state); a ruler that pauses forgets nothing.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules.model import Recording
from vllm_vitals.rules.promql import Fold, by, metric, on

KEPT = 86400  # s: the longest episode that is held together by less than its entry level
KEPT_SINCE = 7 * 86400  # s
# An event is written for this long (s) after it happened, so that some missed evaluations do not lose it.
_NOTICED = 240
# How far back (s) the value of an earlier evaluation may lie: as far as Prometheus looks by default.
_PAUSE = 300


def _fold(config: Config) -> Fold:
    return Fold(config.identity, config.evaluation_seconds)


def earlier(config: Config, series: str, evaluations: int, function: str = "last_over_time", window: str = "") -> str:
    """Return ``function`` of a series over ``window``, as it was so many evaluations ago."""
    fold = _fold(config)
    return f"{function}({series}{window or fold.range(_PAUSE)} offset {evaluations * config.evaluation_seconds}s)"


def _at(config: Config, event: str) -> str:
    """Return the time, while ``event`` is true."""
    return f"max {by(config.identity)} ({event}) * 0 + time()"


def latch(config: Config, name: str, enter: str, stay: str, at_once: str = "") -> tuple[Recording, ...]:
    """``engine:vllm_<name>:latched``, there while the state is held.

    It begins once ``enter`` has held for the hold, or as soon as ``at_once`` is true. It ends once ``stay`` has been
    false for the release, and when the engine goes down: what it did before proves nothing. ``enter`` and ``stay`` are
    conditions, recorded while they are true; where ``enter`` is, so is ``stay``.
    """
    fold, limits, identity = _fold(config), config.thresholds, on(config.identity)
    record = f"engine:vllm_{name}"
    release = fold.range(limits.release)
    step, times = config.evaluation_seconds, int(limits.hold) // config.evaluation_seconds + 1
    # Of a ruler's own output the newest may be an evaluation old: then the samples are counted over one more.
    held, late = (f"count_over_time({record}:enter{fold.range(limits.hold + more)}) >= {times}" for more in (0, step))
    held = f"({held} or ({late} and {identity} (timestamp({record}:enter) < time())))"
    stays = f"last_over_time({record}:stay{release})"
    gone = f"last_over_time({record}:stay{fold.range(limits.release + _NOTICED)}) unless {identity} {stays}"
    entered, left = (f"max_over_time({record}:{event}{fold.range(KEPT)})" for event in ("entered", "left"))
    return (
        Recording(f"{record}:enter", _true(config, enter)),
        Recording(f"{record}:stay", _true(config, stay)),
        Recording(f"{record}:entered", _at(config, f"{held} or {at_once}" if at_once else held)),
        Recording(f"{record}:left", _at(config, f"({gone}) or engine:vllm_down:bool")),
        # The newest entry is no older than the newest end, if there was one.
        Recording(f"{record}:latched", f"({entered} >= ({left} or 0 * {entered})) and {identity} ({stays})"),
    )


def _true(config: Config, condition: str) -> str:
    """Return 1 for each engine of which it is true, and nothing for the others: the calm are most."""
    return f"max {by(config.identity)} ({condition}) * 0 + 1"


def before_preemption(
    config: Config, name: str, series: str, function: str = "last_over_time", window: str = ""
) -> Recording:
    """``engine:vllm_<name>:calm``: what ``function`` of ``series`` was just before preemptions began.

    Written as they begin; `calm` reads the newest.
    """
    identity = on(config.identity)
    evicting = metric("preemptions_per_second")
    began = f"{evicting} > 0 and {identity} ({earlier(config, evicting, 2)} == 0)"
    value = f"max {by(config.identity)} ({earlier(config, series, 2, function, window)})"
    return Recording(f"engine:vllm_{name}:calm", f"{value} and {identity} ({began})")


def calm(config: Config, name: str) -> str:
    """Return the last value that `before_preemption` wrote."""
    return f"last_over_time(engine:vllm_{name}:calm{_fold(config).range(KEPT)})"


def changed(config: Config, record: str, series: str) -> Recording:
    """Return when ``series`` last changed or first existed: read the newest within `KEPT_SINCE`."""
    step = config.evaluation_seconds
    same, before = (f"{series} == {earlier(config, series, ago)}" for ago in (1, 2))
    other = f"({series} unless ({same} and {before}))"
    # Two evaluations find each change; the second one knows that it was a step ago.
    return Recording(record, f"(({other} and {same}) * 0 - {step} or {other} * 0) + time()")
