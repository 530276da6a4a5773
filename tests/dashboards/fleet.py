"""A fleet with names as people have them, over days: what Prometheus would hold of it, as one block.

Input: how many engines, how many days. Output: a running Prometheus. Every family of the catalogue is there for every
engine, as the daemon serves it, and every record that dashboards read. Engine 3 has a spell of a death spiral, two
minutes long, each day; the last scrape of each day fails.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
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
_REPEATED = 120  # samples of a course that stays the same
_WORDS = {
    "finished_reason": ("stop", "length", "abort"), "reason": ("capacity", "deferred"), "bound": BOUNDS,
    "source": ("request",), "name": ("max_num_seqs", "max_model_len"), "state": tuple(State),
}  # fmt: skip


def target(number: int) -> str:
    """A server's name."""
    return f"llama-{number:03d}.gpu-pool-a.example.internal:8000"


def series(engines: int) -> Iterator[tuple[tsdb.Labels, str]]:
    """Every series' labels and course."""
    for number in range(engines):
        who = {"target": target(number), "model_name": MODELS[number % len(MODELS)], "engine": "0"}
        for metric in METRICS:
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
    for place, model in enumerate(MODELS[: max(1, min(engines, len(MODELS)))]):
        for state in State:
            course = "spell" if (state, place) == (State.DEATH_SPIRAL, TROUBLED) else "none"
            yield (
                _named(fleet.ENGINES, {"model_name": model, "state": state}),
                "count 2" if state is State.HEALTHY else course,
            )
        yield from _boards(model)
        for record in (slo.GOOD, slo.TOTAL, *(slo.burn(w) for _, *pair, _, _ in slo.WINDOWS for w in pair)):
            yield _named(record, {"model_name": model, "slo": "quick"}), "share 1"


def _boards(model: str) -> Iterator[tuple[tsdb.Labels, str]]:
    """What is recorded for dashboards once a minute."""
    for rule in (*boards.models(Config()), *boards.histograms(Config()), *boards.pools(Config())):
        level, _, name = rule.record.partition(":")
        who = {"model_name": model} | ({boards.SIZE: "1200000"} if level == "pool" else {})
        if level in ("engine", "target", "fleet"):
            continue
        if "_bucket" in name:
            for at, le in enumerate(_bounds(name.partition("_bucket")[0].removeprefix("vllm_vitals_"))):
                yield _named(rule.record, who | {"le": le}), f"slow {at % 8}"
        elif rule.record == boards.LEFT:
            lefts = (*(f"{most:g}" for most in boards.LEFTS[:-1]), "+Inf")
            yield from ((_named(rule.record, who | {"le": le}), f"minutes {at}") for at, le in enumerate(lefts))
        elif level == "pool" and "band" in name:
            for band, _, _ in boards.bands():
                yield _named(rule.record, who | {boards.BAND: band}), "minutes 3"
        elif name.startswith("vllm_vitals_responses"):
            for reason in _WORDS["finished_reason"]:
                yield _named(rule.record, who | {"finished_reason": reason}), "minutes 1"
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


def courses() -> dict[str, tsdb.Course]:
    """A day of each: as it is scraped, and as it is recorded once a minute."""
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
def running(folder: Path, engines: int, days: int) -> Iterator[history.Server]:
    """A Prometheus that watched the fleet for so long, until END."""
    chunk = math.lcm(STEP, boards.STEP, boards.SLOW_STEP) * 120
    span = tsdb.Span(END // chunk * chunk - days * tsdb.DAY, END // chunk * chunk)
    tsdb.write(folder / "data", span, courses(), series(engines))
    (folder / "prometheus.yml").write_text("global: {}\n", encoding="utf-8")
    with history.running(folder) as url:
        yield history.Server(url, span.start, span.end - STEP, folder)
