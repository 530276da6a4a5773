"""Whether a deploy made a model worse: what `check --json` said before it, against what `check` says now.

Input: two answers (docs/check.schema.json). Output: findings, model by model. Invariant: pure; worse is only what is
proven: a state of worse severity, errors that counts prove, latencies whose bounds do not overlap. What one side lacks
is said and proves nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from vllm_vitals.serve.views import SCHEMA, quantity

EXIT_CODES = {"worse": 2, "unknown": 3, "pass": 0}  # in the order of what weighs most
Result = Literal["pass", "worse", "unknown"]
LEAST_ERRORS, TIMES = 10, 2.0  # so many errors, and so many times the share that there was before
SEVERITIES = ("ok", "unknown", "warning", "critical")
LATENCIES = {"ttft_p99_seconds": "first token p99", "tpot_p99_seconds": "TPOT p99"}

Engine = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison of one model."""

    model: str
    result: Result
    text: str


class GateError(ValueError):
    """The file is no answer of `check --json`; the text is one line."""


def parse(answer: object) -> list[Engine]:
    """Return the engines of an answer. Raises `GateError`."""
    try:
        assert isinstance(answer, dict)  # noqa: S101 - one way out for all that is not the answer
        if answer["schema"] != SCHEMA:
            raise GateError(f"its schema is {answer['schema']!r}, expected {SCHEMA}")
        found = [engine for target in answer["targets"] for engine in target["engines"]]
        assert all(engine["severity"] in SEVERITIES and "values" in engine for engine in found)  # noqa: S101
    except (AssertionError, KeyError, TypeError):
        raise GateError("not what `vllm-vitals check --json` writes") from None
    return found


def compare(before: Iterable[Engine], after: Iterable[Engine]) -> list[Finding]:
    """Return what each model's engines are compared by, models in order of their names."""
    old, new = _by_model(before), _by_model(after)
    findings = []
    for model in sorted(old.keys() | new.keys()):
        if not old.get(model):
            findings.append(Finding(model, "unknown", "not served before: nothing to compare with"))
        elif not new.get(model):
            findings.append(Finding(model, "worse", f"no engine now, {len(old[model])} before"))
        else:
            findings += _compared(model, old[model], new[model])
    return findings or [Finding("", "unknown", "no engine on either side")]


def result(findings: Iterable[Finding]) -> Result:
    """Return what weighs most: worse, then not known."""
    seen = {finding.result for finding in findings}
    order: tuple[Result, ...] = ("worse", "unknown")
    return next((each for each in order if each in seen), "pass")


def _by_model(engines: Iterable[Engine]) -> dict[str, list[Engine]]:
    """Group engines; one that never answered has no model, and counts to the only one where there is only one."""
    found: dict[str, list[Engine]] = {}
    for engine in engines:
        found.setdefault(str(engine["model_name"]), []).append(engine)
    nameless = found.pop("", [])
    if nameless and len(found) == 1:
        next(iter(found.values())).extend(nameless)
    elif nameless:
        found[""] = nameless
    return found


def _compared(model: str, old: list[Engine], new: list[Engine]) -> Iterator[Finding]:
    yield _states(model, old, new)
    yield _errors(model, old, new)
    for name, called in LATENCIES.items():
        yield _latency(model, name, called, old, new)


def _states(model: str, old: list[Engine], new: list[Engine]) -> Finding:
    """Compare the shares of engines that are at least so bad; what cannot be judged is not known."""
    for severity in ("critical", "warning"):
        level = SEVERITIES.index(severity)
        shares = [sum(SEVERITIES.index(e["severity"]) >= level for e in side) / len(side) for side in (old, new)]
        if shares[1] > shares[0]:
            worst = max(new, key=lambda e: SEVERITIES.index(e["severity"]))
            was, now = (quantity(share, "ratio") for share in shares)
            text = f"engines {severity} or worse: {now} now, {was} before ({worst['target']}: {worst['state']})"
            return Finding(model, "worse", text)
    blind = [e for e in new if e["severity"] == "unknown"]
    if len(blind) > sum(e["severity"] == "unknown" for e in old):
        return Finding(model, "unknown", f"{len(blind)} of {len(new)} engines cannot be judged ({blind[0]['state']})")
    return Finding(model, "pass", f"states are no worse ({len(new)} engines now, {len(old)} before)")


def _errors(model: str, old: list[Engine], new: list[Engine]) -> Finding:
    """Compare errors since each server's start: a deploy begins counters anew."""
    before, now = _failed(old), _failed(new)
    if before is None or now is None:
        return Finding(model, "pass", "requests failed: not counted on one side, so not compared")
    shares = [failed / total if total else 0.0 for failed, total in (before, now)]
    text = f"requests failed: {quantity(shares[1], 'ratio')} now ({now[0]:.0f}), {quantity(shares[0], 'ratio')} before"
    worse = now[0] >= LEAST_ERRORS and shares[1] > TIMES * shares[0]
    return Finding(model, "worse" if worse else "pass", text)


def _failed(engines: list[Engine]) -> tuple[float, float] | None:
    counted = [found for e in engines if isinstance(found := e["values"].get("responses_total"), dict)]
    if not counted:
        return None
    return sum(c.get("error") or 0.0 for c in counted), sum(v or 0.0 for c in counted for v in c.values())


def _latency(model: str, name: str, called: str, old: list[Engine], new: list[Engine]) -> Finding:
    """Compare bounds: the middle engine's lower one now against the middle engine's upper one before."""
    upper, lower = _middle(old, f"{name}_upper"), _middle(new, f"{name}_lower")
    if upper is None or lower is None:
        return Finding(model, "pass", f"{called}: not known on one side, so not compared")
    text = f"{called}: at least {quantity(lower, 's')} now, at most {quantity(upper, 's')} before"
    return Finding(model, "worse" if lower > upper else "pass", text)


def _middle(engines: list[Engine], name: str) -> float | None:
    known = [value for e in engines if isinstance(value := e["values"].get(name), int | float)]
    return median(known) if known else None
