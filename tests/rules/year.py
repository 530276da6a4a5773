"""A year of a fleet of 100 engines that is well run: pages and tickets of each operation, and of each true incident.

`make year` writes docs/alert-budget.md. A year at 15 s is too much for one machine, so each operation is played once,
at its own length and on as many engines as it takes, through the committed rules, and multiplied by how often a year
has it. Operations that touch one model each are played side by side; what touches the whole fleet has a world of its
own. States are given as the daemon gives them; arrivals of real traces go through the simulator and the daemon's own
judgement. A notification is what Alertmanager groups: an alert's name and its model. Inhibition is left out, so that
nothing is hidden.
"""

import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
from math import inf
from pathlib import Path
from typing import Any

from tests.rules import rulesets
from tests.rules.scenario import SCRAPED, STEP, document
from tests.rules.tools import ROOT, promtool_test
from tests.traces.cases import OURS
from vllm_vitals.config.alerts import Config
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.simulator.file_traffic import FileTraffic, Selection, select
from vllm_vitals.simulator.request_file import PREFIX_BLOCK_TOKENS, RequestFile
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.write_recording import play

HOUR, MINUTE = 3600, 60
UP, IDLE, DOWN, STARTING = State.HEALTHY, State.IDLE, State.DOWN, State.STARTING
WANTED = 'kube_deployment_spec_replicas{deployment="vllm"}'
# Pages of a year that is well run, and tickets of a week: the fixed budget.
FALSE_PAGES, TICKETS_A_WEEK = 0, 3.0
Row = dict[str, str]
Course = Callable[[int], float]
# The state of an engine at a second; None: nothing is served about it.
Life = Callable[[int], State | None]
LOST = (DOWN, STARTING, State.STALLED, State.ASLEEP)


def flat(value: float) -> Course:
    return lambda _: value


NONE, SIX, HALF = flat(0), flat(6), flat(0.5)


@dataclass(frozen=True)
class Engine:
    """What one engine does. ``finishes`` is requests/s that end well, ``fails`` in error; both only while it works."""

    target: str
    model: str
    life: Life = lambda _: UP
    running: Course = SIX
    waiting: Course = NONE
    wait: Course = NONE
    finishes: Course = HALF
    fails: Course = NONE
    first_tokens_late: Course = NONE

    def rows(self, seconds: int) -> Iterator[Row]:
        """Its series, as the exporter serves them every 15 s."""
        times = range(0, seconds + STEP, STEP)
        lives = [self.life(at) for at in times]
        who = {"target": self.target, "model_name": self.model, "engine": "0"}

        def row(name: str, values: Sequence[float], **labels: str) -> Row:
            return cells(name, [None if life is None else v for life, v in zip(lives, values, strict=True)],
                         {**who, **labels})  # fmt: skip

        def gauge(name: str, course: Course, **labels: str) -> Row:
            return row(
                name, [0 if life in LOST else course(at) for at, life in zip(times, lives, strict=True)], **labels
            )

        def counter(name: str, slope: Course, **labels: str) -> Row:
            steps = [
                0 if life in LOST or life is None else slope(at) * STEP for at, life in zip(times, lives, strict=True)
            ]
            return row(name, list(accumulate(steps)), **labels)

        # a state in which it never is says nothing
        for state in sorted({UP, DOWN, *filter(None, lives)}):
            yield row("state", [life is state for life in lives], state=str(state))
        yield cells("target_up", [None if life is None else life not in (DOWN, STARTING) for life in lives],
                    {"target": self.target})  # fmt: skip
        began = [0] * len(lives)
        for number, at in enumerate(times):
            began[number] = began[number - 1] if number and lives[number] is lives[number - 1] else at
        yield row("state_since_timestamp_seconds", began)
        if all(life in (None, STARTING) for life in lives):
            return
        yield gauge("requests_running", self.running)
        yield gauge("requests_waiting", self.waiting, reason="capacity")
        yield gauge("expected_wait_seconds", self.wait)
        yield gauge("kv_cache_usage_ratio", lambda at: min(1.0, 0.02 + self.running(at) / 40))
        yield gauge("kv_cache_usage_max_ratio", lambda at: min(1.0, 0.03 + self.running(at) / 40))
        yield counter("responses_total", self.finishes, finished_reason="stop")
        yield counter("responses_total", self.fails, finished_reason="error")
        yield counter("generation_tokens_total", lambda at: 250 * self.finishes(at))
        yield counter("preemptions_total", flat(0))
        yield gauge("preemptions_per_second", flat(0))
        yield gauge("useful_tokens_per_second", lambda at: 1000 * self.finishes(at))
        yield counter("ttft_seconds_bucket", lambda at: self.finishes(at) * (1 - self.first_tokens_late(at)), le="40.0")
        yield counter("ttft_seconds_bucket", self.finishes, le="+Inf")


