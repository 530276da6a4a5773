"""Is the candidate really better? One knob, the same workload, and what users got beyond what noise can make.

Input: two `Baseline`s. Output: a `Comparison` with a decision. Invariant: twins of one setting are told apart in at
most one of twenty comparisons (Student's t over parts, Holm over all that decide). What decides is what users got: how
long a request, its first token and each token took, and the throughput where a queue stood; where none did, throughput
is what was asked, and no result. Evictions decide nothing: nobody sees them but in those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Literal

from vllm_vitals.core.snapshot import Reading, absent
from vllm_vitals.planner.experiment import comparable
from vllm_vitals.planner.experiment.baseline import VITALS, Baseline, Measure
from vllm_vitals.planner.experiment.noise import Difference, difference, holm
from vllm_vitals.planner.review.words import change, minutes, share

Decision = Literal["keep", "roll back", "no difference", "not enough", "not comparable"]
# ``load``: the other load explains it; ``no result``: it does not say what users got.
Effect = Literal["better", "worse", "noise", "load", "no result", "unknown"]
LEVEL = 0.05  # comparisons of twins that may end in keep or roll back
WANTED = 0.15  # a difference that a comparison should be long enough to see
SMALL = 0.02  # a proven change smaller than this moves nothing
TRADE = 0.25  # a token may come so much later where the whole request is done earlier
LONGEST = 24 * 3600.0  # a longer run is not worth asking for


@dataclass(frozen=True, slots=True)
class Rule:
    """How a vital decides.

    ``restart``: standard deviation (log) between two runs of one setting beyond what their parts show, from the twins
    tune_baseline and tune2_baseline. ``load``: how much more than the load it may move (log by log); where a queue
    stands there is no such limit. ``output``: it grows with the length of the answer.
    """

    restart: float
    load: float = 0.0
    output: bool = False


DECIDES: Mapping[str, Rule] = {
    "generated tokens": Rule(0.02),
    "time to first token, mean": Rule(0.05, load=2.0),
    "time to first token, p95": Rule(0.08, load=2.0),
    "time per output token, mean": Rule(0.02, load=1.5),
    "time per output token, p95": Rule(0.05, load=1.5),
    "whole request, mean": Rule(0.03, load=2.0, output=True),
    "whole request, p95": Rule(0.06, load=2.0, output=True),
}
# A run is long enough when it would show a wanted difference in these.
_PLAINEST = ("generated tokens", "time per output token, mean", "whole request, mean")


@dataclass(frozen=True, slots=True)
class Line:
    """One vital in both. ``noise`` is the least relative difference that would be seen four times in five."""

    what: str
    unit: str
    before: Reading
    after: Reading
    relative: float | None
    noise: float | None
    effect: Effect


@dataclass(frozen=True, slots=True)
class LengthLine:
    """One class of prompt lengths in both: preemptions, TTFT p95, TPOT p95."""

    low: float
    before: tuple[float, Reading, Reading]
    after: tuple[float, Reading, Reading]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``changed`` maps a knob to (before, after). ``refusals`` make it not comparable, ``warnings`` do not.

    ``sees`` is the least difference that these runs could show, ``more`` how many seconds longer each must be to show
    15 %; None where time does not help, or nothing is to be said.
    """

    changed: Mapping[str, tuple[str, str]]
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    lines: tuple[Line, ...]
    by_length: tuple[LengthLine, ...]
    decision: Decision
    why: str
    sees: float | None
    more: float | None


def compare(before: Baseline, after: Baseline, anyway: bool = False) -> Comparison:
    """Decide. ``anyway`` does so in spite of refusals, and keeps them as warnings."""
    refusals, warnings = comparable.refusals(before, after), comparable.warnings(before, after)
    if anyway:
        warnings, refusals = [*refusals, *warnings], []
    found = {name: _difference(name, before, after) for name in VITALS}
    decides = {name: each for name in DECIDES if (each := found[name]) and not _no_result(name, before, after, each)}
    allowed = {name: _explained(name, before, after, each) for name, each in decides.items()}
    chances = [each.chance(allowed[name]) for name, each in decides.items()]
    proven = {name for name, yes in zip(decides, holm(chances, LEVEL), strict=True) if yes}
    lines = tuple(_line(name, before, after, found[name], name in decides, name in proven, allowed) for name in VITALS)
    lengths = _lengths(before, after)
    level = LEVEL / max(1, len(decides))
    plain = [each for name in _PLAINEST if (each := decides.get(name)) is not None]
    sees = max((each.sees(level) for each in plain), default=None)
    times = max((each.longer(level, WANTED) for each in plain), default=inf)
    more = (times - 1) * max(before.seconds, after.seconds)
    longer = more if times < inf and 0 < more <= LONGEST else None
    decision, why = _decide(lines, lengths, refusals, sees, longer)
    return Comparison(
        comparable.knobs(before, after), tuple(refusals), tuple(warnings), lines, lengths, decision, why, sees, longer
    )


def _difference(name: str, before: Baseline, after: Baseline) -> Difference | None:
    old, new = before.vitals.get(name), after.vitals.get(name)
    if old is None or new is None:
        return None
    rule = DECIDES.get(name, Rule(0.05))
    return difference(old, new, before.parts == after.parts, rule.restart, name != "generated tokens")


