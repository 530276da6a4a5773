"""A fleet with names as people have them, over days: what Prometheus would hold of it, as one block.

Input: how many engines, how many days. Output: a running Prometheus. Every family of the catalogue is there for every
engine, as the daemon serves it, and every record that dashboards read. Engine 3 has a spell of a death spiral, two
minutes long, each day; the last scrape of each day fails.
"""

import math
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.dashboards import history, tsdb
from vllm_vitals.catalog import BOUNDS, DETAILS, METRICS, Kind, Metric
from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules import boards, concurrency, fleet, slo
from vllm_vitals.vllm.lookup import family

END = 1_800_000_000
STEP = 15
MODELS = (
    "meta-llama/Llama-3.3-70B-Instruct-quantized.w8a8-long-context-v2",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8-dynamic-tensor-parallel-8",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506-customer-support",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B-reasoning-production",
    "openai/gpt-oss-120b-internal-search-assistant-canary-release-b",
)
# Engines that also use everything that vLLM can do; of the others a closed row has nothing.
DETAILED = 5
SPELL_S, SPELL_AT, TROUBLED = 120, 40_020, 3
_LES = 24  # at most
_HEIGHTS = (1.05, 0.7, 0.9, 0.5, 0.6)  # of the models' tides
_REPEATED = 120  # samples of a course that stays the same
_WORDS = {
    "finished_reason": ("stop", "length", "abort"), "reason": ("capacity", "deferred"), "bound": BOUNDS,
    "source": ("request",), "name": ("max_num_seqs", "max_model_len"), "state": tuple(State),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """How many engines, watched for how many days; of them, ranks of the first server; of how many models."""

    engines: int
    days: int
    ranks: int = 1
    models: int = len(MODELS)

    def __str__(self) -> str:
        """In words."""
        wide = f" of {self.models} models, {self.ranks} of one server" if self.ranks > 1 else ""
        return f"{self.engines} engine{'s' * (self.engines > 1)}{wide}"

    def model(self, place: int) -> str:
        """A model's name; the later ones are versions of the first."""
        version, which = divmod(place % self.models, len(MODELS))
        return MODELS[which] + (f"-v{version}" if version else "")

    def who(self, number: int) -> dict[str, str]:
        """The labels of an engine."""
        server, rank = (0, number) if number < self.ranks else (number - self.ranks + 1, 0)
        return {"target": target(server), "model_name": self.model(server), "engine": f"{rank}"}


def target(number: int) -> str:
    """A server's name."""
    return f"llama-{number:03d}.gpu-pool-a.example.internal:8000"


def series(shape: Shape) -> Iterator[tuple[tsdb.Labels, str]]:
    """Every series' labels and course."""
    for number in range(shape.engines):
        who = shape.who(number)
        for metric in METRICS:
            if "engine" not in metric.scope and who["engine"] != "0":
                continue  # a server says it once
            if metric.scope and (metric not in DETAILS or number < DETAILED):
                yield from _of(metric, {label: who[label] for label in metric.scope}, number)
        if number == TROUBLED:
            yield _named(boards.TROUBLE, who), "in trouble"
        yield _named(boards.WORST, who), "worst" if number == TROUBLED else "worst fine"
        yield _named(fleet.RANK, who), "rank" if number == TROUBLED else "rank fine"
        yield _named(concurrency.CAP, who), "count 1"
    for metric in METRICS:
        if not metric.scope:
            yield from _of(metric, {"model_name": MODELS[0]} if "model_name" in metric.labels else {}, 0)
    in_trouble = shape.who(TROUBLED)["model_name"]
    for model in sorted({shape.who(number)["model_name"] for number in range(shape.engines)}):
        for state in State:
            course = "spell" if (state, model) == (State.DEATH_SPIRAL, in_trouble) else "none"
            yield (
                _named(fleet.ENGINES, {"model_name": model, "state": state}),
                "count 2" if state is State.HEALTHY else course,
            )
        yield from _boards(model, shape)
        for record in (slo.GOOD, slo.TOTAL, *(slo.burn(w) for _, *pair, _, _ in slo.WINDOWS for w in pair)):
            yield _named(record, {"model_name": model, "slo": "quick"}), "share 1"


def _pool(model: str, place: int, engines: int) -> Iterator[tuple[tsdb.Labels, str]]:
    """What is recorded of a model's pool: it follows a tide of its own, and more requests bring less and less."""
    who = {"model_name": model, boards.SIZE: f"{400_000 + 350_000 * place}"}
    tide = {
        boards.USED: f"tide {place}", boards.SLOTS: f"tide {place + 1}", boards.DEMAND: f"tide {place}",
        boards.USEFUL: f"tokens {place}", boards.ENGINES: f"flat {engines}",
    }  # fmt: skip
    yield from ((_named(record, who), course) for record, course in tide.items())
    for at, most in enumerate(boards.LEFTS):
        le = "+Inf" if at == len(boards.LEFTS) - 1 else f"{most:g}"
        yield _named(boards.LEFT, who | {"le": le}), f"left {place} {at}"
    for band, low, _ in boards.bands()[: 6 + place]:
        each = {
            boards.IN_BAND: 1, boards.BAND_TIMED: 1,
            boards.BAND_USEFUL: 2600 * (1 - math.exp(-low / (20 + 10 * place))),
            boards.BAND_TPOT: 0.018 + low * 0.0006, boards.BAND_PREEMPTIONS: max(0, low - 40) * 0.02,
        }  # fmt: skip
        for record, value in each.items():
            yield _named(record, who | {boards.BAND: band}), f"flat {value:g}"


def _boards(model: str, shape: Shape) -> Iterator[tuple[tsdb.Labels, str]]:
    """What is recorded for dashboards once a minute."""
    engines = sum(shape.who(number)["model_name"] == model for number in range(shape.engines))
    place = MODELS.index(model) if model in MODELS else 0
    yield from _pool(model, place, engines)
    for rule in (*boards.models(Config()), *boards.histograms(Config())):
        level, _, name = rule.record.partition(":")
        who = {"model_name": model}
        if level in ("engine", "target", "fleet"):
            continue
        if "_bucket" in name:
            for at, le in enumerate(_bounds(name.partition("_bucket")[0].removeprefix("vllm_vitals_"))):
                yield _named(rule.record, who | {"le": le}), f"slow {at % 8}"
        elif name.startswith("vllm_vitals_responses"):
            for reason in _WORDS["finished_reason"]:
                course = f"tide {place}" if reason == "stop" else "flat 0.04"
                yield _named(rule.record, who | {"finished_reason": reason}), course
        elif rule.record in (boards.LOST, boards.COMPUTED):
            yield _named(rule.record, who), f"flat {40 * (place + 1)}" if rule.record == boards.LOST else "flat 4000"
        else:
            yield _named(rule.record, who), "minutes share" if name.endswith(":max") else "minutes 4"


def _bounds(histogram: str) -> tuple[str, ...]:
    """Bounds of vLLM's own buckets at a context of 128 K, as ``le`` has them."""
    return (*(f"{bound}" for bound in family(histogram).bounds(131_072)), "+Inf")


def _of(metric: Metric, scope: dict[str, str], number: int) -> Iterator[tuple[tsdb.Labels, str]]:
    every = [scope]
    for label in metric.labels:
        if label not in scope:
            every = [one | {label: word} for one in every for word in _WORDS.get(label, ("some",))]
    for labels in every:
        if metric.kind is Kind.HISTOGRAM:
            for at, le in enumerate(_bounds(metric.name)):
                yield _named(metric.full_name + "_bucket", labels | {"le": le}), f"counter {at}"
            yield _named(metric.full_name + "_sum", labels), "counter 5"
            yield _named(metric.full_name + "_count", labels), f"counter {len(_bounds(metric.name)) - 1}"
        else:
            yield _named(metric.full_name, labels), _course_of(metric, labels, number)


def _course_of(metric: Metric, labels: dict[str, str], number: int) -> str:
    if metric.name == "state":
        if number == TROUBLED and labels["state"] in ("healthy", "death_spiral"):
            return "spell" if labels["state"] == "death_spiral" else "no spell"
        return "one" if labels["state"] == "healthy" else "none"
    if metric.kind is Kind.COUNTER:
        return f"counter {number % _LES}"
    if metric.name in ("target_up", "advice", "server_info", "build_info"):
        return "one"
    if metric.name in ("monitor_impaired", "contradictions"):
        return "none"
    if metric.name.endswith("timestamp_seconds"):
        return "long ago"
    if metric.name == "server_setting":
        return "slots"
    return f"{'share' if metric.name.endswith('ratio') else 'count'} {number % 8}"


def _named(name: str, labels: dict[str, str]) -> tsdb.Labels:
    return tuple(sorted((labels | {"__name__": name, "job": "vllm-vitals", "instance": "vitals:9840"}).items()))


def courses(flat: Iterable[str] = ()) -> dict[str, tsdb.Course]:
    """A day of each: as it is scraped, and as it is recorded once a minute; ``flat``: that stand still."""
    each = _day()
    # The last scrape of each day fails.
    steps = tsdb.DAY // STEP
    scraped = {name: [*(values * (steps // len(values)))[:-1], tsdb.STALE] for name, values in each.items()}
    minute = boards.STEP // STEP
    recorded = {f"minutes {which}": each[f"count {which}"][::minute] for which in range(8)}
    recorded |= {"minutes share": each["share 4"][::minute], "worst fine": each["rank fine"]}
    recorded["worst"] = [min(each["rank"][at : at + minute]) for at in range(0, len(each["rank"]), minute)]
    # Samples that are not there cannot be said: what is no trouble is healthy here.
    recorded["in trouble"] = recorded["worst"]
    for place in range(len(MODELS) + 1):
        tide = [share * _HEIGHTS[place % len(_HEIGHTS)] for share in each[f"share {place}"][::minute]]
        recorded |= {f"tide {place}": tide, f"tokens {place}": [9000 * share for share in tide]}
        for at, most in enumerate(boards.LEFTS):
            # Engines differ by a third of the tide's height.
            held = [min(1.0, max(0.0, (share + 0.15 - (1 - most)) / 0.3)) for share in tide]
            recorded[f"left {place} {at}"] = [round(4 * one) for one in held]
    recorded |= {name: [float(name.partition(" ")[2])] * _REPEATED for name in flat}
    slow = {f"slow {which}": each[f"count {which}"][:: boards.SLOW_STEP // STEP] for which in range(8)}
    paces = ((scraped, STEP), (recorded, boards.STEP), (slow, boards.SLOW_STEP))
    return {name: tsdb.Course(values, step) for some, step in paces for name, values in some.items()}


def _day() -> dict[str, list[float]]:
    chance, steps = random.Random(7), tsdb.DAY // STEP
    made: dict[str, list[float]] = {}
    for which in range(8):
        tide = [0.45 + 0.3 * math.sin(2 * math.pi * (i / steps + which / 40)) for i in range(steps)]
        made[f"share {which}"] = [round(min(max(level + chance.gauss(0, 0.05), 0.0), 1.0), 4) for level in tide]
        made[f"count {which}"] = [float(round(64 * share)) for share in made[f"share {which}"]]
    for le in range(_LES):
        value, grown = 0.0, []
        for share in made["share 0"]:
            value += round(share * 10) * (le + 1)
            grown.append(value)
        made[f"counter {le}"] = grown
    spell = [1.0 if SPELL_AT <= i * STEP < SPELL_AT + SPELL_S else 0.0 for i in range(steps)]
    fine = float(State.HEALTHY.rank)
    return made | {
        "spell": spell, "no spell": [1 - one for one in spell], "one": [1.0] * _REPEATED, "none": [0.0] * _REPEATED,
        "rank": [State.DEATH_SPIRAL.rank if one else fine for one in spell], "rank fine": [fine] * _REPEATED,
        "long ago": [END - 30 * 86400.0] * _REPEATED, "slots": [64.0] * _REPEATED,
    }  # fmt: skip


@contextmanager
def running(folder: Path, shape: Shape) -> Iterator[history.Server]:
    """A Prometheus that watched the fleet for so long, until END."""
    chunk = math.lcm(STEP, boards.STEP, boards.SLOW_STEP) * 120
    span = tsdb.Span(END // chunk * chunk - shape.days * tsdb.DAY, END // chunk * chunk)
    every = list(series(shape))
    still = {course for _, course in every if course.startswith("flat ")}
    tsdb.write(folder / "data", span, courses(still), every)
    (folder / "prometheus.yml").write_text("global: {}\n", encoding="utf-8")
    with history.running(folder) as url:
        yield history.Server(url, span.start, span.end - STEP, folder)