def cells(name: str, values: Sequence[float | None], labels: Mapping[str, str]) -> Row:
    """One series in promtool's words; where it ends it goes stale."""
    words = ["_" if value is None else f"{float(value):.10g}" for value in values]
    for number in range(1, len(words)):
        if words[number] == "_" and words[number - 1] not in ("_", "stale"):
            words[number] = "stale"
    inside = ",".join(f'{k}="{v}"' for k, v in sorted({**SCRAPED, **labels}.items()))
    runs = ((word, len(list(same))) for word, same in groupby(words))
    # promtool repeats a value so many times more, and a gap so many times
    said = (word if count == 1 else f"{word}x{count - (word != '_')}" for word, count in runs)
    return {"series": f"vllm_vitals_{name}{{{inside}}}", "values": " ".join(said)}


@dataclass(frozen=True)
class Play:
    """Something that happens to a model, or to the whole fleet (``model`` is "").

    ``times`` a year; ``page`` of an incident, and ``within`` how many seconds of ``begins`` it must come.
    """

    name: str
    times: float
    model: str
    engines: Sequence[Engine]
    note: str = ""
    page: str = ""
    within: int = 0
    begins: int = 900
    more: Callable[[], Sequence[Row]] = tuple


@dataclass(frozen=True)
class World:
    """Plays side by side for so many hours. ``exporter``: whether it is scraped at a second."""

    hours: float
    plays: Sequence[Play]
    config: Config = field(default_factory=Config)
    exporter: Callable[[int], bool] = lambda _: True

    @property
    def seconds(self) -> int:
        return int(self.hours * HOUR)


def fleet(number: int, model: str, **what: Any) -> list[Engine]:
    return [Engine(f"{model}-{i}:8000", model, **what) for i in range(number)]


def during(start: int, end: float, then: State | None, otherwise: State | None = UP) -> Life:
    return lambda at: then if start <= at < end else otherwise


def within(start: int, end: float, then: float, otherwise: float) -> Course:
    return lambda at: then if start <= at < end else otherwise


def comes(at: int, loads: int = 300, goes: float = inf) -> Life:
    """A server that is discovered at a second, loads its weights, serves, and is gone later."""
    return lambda now: None if now < at or now >= goes else STARTING if now < at + loads else UP


def arriving(model: str, number: int, loads: int, first: int, apart: int) -> list[Engine]:
    """New servers of a model, one after another."""
    return [Engine(f"{model}-new-{i}:8000", model, comes(first + apart * i, loads)) for i in range(number)]


def gone(model: str, number: int, count: int, life: Life) -> list[Engine]:
    """Engines of which the first lead another life."""
    return [replace(one, life=life) if i < count else one for i, one in enumerate(fleet(number, model))]