def _no_result(name: str, before: Baseline, after: Baseline, found: Difference) -> bool:
    """Return whether the vital says nothing here: a throughput that was asked for, a quantile that buckets hide.

    More than a queued server gave was not there to be had before; less than a queued server gives is not all it can.
    """
    if name == "generated tokens":
        return not comparable.queued(before if found.size > 0 else after)
    return not (before.vitals[name].sure and after.vitals[name].sure)


def _explained(name: str, before: Baseline, after: Baseline, found: Difference) -> float:
    """Return how much (log) of a difference another load, or other lengths of answers, can have made."""
    rule, allowed = DECIDES[name], 0.0
    more = comparable.load_changed(before, after)
    if rule.load and more * found.size > 0:
        in_queue = "output token" not in name and (comparable.queues(before) or comparable.queues(after))
        allowed += inf if in_queue else rule.load * abs(more)
    old, new = (each.workload.get("output tokens, mean") for each in (before, after))
    if rule.output and old and new and log(new / old) * found.size > 0:
        allowed += abs(log(new / old))
    return allowed


def _line(
    name: str, before: Baseline, after: Baseline, found: Difference | None, decides: bool, proven: bool,
    allowed: Mapping[str, float],
) -> Line:  # fmt: skip
    unit, better = VITALS[name]
    old, new = (_reading(each.vitals.get(name)) for each in (before, after))
    if found is None:
        return Line(name, unit, old, new, None, None, "unknown")
    effect: Effect = "noise"
    if not decides:
        effect = "no result"
    elif proven and abs(found.relative) >= SMALL:
        effect = "better" if (found.size > 0) == (better == "higher") else "worse"
    elif allowed[name] >= abs(found.size) and abs(found.relative) >= SMALL:
        effect = "load"
    return Line(name, unit, old, new, found.relative, found.sees(LEVEL), effect)


def _reading(each: Measure | None) -> Reading:
    return absent("not in the snapshot") if each is None else each.reading


def _lengths(before: Baseline, after: Baseline) -> tuple[LengthLine, ...]:
    new = {each.low: each for each in after.by_length}
    return tuple(
        LengthLine(
            old.low,
            (old.preemptions, old.ttft_p95.reading, old.tpot_p95.reading),
            (new[old.low].preemptions, new[old.low].ttft_p95.reading, new[old.low].tpot_p95.reading),
        )
        for old in before.by_length
        if old.low in new
    )


def _decide(
    lines: Sequence[Line], lengths: Sequence[LengthLine], refusals: Sequence[str], sees: float | None,
    more: float | None,
) -> tuple[Decision, str]:  # fmt: skip
    if refusals:
        return "not comparable", refusals[0]
    if sees is None:
        return "not comparable", "the noise is not known: take both snapshots with --repeats 6 or more"
    better = [line for line in lines if line.effect == "better"]
    worse = [line for line in lines if line.effect == "worse"]
    if not better and not worse:
        return _nothing_shown(sees, more)
    if not better:
        return "roll back", f"worse: {_said(worse)}"
    if worse and not _outweighed(better, worse):
        return (
            "roll back",
            f"better: {_said(better)}; but worse: {_said(worse)}. Keep it only if that trade is what you want",
        )
    long = [line for line in lengths[1:] if _much_worse(line.before[1], line.after[1])]
    if long:
        return (
            "roll back",
            f"better: {_said(better)}; but prompts from {long[0].low:.0f} tokens on wait longer for their first token",
        )
    if worse:
        return "keep", f"better: {_said(better)}; for that {_said(worse)}: roll back if an objective there breaks"
    return "keep", f"better: {_said(better)}; nothing worse beyond the noise"


def _outweighed(better: Sequence[Line], worse: Sequence[Line]) -> bool:
    """Return whether only single tokens come later, by less than the whole request is done earlier."""
    whole = next((line for line in better if line.what == "whole request, mean" and line.relative is not None), None)
    if whole is None or whole.relative is None:
        return False
    gain = min(TRADE, 1 / (1 + whole.relative) - 1)
    return all("output token" in line.what and (line.relative or 0.0) <= gain for line in worse)


def _nothing_shown(sees: float, more: float | None) -> tuple[Decision, str]:
    seen = f"cannot see less than {share(sees)}"
    if sees <= WANTED:
        return "no difference", f"none beyond the noise; {seen}, so nothing larger is there: the old value stays"
    if more is None:
        return "not enough", f"none beyond the noise, but {seen}: record both again, in turn (A, B, A, B)"
    return "not enough", f"none beyond the noise, but {seen}: run {minutes(more)} more of each to see {share(WANTED)}"


def _much_worse(before: Reading, after: Reading) -> bool:
    """Certainly: where buckets only bound them, the least after against the most before."""
    most = before.value if before.value is not None else before.upper
    least = after.value if after.value is not None else after.lower
    return most is not None and least is not None and least > 1.25 * most


def _said(lines: Sequence[Line]) -> str:
    return ", ".join(f"{line.what} {change(line.relative)}" for line in lines)
