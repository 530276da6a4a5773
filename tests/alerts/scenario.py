"""Scenarios as data, compiled to promtool tests: what every series does while calm, in trouble, just under, and idle.

A `Series` says its level in each phase: a gauge's value, or a counter's slope per second; None is absent. From one
`Case` the compiler makes the seven tests that every alert must pass.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

STEP = 15
# A level, or how it moves with the seconds since the trouble began.
Level = float | None | Callable[[float], float]

VICTIM = {"target": "gpu1:8000", "model_name": "llama", "engine": "0"}
SCRAPED = {"job": "vllm-vitals", "instance": "vitals-a:9840"}


@dataclass(frozen=True)
class Series:
    """One series. ``under`` is trouble just below the limit; ``idle`` is a server without traffic."""

    name: str
    labels: Mapping[str, str]
    calm: Level
    bad: Level
    under: Level = None
    idle: Level = 0.0
    counter: bool = False

    def text(self) -> str:
        inside = ",".join(f'{k}="{v}"' for k, v in sorted(self.labels.items()))
        return f"{self.name}{{{inside}}}"


@dataclass(frozen=True)
class Case:
    """An alert and the trouble that must fire it ``after`` seconds in trouble, and not one evaluation earlier.

    ``labels`` are the ones that the alert carries beyond its name. ``keeps`` is how long it stays after the trouble.
    ``lead`` is how long all is calm first. ``resets`` False: a restart is itself the trouble.
    """

    alert: str
    severity: str
    series: tuple[Series, ...]
    after: int
    labels: Mapping[str, str]
    keeps: int = 0
    lead: int = 600
    settles: int = 0
    idle_fires: bool = False
    always: bool = False
    other: Mapping[str, str] = field(default_factory=lambda: {"model_name": "mistral", "target": "gpu2:8000"})
    ruleset: str = "default"


Shape = Callable[[Series, int], Level]


def values(series: Series, shape: Shape, seconds: int, lead: int, missing: int = -1, restart: int = -1) -> str:
    """promtool's notation of a series: one value per step; a missed scrape is stale; a restart resets counters."""
    total, out = 1000.0 if series.counter else 0.0, []
    for at in range(0, seconds + STEP, STEP):
        level = shape(series, at)
        if callable(level):
            level = level(at - lead)
        if at == restart:
            total = 0.0
        if level is not None:
            total += level * STEP
        if at == missing:
            out.append("stale")
        elif level is None:
            out.append("_")
        else:
            out.append(f"{total:.10g}" if series.counter else f"{level:.10g}")
    return " ".join(out)


def trouble(case: Case, until: int, which: str = "bad") -> Shape:
    """Calm, then ``which`` from the lead on, then calm again from ``until`` on."""
    return lambda series, at: getattr(series, which) if case.lead <= at < until else series.calm


def flat(which: str) -> Shape:
    """One phase throughout."""
    return lambda series, _: getattr(series, which)


def test(name: str, series: Iterable[tuple[Series, str]], checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One promtool test."""
    inputs = [{"series": s.text(), "values": v} for s, v in series]
    return {"name": name, "interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": list(checks)}


def firing(case: Case, at: int, victims: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """At ``at`` exactly these victims fire."""
    query = f'count by ({", ".join(sorted({*case.labels, "severity"}))}) (ALERTS{{alertname="{case.alert}",severity="{case.severity}",alertstate="firing"}})'
    samples = [{"labels": _labels({**v, "severity": case.severity}), "value": 1} for v in victims]
    return {"expr": query, "eval_time": f"{at}s", "exp_samples": samples}


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


def another(case: Case, series: Series) -> Series:
    """The same series of another victim, which stays calm."""
    return replace(series, labels={**series.labels, **{k: v for k, v in case.other.items() if k in series.labels}})


def seven(case: Case) -> list[dict[str, Any]]:
    """The tests (a) to (g) of one alert."""
    fires = case.lead + case.after
    long = fires + 600
    name = f"{case.alert} ({case.severity})"
    everywhere = [case.labels]

    def build(title: str, shape: Shape, seconds: int, *checks: Mapping[str, Any], **options: int) -> dict[str, Any]:
        rows = [(s, values(s, shape, seconds, case.lead, **options)) for s in case.series]
        return test(f"{name} {title}", rows, checks)

    never = [firing(case, at, []) for at in range(0, long, 60)]
    ends = long + case.settles
    tests = [
        build(
            "fires in time, and not one evaluation earlier", trouble(case, 10**9), long,
            firing(case, fires - STEP, everywhere if case.always else []), firing(case, fires, everywhere), firing(case, long, everywhere),
        ),
        build("survives one missed scrape", trouble(case, 10**9), long, firing(case, fires + 60, everywhere), missing=case.lead + 30),
        build(
            "keeps firing, then resolves", trouble(case, long), ends + case.keeps + 600,
            *([firing(case, long + case.keeps - STEP, everywhere)] if case.keeps else []),
            firing(case, ends + case.keeps + 600, everywhere if case.always else []),
        ),
    ]  # fmt: skip
    if not case.always:
        tests += [
            build("is quiet just under its limit", trouble(case, 10**9, "under"), long, *never),
            build("is quiet on a server without traffic", flat("idle"), long, *never),
            build("is not fired by a restart", flat("calm"), long, *never, restart=case.lead),
        ]
        rows = [(s, values(s, trouble(case, 10**9), long, case.lead)) for s in case.series]
        mine = {s.text() for s in case.series}
        rows += [
            (o, values(o, flat("calm"), long, case.lead)) for o in (another(case, s) for s in case.series) if o.text() not in mine
        ]
        tests.append(test(f"{name} fires for the one victim in trouble", rows, [firing(case, fires + 60, everywhere)]))
    return tests


def document(tests: Sequence[Mapping[str, Any]], rules: Sequence[str], step: int = STEP) -> dict[str, Any]:
    """A promtool test file."""
    return {"rule_files": list(rules), "evaluation_interval": f"{step}s", "tests": list(tests)}