def asked_seldom(number: int) -> list[Engine]:
    """A request every five minutes on each replica, by chance."""
    chance, found = random.Random(7), list[Engine]()
    for one in fleet(number, "night"):
        gaps = accumulate(chance.expovariate(1 / 300) for _ in range(200))
        asked = {round(at / STEP) for at in gaps}

        def busy(at: int, asked: set[int] = asked) -> float:
            return float(at // STEP in asked)

        def life(at: int, busy: Course = busy) -> State:
            return UP if busy(at) else IDLE

        def ends(at: int, busy: Course = busy) -> float:
            return busy(at) / STEP

        found.append(replace(one, life=life, running=busy, finishes=ends))
    return found


def rolling() -> list[Engine]:
    """Ten replicas, one after another: the new one loads, then the old one drains and goes."""
    old = [replace(one, life=during(1230 + 240 * i, inf, None)) for i, one in enumerate(fleet(10, "rolling"))]
    return [*old, *arriving("rolling", 10, 300, 900, 240)]


def scaling() -> list[Engine]:
    """Four replicas become ten and four again."""
    more = [Engine(f"scaling-new-{i}:8000", "scaling", comes(900 + 60 * i, goes=2700 + 60 * i)) for i in range(6)]
    return [*fleet(4, "scaling"), *more]


def drains() -> list[Engine]:
    """A benchmark: 2,000 requests at once on one engine, worked off in 37 minutes."""

    def left(at: int) -> float:
        return max(0.0, 2000 - (at - 900) / 1.1) if at >= 900 else 0

    def working(at: int) -> float:
        return float(left(at) > 0)

    return [Engine(
        "bench:8000", "bench", lambda at: State.SATURATED if left(at) else IDLE, lambda at: 32 * working(at), left,
        lambda at: left(at) * 1.1, finishes=lambda at: working(at) / 1.1,
        first_tokens_late=lambda at: float(left(at) < 1970),
    )]  # fmt: skip


def overloaded() -> list[Engine]:
    """More comes to three engines than they can do, from a quarter of an hour on."""

    def queue(at: int) -> float:
        return max(0.0, (at - 900) * 0.4)

    return fleet(
        3, "overload", life=lambda at: State.SATURATED if queue(at) > 5 else UP, running=flat(32), waiting=queue,
        wait=lambda at: queue(at) / 0.5, first_tokens_late=lambda at: float(queue(at) > 20),
    )  # fmt: skip


def unseen(at: int) -> bool:
    """Whether the samples of this second are missing: a daemon's restart, Prometheus' own, and four minutes.

    Prometheus itself judges nothing while it is away; promtool does, and after five minutes a page is right.
    """
    return 600 <= at < 660 or 1200 <= at < 1320 or 1800 <= at < 2040


def blinded(engines: Sequence[Engine], missing: Callable[[int], bool]) -> list[Engine]:
    """Nothing is scraped for a while, and the counters go on."""

    def life(one: Engine) -> Life:
        return lambda at: None if missing(at) else one.life(at)

    return [replace(one, life=life(one)) for one in engines]


def traced(load: str) -> Sequence[Row]:
    """A server of the simulator under half an hour of real arrivals, as the exporter shows it."""
    case = next(case for case in OURS if case.load == load and "azure" in case.path.name)
    arrivals = select(RequestFile(case.path, sys.exit), Selection(case.speed_up, loop=True), 0)
    traffic = FileTraffic(case.settings, 0, arrivals, PREFIX_BLOCK_TOKENS)
    scene = Scenario(case.name, "", "", inf, (), case.settings)
    judge, renderer = TargetEvaluator(f"{load}:8000", Thresholds().at_interval(STEP)), TargetRenderer()
    found: dict[str, list[str]] = {}
    for number, scrape in enumerate(play(scene, 0, STEP, traffic=traffic, duration_s=1800)):
        for line in join([renderer.render(judge.observe(scrape))]).decode().splitlines():
            series, _, value = line.rpartition(" ")
            if not line.startswith("#") and ("_bucket{" not in series or "ttft" in series):
                seen = found.setdefault(re.sub('model_name="[^"]*"', f'model_name="{load}"', series), [])
                seen += ["_"] * (number - len(seen)) + [value]
    return [{"series": series, "values": " ".join([*values, "stale"])} for series, values in found.items()]


def wanted(*counts: tuple[int, int]) -> Row:
    """The desired replicas: (seconds, replicas) one after another."""
    return {"series": WANTED, "values": " ".join(f"{count}x{seconds // STEP}" for seconds, count in counts)}


KNOWN = replace(Config(), desired_replicas=WANTED)
THIRD = 4  # of ten: a third and more
QUIET = {"life": lambda _: IDLE, "running": flat(0), "finishes": flat(0)}


def lost_node() -> list[Engine]:
    """Two of ten do not answer, until their pods are elsewhere and have loaded."""
    return [*gone("node", 10, 2, lambda at: UP if at < 900 else DOWN if at < 1260 else None),
            *arriving("node", 2, 300, 1260, 0)]  # fmt: skip


def recreated() -> list[Engine]:
    return [*gone("recreate", 6, 6, during(900, inf, None)), *arriving("recreate", 6, 360, 915, 0)]


def drained() -> list[Engine]:
    return [*gone("drained", 10, 2, during(900, inf, None)), *arriving("drained", 2, 300, 930, 0)]


def breathing() -> list[Engine]:
    """Twenty, six from minute 15 on (night), none from 50 on (weekend), ten again from 65 on."""
    one = during(900, inf, None)
    few = during(3000, inf, None)
    back = [replace(e, target=f"back-{e.target}", life=comes(3900 + 30 * i)) for i, e in enumerate(fleet(10, "chat"))]
    return [*(replace(e, life=few if i < 6 else one) for i, e in enumerate(fleet(20, "chat"))), *back]


def operations() -> tuple[World, ...]:
    """What a year that is well run has."""
    return (
        World(1, (
            Play("deploy, rolling: ten replicas, one after another", 250, "rolling", rolling()),
            Play("deploy, Recreate: six replicas at once, six minutes to load", 50, "recreate", recreated()),
            Play("drain of a node: two of ten replicas leave and come back elsewhere", 52, "drained", drained()),
            Play("autoscaling of a model, 4 to 10 to 4, no series of desired replicas", 365, "scaling", scaling()),
            Play("node lost: two of ten do not answer until they are elsewhere", 12, "node", lost_node()),
            Play("node lost, servers by a fixed list: two of ten do not answer for half an hour", 6, "list",
                 gone("list", 10, 2, during(900, 2700, DOWN)), "a ticket is right"),
            Play("one engine of ten crashes and is back in two minutes", 50, "crash",
                 gone("crash", 10, 1, during(900, 1020, DOWN))),
            Play("no requests for an hour", 3000, "quiet", fleet(4, "quiet", **QUIET)),
            Play("a benchmark: 2,000 requests at once, worked off in 37 minutes", 50, "bench", drains()),
            Play("real arrivals, comfortable: half an hour of Azure 2023", 17520, "comfortable", (),
                 more=partial(traced, "comfortable")),
            Play("real arrivals, tight: half an hour of Azure 2023 at six times", 300, "tight", (),
                 more=partial(traced, "tight")),
            Play("night: each of 20 replicas is asked every five minutes, an hour", 3000, "night", asked_seldom(20)),
            Play("the fleet around them (meta alerts)", 365, "", fleet(4, "busy")),
        )),
        World(1.45, (Play("20 to 6 at night, 6 to 0 at the weekend, 10 again, desired replicas known", 365, "",
                       breathing(), more=lambda: [wanted((870, 20), (2100, 6), (885, 0), (1500, 10))]),), KNOWN),
        World(1, (Play("a daemon's restart (1 min), Prometheus' (2 min), no scrape for four minutes", 50, "",
                         blinded(fleet(20, "chat"), unseen)),), exporter=lambda at: not unseen(at)),
    )  # fmt: skip


def incidents() -> tuple[World, ...]:
    """What must be told, in its time."""

    def part(model: str, number: int, count: int, state: State | None) -> list[Engine]:
        return gone(model, number, count, during(900, inf, state))

    failing = [replace(one, finishes=lambda at: 0.05 if at >= 900 else 0.5, fails=lambda at: 0.45 * (at >= 900))
               for one in part("failing", 10, THIRD, State.FAILING)]  # fmt: skip
    spiral = State.DEATH_SPIRAL
    return (
        World(0.75, (
            Play("one engine of ten in a death spiral", 12, "spiral1", part("spiral1", 10, 1, spiral),
                 "one of many: a ticket"),
            Play("a third of a model in a death spiral", 2, "spiral4", part("spiral4", 10, THIRD, spiral),
                 page="VLLMDeathSpiral", within=60),
            Play("the only engine of a model in a death spiral", 2, "alone", part("alone", 1, 1, spiral),
                 page="VLLMDeathSpiral", within=60),
            Play("a third of a model hangs", 2, "hang", part("hang", 10, THIRD, State.STALLED),
                 page="VLLMStalled", within=60),
            Play("a third of a model fails most requests", 2, "failing", failing, page="VLLMFailing", within=60),
            Play("zone lost: a third of a model does not answer", 1, "zone", part("zone", 10, THIRD, DOWN),
                 page="VLLMCapacityLost", within=720),
            Play("every engine of a model is down", 2, "down", part("down", 3, 3, DOWN),
                 page="VLLMModelUnavailable", within=300),
            Play("overload: more comes than three engines can do", 6, "overload", overloaded(),
                 page="VLLMOverload", within=14 * MINUTE),
            Play("real arrivals, overloaded: Azure 2023 at twelve times", 6, "overloaded", (), begins=0,
                 page="VLLMOverload", within=20 * MINUTE, more=partial(traced, "overloaded")),
            Play("the fleet around them (meta alerts)", 1, "", ()),
        )),
        World(0.5, (Play("every target drops out of discovery", 1, "", part("chat", 10, 10, None),
                         page="VLLMSightLost", within=600),)),
        World(0.5, (Play("the only daemon is gone", 1, "", blinded(fleet(10, "chat"), lambda at: at >= 900),
                         page="VLLMExporterDown", within=900),), exporter=lambda at: at < 900),
    )  # fmt: skip


Key = tuple[str, str, str]  # model, severity, alert


@dataclass(frozen=True)
class Told:
    """What came in a world: notifications, and the second at which each alert first fired."""

    counts: Mapping[Key, int]
    first: Mapping[Key, float]

    def of(self, play_: Play, severity: str, world: World) -> dict[str, int]:
        """Return notifications by alert; those of models without a play count for the fleet's."""
        others = {one.model for one in world.plays if one.model}
        found: Counter[str] = Counter()
        for (model, kind, name), count in self.counts.items():
            mine = model == play_.model if play_.model else model not in others
            found[name] += count * (kind == severity and mine)
        return dict(+found)

    def after(self, play_: Play) -> float:
        """Return the seconds from the beginning of an incident to its page."""
        times = [at for (model, kind, name), at in self.first.items()
                 if (kind, name) == ("page", play_.page) and play_.model in ("", model)]  # fmt: skip
        return min(times, default=inf) - play_.begins


def told(world: World, folder: Path) -> Told:
    """Play a world through the rules of its config."""
    seconds = world.seconds
    there = [1.0 if world.exporter(at) else None for at in range(0, seconds + STEP, STEP)]
    own = [cells("build_info", there, {"version": "1"}),
           {"series": 'up{job="vllm-vitals",instance="vitals-a:9840"}',
            "values": " ".join("_" if value is None else "1" for value in there)}]  # fmt: skip

    def fires(ago: str = "") -> str:
        series = f'ALERTS{{alertstate="firing",severity=~"page|ticket"}}{ago}'
        return f"count by (alertname, severity, model_name) ({series})"

    window, by = f"[{seconds}s:{STEP}s]", "by (alertname, model_name, severity)"
    asked = (
        f"sum {by} (count_over_time(({fires()} unless {fires(f' offset {STEP}s')}){window}))",
        f"min {by} (min_over_time(({fires()} * 0 + time()){window}))",
    )
    # An answer that nobody expects is printed, also where it is none.
    nothing = [{"labels": '{alertname="none"}', "value": -1}]
    checks = [{"expr": one, "eval_time": f"{seconds}s", "exp_samples": nothing} for one in asked]
    rows = [row for one in world.plays for row in (*(r for e in one.engines for r in e.rows(seconds)), *one.more())]
    test = {"interval": f"{STEP}s", "input_series": [*rows, *own], "promql_expr_test": checks}
    rules = rulesets.DAEMON if world.config == Config() else rulesets.build(world.config, folder)
    said = promtool_test(document([test], rules), folder, "year")
    answers = said.split("got:")[1:]
    assert len(answers) == len(asked), said[:2000]
    counts, first = (dict(_answer(answer)) for answer in answers)
    return Told({key: round(value) for key, value in counts.items()}, first)


def _answer(text: str) -> Iterator[tuple[Key, float]]:
    for labels, value in re.findall(r"\{([^}]*)\} ([\d.E+]+)", text):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        yield (named.get("model_name", ""), named["severity"], named["alertname"]), float(value)


def faults(play_: Play, what: Told, world: World) -> list[str]:
    """What of it is not as it must be."""
    if not play_.page:
        return [f"{play_.name}: {name} pages" for name in what.of(play_, "page", world)]
    late = what.after(play_) - play_.within
    return [f"{play_.name}: {play_.page} is {late:.0f} s late"] if late > 0 else []


HEAD = """\
# The alert budget: a year of a fleet of 100 engines

`make year` writes this page and fails where the budget does not hold. Each operation is played once through the
committed rules, at 15 s in simulated time, for the hours and on the models that it takes (1 to 20 engines each, some 90
side by side), and multiplied by how often such a year has it. Those numbers of times are assumptions: put your own
beside them. States are given as the daemon gives them; real arrivals go through the simulator and the daemon's own
judgement. What Alertmanager would inhibit is counted too.

| operation | times a year | pages each | tickets each | pages a year | tickets a week |
|---|---|---|---|---|---|
"""
MIDDLE = """
Every true incident, and how long after its state began the page came (a state has its own hold before):

| incident | page | after | budget | other pages | tickets |
|---|---|---|---|---|---|
"""


def shown(counts: Mapping[str, int]) -> str:
    """Names and numbers, or 0."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "0"


def report(folder: Path) -> tuple[str, list[str]]:
    """Play the year; return the page, and what breaks the budget."""
    wrong, pages, tickets = list[str](), 0.0, 0.0
    rows, true = list[str](), list[str]()
    for world in operations():
        what = told(world, folder)
        for one in world.plays:
            wrong += faults(one, what, world)
            paged, filed = (what.of(one, severity, world) for severity in ("page", "ticket"))
            a_year, a_week = sum(paged.values()) * one.times, sum(filed.values()) * one.times / 52
            pages, tickets = pages + a_year, tickets + a_week
            name = f"{one.name} ({one.note})" if one.note else one.name
            rows.append(f"| {name} | {one.times:g} | {shown(paged)} | {shown(filed)} | {a_year:g} | {a_week:.2g} |")
    rows.append(f"| **all**, budget {FALSE_PAGES} and {TICKETS_A_WEEK:g} | | | | **{pages:g}** | **{tickets:.2g}** |")
    for world in incidents():
        what = told(world, folder)
        for one in world.plays:
            wrong += faults(one, what, world)
            paged, filed = (what.of(one, severity, world) for severity in ("page", "ticket"))
            paged.pop(one.page, None)
            after = f"{what.after(one):.0f} s | {one.within} s" if one.page else "|"
            true.append(f"| {one.name} | {one.page or one.note or '-'} | {after} | {shown(paged)} | {shown(filed)} |")
    if tickets > TICKETS_A_WEEK:
        wrong.append(f"{tickets:.1f} tickets a week, of {TICKETS_A_WEEK:g}")
    return HEAD + "\n".join(rows) + "\n" + MIDDLE + "\n".join(true) + "\n", wrong


def main() -> int:
    """Write the page."""
    with tempfile.TemporaryDirectory() as name:
        text, wrong = report(Path(name))
    (ROOT / "docs" / "alert-budget.md").write_text(text)
    print(text)
    print("\n".join(wrong), file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
