"""Scenarios as data, compiled to promtool tests: what every series does while calm, in trouble, just under, and idle.

A `Series` says its level in each phase: a gauge's value, or a counter's slope per second; None is absent. From one
`Case` the compiler makes the seven tests that every alert must pass.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

STEP = 15
AFTER = 180  # how long a trouble is watched beyond what it must do
FOREVER = 10**9
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

    ``labels`` are the ones that the alert carries beyond its name. ``keeps`` is how long it stays after the trouble,
    ``settles`` how long its expression takes to notice the end. ``lead`` is how long all is calm first.
    """

    alert: str
    severity: str
    series: tuple[Series, ...]
    after: int
    labels: Mapping[str, str]
    keeps: int = 0
    lead: int = 600
    settles: int = 0
    always: bool = False
    other: Mapping[str, str] = field(default_factory=lambda: {"model_name": "mistral", "target": "gpu2:8000"})
    ruleset: str = "default"


    @property
    def seconds(self) -> int:
        """How long its longest variant lasts."""
        return self.lead + self.after + self.settles + self.keeps + 2 * AFTER


Shape = Callable[[Series, int], Level]


def values(series: Series, shape: Shape, seconds: int, lead: int, missing: int = -1, restart: int = -1) -> str:
    """promtool's notation of a series: one value per step; a missed scrape is stale; a restart resets counters."""
    total, out, there = 1000.0 if series.counter else 0.0, list[str](), False
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
            out.append("stale" if there else "_")
        else:
            out.append(f"{total:.10g}" if series.counter else f"{level:.10g}")
        there = level is not None and at != missing
    return " ".join(out)


def trouble(case: Case, until: int, which: str = "bad") -> Shape:
    """Calm, then ``which`` from the lead on, then calm again from ``until`` on."""
    return lambda series, at: getattr(series, which) if case.lead <= at < until else series.calm


def flat(which: str) -> Shape:
    """One phase throughout."""
    return lambda series, _: getattr(series, which)


def simulate(name: str, series: Iterable[tuple[Series, str]], checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One promtool test."""
    inputs = [{"series": s.text(), "values": v} for s, v in series]
    return {"name": name, "interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": list(checks)}


def firing(case: Case, at: int, victims: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """At ``at`` exactly these victims fire, of those that share their model or, where there is none, their target."""
    which = next((f',{k}="{case.labels[k]}"' for k in ("model_name", "target") if k in case.labels), "")
    alert = f'ALERTS{{alertname="{case.alert}",severity="{case.severity}",alertstate="firing"{which}}}'
    query = f"count by ({', '.join(sorted({*case.labels, 'severity'}))}) ({alert})"
    samples = [{"labels": _labels({**v, "severity": case.severity}), "value": 1} for v in victims]
    return {"expr": query, "eval_time": f"{at}s", "exp_samples": samples}


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


def elsewhere(case: Case, prefix: str) -> Case:
    """The same trouble of other victims: every model and target gets a prefix."""

    def move(labels: Mapping[str, str]) -> dict[str, str]:
        return {k: f"{prefix}-{v}" if k in {"model_name", "target"} else v for k, v in labels.items()}

    series = tuple(replace(s, labels=move(s.labels)) for s in case.series)
    return replace(case, series=series, labels=move(case.labels), other=move(case.other))


def another(case: Case, series: Series) -> Series:
    """The same series of another victim, which stays calm."""
    return replace(series, labels={**series.labels, **{k: v for k, v in case.other.items() if k in series.labels}})


@dataclass(frozen=True)
class Variant:
    """One of the seven: its series with their values, and what must be true when."""

    name: str
    rows: tuple[tuple[Series, str], ...]
    checks: tuple[Mapping[str, Any], ...]

    @property
    def times(self) -> bool:
        """Whether it says to the second when the alert fires or ends."""
        return self.name.endswith((": fires", ": ends"))


def seven(case: Case) -> Iterator[Variant]:
    """The tests (a) to (g) of one alert, each with victims of its own."""
    fires = case.lead + case.after
    long = fires + AFTER
    ends = case.seconds

    def build(
        name: str, shape: Shape, seconds: int, checks: Callable[[Case], list[Mapping[str, Any]]], **options: int
    ) -> Variant:
        mine = elsewhere(case, name)
        rows = tuple((s, values(s, shape, seconds, case.lead, **options)) for s in mine.series)
        return Variant(f"{case.alert} {case.severity}: {name}", rows, tuple(checks(mine)))

    def never(mine: Case) -> list[Mapping[str, Any]]:
        return [firing(mine, at, []) for at in range(0, long, 60)]

    always = trouble(case, FOREVER)
    yield build(
        "fires", always, long,
        lambda c: [
            firing(c, fires - STEP, [c.labels] * case.always), firing(c, fires, [c.labels]),
            firing(c, long, [c.labels]),
        ],
    )  # fmt: skip
    yield build("missed", always, long, lambda c: [firing(c, fires + 60, [c.labels])], missing=case.lead + 30)
    still = case.keeps or case.always
    last = [(long + case.keeps - STEP, True)] if still else []
    yield build(
        "ends", trouble(case, long), ends,
        lambda c: [firing(c, at, [c.labels] * on) for at, on in (*last, (ends, case.always))],
    )  # fmt: skip
    if case.always:
        return
    yield build("under", trouble(case, FOREVER, "under"), long, never)
    yield build("idle", flat("idle"), long, never)
    yield build("restart", flat("calm"), long, never, restart=case.lead)
    beside = build("beside", always, long, lambda c: [firing(c, fires + 60, [c.labels])])
    mine = {s.text() for s, _ in beside.rows}
    calm = (another(elsewhere(case, "beside"), s) for s, _ in beside.rows)
    others = tuple((o, values(o, flat("calm"), long, case.lead)) for o in calm if o.text() not in mine)
    yield replace(beside, rows=beside.rows + others)


def compiled(cases: Iterable[Case], of: Callable[[Variant], bool] = lambda _: True) -> Iterator[dict[str, Any]]:
    """All variants of a case as victims of one simulation; apart what lasts long, and each that has no victim."""
    for case in cases:
        variants, shared = list(filter(of, seven(case))), {"model_name", "target"} & case.labels.keys()
        beside = [variant for variant in variants if shared and not variant.name.endswith(": ends")]
        apart = [[variant] for variant in variants if variant not in beside]
        for some in filter(None, [beside, *apart]):
            rows = [row for variant in some for row in variant.rows]
            yield simulate(some[0].name, rows, [check for variant in some for check in variant.checks])


def document(
    tests: Sequence[Mapping[str, Any]], rules: Sequence[str], step: int = STEP, *, late: bool = False
) -> dict[str, Any]:
    """A promtool test file. Groups run in the order in which they read each other, or ``late`` in the reverse one.

    Then each sees what the one before made one evaluation late, as in a ruler that runs them beside each other.
    """
    order = [group for file in ("native.yml", "recording.yml", "alerts.yml") for group in _groups(rules, file)]
    return {
        "rule_files": list(rules),
        "evaluation_interval": f"{step}s",
        "group_eval_order": order[::-1] if late else order,
        "tests": list(tests),
    }


def _groups(rules: Sequence[str], file: str) -> Iterator[str]:
    for path in (Path(rule) for rule in rules):
        if path.name == file:
            yield from re.findall(r"^- name: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
